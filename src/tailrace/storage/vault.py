"""Encryption of the secrets that the server must be able to read: access-key secrets, signing keys.

The cipher is AES-256-GCM; the associated data names the row, so that a value cannot be moved to another one. The key is
not in the database: it comes from the environment (TAILRACE_SECRET_KEY) or from the file secret.key beside the
database, which is created when it is first needed. A row of META is encrypted with it too, so that a wrong key is
noticed when the database is opened.

Rotation may be killed at any point: the next key is written to secret.key.new and synced, the rows are re-encrypted in
one transaction, and then the file is renamed. Opening a database tries both files, and completes or reverts the rest.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tailrace.errors import Corrupt, Invalid
from tailrace.storage.modes import write_private
from tailrace.storage.presence import sync_directory
from tailrace.storage.table import META, MetaRow

ENVIRONMENT: Final = "TAILRACE_SECRET_KEY"
PREVIOUS: Final = "TAILRACE_SECRET_KEY_OLD"  # the present key during rotation, if it is not in a file
FILE: Final = "secret.key"
NEXT: Final = "secret.key.new"
KEY_BYTES: Final = 32
CHECK: Final = "secret-check"  # in META
SEALED: Final = ("token-key", "iterator-secret", "subscription-secret", "webhook-signing-keys")  # likewise

_VERSION: Final = b"\x01"
_NONCE_BYTES: Final = 12
_CACHE_MAX: Final = 2_048
_MAKE_ONE: Final = "make one with: openssl rand -base64 32"

Execute = Callable[..., Any]


class Vault:
    """Encrypts and decrypts under one key."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)
        self._opened: dict[tuple[str, bytes], bytes] = {}

    def seal(self, label: str, data: bytes) -> bytes:
        """Encrypt the secret of the row `label`."""
        nonce = os.urandom(_NONCE_BYTES)
        return _VERSION + nonce + self._cipher.encrypt(nonce, data, label.encode())

    def open(self, label: str, sealed: bytes) -> bytes:
        """Decrypt the secret of the row `label`."""
        known = self._opened.get((label, sealed))
        if known is not None:
            return known
        nonce, rest = sealed[1 : 1 + _NONCE_BYTES], sealed[1 + _NONCE_BYTES :]
        try:
            if sealed[:1] != _VERSION or len(nonce) != _NONCE_BYTES:
                raise InvalidTag
            data = self._cipher.decrypt(nonce, rest, label.encode())
        except InvalidTag:
            raise Corrupt(
                f"the secret {label!r} cannot be decrypted: the row is damaged, or was encrypted with another key; "
                "restore a backup, or delete the row's key and make a new one",
                code="SECRET_UNREADABLE",
            ) from None
        if len(self._opened) >= _CACHE_MAX:
            self._opened.clear()
        self._opened[label, sealed] = data
        return data

    def seal_text(self, label: str, text: str) -> str:
        return base64.b64encode(self.seal(label, text.encode())).decode()

    def open_text(self, label: str, sealed: str) -> str:
        try:
            data = base64.b64decode(sealed, validate=True)
        except (binascii.Error, ValueError):
            data = b""
        return self.open(label, data).decode()

    def fits(self, check: bytes) -> bool:
        """Whether the database with this `CHECK` was encrypted with this key."""
        try:
            self.open(_meta(CHECK), check)
        except Corrupt:
            return False
        return True


class LockedVault(Vault):
    """The vault of a database that is read without its key."""

    def __init__(self, error: Invalid) -> None:
        self.error = error

    def seal(self, label: str, data: bytes) -> bytes:
        raise self.error

    def open(self, label: str, sealed: bytes) -> bytes:
        raise self.error


# -- rows


def read_secret(reader: Any, name: str) -> bytes | None:
    """A secret of META; None if it does not exist yet."""
    row = reader.get(META, name)
    return None if row is None else reader.vault.open(_meta(name), row.value)


def write_secret(tx: Any, name: str, value: bytes) -> None:
    """Store a secret in META, where only its ciphertext is written."""
    assert name in SEALED, f"{name} is not among the secrets that rotation knows"
    tx.put(META, MetaRow(name, tx.vault.seal(_meta(name), value)))


def access_key_label(name: str) -> str:
    return f"access_keys/{name}"


def stored_session(session: str) -> str:
    """The hash of a session's id, as the database stores it; the tokens of the session have the id itself."""
    return base64.urlsafe_b64encode(sha256(session.encode()).digest()).rstrip(b"=").decode()


