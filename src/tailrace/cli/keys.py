"""``tailrace keys``: access keys, which sign requests to the DynamoDB API, and the keys that sign and encrypt.

A key can be created before the server first starts, in the database's directory. A running server has the directory to
itself; then the same is requested over HTTP.
"""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from tailrace.access import ROLES
from tailrace.cli.admin import AdminTarget, target_options


@click.command()
@click.argument("name")
@click.option("--role", type=click.Choice(list(ROLES)), help="The key's role (user); an existing user's role applies.")
@target_options
def create(name: str, role: str | None, data: str | None, url: str | None, token: str | None) -> None:
    """Create a key for NAME, the principal in change records. Prints it as the environment variables that SDKs read."""
    target = AdminTarget(data, url, token)
    client = target.client
    if client is None:
        from tailrace.auth.keys import CreateAccessKey

        key = target.execute(CreateAccessKey(name, role), create=True)
        key_id, secret = key.id, key.secret
    else:
        with client:
            made = client.create_access_key(name, role)
        key_id, secret = made["id"], made["secret"]
    click.echo(f"AWS_ACCESS_KEY_ID={key_id}\nAWS_SECRET_ACCESS_KEY={secret}")
    if sys.stdout.isatty():
        click.echo("save the secret: it is not shown again", err=True)


@click.command("list")
@target_options
def list_keys(data: str | None, url: str | None, token: str | None) -> None:
    """List the access keys, without their secrets."""
    target = AdminTarget(data, url, token)
    client = target.client
    if client is None:
        from tailrace.auth.keys import ListAccessKeys

        keys = [_facts(key.id, key.principal, key.created_ms, key.disabled) for key in target.execute(ListAccessKeys())]
    else:
        with client:
            keys = client.access_keys()
    if not keys:
        click.echo("there are no access keys; create one with tailrace keys create NAME", err=True)
    for key in sorted(keys, key=lambda key: (key["principal"], key["created_at"])):
        created = datetime.fromisoformat(key["created_at"])
        state = "disabled" if key["disabled"] else "enabled "
        click.echo(f"{key['id']}  {created:%Y-%m-%d %H:%M}  {state}  {key['principal']}")


def _facts(key_id: str, principal: str, created_ms: int, disabled: bool) -> dict[str, Any]:
    """A key as the server describes it."""
    created = datetime.fromtimestamp(created_ms / 1000, UTC).isoformat()
    return {"id": key_id, "principal": principal, "created_at": created, "disabled": disabled}


@click.command()
@click.argument("id")
@target_options
def delete(id: str, data: str | None, url: str | None, token: str | None) -> None:  # noqa: A002 - the argument's name
    """Delete key ID: requests signed with it are refused at once."""
    target = AdminTarget(data, url, token)
    client = target.client
    if client is None:
        from tailrace.auth.keys import DeleteAccessKey

        target.execute(DeleteAccessKey(id))
        return
    with client:
        client.delete_access_key(id)


@click.command()
@click.argument("id")
@target_options
def disable(id: str, data: str | None, url: str | None, token: str | None) -> None:  # noqa: A002
    """Refuse requests signed with key ID until it is enabled."""
    _switch(AdminTarget(data, url, token), id, disabled=True)


@click.command()
@click.argument("id")
@target_options
def enable(id: str, data: str | None, url: str | None, token: str | None) -> None:  # noqa: A002
    """Accept requests signed with key ID again."""
    _switch(AdminTarget(data, url, token), id, disabled=False)


@click.command("rotate-signing")
@target_options
def rotate_signing(data: str | None, url: str | None, token: str | None) -> None:
    """Sign webhooks with a new key and print its id; the old key stays published for a day."""
    target = AdminTarget(data, url, token)
    client = target.client
    if client is None:
        from tailrace.subscriptions.signing import RotateSigningKey

        click.echo(target.execute(RotateSigningKey()).kid)
        return
    with client:
        click.echo(client.rotate_signing_key()["kid"])


@click.command("rotate-secret")
@click.option("--data", type=click.Path(file_okay=False), default="data", show_default=True, help="The data directory.")
def rotate_secret(data: str) -> None:
    """Encrypt the secrets in the database with a new key; stop the server first. The new key is TAILRACE_SECRET_KEY, or
    a generated one in the file secret.key if that is not set. The current key is TAILRACE_SECRET_KEY_OLD, or that of
    the file."""
    from tailrace.secret_key import rotate_secret_key

    where = rotate_secret_key(Path(data), os.environ.get("TAILRACE_DATABASE") or None)
    click.echo(f"the secrets are encrypted with the key in {where}")


def _switch(target: AdminTarget, key_id: str, *, disabled: bool) -> None:
    client = target.client
    if client is None:
        from tailrace.auth.keys import DisableAccessKey, EnableAccessKey

        target.execute(DisableAccessKey(key_id) if disabled else EnableAccessKey(key_id))
        return
    with client:
        client.switch_access_key(key_id, disabled=disabled)
