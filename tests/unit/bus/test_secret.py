"""Who has the cluster secret is accepted by the bus, and nobody else: over real sockets with TLS."""

from __future__ import annotations

import asyncio
import itertools
import ssl
from pathlib import Path

import pytest

from tailrace import limits
from tailrace.bus.secret import Authority, ClusterTls, read_secrets
from tailrace.errors import Invalid
from tests.support.patience import PATIENCE_S

ONE, OTHER, THIRD = ("secret one " * 4, "secret two " * 4, "secret three " * 4)


def exchanged(server: ssl.SSLContext, client: ssl.SSLContext) -> bool:
    """Whether a message of the client reaches the server, and one of the server the client."""
    received: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read(4))
        writer.write(b"pong")
        await writer.drain()
        writer.close()

    async def run() -> bool:
        listener = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=server)
        try:
            async with asyncio.timeout(PATIENCE_S):
                port = listener.sockets[0].getsockname()[1]
                reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client)
                writer.write(b"ping")
                found = await reader.read(4)
                writer.close()
                return found == b"pong"
        except OSError:
            return False
        finally:
            listener.close()

    done = asyncio.run(run())
    assert received == ([b"ping"] if done else [])
    return done


def test_the_same_secret_is_accepted() -> None:
    assert exchanged(ClusterTls([ONE]).server, ClusterTls([ONE]).client)


def test_another_secret_is_not() -> None:
    assert not exchanged(ClusterTls([ONE]).server, ClusterTls([OTHER]).client)


def test_a_client_without_a_certificate_is_not() -> None:
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    assert not exchanged(ClusterTls([ONE]).server, client)


def test_a_client_that_trusts_everybody_needs_the_secret_all_the_same() -> None:
    client = ClusterTls([OTHER]).client
    client.verify_mode = ssl.CERT_NONE
    assert not exchanged(ClusterTls([ONE]).server, client)


def test_a_server_without_the_secret_is_not_accepted_by_clients() -> None:
    """One in the middle, who would forward what it receives."""
    server = ClusterTls([OTHER]).server
    server.verify_mode = ssl.CERT_NONE
    assert not exchanged(server, ClusterTls([ONE]).client)


def test_a_secret_is_replaced_while_servers_run() -> None:
    steps = [[ONE], [ONE, OTHER], [OTHER, ONE], [OTHER]]
    for before, after in itertools.pairwise(steps):  # servers are restarted one after the other
        assert exchanged(ClusterTls(before).server, ClusterTls(after).client)
        assert exchanged(ClusterTls(after).server, ClusterTls(before).client)
    assert not exchanged(ClusterTls([ONE]).server, ClusterTls([OTHER]).client)


def test_a_certificate_does_not_sign_others() -> None:
    """One that a server has issued is no authority, and its key is not that of the secret."""
    from cryptography import x509

    made, key = Authority(ONE).issue()
    again, other_key = Authority(ONE).issue()
    assert key != other_key
    assert made != again
    found = x509.load_pem_x509_certificate(made)
    assert found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    assert Authority(ONE).certificate == Authority(ONE).certificate
    assert Authority(ONE).certificate != Authority(OTHER).certificate


def test_secrets_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(f"  {ONE}\n\n{OTHER}\r\n")
    assert read_secrets(str(file)) == [ONE.strip(), OTHER.strip()]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n \n",
        "x" * (limits.CLUSTER_SECRET_CHARACTERS_MIN - 1),
        "\n".join([ONE] * (limits.CLUSTER_SECRETS_MAX + 1)),
    ],
)
def test_a_file_without_a_good_secret_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "secret"
    file.write_text(text)
    with pytest.raises(Invalid) as refused:
        read_secrets(str(file))
    assert refused.value.code == "CLUSTER_SECRET"
    assert ONE.strip() not in str(refused.value)


def test_a_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="cannot read the cluster secret"):
        read_secrets(str(tmp_path / "nowhere"))
