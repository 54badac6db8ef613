"""The URL of cold storage: a directory or a bucket, opened the same way.

Delta's log and the Parquet files beside it use the same settings, so data that can be committed can be read. A `Store`
is sent to other processes with its settings, keys included, and never shows them.

Parquet files in a bucket are read by pyarrow's client and not by deltalake's: the latter holds Python's lock while it
opens a file, and the whole server would stall for a round trip.
"""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from tailrace import limits
from tailrace.errors import Error, Invalid, Unavailable
from tailrace.storage.modes import make_directory, open_private

if TYPE_CHECKING:
    from deltalake import DeltaTable

# The defaults would wait three minutes for an unreachable bucket; each can be set as an option.
_PATIENCE: Final = {"max_retries": "5", "retry_timeout": "30s", "connect_timeout": "5s", "timeout": "60s"}
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
_DENIED: Final = ("403 ", "401 ", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "Forbidden")
_DENIED_TOO: Final = ("ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "HTTP status 403")
_NO_KEYS: Final = ("credential provider", "no providers in chain", "169.254.169.254", "not loaded")


class Store:
    """Access to cold storage. `options` are those of deltalake, with AWS_* of the environment as defaults."""

    def __init__(self, url: str | os.PathLike[str], options: Mapping[str, str] | None = None) -> None:
        self.url, self._root = _normal(os.fspath(url))
        self._options = _options(dict(options or {})) if self._root is None else {}
        self._opened()

    def _opened(self) -> None:
        self._footers: OrderedDict[str, Any] = OrderedDict()
        self._lock = threading.Lock()
        self._files: Any = None
        self.settled: dict[str, int] = {}  # by place: the version up to which commits are durable

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.url, "_root": self._root, "_options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._opened()

    def __repr__(self) -> str:
        return f"Store({self.url!r})"

    @property
    def local(self) -> Path | None:
        """The directory, if it is local."""
        return None if self._root is None else Path(self._root)

    @property
    def storage_options(self) -> dict[str, str]:
        """The options for deltalake. They contain keys: not to be logged."""
        return dict(self._options)

    def uri(self, place: str) -> str:
        """The path or s3:// URL of a Delta table."""
        return f"{self.url if self._root is None else self._root}/{place}"

    def delta(self, place: str) -> DeltaTable | None:
        """The current Delta table; None if it does not exist yet."""
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        if self._root is not None and not Path(self.uri(place), "_delta_log").is_dir():
            return None
        with self.wrap_errors(place):
            try:
                return DeltaTable(self.uri(place), storage_options=self.storage_options or None)
            except TableNotFoundError:
                return None

    def filesystem(self) -> Any:
        """A pyarrow filesystem rooted at the store: `tables/orders/<file>` and so on."""
        if self._files is None:
            if self._root is not None:
                local = pyarrow.fs.LocalFileSystem()
                self._files = pyarrow.fs.SubTreeFileSystem(self._root, local)
            else:
                bucket = pyarrow.fs.S3FileSystem(**_client(self._options))
                self._files = pyarrow.fs.SubTreeFileSystem(self.url.removeprefix("s3://"), bucket)
        return self._files

    def opened(self, place: str, path: str) -> pq.ParquetFile:
        """A Parquet file, open for reading; pages are checked against their checksums. Recent footers are cached."""
        name = f"{place}/{path}"
        with self._lock:
            footer = self._footers.get(name)
            if footer is not None:
                self._footers.move_to_end(name)
        source = self.filesystem().open_input_file(name)
        # A row group is read in few large requests: over a network, each costs a round trip.
        file = pq.ParquetFile(source, metadata=footer, page_checksum_verification=True, pre_buffer=self._root is None)
        if footer is None:
            with self._lock:
                self._footers[name] = file.metadata
                while len(self._footers) > limits.COLD_FOOTERS:
                    self._footers.popitem(last=False)
        return file

    def forget_footer(self, place: str, path: str) -> None:
        """Remove a file that is damaged or gone from the cache of footers."""
        with self._lock:
            self._footers.pop(f"{place}/{path}", None)

    def create(self, place: str, path: str) -> ColdOutput:
        """A new file, written sequentially; durable once closed."""
        name = f"{place}/{path}"
        with self.wrap_errors(place):
            if self._root is not None:
                return _LocalColdOutput(Path(self._root), name)
            return _RemoteColdOutput(self.filesystem(), name)

    @contextmanager
    def wrap_errors(self, place: str) -> Iterator[None]:
        """Convert errors of the store to `Error`, with the URL and the fix."""
        from deltalake.exceptions import DeltaError

        try:
            yield
        except Error:
            raise
        except (OSError, DeltaError) as error:
            raise self.error(place, error) from error

    def error(self, place: str, error: BaseException) -> Error:
        """The error of a library as an `Error`."""
        message = plain(error)
        where = self.uri(place)
        if isinstance(error, NotADirectoryError | FileExistsError):
            return Invalid(f"cold storage at {where} needs a directory, and there is a file: {message}")
        if isinstance(error, PermissionError) or (self._root is not None and "ermission denied" in message):
            return Unavailable(
                f"cold storage at {where} cannot be read or written by this user; change its owner or permissions, "
                f"or set another URL: {message}",
                code="COLD_STORAGE_DENIED",
            )
        if self._root is not None:
            return Unavailable(f"cold storage at {where} failed: {message}", code="COLD_STORAGE_FAILED")
        bucket = urlsplit(self.url).netloc
        if "NoSuchBucket" in message or "NO_SUCH_BUCKET" in message:
            return Unavailable(
                f"cold storage at {where}: there is no bucket {bucket!r}; create it, or set another URL",
                code="COLD_STORAGE_MISSING",
            )
        if any(word in message for word in _NO_KEYS):
            return Unavailable(
                f"cold storage at {where}: no keys were found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
                code="COLD_STORAGE_DENIED",
            )
        if any(word in message for word in _DENIED + _DENIED_TOO):
            return Unavailable(
                f"cold storage at {where}: the keys lack permissions; allow them to list, get, put and delete objects "
                f"of the bucket {bucket!r}, or set others in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY: {message}",
                code="COLD_STORAGE_DENIED",
            )
        return Unavailable(
            f"cold storage at {where} cannot be used; check AWS_ENDPOINT_URL, AWS_REGION and the "
            f"network, and try again: {message}",
            code="COLD_STORAGE_FAILED",
        )


class ColdOutput:
    """A file being written, with the interface that pyarrow expects."""

    closed = False
    dropped = False  # abandoned: further writes are discarded
    size = 0

    def write(self, data: Any) -> int:
        raise NotImplementedError

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        """Nothing is durable before `close`."""

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        """Make it durable."""

    def abandon(self) -> None:
        """Discard the file."""


class _LocalColdOutput(ColdOutput):
    def __init__(self, root: Path, name: str) -> None:
        self._path = root / name
        made = [folder for folder in (self._path.parent, *self._path.parent.parents) if not folder.exists()]
        make_directory(self._path.parent)
        for folder in made:
            sync_directory(folder.parent)
        self._file = open_private(self._path, "xb")

    def write(self, data: Any) -> int:
        view = memoryview(data)
        if not self.dropped:
            self._file.write(view)
        self.size += view.nbytes
        return view.nbytes

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        with self._file:
            self._file.flush()
            os.fsync(self._file.fileno())
        sync_directory(self._path.parent)

    def abandon(self) -> None:
        self.closed = True
        self._file.close()
        self._path.unlink(missing_ok=True)


class _RemoteColdOutput(ColdOutput):
    def __init__(self, files: Any, name: str) -> None:
        self._files, self._name = files, name
        self._stream = files.open_output_stream(name)

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        if not self.dropped:
            self._stream.write(data)
        self.size += size
        return size

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._stream.close()

    def abandon(self) -> None:
        """An upload can only be completed; then the file is deleted. If that fails too, `vacuum` deletes it."""
        self.closed = True
        try:
            self._stream.close()
            self._files.delete_file(self._name)
        except OSError:
            pass


def sync_directory(folder: Path) -> None:
    """Make the names in a directory durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def plain(error: BaseException) -> str:
    """The message of a library, on one line and without colours."""
    message = " ".join(_COLOURS.sub("", str(error)).replace("↳", " ").split())
    return message if len(message) <= 600 else message[:600] + " …"


def _normal(url: str) -> tuple[str, str | None]:
    """The normalized URL, and the directory if it is local."""
    if not url:
        raise Invalid("the URL of cold storage is empty; give a directory, file:///... or s3://bucket/prefix")
    if "://" not in url:
        return _local(url, url)
    parts = urlsplit(url)
    rest = url.partition("://")[2]
    # A secret may contain slashes, which URL parsers do not recognize as part of the credentials.
    if "@" in parts.netloc or (parts.scheme != "file" and ("@" in rest or ":" in rest.partition("/")[0])):
        raise Invalid(
            f"the URL of cold storage must not contain keys ({parts.scheme}://…@…); "
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise Invalid(f"{url!r} names another host; a local directory is file:///path, with three slashes")
        return _local(unquote(parts.path), url)
    if parts.scheme in ("s3", "s3a"):
        if not parts.netloc or parts.query or parts.fragment:
            raise Invalid(f"{url!r} is not a URL of a bucket; write s3://bucket/prefix, and set options in AWS_*")
        if "%" in parts.path:
            raise Invalid(f"{url!r} has a percent sign in its prefix, which Delta reads as an escape; choose another")
        prefix = "/".join(piece for piece in parts.path.split("/") if piece)
        return f"s3://{parts.netloc}/{prefix}".rstrip("/"), None
    raise Invalid(
        f"cold storage does not support {parts.scheme}:// ({url!r}); give a directory, file:///... or s3://..."
    )


def _local(path: str, url: str) -> tuple[str, str]:
    if "%" in path:
        raise Invalid(
            f"{url!r} has a percent sign in its path, which Delta reads as an escape; choose another directory"
        )
    root = os.path.normpath(Path(path).expanduser().absolute())
    return Path(root).as_uri(), root


def _options(given: dict[str, str]) -> dict[str, str]:
    """The options, then those of the environment, then the defaults. Names are compared without case, as in
    deltalake."""
    named = {name.lower() for name in given}
    merged = dict(given)
    for name, value in os.environ.items():
        if name.startswith("AWS_") and value and name.lower() not in named:
            merged[name] = value
    known = {name.lower().removeprefix("aws_"): value for name, value in merged.items()}
    if "region" not in known and "default_region" not in known:
        merged["AWS_REGION"] = "us-east-1"
    if "allow_http" not in known and known.get("endpoint_url", known.get("endpoint", "")).startswith("http://"):
        merged["AWS_ALLOW_HTTP"] = "true"
    if "conditional_put" not in known:
        merged["aws_conditional_put"] = "etag"  # two commits of one version: one is refused
    for name, value in _PATIENCE.items():
        merged.setdefault(name, value)
    return merged


def _client(options: Mapping[str, str]) -> dict[str, Any]:
    """The same settings under pyarrow's names. Without keys, the default chain of AWS is used."""
    known = {name.lower().removeprefix("aws_"): value for name, value in options.items()}
    settings: dict[str, Any] = {
        "region": known.get("region") or known.get("default_region"),
        "connect_timeout": _seconds(known["connect_timeout"]),
        "request_timeout": _seconds(known["timeout"]),
        "retry_strategy": pyarrow.fs.AwsStandardS3RetryStrategy(max_attempts=int(known["max_retries"]) + 1),
    }
    if known.get("skip_signature", "").lower() in ("true", "1"):
        settings["anonymous"] = True
    elif "access_key_id" in known and "secret_access_key" in known:
        settings["access_key"] = known["access_key_id"]
        settings["secret_key"] = known["secret_access_key"]
        settings["session_token"] = known.get("session_token") or known.get("token")
    endpoint = known.get("endpoint_url_s3") or known.get("endpoint_url") or known.get("endpoint")
    if endpoint:
        scheme, _, rest = endpoint.rpartition("://")
        settings["scheme"] = scheme or "https"
        settings["endpoint_override"] = rest.rstrip("/")
        virtual = known.get("virtual_hosted_style_request", "")
        settings["force_virtual_addressing"] = virtual.lower() in ("true", "1")
    return settings


def _seconds(text: str) -> float:
    """A duration as deltalake takes it: 500ms, 30s, 2m."""
    for unit, factor in (("ms", 0.001), ("s", 1.0), ("m", 60.0)):
        number = text.strip().removesuffix(unit)
        if number != text.strip() and number.replace(".", "", 1).isdigit():
            return float(number) * factor
    raise Invalid(f"{text!r} is not a duration for an option of cold storage; write 500ms, 30s or 2m")


def schema_equal(one: pa.Schema, other: pa.Schema) -> bool:
    """Whether columns have the same names and types, in order."""
    return bool(one.names == other.names and one.types == other.types)
