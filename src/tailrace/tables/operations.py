"""Commands and queries for the table operations of the Python API, built from plain values; and plain results.

Everything here is independent of how the caller waits: `embedded.aio` awaits the results, `embedded.sync` blocks.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from tempfile import SpooledTemporaryFile
from typing import Any, Final, TypeAlias

import msgspec

from tailrace import limits
from tailrace.access import Permission
from tailrace.command import Command, Query
from tailrace.errors import InUse, Invalid
from tailrace.storage.engine import Reader, Tx
from tailrace.tables import commands, lifecycle, plain, queries, schema, value
from tailrace.tables.definition import TABLES, Attribute, Definition, decoded, find
from tailrace.tables.expression import KeyCondition, update
from tailrace.tables.paging import ItemPage
from tailrace.tables.plain import (
    Check,
    Delete,
    Index,
    IndexInfo,
    KeySpec,
    Page,
    PlaceholderBindings,
    Plain,
    Put,
    Sort,
    TableInfo,
    Update,
    eq,
    key_item,
    spelt,
)

Action: TypeAlias = Put | Delete | Update | Check
SPOOL_BYTES: Final = 64 * limits.MiB  # of a snapshot in memory; more goes to a temporary file


# -- tables


class MakeTable(Command[Definition], frozen=True):
    """Make a table, with an attribute for expiry if wanted, in one step."""

    permission = Permission.ADMIN

    spec: schema.TableSpec
    ttl: str | None = None
    exist_ok: bool = False

    def subjects(self) -> tuple[str, ...]:
        return (f"tables/{self.spec.name}",)

    def run(self, tx: Tx) -> Definition:
        row = tx.get(TABLES, self.spec.name)
        if row is not None and self.exist_ok:
            definition = decoded(row)
            wanted = tuple((name, kind) for name, kind in _kinds_of(self.spec).items())
            there = tuple((name, definition.kinds[name]) for name in definition.keys)
            if wanted != there:
                raise InUse(f"table {definition.name!r} exists with the key {dict(there)}, not {dict(wanted)}")
            return definition
        lifecycle.CreateTable(self.spec).run(tx)
        if self.ttl is not None:
            lifecycle.SetTimeToLive(self.spec.name, self.ttl, True).run(tx)
        return find(tx, self.spec.name)


def _kinds_of(spec: schema.TableSpec) -> dict[str, str]:
    kinds = {attribute.name: attribute.kind for attribute in spec.attributes}
    return {element.name: kinds[element.name] for element in spec.keys}


class FindTable(Query[Definition], frozen=True):
    """The definition of a table."""

    subject = ("tables", "name")

    name: str

    def run(self, reader: Reader) -> Definition:
        return find(reader, self.name)


def make_table(
    name: str,
    partition_key: KeySpec,
    sort_key: KeySpec | None,
    indexes: Iterable[Index],
    stream: schema.StreamSpec | None,
    ttl: str | None,
    exist_ok: bool,
) -> MakeTable:
    """The command that creates a table."""
    if ttl is not None:
        value.check_text(ttl, "the name of the attribute for expiry")
    kinds: dict[str, str | None] = {}
    key = _elements(kinds, _listed(partition_key), _listed(sort_key))
    local: list[schema.IndexSpec] = []
    others: list[schema.IndexSpec] = []
    for index in indexes:
        if index.local and index.partition_key is None:
            index = msgspec.structs.replace(index, partition_key=_listed(partition_key))
        (local if index.local else others).append(_index_spec(kinds, index))
    spec = schema.TableSpec(
        name=name,
        attributes=tuple(Attribute(attribute, kind or "S") for attribute, kind in kinds.items()),
        keys=key,
        local=tuple(local) or None,
        globals=tuple(others) or None,
        billing=schema.PAY_PER_REQUEST,
        stream=stream,
    )
    return MakeTable(spec, ttl, exist_ok)


def table_info(described: lifecycle.TableDescription) -> TableInfo:
    """A description of a table with plain values."""
    definition, counts = described.definition, described.counts
    kinds = definition.kinds
    indexes = [
        IndexInfo(
            index.name,
            index.hash,
            index.range,
            list(index.projection.attributes) if index.projection.kind == "INCLUDE" else index.projection.kind,
            index.local,
            index.status,
            counts[index.space].items,
            counts[index.space].bytes,
        )
        for index in definition.indexes
    ]
    return TableInfo(
        definition.name,
        (definition.hash, kinds[definition.hash]),
        None if definition.range is None else (definition.range, kinds[definition.range]),
        counts[definition.space].items,
        counts[definition.space].bytes,
        indexes,
        definition.ttl,
        None if definition.stream is None else definition.stream.view,
        plain.moment(definition.created_ms),
        described.status,
    )


def added_index(definition: Definition, index: Index) -> lifecycle.UpdateTable:
    """The command that adds an index to an existing table."""
    if index.local:
        raise Invalid(f"index {index.name!r} is local: a local index is created with its table; leave out local=True")
    kinds: dict[str, str | None] = {}
    spec = _index_spec(kinds, index)
    attributes = tuple(
        Attribute(attribute, kind or definition.kinds.get(attribute, "S")) for attribute, kind in kinds.items()
    )
    changes = schema.TableChanges(attributes=attributes, indexes=(schema.IndexChange(create=spec),))
    return lifecycle.UpdateTable(definition.name, changes)


class SetExpiry(Command[None], frozen=True):
    """Let items expire by this attribute, whichever it was before; None: by none."""

    permission = Permission.ADMIN
    subject = ("tables", "table")

    table: str
    attribute: str | None

    def run(self, tx: Tx) -> None:
        before = find(tx, self.table).ttl
        if before == self.attribute:
            return
        if before is not None:
            lifecycle.SetTimeToLive(self.table, before, False).run(tx)
        if self.attribute is not None:
            lifecycle.SetTimeToLive(self.table, self.attribute, True).run(tx)


def set_expiry(table: str, attribute: str | None) -> SetExpiry:
    """The command that lets items expire by an attribute."""
    if attribute is not None:
        value.check_text(attribute, "the name of the attribute for expiry")
    return SetExpiry(table, attribute)


def _listed(key: KeySpec | list[KeySpec] | None) -> list[KeySpec]:
    return [] if key is None else key if isinstance(key, list) else [key]


def _elements(
    kinds: dict[str, str | None], hashes: list[KeySpec], ranges: list[KeySpec]
) -> tuple[schema.KeyElement, ...]:
    """The elements of a key; types that are given go into `kinds`."""
    elements: list[schema.KeyElement] = []
    for role, keys in (("HASH", hashes), ("RANGE", ranges)):
        for given in keys:
            name, kind = (given, None) if isinstance(given, str) else given
            if kind not in (None, "S", "N", "B"):
                raise Invalid(f"key attribute {name!r} has the type {kind!r}; use S (string), N (number) or B (binary)")
            if kind is not None and kinds.get(name) not in (None, kind):
                raise Invalid(f"key attribute {name!r} has the types {kinds[name]} and {kind}; it can have one")
            kinds[name] = kind or kinds.get(name)
            elements.append(schema.KeyElement(value.check_text(name, "the name of a key attribute"), role))
    return tuple(elements)


def _index_spec(kinds: dict[str, str | None], index: Index) -> schema.IndexSpec:
    if index.partition_key is None:
        raise Invalid(f"index {index.name!r} has no partition_key; name the attribute that it finds items by")
    if isinstance(index.projection, str):
        if index.projection not in ("ALL", "KEYS_ONLY"):
            raise Invalid(
                f"index {index.name!r} has the projection {index.projection!r}; "
                "use 'ALL', 'KEYS_ONLY' or a list of attribute names"
            )
        projected = schema.ProjectionSpec(index.projection)
    else:
        names = tuple(value.check_text(name, "the name of an attribute") for name in index.projection)
        projected = schema.ProjectionSpec("INCLUDE", names)
    keys = _elements(kinds, _listed(index.partition_key), _listed(index.sort_key))
    return schema.IndexSpec(index.name, keys, projected)


# -- writing


def check_batch(writes: Sequence[Put | Delete]) -> None:
    """Refuse actions that a batch cannot take."""
    for write in writes:
        if not isinstance(write, (Put, Delete)):
            raise Invalid(
                f"a batch takes Put and Delete, not {type(write).__name__}; use transact_write for the others"
            )
        if write.condition is not None:
            raise Invalid("a batch takes no conditions; use transact_write")


def check_transaction(actions: Sequence[Action], token: str | None) -> None:
    """Refuse actions that a transaction cannot take, too many of them, and a token that cannot be stored."""
    check_count(len(actions))
    for action in actions:
        if not isinstance(action, Put | Delete | Update | Check):
            raise Invalid(f"a transaction takes Put, Delete, Update and Check, not {type(action).__name__}")
    most = limits.TOKEN_CHARACTERS_MAX
    if token is not None and not 1 <= len(value.check_text(token, "a token")) <= most:
        raise Invalid(f"a token has 1 to {most} characters, not {len(token)}; use None for none")


def item_command(definitions: Mapping[str, Definition], action: Action) -> commands.ItemCommand:
    """The command of one action of a batch or transaction."""
    if isinstance(action, Put):
        return put_item(action)
    definition = definitions[action.table]
    if isinstance(action, Delete):
        return delete_item(definition, action)
    if isinstance(action, Update):
        return update_item(definition, action)
    return _check(definition, action)


def digest(actions: Sequence[Action], made: list[commands.ItemCommand]) -> bytes:
    """The digest of everything that a token stands for; the same in every process."""
    parts: list[Any] = []
    for action, one in zip(actions, made, strict=True):
        item = one.item if isinstance(one, commands.PutItem) else one.key  # type: ignore[attr-defined]
        texts = [type(action).__name__, action.table, action.condition, getattr(action, "expression", None)]
        names = sorted(PlaceholderBindings.marked_names(action.names).items())
        parts.append([texts, names, value.digest(item), value.digest(PlaceholderBindings(None, action.values).values)])
    return hashlib.sha256(msgspec.msgpack.encode(parts)).digest()


def check_count(number: int) -> None:
    """Refuse a transaction with too many actions, or with none."""
    if not 1 <= number <= limits.TRANSACT_ACTIONS_MAX:
        raise Invalid(f"a transaction has 1 to {limits.TRANSACT_ACTIONS_MAX} actions, not {number}")


def _check_returns(returns: str, *allowed: str) -> None:
    if returns not in allowed:
        raise Invalid(f"returns={returns!r} is unknown here; use one of {', '.join(allowed)}")


def put_item(put: Put, returns: str = commands.NONE, on_failure: bool = False) -> commands.PutItem:
    """The command that puts an item."""
    _check_returns(returns, commands.NONE, commands.ALL_OLD)
    item, size = value.item_from_plain(put.item)
    if put.condition is None and not put.names and not put.values:
        return commands.PutItem(put.table, item, size, returns=returns, on_failure=on_failure, request_bytes=0)
    holders = PlaceholderBindings(put.names, put.values)
    wanted = holders.condition(put.condition)
    holders.done()
    request_bytes = 0 if wanted is None else holders.request_bytes({})
    return commands.PutItem(
        put.table, item, size, condition=wanted, returns=returns, on_failure=on_failure, request_bytes=request_bytes
    )


def delete_item(
    definition: Definition, delete: Delete, returns: str = commands.NONE, on_failure: bool = False
) -> commands.DeleteItem:
    """The command that deletes an item."""
    _check_returns(returns, commands.NONE, commands.ALL_OLD)
    holders = PlaceholderBindings(delete.names, delete.values)
    wanted = holders.condition(delete.condition)
    holders.done()
    key = key_item(definition, delete.key)
    request_bytes = holders.request_bytes(key)
    return commands.DeleteItem(
        delete.table, key, condition=wanted, returns=returns, on_failure=on_failure, request_bytes=request_bytes
    )


def update_item(
    definition: Definition, given: Update, returns: str = commands.NONE, on_failure: bool = False
) -> commands.UpdateItem:
    """The command that updates an item."""
    _check_returns(
        returns, commands.NONE, commands.ALL_OLD, commands.ALL_NEW, commands.UPDATED_OLD, commands.UPDATED_NEW
    )
    holders = PlaceholderBindings(given.names, given.values)
    changes = update(given.expression, holders.placeholders)
    wanted = holders.condition(given.condition)
    holders.done()
    key = key_item(definition, given.key)
    request_bytes = holders.request_bytes(key)
    return commands.UpdateItem(
        given.table, key, changes, condition=wanted, returns=returns, on_failure=on_failure, request_bytes=request_bytes
    )


def _check(definition: Definition, check: Check) -> commands.CheckItem:
    holders = PlaceholderBindings(check.names, check.values)
    wanted = holders.condition(check.condition)
    holders.done()
    key = key_item(definition, check.key)
    return commands.CheckItem(check.table, key, condition=wanted, request_bytes=holders.request_bytes(key))


# -- reading


def get_item(definition: Definition, key: Any, wanted: str | None, names: Mapping[str, str] | None) -> queries.GetItem:
    """The query for one item."""
    if wanted is None and not names:
        return queries.GetItem(definition.name, key_item(definition, key), None, True)
    holders = PlaceholderBindings(names, None)
    paths = holders.projection(wanted)
    holders.done()
    return queries.GetItem(definition.name, key_item(definition, key), paths, True)


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options that queries and scans share."""

    index: str | None = None
    filter: str | None = None
    projection: str | None = None
    names: Mapping[str, str] | None = None
    values: Mapping[str, Any] | None = None
    limit: int | None = None
    after: Plain | None = None

    def options(self) -> dict[str, Any]:
        """The same as fields of the queries."""
        if self.limit is not None and not (type(self.limit) is int and 1 <= self.limit <= sys.maxsize):
            raise Invalid(f"limit={self.limit!r} is not a number from 1 on; leave it out for no limit")
        holders = PlaceholderBindings(self.names, self.values)
        options = {
            "index": self.index,
            "filter": holders.condition(self.filter, "FilterExpression"),
            "projection": holders.projection(self.projection),
            "limit": self.limit,
            "start": None if self.after is None else value.item_from_plain(self.after)[0],
        }
        holders.done()
        return options


