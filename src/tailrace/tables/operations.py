"""Every operation on tables of a Python program, written once.

An operation is a generator: it yields the commands and queries that it needs done and is sent their results; what it
returns is the answer. So it does not know how to wait, and serves `Table` and `AsyncTable` alike (`tailrace.embedded`).
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from tempfile import SpooledTemporaryFile
from types import EllipsisType
from typing import Any, Final

import msgspec

from tailrace import limits
from tailrace.access import Permission
from tailrace.command import Command, Query
from tailrace.errors import ConditionFailed, InUse, Invalid
from tailrace.storage.engine import Reader, Tx
from tailrace.tables import commands, lifecycle, plain, queries, schema, value
from tailrace.tables.definition import TABLES, Attribute, Definition, decoded, find
from tailrace.tables.expression import KeyCondition, update
from tailrace.tables.plain import (
    Age,
    Check,
    Delete,
    Get,
    Holders,
    Index,
    IndexInfo,
    KeySpec,
    Page,
    Plain,
    Put,
    Sort,
    Steps,
    TableInfo,
    Update,
    eq,
    key_item,
    retention,
    spelt,
)
from tailrace.tables.write import Written

TRANSACT_ACTIONS_MAX: Final = 100
SPOOL_BYTES: Final = 64 * limits.MiB  # of a snapshot in memory; more goes to a temporary file


# -- tables


class MakeTable(Command[Definition], frozen=True):
    """Make a table, with an attribute for expiry if wanted, in one step."""

    permission = Permission.ADMIN

    spec: schema.Spec
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


def _kinds_of(spec: schema.Spec) -> dict[str, str]:
    kinds = {attribute.name: attribute.kind for attribute in spec.attributes}
    return {element.name: kinds[element.name] for element in spec.keys}


class FindTable(Query[Definition], frozen=True):
    """The definition of a table."""

    subject = ("tables", "name")

    name: str

    def run(self, reader: Reader) -> Definition:
        return find(reader, self.name)


def create_table(
    name: str,
    partition_key: KeySpec,
    sort_key: KeySpec | None,
    *,
    stream: str | None,
    indexes: Iterable[Index],
    ttl: str | None,
    max_age: Age | EllipsisType,
    max_count: int | EllipsisType | None,
    exist_ok: bool,
) -> Steps[Definition]:
    """Make a table."""
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
    spec = schema.Spec(
        name=name,
        attributes=tuple(Attribute(attribute, kind or "S") for attribute, kind in kinds.items()),
        keys=key,
        local=tuple(local) or None,
        globals=tuple(others) or None,
        billing=schema.PAY_PER_REQUEST,
        stream=None if stream is None else schema.StreamSpec(True, stream, **retention(max_age, max_count)),
    )
    made: Definition = yield MakeTable(spec, ttl, exist_ok)
    return made


def find_table(name: str) -> Steps[Definition]:
    """A table that is there."""
    definition: Definition = yield FindTable(name)
    return definition


def list_tables() -> Steps[list[str]]:
    """The names of all tables."""
    names: list[str] = []
    after: str | None = None
    while True:
        listed: lifecycle.Listed = yield lifecycle.ListTables(after)
        names += listed.names
        after = listed.last
        if after is None:
            return names


def drop_table(name: str) -> Steps[None]:
    """Delete a table and what is in it."""
    yield lifecycle.DeleteTable(name)


def describe(name: str) -> Steps[TableInfo]:
    """What a table is."""
    described: lifecycle.Described = yield lifecycle.DescribeTable(name)
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
        name,
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


def count(name: str) -> Steps[int]:
    """How many items there are."""
    info = yield from describe(name)
    return info.items


def add_index(name: str, index: Index) -> Steps[None]:
    """Make an index of a table that is in use."""
    if index.local:
        raise Invalid(f"index {index.name!r} is local: such an index is made with its table; leave out local=True")
    definition: Definition = yield FindTable(name)
    kinds: dict[str, str | None] = {}
    spec = _index_spec(kinds, index)
    attributes = tuple(
        Attribute(attribute, kind or definition.kinds.get(attribute, "S")) for attribute, kind in kinds.items()
    )
    yield lifecycle.UpdateTable(name, schema.Changes(attributes=attributes, indexes=(schema.IndexChange(create=spec),)))


def drop_index(name: str, index: str) -> Steps[None]:
    """Delete an index."""
    yield lifecycle.UpdateTable(name, schema.Changes(indexes=(schema.IndexChange(delete=index),)))


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


def set_ttl(name: str, attribute: str | None) -> Steps[None]:
    """Let items expire."""
    if attribute is not None:
        value.check_text(attribute, "the name of the attribute for expiry")
    yield SetExpiry(name, attribute)


def _listed(key: KeySpec | list[KeySpec] | None) -> list[KeySpec]:
    return [] if key is None else key if isinstance(key, list) else [key]


def _elements(
    kinds: dict[str, str | None], hashes: list[KeySpec], ranges: list[KeySpec]
) -> tuple[schema.KeyElement, ...]:
    """The elements of a key; types that are told go into `kinds`."""
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


def put(
    definition: Definition,
    item: Mapping[str, Any],
    condition: str | None,
    names: Mapping[str, str] | None,
    values: Mapping[str, Any] | None,
    returns: str,
    on_failure: bool,
) -> Steps[Plain | None]:
    """Put an item."""
    _check_returns(returns, commands.NONE, commands.ALL_OLD)
    action = _put(Put(definition.name, item, condition, names, values), returns, on_failure)
    return (yield from _written(action))


def delete(
    definition: Definition,
    key: Any,
    condition: str | None,
    names: Mapping[str, str] | None,
    values: Mapping[str, Any] | None,
    returns: str,
    on_failure: bool,
) -> Steps[Plain | None]:
    """Delete an item."""
    _check_returns(returns, commands.NONE, commands.ALL_OLD)
    action = _delete(definition, Delete(definition.name, key, condition, names, values), returns, on_failure)
    return (yield from _written(action))


def update_item(
    definition: Definition,
    key: Any,
    expression: str,
    condition: str | None,
    names: Mapping[str, str] | None,
    values: Mapping[str, Any] | None,
    returns: str,
    on_failure: bool,
) -> Steps[Plain | None]:
    """Change an item."""
    _check_returns(
        returns,
        commands.NONE,
        commands.ALL_OLD,
        commands.ALL_NEW,
        commands.UPDATED_OLD,
        commands.UPDATED_NEW,
    )
    given = Update(definition.name, key, expression, condition, names, values)
    return (yield from _written(_update(definition, given, returns, on_failure)))


def _written(action: commands.ItemCommand) -> Steps[Plain | None]:
    try:
        written: Written = yield action
    except ConditionFailed as error:
        error.item = plain.plain(error.item)
        raise
    return plain.plain(written.attributes)


def batch_write(writes: Sequence[Put | Delete]) -> Steps[int | None]:
    """Several puts and deletes at once; the sequence of their change records."""
    definitions: dict[str, Definition] = {}
    actions: list[commands.PutItem | commands.DeleteItem] = []
    for write in writes:
        if not isinstance(write, Put | Delete):
            raise Invalid(
                f"a batch takes Put and Delete, not {type(write).__name__}; use transact_write for the others"
            )
        if write.condition is not None:
            raise Invalid("a batch takes no conditions; use transact_write")
        if isinstance(write, Put):
            actions.append(_put(write))
        else:
            actions.append(_delete((yield from _known(definitions, write.table)), write))
    if not actions:
        return None
    done: commands.BatchWritten = yield commands.BatchWrite(tuple(actions))
    return done.written[0].sequence


def transact_write(actions: Sequence[Put | Delete | Update | Check], token: str | None) -> Steps[int | None]:
    """Several actions, all or none; the sequence of their change records."""
    _check_actions(len(actions))
    _check_token(token)
    definitions: dict[str, Definition] = {}
    made: list[commands.ItemCommand] = []
    for action in actions:
        if isinstance(action, Put):
            made.append(_put(action))
            continue
        if not isinstance(action, Delete | Update | Check):
            raise Invalid(f"a transaction takes Put, Delete, Update and Check, not {type(action).__name__}")
        definition = yield from _known(definitions, action.table)
        if isinstance(action, Delete):
            made.append(_delete(definition, action))
        elif isinstance(action, Update):
            made.append(_update(definition, action))
        else:
            made.append(_check(definition, action))
    digest = b"" if token is None else _digest(actions, made)
    done: commands.BatchWritten = yield commands.TransactWrite(tuple(made), token, digest)
    return done.written[0].sequence


def _check_token(token: str | None) -> None:
    most = limits.TOKEN_CHARACTERS_MAX
    if token is not None and not 1 <= len(value.check_text(token, "a token")) <= most:
        raise Invalid(f"a token has 1 to {most} characters, not {len(token)}; use None for none")


def _digest(actions: Sequence[Put | Delete | Update | Check], made: list[commands.ItemCommand]) -> bytes:
    """Of all that a token stands for; the same in every process."""
    parts: list[Any] = []
    for action, one in zip(actions, made, strict=True):
        item = one.item if isinstance(one, commands.PutItem) else one.key  # type: ignore[attr-defined]
        texts = [type(action).__name__, action.table, action.condition, getattr(action, "expression", None)]
        names = sorted(Holders.marked_names(action.names).items())
        parts.append([texts, names, value.digest(item), value.digest(Holders(None, action.values).values)])
    return hashlib.sha256(msgspec.msgpack.encode(parts)).digest()


def transact_get(gets: Sequence[Get]) -> Steps[list[Plain | None]]:
    """Several items as they are at one moment."""
    _check_actions(len(gets))
    definitions: dict[str, Definition] = {}
    made: list[queries.GetItem] = []
    for get in gets:
        definition = yield from _known(definitions, get.table)
        made.append(_get(definition, get.key, get.projection, get.names))
    got: queries.TransactGot = yield queries.TransactGet(tuple(made))
    return [plain.plain(item) for item in got.items]


def _known(definitions: dict[str, Definition], name: str) -> Steps[Definition]:
    if name not in definitions:
        definitions[name] = yield FindTable(name)
    return definitions[name]


def _check_actions(number: int) -> None:
    if not 1 <= number <= TRANSACT_ACTIONS_MAX:
        raise Invalid(f"a transaction has 1 to {TRANSACT_ACTIONS_MAX} actions, not {number}")


def _check_returns(returns: str, *allowed: str) -> None:
    if returns not in allowed:
        raise Invalid(f"returns={returns!r} is unknown here; use one of {', '.join(allowed)}")


def _put(put: Put, returns: str = commands.NONE, on_failure: bool = False) -> commands.PutItem:
    item, size = value.item_from_plain(put.item)
    holders = Holders(put.names, put.values)
    wanted = holders.condition(put.condition)
    holders.done()
    carried = 0 if wanted is None else holders.carried({})
    return commands.PutItem(
        put.table, item, size, condition=wanted, returns=returns, on_failure=on_failure, carried=carried
    )


def _delete(
    definition: Definition, delete: Delete, returns: str = commands.NONE, on_failure: bool = False
) -> commands.DeleteItem:
    holders = Holders(delete.names, delete.values)
    wanted = holders.condition(delete.condition)
    holders.done()
    key = key_item(definition, delete.key)
    carried = holders.carried(key)
    return commands.DeleteItem(
        delete.table, key, condition=wanted, returns=returns, on_failure=on_failure, carried=carried
    )


def _update(
    definition: Definition, given: Update, returns: str = commands.NONE, on_failure: bool = False
) -> commands.UpdateItem:
    holders = Holders(given.names, given.values)
    changes = update(given.expression, holders.placeholders)
    wanted = holders.condition(given.condition)
    holders.done()
    key = key_item(definition, given.key)
    carried = holders.carried(key)
    return commands.UpdateItem(
        given.table, key, changes, condition=wanted, returns=returns, on_failure=on_failure, carried=carried
    )


def _check(definition: Definition, check: Check) -> commands.CheckItem:
    holders = Holders(check.names, check.values)
    wanted = holders.condition(check.condition)
    holders.done()
    key = key_item(definition, check.key)
    return commands.CheckItem(check.table, key, condition=wanted, carried=holders.carried(key))


# -- reading


def get(
    definition: Definition, key: Any, projection: str | None, names: Mapping[str, str] | None
) -> Steps[Plain | None]:
    """The item with this key."""
    got: queries.Got = yield _get(definition, key, projection, names)
    return plain.plain(got.item)


def _get(definition: Definition, key: Any, wanted: str | None, names: Mapping[str, str] | None) -> queries.GetItem:
    holders = Holders(names, None)
    paths = holders.projection(wanted)
    holders.done()
    return queries.GetItem(definition.name, key_item(definition, key), paths, True)


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What queries and scans are told alike."""

    index: str | None = None
    filter: str | None = None
    projection: str | None = None
    names: Mapping[str, str] | None = None
    values: Mapping[str, Any] | None = None
    limit: int | None = None
    after: Plain | None = None

    def options(self) -> dict[str, Any]:
        """As the commands want it."""
        if self.limit is not None and not (type(self.limit) is int and 1 <= self.limit <= sys.maxsize):
            raise Invalid(f"limit={self.limit!r} is not a number from 1 on; leave it out for no limit")
        holders = Holders(self.names, self.values)
        options = {
            "index": self.index,
            "filter": holders.condition(self.filter, "FilterExpression"),
            "projection": holders.projection(self.projection),
            "limit": self.limit,
            "start": None if self.after is None else value.item_from_plain(self.after)[0],
        }
        holders.done()
        return options


