"""``tailrace put``, ``get`` and ``tables`` query, scan and delete-item: the items of a table of a running server.

Items are plain JSON in both directions, one per line, or with ``--typed`` exactly as DynamoDB writes them. A key is
given as the values of its attributes, in the order of the table's key; their types come from the table.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal, DecimalException
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import msgspec

from tailrace.cli.names import table_argument
from tailrace.cli.options import connect, server_options
from tailrace.cli.pipes import quietly_ended
from tailrace.errors import Conflict, Invalid, NotFound
from tailrace.tables import value

if TYPE_CHECKING:
    from tailrace.client import Client

Typed = dict[str, Any]  # an item or a key in DynamoDB's JSON
Parameters = dict[str, Any]
Wrapped = TypeVar("Wrapped", bound=Callable[..., Any])

_plain: Final = msgspec.json.Decoder(dict[str, Any], float_hook=Decimal)
_typed: Final = msgspec.json.Decoder(dict[str, dict[str, Any]])

typed_option: Final = click.option(
    "--typed", is_flag=True, help='Use DynamoDB\'s typed JSON, {"n": {"N": "1"}}, instead of plain JSON.'
)


def expression_options(command: Wrapped) -> Wrapped:
    """The options for the placeholders of expressions."""
    with_names = click.option("--names", metavar="JSON", help='The names of #placeholders, {"#n": "name"}.')(command)
    return click.option("--values", metavar="JSON", help='The values of :placeholders, {":x": 1}.')(with_names)


# -- JSON


def read_item(text: str | bytes, typed: bool) -> Typed:
    """An item, or another set of named values, as DynamoDB's JSON."""
    try:
        item = _typed.decode(text) if typed else _plain.decode(text)
        if isinstance(text, bytes):
            text.decode()
    except (msgspec.DecodeError, UnicodeError, RecursionError, DecimalException, ValueError) as error:
        what = "an item in DynamoDB's JSON" if typed else "a JSON object"
        raise Invalid(f"the input is not {what}: {error}") from None
    return item if typed else value.item_from_plain(item)[0]


def item_line(item: Typed, typed: bool) -> bytes:
    """An item of the server as a line of JSON."""
    return msgspec.json.encode(item if typed else value.item_to_json(value.read_item(item)[0])) + b"\n"


def show_all(items: Iterator[Typed], typed: bool) -> None:
    with quietly_ended():
        out = sys.stdout.buffer
        for item in items:
            out.write(item_line(item, typed))
        out.flush()


# -- keys


class KeyAttributes(msgspec.Struct, frozen=True):
    """The key of a table or of an index, and the types of its attributes."""

    hash: tuple[str, ...]
    range: tuple[str, ...]
    kinds: dict[str, str]

    def value(self, name: str, text: str) -> dict[str, str]:
        """A key attribute's value from the command line: text, a number, or base64."""
        return {self.kinds[name]: text}


def key_attributes(client: Client, table: str, index: str | None = None) -> KeyAttributes:
    """The key of the table, or of its index."""
    described = client.call("DescribeTable", {"TableName": table})["Table"]
    keys = described["KeySchema"]
    if index is not None:
        indexes = [*described.get("GlobalSecondaryIndexes", ()), *described.get("LocalSecondaryIndexes", ())]
        schemas = {each["IndexName"]: each["KeySchema"] for each in indexes}
        if index not in schemas:
            names = ", ".join(sorted(schemas)) or "none"
            raise NotFound(f"table {table!r} has no index {index!r}; its indexes: {names}")
        keys = schemas[index]
    kinds = {each["AttributeName"]: each["AttributeType"] for each in described["AttributeDefinitions"]}
    parts = {
        kind: tuple(each["AttributeName"] for each in keys if each["KeyType"] == kind) for kind in ("HASH", "RANGE")
    }
    return KeyAttributes(parts["HASH"], parts["RANGE"], kinds)


def read_key(client: Client, table: str, given: Sequence[str], typed: bool) -> Typed:
    """The key on the command line: values in order, or one JSON object."""
    if len(given) == 1 and given[0].startswith("{"):
        return read_item(given[0], typed)
    key = key_attributes(client, table)
    names = key.hash + key.range
    if len(given) != len(names):
        raise Invalid(f"the key of {table!r} is {' and '.join(names)}: give {len(names)} values, not {len(given)}")
    return {name: key.value(name, text) for name, text in zip(names, given, strict=True)}


