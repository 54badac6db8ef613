"""The URL of cold storage: a directory or a bucket, opened one way.

Delta's own log and the Parquet files beside it go through the same settings, so what can be committed can be read.
A `Store` travels to other processes with its settings, keys included, and never shows them.

Parquet files in a bucket go through pyarrow's client and not through the one in deltalake: that one keeps Python's lock
while it opens a file, and the whole server would stand still for a round trip.
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

# Without them a bucket that is away is waited for three minutes; any of them can be given as an option.
_PATIENCE: Final = {"max_retries": "5", "retry_timeout": "30s", "connect_timeout": "5s", "timeout": "60s"}
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
_DENIED: Final = ("403 ", "401 ", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "Forbidden")
_DENIED_TOO: Final = ("ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "HTTP status 403")
_NO_KEYS: Final = ("credential provider", "no providers in chain", "169.254.169.254", "not loaded")


class Store:
    """Where cold storage is. `options` are those of deltalake; where they are silent the environment's AWS_* count."""

    def __init__(self, url: str | os.PathLike[str], options: Mapping[str, str] | None = None) -> None:
        self.url, self._root = _normal(os.fspath(url))
        self._options = _options(dict(options or {})) if self._root is None else {}
        self._opened()

    def _opened(self) -> None:
        self._footers: OrderedDict[str, Any] = OrderedDict()
        self._lock = threading.Lock()
        self._files: Any = None
        self.settled: dict[str, int] = {}  # by place: up to which version its commits were made durable

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.url, "_root": self._root, "_options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._opened()

    def __repr__(self) -> str:
        return f"Store({self.url!r})"

    @property
    def local(self) -> Path | None:
        """The directory, if it is one of this machine."""
        return None if self._root is None else Path(self._root)

    @property
    def storage_options(self) -> dict[str, str]:
        """What deltalake is given. It has keys in it: not to be logged."""
        return dict(self._options)

    def uri(self, place: str) -> str:
        """Where a place is, for deltalake and for people: a path, or an s3:// URL."""
        return f"{self.url if self._root is None else self._root}/{place}"

    def delta(self, place: str) -> DeltaTable | None:
        """The Delta table as it is now; None where there is none yet."""
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        if self._root is not None and not Path(self.uri(place), "_delta_log").is_dir():
            return None
        with self.told(place):
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
        """A Parquet file, ready to read; pages are checked against their sums. Footers read lately are kept."""
        name = f"{place}/{path}"
        with self._lock:
            footer = self._footers.get(name)
            if footer is not None:
                self._footers.move_to_end(name)
        source = self.filesystem().open_input_file(name)
        # What a row group needs is asked for in few large pieces: over a network, each costs a round trip.
        file = pq.ParquetFile(source, metadata=footer, page_checksum_verification=True, pre_buffer=self._root is None)
        if footer is None:
            with self._lock:
                self._footers[name] = file.metadata
                while len(self._footers) > limits.COLD_FOOTERS:
                    self._footers.popitem(last=False)
        return file

    def forget_footer(self, place: str, path: str) -> None:
        """The file was found to be damaged or gone."""
        with self._lock:
            self._footers.pop(f"{place}/{path}", None)

    def create(self, place: str, path: str) -> Output:
        """A new file, written from its beginning to its end; durable once closed."""
        name = f"{place}/{path}"
        with self.told(place):
            if self._root is not None:
                return _LocalOutput(Path(self._root), name)
            return _RemoteOutput(self.filesystem(), name)

    @contextmanager
    def told(self, place: str) -> Iterator[None]:
        """What goes wrong with the store itself, as one of our errors: which URL, and what to do."""
        from deltalake.exceptions import DeltaError

        try:
            yield
        except Error:
            raise
        except (OSError, DeltaError) as error:
            raise self.error(place, error) from error

    def error(self, place: str, error: BaseException) -> Error:
        """That error in our words."""
        said = plain(error)
        where = self.uri(place)
        if isinstance(error, NotADirectoryError | FileExistsError):
            return Invalid(f"cold storage at {where} needs a directory, and there is a file: {said}")
        if isinstance(error, PermissionError) or (self._root is not None and "ermission denied" in said):
            return Unavailable(
                f"cold storage at {where} may not be read or written by this user; change its owner or permissions, "
                f"or set another URL: {said}",
                code="COLD_STORAGE_DENIED",
            )
        if self._root is not None:
            return Unavailable(f"cold storage at {where} failed: {said}", code="COLD_STORAGE_FAILED")
        bucket = urlsplit(self.url).netloc
        if "NoSuchBucket" in said or "NO_SUCH_BUCKET" in said:
            return Unavailable(
                f"cold storage at {where}: there is no bucket {bucket!r}; create it, or set another URL",
                code="COLD_STORAGE_MISSING",
            )
        if any(word in said for word in _NO_KEYS):
            return Unavailable(
                f"cold storage at {where}: no keys were found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
                code="COLD_STORAGE_DENIED",
            )
        if any(word in said for word in _DENIED + _DENIED_TOO):
            return Unavailable(
                f"cold storage at {where}: the keys may not do this; allow them to list, get, put and delete objects "
                f"of the bucket {bucket!r}, or set others in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY: {said}",
                code="COLD_STORAGE_DENIED",
            )
        return Unavailable(
            f"cold storage at {where} does not answer as it should; look at AWS_ENDPOINT_URL, AWS_REGION and the "
            f"network, and try again: {said}",
            code="COLD_STORAGE_FAILED",
        )


