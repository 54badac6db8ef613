"""The buckets of exports and imports: those that the configuration names, each a directory or a prefix of an S3 bucket.

A key never leaves its bucket. In a directory it is followed one name at a time, from one open directory to the next:
`..`, absolute keys and symbolic links are refused, also where a link appears between a check and its use.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, Any, Final, Protocol

from tailrace import extras, limits
from tailrace.errors import Error, Invalid

_PARTIAL: Final = ".partial-"
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class BucketError(Exception):
    """A bucket cannot be used: the code and message of a failed export or import."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Bucket(Protocol):
    """Objects by their keys. Every method raises `BucketError`."""

    def write(self, key: str, data: bytes) -> None:
        """Write an object atomically; it is durable afterwards."""

    def keys(self, prefix: str) -> list[str]:
        """The keys with a prefix, in order."""

    def open(self, key: str) -> IO[bytes]:
        """An object, open for reading."""


class Buckets:
    """The configured buckets, by name: URLs of directories, or `s3://bucket/prefix`."""

    def __init__(self, urls: Mapping[str, str] | None = None, options: Mapping[str, str] | None = None) -> None:
        self._urls = dict(urls or {})
        self._options = dict(options or {})  # may contain keys: never logged

    def check(self, name: str) -> None:
        """Raise `Invalid` unless the bucket is configured."""
        if name not in self._urls:
            raise Invalid(
                f"there is no bucket {name!r} on this server: set it to a directory or to s3://bucket/prefix "
                f"in [transfers.buckets] of its configuration"
            )

    def find(self, name: str) -> Bucket:
        """Open a bucket."""
        url = self._urls.get(name)
        if url is None:
            raise BucketError("S3NoSuchBucket", f"the bucket {name!r} is not in [transfers.buckets]")
        if url.startswith(("s3://", "s3a://")):
            return _ObjectBucket(url, self._options)
        return DirectoryBucket(url.removeprefix("file://"))


def checked_key(key: str) -> list[str]:
    """The names that a key consists of; raises `Invalid` for one that could leave its bucket."""
    names = key.split("/")
    if any(name in ("", ".", "..") or "\0" in name for name in names):
        raise Invalid(f"{key[:200]!r} is not a key here: its parts must not be empty, '.' or '..'")
    return names


def checked_prefix(prefix: str) -> None:
    """Raise `Invalid` for a prefix of keys that could leave their bucket."""
    folder, _, last = prefix.rpartition("/")
    if folder or prefix.startswith("/"):
        checked_key(folder)
    if last in (".", "..") or "\0" in last:
        raise Invalid(f"{prefix[:200]!r} is not a prefix of keys here: its parts must not be '.' or '..'")


# -- directories