def encrypt_existing(execute: Execute, vault: Vault) -> None:
    """Encrypt the clear-text secrets of a database, and hash its session ids. Within a transaction: part of a
    migration, so it uses the tables as they were then."""
    for name in SEALED:
        for (value,) in execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchall():
            execute("UPDATE meta SET value = ? WHERE name = ?", (vault.seal(_meta(name), value), name))
    for name, secret in execute("SELECT id, secret FROM access_keys").fetchall():
        sealed = vault.seal_text(access_key_label(name), secret)
        execute("UPDATE access_keys SET secret = ? WHERE id = ?", (sealed, name))
    for principal, session in execute("SELECT principal, id FROM sessions").fetchall():
        execute(
            "UPDATE sessions SET id = ? WHERE principal = ? AND id = ?", (stored_session(session), principal, session)
        )
    _write_check(execute, vault)


def reencrypt(execute: Execute, old: Vault, new: Vault) -> None:
    """Encrypt all secrets with another key. Within a transaction."""
    for name in SEALED:
        label = _meta(name)
        for (value,) in execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchall():
            execute("UPDATE meta SET value = ? WHERE name = ?", (new.seal(label, old.open(label, value)), name))
    for name, secret in execute("SELECT id, secret FROM access_keys").fetchall():
        label = access_key_label(name)
        sealed = new.seal_text(label, old.open_text(label, secret))
        execute("UPDATE access_keys SET secret = ? WHERE id = ?", (sealed, name))
    _write_check(execute, new)


def _write_check(execute: Execute, vault: Vault) -> None:
    sealed = vault.seal(_meta(CHECK), b"")
    # In words that every engine understands.
    execute("DELETE FROM meta WHERE name = ?", (CHECK,))
    execute("INSERT INTO meta (name, value) VALUES (?, ?)", (CHECK, sealed))


def _meta(name: str) -> str:
    return f"meta/{name}"


# -- keys


def open_vault(directory: Path, check: bytes | None, environment: Mapping[str, str], *, writable: bool) -> Vault:
    """The vault of the database in `directory`, whose `CHECK` is `check`; None: nothing is encrypted yet, and a key is
    created if there is none."""
    key = None
    if (text := environment.get(ENVIRONMENT)) is not None:
        key = parse_key(text, f"the environment variable {ENVIRONMENT}")
    files = {name: read_key_file(directory / name) for name in (FILE, NEXT)}
    if check is None:
        if key is None:
            key = files[FILE] or create_key_file(directory / FILE)
        return Vault(key)
    if key is not None:
        vault = Vault(key)
        if not vault.fits(check):
            raise _wrong_key(directory, check, files[FILE])
        return vault
    for name, found in files.items():
        if found is not None and (vault := Vault(found)).fits(check):
            if writable:
                _settle_rotation(directory, name)
            return vault
    if files[FILE] is not None:
        raise Invalid(
            f"the key in {str(directory / FILE)!r} does not decrypt the secrets of this database; put back the file "
            f"that belongs to it, or set {ENVIRONMENT} if the key was kept there",
            code="SECRET_KEY_WRONG",
        )
    raise Invalid(
        f"the secrets of the database in {str(directory)!r} are encrypted and there is no key for them; set "
        f"{ENVIRONMENT}, or put back {FILE} from where the directory was copied or backed up",
        code="SECRET_KEY_MISSING",
    )


def _settle_rotation(directory: Path, current: str) -> None:
    """Complete or revert an interrupted rotation: the key file that decrypts is kept."""
    if current == NEXT:
        os.rename(directory / NEXT, directory / FILE)
    else:
        with suppress(FileNotFoundError):
            (directory / NEXT).unlink()
    sync_directory(directory)


def _wrong_key(directory: Path, check: bytes, in_file: bytes | None) -> Invalid:
    if in_file is not None and Vault(in_file).fits(check):
        fix = f"it is encrypted with {str(directory / FILE)!r}: unset the variable, or run tailrace keys rotate-secret"
    else:
        fix = "set the key that the database was encrypted with"
    return Invalid(f"{ENVIRONMENT} does not decrypt the secrets of this database; {fix}", code="SECRET_KEY_WRONG")


def parse_key(text: str, source: str) -> bytes:
    """Parse a key: 32 bytes, in base64 or as 64 hexadecimal digits."""
    text = text.strip()
    key = b""
    with suppress(ValueError):
        key = bytes.fromhex(text) if len(text) == 2 * KEY_BYTES else base64.b64decode(text, validate=True)
    if len(key) != KEY_BYTES:
        raise Invalid(
            f"{source} is not a key of {KEY_BYTES} bytes in base64 or hexadecimal; {_MAKE_ONE}",
            code="SECRET_KEY_INVALID",
        )
    return key


def read_key_file(path: Path) -> bytes | None:
    try:
        text = path.read_text("ascii")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"cannot read the key file {str(path)!r}: {error}", code="SECRET_KEY_INVALID") from error
    return parse_key(text, f"the file {str(path)!r}")


def create_key_file(path: Path) -> bytes:
    """Create a key in a new file, atomically and durably."""
    key = os.urandom(KEY_BYTES)
    write_private(path, base64.b64encode(key) + b"\n")
    return key
