"""The cluster secret: whoever has it may connect to the bus, in either direction, and nobody else.

A key pair is derived from the secret, that of a certificate authority which exists nowhere else. Every process makes a
key and a certificate of its own when it starts, signs it with that authority, and both sides of a connection require a
certificate of it (mutual TLS 1.3). So a connection without the secret ends within the handshake of TLS: nothing of what
it sends is read by this program. The derivation is slow on purpose, since a guess can be tried without asking a server.

A file may have several secrets, one on each line: the first one signs, all of them are accepted. That is how a secret
is replaced while the servers run.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import ssl
import tempfile
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tailrace import limits
from tailrace.errors import Invalid

_SALT: Final = b"tailrace cluster secret 1"
# No clock decides whether a server is accepted: those of machines differ. A certificate lives as long as its process.
_FROM: Final = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_UNTIL: Final = datetime.datetime(9999, 12, 31, tzinfo=datetime.UTC)


def read_secrets(path: str) -> list[str]:
    """The secrets of a file. `Invalid` if it cannot be read, has none or one that is too short."""
    try:
        lines = Path(path).read_text().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"cannot read the cluster secret in {path!r}: {error}", code="CLUSTER_SECRET") from error
    found = [line.strip() for line in lines if line.strip()]
    if not found:
        raise Invalid(
            f"the file of the cluster secret {path!r} is empty; make one with: openssl rand -hex 32",
            code="CLUSTER_SECRET",
        )
    if len(found) > limits.CLUSTER_SECRETS_MAX:
        raise Invalid(
            f"the file of the cluster secret {path!r} has {len(found)} lines, and {limits.CLUSTER_SECRETS_MAX} are "
            "the maximum: the present secret, and the one before it",
            code="CLUSTER_SECRET",
        )
    for secret in found:
        if len(secret) < limits.CLUSTER_SECRET_CHARACTERS_MIN:
            raise Invalid(
                f"a cluster secret in {path!r} has {len(secret)} characters, and needs at least "
                f"{limits.CLUSTER_SECRET_CHARACTERS_MIN}; make one with: openssl rand -hex 32",
                code="CLUSTER_SECRET",
            )
    return found


class Authority:
    """The certificate authority of a secret: the same in every process that has the secret."""

    def __init__(self, secret: str) -> None:
        seed = hashlib.scrypt(secret.encode(), salt=_SALT, n=2**14, r=8, p=1, dklen=32)
        self._key = ed25519.Ed25519PrivateKey.from_private_bytes(seed)
        # Different secrets have different names, so that TLS finds the one that has signed.
        shown = hashlib.sha256(self._key.public_key().public_bytes_raw()).hexdigest()[:32]
        self._name = _named(f"tailrace cluster {shown}")
        self.certificate = (
            _builder(self._name, self._name, self._key.public_key(), 1)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .sign(self._key, None)
        )

    def issue(self) -> tuple[bytes, bytes]:
        """A certificate and its new key, as PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            _builder(self._name, _named("tailrace server"), key.public_key(), x509.random_serial_number())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .sign(self._key, None)
        )
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return certificate.public_bytes(serialization.Encoding.PEM), private


class ClusterTls:
    """The two sides of TLS between the servers that share a secret."""

    def __init__(self, secrets: list[str]) -> None:
        authorities = [Authority(secret) for secret in secrets]
        certificate, key = authorities[0].issue()
        accepted = b"".join(each.certificate.public_bytes(serialization.Encoding.PEM) for each in authorities)
        self.server = _context(ssl.PROTOCOL_TLS_SERVER, certificate, key, accepted.decode())
        self.client = _context(ssl.PROTOCOL_TLS_CLIENT, certificate, key, accepted.decode())


def _context(protocol: int, certificate: bytes, key: bytes, accepted: str) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # a certificate of the authority is the proof, wherever its server is
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=accepted)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_TICKET
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0
    _load(context, certificate + key)
    return context


def _load(context: ssl.SSLContext, pem: bytes) -> None:
    """Python takes a key from files only: from one in memory where there are such, and nobody else can open it."""
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("tailrace-bus", os.MFD_CLOEXEC)
        with os.fdopen(handle, "wb") as file:
            file.write(pem)
            file.flush()
            context.load_cert_chain(f"/proc/self/fd/{handle}")
        return
    with tempfile.NamedTemporaryFile(prefix="tailrace-bus-") as file:  # of mode 0600
        file.write(pem)
        file.flush()
        context.load_cert_chain(file.name)


def _named(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(issuer: x509.Name, subject: x509.Name, key: object, serial: int) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(key)  # type: ignore[arg-type]
        .serial_number(serial)
        .not_valid_before(_FROM)
        .not_valid_after(_UNTIL)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