# -- expressions


def placeholders(names: str | None, values: str | None, typed: bool) -> Parameters:
    """The parameters for the placeholders of expressions."""
    parameters: Parameters = {}
    if names is not None:
        try:
            parameters["ExpressionAttributeNames"] = msgspec.json.decode(names, type=dict[str, str])
        except (msgspec.DecodeError, UnicodeError) as error:
            raise Invalid(f"--names is not a JSON object of names: {error}") from None
    if values is not None:
        parameters["ExpressionAttributeValues"] = read_item(values, typed)
    return parameters


def conditional(condition: str | None, names: str | None, values: str | None, typed: bool) -> Parameters:
    parameters = placeholders(names, values, typed)
    if condition is not None:
        parameters["ConditionExpression"] = condition
    return parameters


# -- commands


@click.command()
@table_argument
@click.argument("item")
@click.option("--condition", metavar="EXPRESSION", help="Put only if this is true, e.g. attribute_not_exists(pk).")
@expression_options
@typed_option
@server_options
def put(
    table: str, item: str, condition: str | None, names: str | None, values: str | None, typed: bool, url: str,
    token: str | None,
) -> None:  # fmt: skip
    """Put ITEM, a JSON object (or - for standard input), into TABLE. It replaces an item with the same key."""
    text = sys.stdin.buffer.read() if item == "-" else os.fsencode(item)
    parameters = {"TableName": table, "Item": read_item(text, typed)}
    with connect(url, token) as client:
        _conditionally(client, "PutItem", parameters | conditional(condition, names, values, typed))


@click.command()
@table_argument
@click.argument("key", nargs=-1, required=True)
@typed_option
@server_options
def get(table: str, key: tuple[str, ...], typed: bool, url: str, token: str | None) -> None:
    """Print the item of TABLE with this KEY: its values in order, or one JSON object."""
    with connect(url, token) as client:
        parameters = {"TableName": table, "Key": read_key(client, table, key, typed), "ConsistentRead": True}
        item = client.call("GetItem", parameters).get("Item")
    if item is None:
        raise NotFound(f"table {table!r} has no item with the key {' '.join(key)}")
    show_all(iter([item]), typed)


@click.command("delete-item")
@table_argument
@click.argument("key", nargs=-1, required=True)
@click.option("--condition", metavar="EXPRESSION", help="Delete only if this is true.")
@expression_options
@typed_option
@server_options
def delete_item(
    table: str, key: tuple[str, ...], condition: str | None, names: str | None, values: str | None, typed: bool,
    url: str, token: str | None,
) -> None:  # fmt: skip
    """Delete the item of TABLE with this KEY and print it. A missing item is not an error."""
    with connect(url, token) as client:
        parameters = {"TableName": table, "Key": read_key(client, table, key, typed), "ReturnValues": "ALL_OLD"}
        old = _conditionally(client, "DeleteItem", parameters | conditional(condition, names, values, typed))
    if "Attributes" in old:
        show_all(iter([old["Attributes"]]), typed)


def _conditionally(client: Client, operation: str, parameters: Parameters) -> Parameters:
    try:
        return client.call(operation, parameters)
    except Conflict as error:
        if error.code == "ConditionalCheckFailedException":
            raise Conflict("the condition is false; nothing was changed", code=error.code) from None
        raise


@click.command()
@table_argument
@click.argument("key", nargs=-1, required=True)
@click.option("--index", help="Read this index instead of the table.")
@click.option("--begins-with", metavar="TEXT", help="Only sort keys with this prefix.")
@click.option("--from", "first", metavar="VALUE", help="Only sort keys from this value on.")
@click.option("--to", "last", metavar="VALUE", help="Only sort keys up to and including this value.")
@click.option("--reverse", is_flag=True, help="Descending order of sort keys.")
@click.option("--limit", type=click.IntRange(1), help="Print at most this many items.")
@click.option("--filter", "condition", metavar="EXPRESSION", help="Only items for which this is true.")
@expression_options
@typed_option
@server_options
def query(
    table: str, key: tuple[str, ...], index: str | None, begins_with: str | None, first: str | None,
    last: str | None, reverse: bool, limit: int | None, condition: str | None, names: str | None, values: str | None,
    typed: bool, url: str, token: str | None,
) -> None:  # fmt: skip
    """Print the items of TABLE with this partition KEY in the order of their sort keys, one per line.

    KEY may also include the value of the sort key.
    """
    if begins_with is not None and (first is not None or last is not None):
        raise click.UsageError("--begins-with excludes --from and --to")
    with connect(url, token) as client:
        parameters: Parameters = {"TableName": table, **placeholders(names, values, typed)}
        _add_key_condition(parameters, key_attributes(client, table, index), key, begins_with, first, last)
        parameters["ScanIndexForward"] = not reverse
        show_all(pages(client, "Query", _narrowed(parameters, index, condition), limit), typed)


