"""Checks that every secret of a database can be decrypted."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.auth.access_key import ACCESS_KEYS
from tailrace.errors import Corrupt
from tailrace.storage.engine import Reader
from tailrace.storage.vault import SEALED, LockedVault, access_key_label, read_secret


def check_secrets(reader: Reader) -> Iterator[str]:
    """Findings about the secrets. Nothing can be checked without the key."""
    if isinstance(reader.vault, LockedVault):
        return
    for name in SEALED:
        try:
            read_secret(reader, name)
        except Corrupt as error:
            yield str(error)
    for key in reader.scan(ACCESS_KEYS):
        try:
            reader.vault.open_text(access_key_label(key.id), key.secret)
        except Corrupt as error:
            yield str(error)
