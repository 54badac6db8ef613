"""The manifest of a generation: its files and their chunks.

The first line of the manifest is the hash of the rest, so that damage and truncation are detected.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final

import msgspec
import pyarrow as pa

from tailrace import limits
from tailrace.errors import Corrupt, Invalid

FORMAT: Final = 1
DATABASE: Final = "database/tailrace.db"
COLD: Final = "cold/"  # the prefix of files in cold storage
KEY: Final = "keys/secret.key"
_NAME: Final = re.compile(r"[^/\x00]+(?:/[^/\x00]+)*")
_HASH: Final = re.compile(r"[0-9a-f]{64}")
_RAW: Final = b"\x00"
_ZSTD: Final = b"\x01"


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """A part of a file: the hash of its content, and the size of the object."""

    hash: str
    stored: int

    @property
    def object(self) -> str:
        return object_name(self.hash)


class BackupFile(msgspec.Struct, frozen=True):
    """A file in chunks of one size; the last one may be smaller."""

    path: str
    size: int
    hash: str
    chunk_bytes: int
    chunks: tuple[Chunk, ...]


class BackupTable(msgspec.Struct, frozen=True):
    """A Delta table in cold storage, and its version in the backup."""

    name: str
    version: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One generation of a backup."""

    format: int = FORMAT
    id: str
    made_ms: int
    tailrace: str  # the version of the program
    engine: str  # of the database
    schema: int  # the version of its tables
    identity: str | None
    cold_url: str | None  # where its cold storage was
    places: tuple[BackupTable, ...] = ()
    files: tuple[BackupFile, ...] = ()
    written_bytes: int = 0  # what was stored for this generation

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def cold_files(self) -> int:
        return sum(file.path.startswith(COLD) for file in self.files)

    def chunks(self) -> dict[str, int]:
        """Hash and stored size of all chunks."""
        return {chunk.hash: chunk.stored for file in self.files for chunk in file.chunks}


def manifest_name(generation: str) -> str:
    return f"generations/{generation}.json"


def object_name(digest: str) -> str:
    return f"objects/{digest[:2]}/{digest}"


def digest(data: bytes) -> str:
    return blake2b(data, digest_size=32).hexdigest()


def encode(manifest: Manifest) -> bytes:
    body = msgspec.json.encode(manifest)
    return digest(body).encode() + b"\n" + body


def decode(data: bytes, where: str) -> Manifest:
    """Read a manifest; raises `Corrupt` if it is damaged or truncated."""
    line, _, body = data.partition(b"\n")
    if len(data) > limits.BACKUP_MANIFEST_BYTES_MAX or line.decode("ascii", "replace") != digest(body):
        raise Corrupt(f"the backup's list of files {where} is damaged; restore another generation")
    try:
        version = msgspec.json.decode(body).get("format")
        if version != FORMAT:
            raise Invalid(f"{where} has format {version}, this Tailrace supports {FORMAT}; upgrade to restore it")
        manifest = msgspec.json.decode(body, type=Manifest)
    except (msgspec.MsgspecError, AttributeError) as error:
        raise Corrupt(f"the backup's list of files {where} cannot be read: {error}") from error
    for file in manifest.files:
        _check_file(file, where)
    return manifest


def _check_file(file: BackupFile, where: str) -> None:
    """Raise for paths outside a database: write access to the target must not give write access elsewhere."""
    parts = file.path.split("/")
    outside = ".." in parts or "." in parts or not _NAME.fullmatch(file.path)
    if outside or not (file.path in (DATABASE, KEY) or file.path.startswith(COLD)):
        raise Corrupt(f"{where} names the file {file.path[:200]!r}, which no database has")
    count = -(-file.size // file.chunk_bytes) if file.chunk_bytes > 0 else -1
    if file.size < 0 or count != len(file.chunks) or file.chunk_bytes > limits.BACKUP_COLD_CHUNK_BYTES:
        raise Corrupt(f"{where}: {file.path!r} of {file.size} bytes has {len(file.chunks)} chunks")
    if not all(_HASH.fullmatch(chunk.hash) for chunk in file.chunks):
        raise Corrupt(f"{where}: {file.path!r} has a chunk whose name is not a hash")


def pack(data: bytes) -> bytes:
    """The stored form of a chunk: compressed, if that makes it smaller."""
    packed = pa.compress(data, codec="zstd", asbytes=True)
    return _ZSTD + packed if len(packed) < len(data) else _RAW + data


def unpack(stored: bytes, size: int) -> bytes | None:
    """The content of a stored chunk; None if it does not have that size."""
    kind, body = stored[:1], stored[1:]
    if kind == _RAW:
        return body if len(body) == size else None
    if kind != _ZSTD:
        return None
    try:
        data: bytes = pa.decompress(body, decompressed_size=size, codec="zstd", asbytes=True)
    except (OSError, pa.ArrowException, ValueError):
        return None
    return data
