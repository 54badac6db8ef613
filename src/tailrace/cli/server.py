"""``tailrace server``: the status and metrics of a running server."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from tailrace.cli.options import credentials, server_options
from tailrace.errors import Unavailable

if TYPE_CHECKING:
    from tailrace.client.connection import ServerResponse

TIMEOUT_S: Final = 10.0
_READY: Final = "ready"


def request(
    url: str, credentials: dict[str, str | None], method: str, path: str, *, json: Any = None
) -> ServerResponse:
    """One request to an endpoint that the client has no method for; any status is a response."""
    from tailrace.client.connection import ConnectionFailed, ServerAddress, ServerConnections
    from tailrace.client.targets import authorization

    address = ServerAddress.parse(url)
    headers = authorization(credentials.get("token"), credentials.get("user"), credentials.get("password"))
    connections = ServerConnections(address, TIMEOUT_S)
    try:
        return connections.request(method, path, headers=headers, json=json)
    except ConnectionFailed as error:
        raise Unavailable(f"cannot reach {url}: {error}; is the server running (tailrace serve --dev)?") from error
    finally:
        connections.close()


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@server_options
def status(as_json: bool, url: str, token: str | None) -> None:
    """Show whether the server is up and accepts writes. The exit status is 0 if it does, otherwise 1."""
    began_s = time.perf_counter()
    response = request(url, {}, "GET", "/readyz")
    took_ms = (time.perf_counter() - began_s) * 1000
    try:
        facts: dict[str, Any] = msgspec.json.decode(response.content, type=dict[str, Any])
    except msgspec.DecodeError:
        raise Unavailable(f"{url} answered {response.status_code}: is it a Tailrace server?") from None
    state = facts.get("status", "unknown")
    if as_json:
        click.echo(msgspec.json.encode({"url": url, **facts, "response_ms": round(took_ms, 1)}))
    else:
        click.echo(f"{url}: {state} ({took_ms:.1f} ms)")
        if "reason" in facts:
            click.echo(f"writes are refused: {facts['reason']}")
        if "clock" in facts:
            click.echo(f"clock: {facts['clock']['reason']} ({facts['clock']['ahead_s']:g} s ahead)")
    if state != _READY:
        sys.exit(1)


@click.command()
@click.argument("prefix", default="")
@server_options
def metrics(prefix: str, url: str, token: str | None) -> None:
    """Print the metrics of the server in Prometheus text format, or those whose name begins with PREFIX."""
    from tailrace.client.errors import error_of

    response = request(url, credentials(url, token), "GET", "/metrics")
    if response.status_code >= 400:
        raise error_of(response)
    for line in response.content.decode().splitlines():
        name = line.split()[2] if line.startswith("#") else line
        if name.startswith(prefix):
            click.echo(line)
