"""``tailrace serve``: a server in the foreground."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec

from tailrace import __version__, build
from tailrace import config as settings
from tailrace.errors import Invalid, Unavailable
from tailrace.http import serve as server


@click.command()
@click.option(
    "--config", "file", type=click.Path(dir_okay=False), help="The settings (default: tailrace.toml, if it exists)."
)
@click.option("--data", type=click.Path(file_okay=False), help="The data directory (./data).")
@click.option(
    "--database", metavar="URL", help="The database, in PostgreSQL: postgresql://... (none: in the data directory)."
)
@click.option("--host", help="The address to listen on (127.0.0.1).")
@click.option("--port", type=int, help="The port to listen on (4437); 0 for any free one.")
@click.option("--dev", is_flag=True, default=None, help="Dev mode: no authentication, loopback only.")
@click.option("--token", help="The bearer token of clients; better set TAILRACE_TOKEN.")
@click.option("--public-url", help="The URL by which clients reach this server.")
@click.option(
    "--allow-host", "http_allowed_hosts", multiple=True, help="A Host header to accept, besides loopback names."
)
@click.option("--allow-origin", "http_allowed_origins", multiple=True, help="An origin whose pages may use the server.")
@click.option("--tls-certificate", type=click.Path(), help="A certificate chain (PEM); serves HTTPS.")
@click.option("--tls-key", type=click.Path(), help="The certificate's private key (PEM).")
@click.option("--long-poll-timeout", "long_poll_timeout_s", type=float, help="Seconds that a long-poll waits (30).")
@click.option("--log-format", type=click.Choice(["text", "json"]), help="The format of log lines (text).")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="The lowest level that is logged (info).",
)
@click.option("--workers", help="Processes that serve HTTP (1); auto for one per core. With several, another writes.")
@click.option("--cluster-listen", metavar="HOST:PORT", help="Serve together with others; take their commands here.")
@click.option("--cluster-advertise", metavar="HOST:PORT", help="Where the others reach that (as --cluster-listen).")
@click.option("--cluster-secret-file", type=click.Path(), help="The secret that all servers of the cluster share.")
@click.option(
    "--advertise-url", "cluster_advertise_url", metavar="URL", help="Where clients reach this server of a cluster."
)
@click.option("--accept-loss", is_flag=True, help="Open a damaged write-ahead log up to the damage; keeps a copy.")
def serve(file: str | None, accept_loss: bool, **given: Any) -> None:
    """Serve a database over HTTP until interrupted."""
    os.umask(0o077)  # files that libraries write (Delta logs) are private, too
    config = settings.load(file, **given)
    set_up_logging(config.log_format, config.log_level)

    def on_up(running: Any) -> None:
        logging.getLogger("tailrace").info("version %s (%s)", __version__, build.describe())
        click.echo(f"listening on {running.url}")
        if config.dev:
            click.echo(_welcome(running.url, "PostgreSQL" if config.database else config.data))

    with _explained(config):
        if config.workers == 1:
            server.run(config, on_up, accept_loss=accept_loss)
        else:
            from tailrace.http import supervisor

            supervisor.run(config, on_up, accept_loss=accept_loss, reload=lambda: settings.load(file, **given))
    logging.getLogger("tailrace").info("stopped")


@contextmanager
def _explained(config: settings.Config) -> Iterator[None]:
    """When the port or the directory is taken, the message says how to go on."""
    try:
        yield
    except Unavailable as error:
        if error.code != "DATABASE_IN_USE":
            raise
        raise Unavailable(
            f"the data directory {config.data!r} is open in another process, probably a running server; "
            f"use that one (tailrace server status), stop it, or serve another directory: --data DIR",
            code=error.code,
        ) from None
    except Invalid as error:
        if not isinstance(error.__cause__, OSError) or error.__cause__.errno != errno.EADDRINUSE:
            raise
        raise Unavailable(
            f"port {config.port} of {config.host} is taken by another process; "
            f"stop it, or choose another port: --port N (0 for any free one)",
            code="PORT_IN_USE",
        ) from None


def _welcome(url: str, data: str) -> str:
    stream = f"{url}/v1/stream/hello"
    command = _command()
    return f"""
Tailrace {__version__} is up ({build.describe()}); its database is in {data!r}.
Dev mode: authentication is off, loopback only.

Try it from another terminal:

  curl -X PUT {stream} -H 'Content-Type: text/plain'
  curl -N '{stream}?offset=-1&live=sse'

and from a third one, watch this arrive in the second:

  curl -X POST {stream} -H 'Content-Type: text/plain' -d 'hello, world'

Topics: rows of a table become messages in the same transaction; groups consume them:

  export TAILRACE_URL={url}
  {command} sql "CREATE TABLE chat (id TEXT PRIMARY KEY, body TEXT); CREATE TOPIC news;
    ALTER TOPIC news ADD SOURCE chat ON INSERT WITH (payload = 'full'); INSERT INTO chat VALUES ('m-1', 'hello')"
  {command} topics consume news --group me
  {command} sql                  # a shell

Tables, for any AWS SDK (here boto3); their change streams are at {url}/v1/tables/<name>/stream:

  python -c "import boto3; print(boto3.client('dynamodb', endpoint_url='{url}', region_name='local',
    aws_access_key_id='any', aws_secret_access_key='any').list_tables()['TableNames'])"

Console: {url}/console        Metrics: {url}/metrics        Stop the server with Ctrl-C.
"""


def _command() -> str:
    """How to call this program from a terminal in the same directory: it may not be on the PATH."""
    beside = Path(sys.executable).with_name("tailrace")
    if shutil.which("tailrace") or not beside.exists():
        return "tailrace"
    return os.path.relpath(beside)


def set_up_logging(form: str, level: str) -> None:
    handler = logging.StreamHandler()
    plain = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonLines() if form == "json" else plain)
    root = logging.getLogger("tailrace")
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


class JsonLines(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        facts: dict[str, Any] = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        facts.update(getattr(record, "facts", {}))  # the fields of an audit line
        if record.exc_info:
            facts["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(facts).decode()