class DirectoryBucket:
    """A directory that plays a bucket. The directory itself may be reached through links; nothing below it may."""

    def __init__(self, root: str) -> None:
        self._root = os.path.abspath(os.path.expanduser(root))

    def write(self, key: str, data: bytes) -> None:
        *folders, name = self._names(key)
        temporary = f"{_PARTIAL}{secrets.token_hex(8)}"
        try:
            folder = self._enter(folders, create=True)
            try:
                handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
                try:
                    with os.fdopen(handle, "wb") as file:
                        file.write(data)
                        file.flush()
                        os.fsync(file.fileno())
                    os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
                except BaseException:
                    with suppress(OSError):
                        os.unlink(temporary, dir_fd=folder)
                    raise
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise self._error(key, error) from error

    def keys(self, prefix: str) -> list[str]:
        checked = prefix.rpartition("/")[0]
        folders = self._names(checked) if checked else []
        found: list[str] = []
        try:
            start = self._enter(folders, create=False)
        except FileNotFoundError:
            if not os.path.isdir(self._root):
                raise BucketError("S3NoSuchBucket", f"the directory {self._root!r} does not exist") from None
            return []
        except OSError as error:
            raise self._error(prefix, error) from error
        try:
            for where, _, names, handle in os.fwalk(".", dir_fd=start, follow_symlinks=False):
                below = [] if where == "." else where.split("/")[1:]
                for name in names:
                    key = "/".join((*folders, *below, name))
                    if name.startswith(_PARTIAL) or not key.startswith(prefix):
                        continue
                    with suppress(FileNotFoundError):
                        if stat.S_ISREG(os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode):
                            found.append(key)
                    if len(found) > limits.IMPORT_FILES_MAX:
                        raise _too_many(prefix)
        except OSError as error:
            raise self._error(prefix, error) from error
        finally:
            os.close(start)
        return sorted(found)

    def open(self, key: str) -> IO[bytes]:
        *folders, name = self._names(key)
        try:
            folder = self._enter(folders, create=False)
            try:
                # Not blocking: a pipe would wait for its writer.
                handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            finally:
                os.close(folder)
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                os.close(handle)
                raise BucketError("S3NoSuchKey", f"{key!r} is not a file")
            return os.fdopen(handle, "rb")
        except OSError as error:
            raise self._error(key, error) from error

    def _names(self, key: str) -> list[str]:
        try:
            return checked_key(key)
        except Invalid as error:
            raise BucketError("S3NoSuchKey", str(error)) from error

    def _enter(self, folders: list[str], *, create: bool) -> int:
        """Open a directory below the root, one name at a time and never through a link; the caller closes it."""
        here = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for name in folders:
            try:
                if create:
                    with suppress(FileExistsError):
                        os.mkdir(name, 0o700, dir_fd=here)
                        os.fsync(here)
                there = os.open(name, _DIRECTORY, dir_fd=here)
            finally:
                os.close(here)
            here = there
        return here

    def _error(self, key: str, error: OSError) -> BucketError:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            return BucketError("S3AccessDenied", f"{key!r} leads through a link or a file, which is not followed")
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return BucketError("S3AccessDenied", f"{key!r}: {error.strerror}")
        if error.errno == errno.ENOENT:
            if not os.path.isdir(self._root):
                return BucketError("S3NoSuchBucket", f"the directory {self._root!r} does not exist")
            return BucketError("S3NoSuchKey", f"there is no object {key!r}")
        return BucketError("S3Error", f"{key!r}: {error.strerror or error}")


# -- object storage


class _ObjectBucket:
    """A prefix of a bucket in S3, by the same client as cold storage."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        extras.require("cold")
        from tailrace.cold.store import Store

        try:
            self._store = Store(url, options)
            self._files: Any = self._store.filesystem()
        except (OSError, Error) as error:
            raise BucketError("S3Error", str(error)) from error

    def write(self, key: str, data: bytes) -> None:
        self._checked(key)
        try:
            with self._files.open_output_stream(key, compression=None) as stream:
                stream.write(data)
        except OSError as error:
            raise self._error(error) from error

    def keys(self, prefix: str) -> list[str]:
        import pyarrow.fs

        folder = prefix.rpartition("/")[0]
        if folder:
            self._checked(folder)
        selector = pyarrow.fs.FileSelector(folder, recursive=True, allow_not_found=False)
        try:
            found = [info.path for info in self._files.get_file_info(selector) if info.is_file]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._error(error) from error
        if len(found) > limits.IMPORT_FILES_MAX:
            raise _too_many(prefix)
        return sorted(key for key in found if key.startswith(prefix))

    def open(self, key: str) -> IO[bytes]:
        self._checked(key)
        try:
            stream: IO[bytes] = self._files.open_input_stream(key, compression=None)
            return stream
        except OSError as error:
            raise self._error(error) from error

    def _checked(self, key: str) -> None:
        try:
            checked_key(key)
        except Invalid as error:
            raise BucketError("S3NoSuchKey", str(error)) from error

    def _error(self, error: OSError) -> BucketError:
        made = self._store.error("", error)
        text = str(made).removeprefix("cold storage at ")
        if made.code == "COLD_STORAGE_MISSING":
            return BucketError("S3NoSuchBucket", text)
        if made.code == "COLD_STORAGE_DENIED":
            return BucketError("S3AccessDenied", text)
        return BucketError("S3NoSuchKey" if isinstance(error, FileNotFoundError) else "S3Error", text)


def _too_many(prefix: str) -> BucketError:
    return BucketError(
        "TooManyObjects",
        f"more than {limits.IMPORT_FILES_MAX} objects have the prefix {prefix!r}; import them in parts",
    )
