"""Creating a table like another one, for `restore` and `replicate` to fill.

The new table gets the key, declared columns and indexes of the other one. It gets no expiry, or housekeeping would soon
remove restored items, and no change stream or routes: these are set up explicitly.
"""

from __future__ import annotations

from typing import Any, Final

from tailrace.client import Client
from tailrace.errors import Conflict, NotFound
from tailrace.spark.jobs.state import ChangeStreamInfo

_SQL_KINDS: Final = {"S": "TEXT", "N": "DECIMAL", "B": "BLOB"}
_INDEX: Final = ("IndexName", "KeySchema", "Projection")


def described(client: Client, table: str) -> dict[str, Any] | None:
    """The DynamoDB description of the table; None: it does not exist."""
    try:
        found: dict[str, Any] = client.call("DescribeTable", {"TableName": table})["Table"]
    except NotFound:
        return None
    return found


def make(client: Client, known: ChangeStreamInfo, into: str, like: dict[str, Any] | None) -> dict[str, Any]:
    """Create the table `into` with the key and columns of `known`, and the indexes that `like` describes."""
    like = like or {}
    if known.columns:
        _by_sql(client, known, into, like)
    else:
        _by_api(client, known, into, like)
    made = described(client, into)
    assert made is not None, f"table {into!r} was created and does not exist"
    return made


def check_key(known: ChangeStreamInfo, into: str, found: dict[str, Any]) -> None:
    """Raise unless the table has the key of `known`."""
    kinds = {each["AttributeName"]: each["AttributeType"] for each in found["AttributeDefinitions"]}
    key = tuple((each["AttributeName"], kinds[each["AttributeName"]]) for each in found["KeySchema"])
    if key != known.keys:
        raise Conflict(
            f"table {into!r} has the key {_shown(key)}, and table {known.table!r} has {_shown(known.keys)}; give the "
            "name of a table that does not exist yet, and it is created",
            code="OTHER_KEY",
        )


def not_empty(table: str, what: str) -> Conflict:
    """The error for a table with items that this job did not write."""
    return Conflict(
        f"table {table!r} has items already, which would mix with {what}; give the name of a table that does not "
        "exist yet, or remove its items first",
        code="NOT_EMPTY",
    )


def _by_api(client: Client, known: ChangeStreamInfo, into: str, like: dict[str, Any]) -> None:
    wide = [{name: index[name] for name in _INDEX} for index in like.get("GlobalSecondaryIndexes", ())]
    local = [{name: index[name] for name in _INDEX} for index in like.get("LocalSecondaryIndexes", ())]
    used = {key["AttributeName"] for index in (*wide, *local) for key in index["KeySchema"]}
    attributes = dict(known.keys)
    for each in like.get("AttributeDefinitions", ()):
        if each["AttributeName"] in used:
            attributes.setdefault(each["AttributeName"], each["AttributeType"])
    request: dict[str, Any] = {
        "TableName": into,
        "KeySchema": _schema(known.keys),
        "AttributeDefinitions": _attributes(attributes),
        "BillingMode": "PAY_PER_REQUEST",
    }
    if wide:
        request["GlobalSecondaryIndexes"] = wide
    if local:
        request["LocalSecondaryIndexes"] = local
    client.call("CreateTable", request)


def _by_sql(client: Client, known: ChangeStreamInfo, into: str, like: dict[str, Any]) -> None:
    columns = {name: _SQL_KINDS[kind] for name, kind in known.keys} | dict(known.columns)
    column_list = ", ".join(f"{_quoted(name)} {kind}" for name, kind in columns.items())
    keys = ", ".join(_quoted(name) for name, _ in known.keys)
    client.sql(f"CREATE TABLE ? ({column_list}, PRIMARY KEY ({keys}))", [into])
    for index in like.get("GlobalSecondaryIndexes", ()):
        used = {key["AttributeName"] for key in index["KeySchema"]}
        wanted = {each["AttributeName"]: each["AttributeType"] for each in like["AttributeDefinitions"]}
        client.call(
            "UpdateTable",
            {
                "TableName": into,
                "AttributeDefinitions": _attributes({name: kind for name, kind in wanted.items() if name in used}),
                "GlobalSecondaryIndexUpdates": [{"Create": {name: index[name] for name in _INDEX}}],
            },
        )


def _schema(keys: tuple[tuple[str, str], ...]) -> list[dict[str, str]]:
    return [{"AttributeName": name, "KeyType": role} for (name, _), role in zip(keys, ("HASH", "RANGE"), strict=False)]


def _attributes(kinds: dict[str, str]) -> list[dict[str, str]]:
    return [{"AttributeName": name, "AttributeType": kind} for name, kind in kinds.items()]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _shown(keys: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"{name} ({kind})" for name, kind in keys)
