"""``tailrace serve``: a server in the foreground."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import click
import msgspec

from tailrace import config as settings
from tailrace.http import serve as server


@click.command()
@click.option("--config", "file", type=click.Path(dir_okay=False), help="Settings; tailrace.toml if it is there.")
@click.option("--data", type=click.Path(file_okay=False), help="The database's directory (./data).")
@click.option("--host", help="The address to listen on (127.0.0.1).")
@click.option("--port", type=int, help="The port to listen on (4437); 0 for any free one.")
@click.option("--dev", is_flag=True, default=None, help="Let everyone in, from this machine only.")
@click.option("--token", help="What clients must send as bearer token. Better given as TAILRACE_TOKEN.")
@click.option("--public-url", help="How clients reach this server, for the links it hands out.")
@click.option("--allow-host", "http_allowed_hosts", multiple=True, help="A Host to answer to, beside loopback names.")
@click.option("--allow-origin", "http_allowed_origins", multiple=True, help="An origin whose pages may use the server.")
@click.option("--tls-certificate", type=click.Path(), help="A certificate chain (PEM); serves HTTPS.")
@click.option("--tls-key", type=click.Path(), help="The certificate's private key (PEM).")
@click.option("--long-poll-timeout", "long_poll_timeout_s", type=float, help="Seconds a long-poll waits (30).")
@click.option("--log-format", type=click.Choice(["text", "json"]), help="How log lines look (text).")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="(info)")
@click.option("--accept-loss", is_flag=True, help="Open a damaged write-ahead log up to the damage; a copy is kept.")
def serve(file: str | None, accept_loss: bool, **given: Any) -> None:
    """Serve a database over HTTP until interrupted."""
    os.umask(0o077)  # what libraries write for us (Delta logs) is for us alone too
    config = settings.load(file, **given)
    set_up_logging(config.log_format, config.log_level)

    def on_up(running: server.Running) -> None:
        click.echo(f"listening on {running.url}")
        if config.dev:
            click.echo(_welcome(running.url, config.data))

    server.run(config, on_up, accept_loss=accept_loss)
    logging.getLogger("tailrace").info("stopped")


def _welcome(url: str, data: str) -> str:
    stream = f"{url}/v1/stream/hello"
    command = _command()
    return f"""
Tailrace is up; its database is in {data!r}. Everyone on this machine is let in (--dev).

Try it from another terminal:

  curl -X PUT {stream} -H 'Content-Type: text/plain'
  curl -N '{stream}?offset=-1&live=sse'

and from a third one, watch this arrive in the second:

  curl -X POST {stream} -H 'Content-Type: text/plain' -d 'hello, world'

Topics: rows of a table become messages, in the same transaction; consumers take them in groups:

  export TAILRACE_URL={url}
  {command} sql -c "CREATE TABLE chat (id TEXT PRIMARY KEY, body TEXT); CREATE TOPIC news;
    ALTER TOPIC news ADD SOURCE chat ON INSERT WITH (payload = 'full'); INSERT INTO chat VALUES ('m-1', 'hello')"
  {command} consume news --group me
  {command} sql                  # a shell

Tables, for any AWS SDK (here boto3); their changes are at {url}/v1/tables/<name>/stream:

  python -c "import boto3; print(boto3.client('dynamodb', endpoint_url='{url}', region_name='local',
    aws_access_key_id='any', aws_secret_access_key='any').list_tables()['TableNames'])"

How it is doing: {url}/metrics        Stop it with Ctrl-C.
"""


def _command() -> str:
    """How this very program is called from a terminal in the same directory: it may be in no PATH."""
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
        facts.update(getattr(record, "facts", {}))  # what an audit line says, by name
        if record.exc_info:
            facts["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(facts).decode()
