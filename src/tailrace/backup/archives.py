"""A backup in one file: a tar archive of a target with one generation."""

from __future__ import annotations

import os
import re
import secrets
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow as pa

from tailrace.backup.targets import make_folder, sync, translated_disk_errors, write_file
from tailrace.errors import Corrupt, Invalid, NotFound

SUFFIXES: Final = {".tar": None, ".tar.gz": "gzip", ".tgz": "gzip", ".tar.zst": "zstd"}
_MEMBER: Final = re.compile(r"(?:generations/[0-9A-Za-z-]+\.json|objects/[0-9a-f]{2}/[0-9a-f]{64})")


def is_archive(url: str | os.PathLike[str]) -> bool:
    """Whether that is the name of an archive, and not of a directory."""
    text = os.fspath(url)
    return "://" not in text and text.endswith(tuple(SUFFIXES)) and not Path(text).is_dir()


def must_be_new(path: Path) -> None:
    if path.exists():
        raise Invalid(f"{str(path)!r} exists already; name another file, or a directory for several backups")


def pack_archive(folder: Path, path: Path) -> None:
    """Write the contents of a folder into a new archive, atomically."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with translated_disk_errors(str(path)):
            os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            with (
                pa.output_stream(str(temporary), compression=_codec(path)) as stream,
                tarfile.open(fileobj=stream, mode="w|") as archive,
            ):
                for each in sorted(each for each in folder.rglob("*") if each.is_file()):
                    name = str(each.relative_to(folder))
                    if _MEMBER.fullmatch(name):
                        archive.add(each, name)
            sync(temporary)
            must_be_new(path)
            os.rename(temporary, path)
            sync(path.absolute().parent)
    finally:
        with suppress(OSError):
            temporary.unlink()


def unpack_archive(path: Path, folder: Path) -> None:
    """Write the contents of an archive into a folder. Raises `Corrupt` if it is damaged or truncated."""
    if not path.is_file():
        raise NotFound(f"there is no archive {str(path)!r}")
    damaged = Corrupt(f"the archive {str(path)!r} is damaged or truncated; restore another backup")
    try:
        with (
            pa.input_stream(str(path), compression=_codec(path)) as stream,
            tarfile.open(fileobj=stream, mode="r|") as archive,
        ):
            for member in archive:
                if not member.isreg() or not _MEMBER.fullmatch(member.name):
                    raise Corrupt(f"the archive {str(path)!r} contains {member.name[:200]!r}: Tailrace did not make it")
                content = archive.extractfile(member)
                assert content is not None
                data = content.read()
                target = folder / member.name
                with translated_disk_errors(str(folder)):
                    make_folder(target.parent)
                    write_file(target, data)
    except (tarfile.TarError, EOFError, OSError, pa.ArrowException) as error:
        raise damaged from error


def _codec(path: Path) -> str | None:
    return next(codec for suffix, codec in SUFFIXES.items() if path.name.endswith(suffix))
