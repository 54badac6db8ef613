"""``tailrace tables``, ``create-table``, ``describe-table`` and ``drop-table``: the tables of a running server."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from tailrace.cli.streams import connect, server_options
from tailrace.errors import Invalid, Unavailable

if TYPE_CHECKING:
    from tailrace.client import Client

VIEWS: Final = ("KEYS_ONLY", "NEW_IMAGE", "OLD_IMAGE", "NEW_AND_OLD_IMAGES")
KINDS: Final = ("S", "N", "B")
ACTIVE_S: Final = 60.0  # how long a new table may take to be there
WIDE: Final = 10_000  # columns of an output that is no terminal: nothing is folded

Described = dict[str, Any]


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object per table and line, instead of a drawing.")
@server_options
def tables(as_json: bool, url: str, token: str | None) -> None:
    """List the tables, with what they hold."""
    with connect(url, token) as client:
        found = [describe(client, name) for name in _names(client)]
    if as_json:
        for each in found:
            click.echo(msgspec.json.encode(each))
    elif found:
        _draw(found)
    else:
        click.echo("there are no tables; make one with tailrace create-table", err=True)


def _names(client: Client) -> Iterator[str]:
    asked: dict[str, Any] = {}
    while True:
        page = client.call("ListTables", asked)
        yield from page["TableNames"]
        if "LastEvaluatedTableName" not in page:
            return
        asked = {"ExclusiveStartTableName": page["LastEvaluatedTableName"]}


def describe(client: Client, name: str) -> Described:
    found: Described = client.call("DescribeTable", {"TableName": name})["Table"]
    return found


def _draw(found: list[Described]) -> None:
    from rich.console import Console
    from rich.table import Table

    terminal = sys.stdout.isatty()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("table", "key", "items", "bytes", "indexes", "changes", "status"):
        table.add_column(column, justify="right" if column in ("items", "bytes") else "left", no_wrap=not terminal)
    for each in found:
        indexes = [*each.get("GlobalSecondaryIndexes", ()), *each.get("LocalSecondaryIndexes", ())]
        stream = each.get("StreamSpecification", {})
        table.add_row(
            each["TableName"],
            _key(each),
            f"{each['ItemCount']:,}",
            f"{each['TableSizeBytes']:,}",
            ", ".join(index["IndexName"] for index in indexes),
            stream.get("StreamViewType", "") if stream.get("StreamEnabled") else "",
            each["TableStatus"],
        )
    Console(width=None if terminal else WIDE, markup=False, highlight=False).print(table)


def _key(described: Described) -> str:
    kinds = {each["AttributeName"]: each["AttributeType"] for each in described["AttributeDefinitions"]}
    return ", ".join(f"{each['AttributeName']}:{kinds[each['AttributeName']]}" for each in described["KeySchema"])


@click.command("create-table")
@click.argument("name")
@click.option("--key", "key", required=True, metavar="NAME:TYPE", help="The partition key, pk:S say (S, N or B).")
@click.option("--sort", metavar="NAME:TYPE", help="The sort key, sk:N say.")
@click.option(
    "--index",
    "indexes",
    multiple=True,
    metavar="INDEX:HASH:TYPE[:RANGE:TYPE]",
    help="A global secondary index, by_city:city:S:age:N say; several may be given.",
)
@click.option(
    "--stream",
    type=click.Choice(VIEWS, case_sensitive=False),
    help="Record changes, with the images of this view.",
)
@click.option("--ttl", metavar="ATTRIBUTE", help="The attribute that says when an item expires, in Unix seconds.")
@server_options
def create_table(
    name: str, key: str, sort: str | None, indexes: tuple[str, ...], stream: str | None, ttl: str | None, url: str,
    token: str | None,
) -> None:  # fmt: skip
    """Create table NAME and wait until it can be used."""
    asked = table_parameters(name, key, sort, indexes, stream)
    with connect(url, token) as client:
        client.call("CreateTable", asked)
        _wait_until_active(client, name)
        if ttl is not None:
            specification = {"Enabled": True, "AttributeName": ttl}
            client.call("UpdateTimeToLive", {"TableName": name, "TimeToLiveSpecification": specification})


def table_parameters(
    name: str, key: str, sort: str | None = None, indexes: tuple[str, ...] = (), stream: str | None = None
) -> dict[str, Any]:
    """What CreateTable is asked for."""
    kinds: dict[str, str] = {}
    asked: dict[str, Any] = {
        "TableName": name,
        "KeySchema": _key_schema([key] if sort is None else [key, sort], kinds),
        "BillingMode": "PAY_PER_REQUEST",
    }
    if indexes:
        asked["GlobalSecondaryIndexes"] = [_index(text, kinds) for text in indexes]
    if stream is not None:
        asked["StreamSpecification"] = {"StreamEnabled": True, "StreamViewType": stream}
    asked["AttributeDefinitions"] = [{"AttributeName": each, "AttributeType": kind} for each, kind in kinds.items()]
    return asked


def _key_schema(parts: list[str], kinds: dict[str, str]) -> list[dict[str, str]]:
    """A hash and perhaps a range attribute, each NAME:TYPE; their types are noted in `kinds`."""
    found = []
    for text, role in zip(parts, ("HASH", "RANGE"), strict=False):
        name, _, kind = text.rpartition(":")
        if not name or kind.upper() not in KINDS:
            raise Invalid(f"{text!r} is not a key attribute: give NAME:TYPE with the type S, N or B, pk:S say")
        if kinds.setdefault(name, kind.upper()) != kind.upper():
            raise Invalid(f"{name!r} cannot be both {kinds[name]} and {kind.upper()}; a key attribute has one type")
        found.append({"AttributeName": name, "KeyType": role})
    return found


def _index(text: str, kinds: dict[str, str]) -> dict[str, Any]:
    name, *parts = text.split(":")
    if not name or len(parts) not in (2, 4):
        raise Invalid(f"{text!r} is not an index: give INDEX:HASH:TYPE or INDEX:HASH:TYPE:RANGE:TYPE")
    keys = [":".join(parts[at : at + 2]) for at in range(0, len(parts), 2)]
    return {"IndexName": name, "KeySchema": _key_schema(keys, kinds), "Projection": {"ProjectionType": "ALL"}}


def _wait_until_active(client: Client, name: str) -> None:
    deadline_s = time.monotonic() + ACTIVE_S
    delay_s = 0.01
    while describe(client, name)["TableStatus"] != "ACTIVE":
        if time.monotonic() > deadline_s:
            raise Unavailable(f"table {name!r} was created but is not ready after {ACTIVE_S:g} s; look again later")
        time.sleep(delay_s)
        delay_s = min(delay_s * 2, 1.0)


@click.command("describe-table")
@click.argument("name")
@server_options
def describe_table(name: str, url: str, token: str | None) -> None:
    """Print all that there is to say of table NAME, as JSON."""
    with connect(url, token) as client:
        found = describe(client, name)
        ttl = client.call("DescribeTimeToLive", {"TableName": name})["TimeToLiveDescription"]
    click.echo(msgspec.json.format(msgspec.json.encode({**found, "TimeToLiveDescription": ttl}), indent=2))


@click.command("drop-table")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@server_options
def drop_table(name: str, yes: bool, url: str, token: str | None) -> None:
    """Delete table NAME with all its items. Its change stream stays readable until its retention has passed."""
    with connect(url, token) as client:
        items = describe(client, name)["ItemCount"]
        if not yes:
            if not sys.stdin.isatty():
                raise click.UsageError("there is nobody to ask: give --yes to drop the table")
            click.confirm(f"Drop table {name!r} with its {items:,} items?", abort=True, err=True)
        client.call("DeleteTable", {"TableName": name})