def query(name: str, partition: Any, sort: Any, reverse: bool, reading: ReadOptions) -> queries.QueryItems:
    """The query for items of one partition."""
    hashes = [value.from_plain(part) for part in (partition if isinstance(partition, tuple) else (partition,))]
    equal: list[dict[str, Any]] = []
    op: str | None = None
    operands: list[dict[str, Any]] = []
    parts = () if sort is None else sort if isinstance(sort, tuple) else (sort,)
    for number, part in enumerate(parts):
        wanted = part if isinstance(part, Sort) else eq(part)
        given = [value.from_plain(operand) for operand in wanted.operands]
        if wanted.op == "=":
            equal += given
        elif number < len(parts) - 1:
            raise Invalid(f"only the last condition on a sort key can be {wanted.op!r}; those before it are equalities")
        else:
            op, operands = wanted.op, given

    def bind(hash_names: tuple[str, ...], range_names: tuple[str, ...], _: Mapping[str, str]) -> KeyCondition:
        if len(hashes) != len(hash_names):
            raise Invalid(f"the partition key is {spelt(hash_names)}; give {len(hash_names)} values, not {len(hashes)}")
        if len(parts) > len(range_names):
            there = f"is {spelt(range_names)}" if range_names else "does not exist"
            raise Invalid(f"the sort key {there}; {len(parts)} conditions on it are too many")
        return KeyCondition(hashes, equal, op, operands)

    return queries.QueryItems(table=name, condition=bind, reverse=reverse, consistent=False, **reading.options())