class Output:
    """A file being written, as pyarrow wants it."""

    closed = False
    dropped = False  # nobody wants it: what is written goes nowhere
    size = 0

    def write(self, data: Any) -> int:
        raise NotImplementedError

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        """Nothing is promised before `close`."""

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        """Make it durable."""

    def abandon(self) -> None:
        """Nobody will want it."""


class _LocalOutput(Output):
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


class _RemoteOutput(Output):
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
        """An upload can only be completed; then it is removed. If that fails too, `vacuum` finds it."""
        self.closed = True
        try:
            self._stream.close()
            self._files.delete_file(self._name)
        except OSError:
            pass


def sync_directory(folder: Path) -> None:
    """Names in a directory are durable only once the directory is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def plain(error: BaseException) -> str:
    """What a library said, on one line and without colours."""
    said = " ".join(_COLOURS.sub("", str(error)).replace("↳", " ").split())
    return said if len(said) <= 600 else said[:600] + " …"


def _normal(url: str) -> tuple[str, str | None]:
    """The URL in its one form, and the directory if it is local."""
    if not url:
        raise Invalid("the URL of cold storage is empty; give a directory, file:///... or s3://bucket/prefix")
    if "://" not in url:
        return _local(url, url)
    parts = urlsplit(url)
    rest = url.partition("://")[2]
    # A secret may have slashes in it, and then no parser of URLs takes it for one.
    if "@" in parts.netloc or (parts.scheme != "file" and ("@" in rest or ":" in rest.partition("/")[0])):
        raise Invalid(
            f"keys do not belong into the URL of cold storage ({parts.scheme}://…@…); "
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise Invalid(f"{url!r} names another machine; a local directory is file:///path, with three slashes")
        return _local(unquote(parts.path), url)
    if parts.scheme in ("s3", "s3a"):
        if not parts.netloc or parts.query or parts.fragment:
            raise Invalid(f"{url!r} is no URL of a bucket; write s3://bucket/prefix, settings go into AWS_*")
        if "%" in parts.path:
            raise Invalid(f"{url!r} has a percent sign in its prefix, which Delta reads as an escape; choose another")
        prefix = "/".join(piece for piece in parts.path.split("/") if piece)
        return f"s3://{parts.netloc}/{prefix}".rstrip("/"), None
    raise Invalid(f"cold storage does not know {parts.scheme}:// ({url!r}); give a directory, file:///... or s3://...")


def _local(path: str, url: str) -> tuple[str, str]:
    if "%" in path:
        raise Invalid(
            f"{url!r} has a percent sign in its path, which Delta reads as an escape; choose another directory"
        )
    root = os.path.normpath(Path(path).expanduser().absolute())
    return Path(root).as_uri(), root


def _options(given: dict[str, str]) -> dict[str, str]:
    """Given options over the environment's over ours. Names are compared without case, as deltalake does."""
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
    """The same settings as pyarrow names them. Keys that are not given are looked for where AWS does."""
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
    raise Invalid(f"{text!r} is no duration for an option of cold storage; write 500ms, 30s or 2m")


def schema_equal(one: pa.Schema, other: pa.Schema) -> bool:
    """Whether columns have the same names and types, in order."""
    return bool(one.names == other.names and one.types == other.types)