@click.command()
@table_argument
@click.option("--index", help="Read this index instead of the table.")
@click.option("--limit", type=click.IntRange(1), help="Print at most this many items.")
@click.option("--filter", "condition", metavar="EXPRESSION", help="Only items for which this is true.")
@expression_options
@typed_option
@server_options
def scan(
    table: str, index: str | None, limit: int | None, condition: str | None, names: str | None, values: str | None,
    typed: bool, url: str, token: str | None,
) -> None:  # fmt: skip
    """Print all items of TABLE, one per line."""
    parameters: Parameters = {"TableName": table, **placeholders(names, values, typed)}
    with connect(url, token) as client:
        show_all(pages(client, "Scan", _narrowed(parameters, index, condition), limit), typed)


def _narrowed(parameters: Parameters, index: str | None, condition: str | None) -> Parameters:
    if index is not None:
        parameters["IndexName"] = index
    if condition is not None:
        parameters["FilterExpression"] = condition
    return parameters


def _add_key_condition(
    parameters: Parameters, keys: KeyAttributes, key: Sequence[str], begins_with: str | None, first: str | None,
    last: str | None,
) -> None:  # fmt: skip
    """Add the key condition of KEY and of the options on the sort key."""
    attributes = keys.hash + keys.range
    if not len(keys.hash) <= len(key) <= len(attributes):
        raise Invalid(
            f"the key is {' and '.join(attributes)}: give {len(keys.hash)} to {len(attributes)} values, not {len(key)}"
        )
    names: dict[str, str] = parameters.setdefault("ExpressionAttributeNames", {})
    values: Typed = parameters.setdefault("ExpressionAttributeValues", {})

    def placed(name: str, text: str) -> tuple[str, str]:
        number = len(values)
        names[f"#key_{number}"], values[f":key_{number}"] = name, keys.value(name, text)
        return f"#key_{number}", f":key_{number}"

    terms = ["{} = {}".format(*placed(name, text)) for name, text in zip(attributes, key, strict=False)]
    if begins_with is not None or first is not None or last is not None:
        if len(key) == len(attributes):
            raise Invalid("there is no sort key left to narrow: leave out --begins-with, --from and --to")
        name = attributes[len(key)]
        if begins_with is not None:
            terms.append("begins_with({}, {})".format(*placed(name, begins_with)))
        elif first is not None and last is not None:
            placeholder, low = placed(name, first)
            terms.append(f"{placeholder} BETWEEN {low} AND {placed(name, last)[1]}")
            del names[f"#key_{len(values) - 1}"]  # one name is enough, and an unused one is an error
        elif first is not None:
            terms.append("{} >= {}".format(*placed(name, first)))
        else:
            terms.append("{} <= {}".format(*placed(name, last or "")))
    parameters["KeyConditionExpression"] = " AND ".join(terms)


def pages(client: Client, operation: str, parameters: Parameters, limit: int | None = None) -> Iterator[Typed]:
    """The items of a query or scan, page by page to the end, or the first `limit`."""
    return islice(_pages(client, operation, parameters, limit), limit)


def _pages(client: Client, operation: str, parameters: Parameters, limit: int | None) -> Iterator[Typed]:
    if limit is not None and "FilterExpression" not in parameters:
        parameters = {**parameters, "Limit": limit}
    while True:
        page = client.call(operation, parameters)
        yield from page["Items"]
        if "LastEvaluatedKey" not in page:
            return
        parameters = {**parameters, "ExclusiveStartKey": page["LastEvaluatedKey"]}