def scan(name: str, segment: int | None, segments: int | None, reading: ReadOptions) -> queries.ScanItems:
    """The scan of a table, or of a part of it."""
    if (segment is None) != (segments is None):
        raise Invalid("segment and segments belong together: which one, of how many")
    if segment is not None and segments is not None and not 0 <= segment < segments:
        raise Invalid(f"segment={segment} is not from 0 to {segments - 1}")
    return queries.ScanItems(table=name, segment=segment, total=segments, **reading.options())


def plain_page(page: ItemPage) -> Page:
    """A page with plain values."""
    items = [value.item_to_plain(item) for item in page.items or ()]
    return Page(items, plain.plain(page.last_key), page.scanned)


class Walk:
    """All pages of a query or scan, one after the other, up to `limit` items that pass."""

    def __init__(self, wanted: queries.QueryItems | queries.ScanItems) -> None:
        self._left = wanted.limit
        # With a filter the number to examine is not known; without one reading more than is wanted would be of no use.
        self.next: queries.QueryItems | queries.ScanItems | None = wanted
        if wanted.filter is not None:
            self.next = msgspec.structs.replace(wanted, limit=None)

    def take(self, page: Page) -> list[Plain]:
        """The items of the page that answered `next`; moves on to the following page."""
        wanted = self.next
        assert wanted is not None
        items = page.items
        if self._left is not None:
            items = items[: self._left]
            self._left -= len(items)
        if page.cursor is None or self._left == 0:
            self.next = None
        else:
            start, _ = value.item_from_plain(page.cursor)
            limit = self._left if wanted.filter is None else None
            self.next = msgspec.structs.replace(wanted, start=start, limit=limit)
        return items


class TableSnapshot:
    """All items of a table as they were right after `sequence`. Iterate over it once, or close it."""

    def __init__(self, sequence: int, spool: SpooledTemporaryFile[bytes]) -> None:
        self.sequence = sequence
        self._spool = spool

    def __iter__(self) -> Iterator[Plain]:
        try:
            while head := self._spool.read(4):
                yield value.item_to_plain(value.decode(self._spool.read(int.from_bytes(head))))
        finally:
            self.close()

    def close(self) -> None:
        """Drop the items that were not read."""
        self._spool.close()
