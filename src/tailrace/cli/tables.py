"""``tailrace tables`` list, create, describe and drop: the tables of a running server."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from tailrace.cli.names import table_argument
from tailrace.cli.options import connect, server_options
from tailrace.errors import Invalid, Unavailable

if TYPE_CHECKING:
    from tailrace.client import Client

VIEWS: Final = ("KEYS_ONLY", "NEW_IMAGE", "OLD_IMAGE", "NEW_AND_OLD_IMAGES")
KINDS: Final = ("S", "N", "B")
ACTIVE_S: Final = 60.0  # how long a new table may take to become active
WIDE: Final = 10_000  # columns of an output that is not a terminal: nothing is folded

TableDescription = dict[str, Any]


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per table and line.")
@server_options
def list_tables(as_json: bool, url: str, token: str | None) -> None:
    """List the tables with their keys, items, bytes and indexes."""
    with connect(url, token) as client:
        tables = [describe_table(client, name) for name in _names(client)]
    if as_json:
        for each in tables:
            click.echo(msgspec.json.encode(each))
    elif tables:
        _draw(tables)
    else:
        click.echo("there are no tables; create one with tailrace tables create NAME --key ATTRIBUTE:S", err=True)


def _names(client: Client) -> Iterator[str]:
    parameters: dict[str, Any] = {}
    while True:
        page = client.call("ListTables", parameters)
        yield from page["TableNames"]
        if "LastEvaluatedTableName" not in page:
            return
        parameters = {"ExclusiveStartTableName": page["LastEvaluatedTableName"]}


def describe_table(client: Client, name: str) -> TableDescription:
    """The server's DescribeTable."""
    table: TableDescription = client.call("DescribeTable", {"TableName": name})["Table"]
    return table


def _draw(tables: list[TableDescription]) -> None:
    from rich.console import Console
    from rich.table import Table

    terminal = sys.stdout.isatty()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("table", "key", "items", "bytes", "indexes", "changes", "status"):
        table.add_column(column, justify="right" if column in ("items", "bytes") else "left", no_wrap=not terminal)
    for each in tables:
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


def _key(described: TableDescription) -> str:
    kinds = {each["AttributeName"]: each["AttributeType"] for each in described["AttributeDefinitions"]}
    return ", ".join(f"{each['AttributeName']}:{kinds[each['AttributeName']]}" for each in described["KeySchema"])


@click.command()
@click.argument("table")
@click.option("--key", required=True, metavar="NAME:TYPE", help="The partition key, e.g. pk:S (S, N or B).")
@click.option("--sort", metavar="NAME:TYPE", help="The sort key, e.g. sk:N.")
@click.option(
    "--index",
    "indexes",
    multiple=True,
    metavar="INDEX:HASH:TYPE[:RANGE:TYPE]",
    help="A global secondary index, e.g. by_city:city:S:age:N; can be repeated.",
)
@click.option(
    "--stream",
    type=click.Choice(VIEWS, case_sensitive=False),
    help="Record changes, with the images of this view type.",
)
@click.option("--ttl", metavar="ATTRIBUTE", help="The attribute with the expiry time of an item, in Unix seconds.")
@server_options
def create(
    table: str, key: str, sort: str | None, indexes: tuple[str, ...], stream: str | None, ttl: str | None, url: str,
    token: str | None,
) -> None:  # fmt: skip
    """Create TABLE and wait until it is active."""
    parameters = table_parameters(table, key, sort, indexes, stream)
    with connect(url, token) as client:
        client.call("CreateTable", parameters)
        _wait_until_active(client, table)
        if ttl is not None:
            specification = {"Enabled": True, "AttributeName": ttl}
            client.call("UpdateTimeToLive", {"TableName": table, "TimeToLiveSpecification": specification})


def table_parameters(
    name: str, key: str, sort: str | None = None, indexes: tuple[str, ...] = (), stream: str | None = None
) -> dict[str, Any]:
    """The parameters of CreateTable."""
    kinds: dict[str, str] = {}
    parameters: dict[str, Any] = {
        "TableName": name,
        "KeySchema": _key_schema([key] if sort is None else [key, sort], kinds),
        "BillingMode": "PAY_PER_REQUEST",
    }
    if indexes:
        parameters["GlobalSecondaryIndexes"] = [_index(text, kinds) for text in indexes]
    if stream is not None:
        parameters["StreamSpecification"] = {"StreamEnabled": True, "StreamViewType": stream}
    parameters["AttributeDefinitions"] = [
        {"AttributeName": attribute, "AttributeType": kind} for attribute, kind in kinds.items()
    ]
    return parameters


def _key_schema(parts: list[str], kinds: dict[str, str]) -> list[dict[str, str]]:
    """A hash and perhaps a range attribute, each NAME:TYPE; their types are added to `kinds`."""
    attributes = []
    for text, role in zip(parts, ("HASH", "RANGE"), strict=False):
        name, _, kind = text.rpartition(":")
        if not name or kind.upper() not in KINDS:
            raise Invalid(f"{text!r} is not a key attribute: give NAME:TYPE with the type S, N or B, e.g. pk:S")
        if kinds.setdefault(name, kind.upper()) != kind.upper():
            raise Invalid(f"{name!r} cannot be both {kinds[name]} and {kind.upper()}; a key attribute has one type")
        attributes.append({"AttributeName": name, "KeyType": role})
    return attributes


def _index(text: str, kinds: dict[str, str]) -> dict[str, Any]:
    name, *parts = text.split(":")
    if not name or len(parts) not in (2, 4):
        raise Invalid(f"{text!r} is not an index: give INDEX:HASH:TYPE or INDEX:HASH:TYPE:RANGE:TYPE")
    keys = [":".join(parts[at : at + 2]) for at in range(0, len(parts), 2)]
    return {"IndexName": name, "KeySchema": _key_schema(keys, kinds), "Projection": {"ProjectionType": "ALL"}}


def _wait_until_active(client: Client, name: str) -> None:
    deadline_s = time.monotonic() + ACTIVE_S
    delay_s = 0.01
    while describe_table(client, name)["TableStatus"] != "ACTIVE":
        if time.monotonic() > deadline_s:
            raise Unavailable(f"table {name!r} was created but is not active after {ACTIVE_S:g} s; try again later")
        time.sleep(delay_s)
        delay_s = min(delay_s * 2, 1.0)


@click.command()
@table_argument
@server_options
def describe(table: str, url: str, token: str | None) -> None:
    """Describe TABLE as JSON: key, indexes, item count, change stream, TTL."""
    with connect(url, token) as client:
        described = describe_table(client, table)
        ttl = client.call("DescribeTimeToLive", {"TableName": table})["TimeToLiveDescription"]
    click.echo(msgspec.json.format(msgspec.json.encode({**described, "TimeToLiveDescription": ttl}), indent=2))


@click.command()
@table_argument
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@server_options
def drop(table: str, yes: bool, url: str, token: str | None) -> None:
    """Delete TABLE with all its items. Its change stream stays readable for the retention time."""
    with connect(url, token) as client:
        items = describe_table(client, table)["ItemCount"]
        if not yes:
            if not sys.stdin.isatty():
                raise click.UsageError("there is no terminal to confirm on: add --yes to drop the table")
            click.confirm(f"Drop table {table!r} with its {items:,} items?", abort=True, err=True)
        client.call("DeleteTable", {"TableName": table})