def query(name: str, partition: Any, sort: Any, reverse: bool, reading: Reading) -> queries.Query:
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

    return queries.Query(table=name, condition=bind, reverse=reverse, consistent=False, **reading.options())


def scan(name: str, segment: int | None, segments: int | None, reading: Reading) -> queries.Scan:
    """The scan of a table, or of a part of it."""
    if (segment is None) != (segments is None):
        raise Invalid("segment and segments belong together: which one, of how many")
    if segment is not None and segments is not None and not 0 <= segment < segments:
        raise Invalid(f"segment={segment} is not from 0 to {segments - 1}")
    return queries.Scan(table=name, segment=segment, total=segments, **reading.options())


def read_page(wanted: queries.Query | queries.Scan) -> Steps[Page]:
    """One page."""
    pager: queries.Pager[Any] = queries.Pager(wanted)
    while (step := pager.next()) is not None:
        part: queries.Slice = yield step
        pager.add(part)
    page = pager.page()
    items = [value.item_to_plain(item) for item in page.items or ()]
    return Page(items, plain.plain(page.last_key), page.scanned)


class Walk:
    """All pages of a query or scan, one after the other, up to `limit` items that pass."""

    def __init__(self, wanted: queries.Query | queries.Scan) -> None:
        self._left = wanted.limit
        # With a filter the number to examine is not known; without one there is no use in reading more than is wanted.
        self._next: queries.Query | queries.Scan | None = wanted
        if wanted.filter is not None:
            self._next = msgspec.structs.replace(wanted, limit=None)

    @property
    def more(self) -> bool:
        return self._next is not None

    def page(self) -> Steps[list[Plain]]:
        """The items of the next page."""
        wanted = self._next
        assert wanted is not None
        page = yield from read_page(wanted)
        items = page.items
        if self._left is not None:
            items = items[: self._left]
            self._left -= len(items)
        if page.cursor is None or self._left == 0:
            self._next = None
        else:
            start, _ = value.item_from_plain(page.cursor)
            limit = self._left if wanted.filter is None else None
            self._next = msgspec.structs.replace(wanted, start=start, limit=limit)
        return items


class Snapshot:
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
        """Give up what was not read."""
        self._spool.close()
