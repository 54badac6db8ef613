"""The lifecycle of tables: create, describe, update, tag, delete.

A change takes effect in the definition at once, in the command's own transaction; from then on every write follows it.
Slow work is left to housekeeping, in lists that are written here: existing items are added to a new index or expiry
order (`BACKFILLS`), and the rows of a dropped table or index are removed (`DROPPED_SPACES`). `HOUSEKEEPING` notices
start it.
"""

from __future__ import annotations

import uuid
from itertools import islice
from typing import Final

import msgspec

from tailrace import limits
from tailrace.access import Permission
from tailrace.command import Command, Query
from tailrace.errors import InUse, Invalid, LimitExceeded, NotFound, TableNotFound
from tailrace.log.tail import HOUSEKEEPING
from tailrace.storage.engine import Reader, Tx
from tailrace.tables import change_stream, schema
from tailrace.tables.copies import restored
from tailrace.tables.definition import (
    ACTIVE,
    BACKFILLS,
    COUNTS,
    CREATING,
    DROPPED_SPACES,
    TABLES,
    Attribute,
    BackfillRow,
    CountRow,
    Definition,
    DroppedRow,
    IndexDefinition,
    Throughput,
    counted,
    decoded,
    save,
)
from tailrace.tables.messages import INVALID
from tailrace.tables.policies import drop_policies
from tailrace.tables.schema import PAY_PER_REQUEST, PROVISIONED, IndexUpdate, TableChanges, TableSpec

_DAY_MS: Final = 24 * 3600 * 1000
_SPACE: Final = "space"  # the counter of spaces


class TableDescription(msgspec.Struct, frozen=True):
    """A table, its size, and its current or last change stream."""

    definition: Definition
    counts: dict[int, CountRow]  # by space: the table's and each index's
    stream: change_stream.ChangeStream | None

    @property
    def status(self) -> str:
        """UPDATING while an index is being filled."""
        busy = any(index.status != ACTIVE for index in self.definition.indexes)
        return "UPDATING" if busy else ACTIVE


class TableNames(msgspec.Struct, frozen=True):
    """Names of tables, in order; `last` is where the next page continues, None at the end."""

    names: list[str]
    last: str | None


class TimeToLive(msgspec.Struct, frozen=True):
    """The attribute with the expiry time of items; None if they do not expire."""

    attribute: str | None

    @property
    def status(self) -> str:
        return "DISABLED" if self.attribute is None else "ENABLED"


def find(reader: Reader | Tx, name: str) -> Definition:
    """The table of this name; the error names it, as the service does for operations on tables but not on items."""
    row = reader.get(TABLES, name)
    if row is None:
        raise TableNotFound(name, f"Requested resource not found: Table: {name} not found")
    return decoded(row)


def describe(reader: Reader | Tx, definition: Definition) -> TableDescription:
    """The description of a table."""
    spaces = (definition.space, *(index.space for index in definition.indexes))
    if definition.stream is not None and definition.stream.hidden:
        shown = msgspec.structs.replace(definition, stream=None)
        return TableDescription(shown, {space: counted(reader, space) for space in spaces}, None)
    if definition.stream is not None:
        stream = reader.get(change_stream.CHANGE_STREAMS, definition.name, definition.stream.label)
    else:
        stream = next(iter(reader.scan(change_stream.CHANGE_STREAMS, definition.name, reverse=True, limit=1)), None)
        if stream is not None and (stream.space != definition.space or stream.hidden):
            stream = None  # it belongs to a deleted table of the same name, or to point-in-time recovery
    return TableDescription(definition, {space: counted(reader, space) for space in spaces}, stream)


# -- create, delete


class CreateTable(Command[TableDescription], frozen=True):
    """Create a table. It can be used at once."""

    permission = Permission.ADMIN

    spec: TableSpec

    def subjects(self) -> tuple[str, ...]:
        return (f"tables/{self.spec.name}",)

    def run(self, tx: Tx) -> TableDescription:
        spec = self.spec
        schema.check_table(spec)
        if tx.get(TABLES, spec.name) is not None or restored(tx, spec.name) is not None:
            raise InUse(f"Table already exists: {spec.name}")
        if len(tx.values(TABLES, "space", limit=limits.TABLES_MAX)) >= limits.TABLES_MAX:
            raise LimitExceeded(
                f"Subscriber limit exceeded: There is a limit of {limits.TABLES_MAX} tables per subscriber"
            )
        definition = self.defined(tx)
        if spec.stream is not None and spec.stream.enabled:
            definition = _enable(tx, definition, spec.stream)
        else:
            save(tx, definition)
        return describe(tx, definition)

    def defined(self, tx: Tx) -> Definition:
        """The table, with spaces of its own."""
        spec = self.spec
        space = new_space(tx)
        billing = spec.billing or PROVISIONED
        indexes = [schema.index_of(index, new_space(tx), local=True) for index in spec.local or ()]
        for index in spec.globals or ():
            made = schema.index_of(index, new_space(tx), local=False)
            indexes.append(msgspec.structs.replace(made, throughput=Throughput(*(index.throughput or (0, 0)))))
        return Definition(
            name=spec.name,
            space=space,
            uuid=str(uuid.uuid4()),
            created_ms=tx.now_ms,
            attributes=spec.attributes,
            hash=spec.keys[0].name,
            range=spec.keys[1].name if len(spec.keys) > 1 else None,
            indexes=tuple(indexes),
            billing=billing,
            billing_ms=tx.now_ms if billing == PAY_PER_REQUEST else None,
            throughput=Throughput(*(spec.throughput or (0, 0))),
            on_demand=spec.on_demand,
            warm=spec.warm,
            table_class=spec.table_class,
            protected=spec.protected,
            encryption=spec.encryption,
            tags=dict(spec.tags),
        )


class DeleteTable(Command[TableDescription], frozen=True):
    """Delete a table with its items. Its change stream stays readable until its retention passes."""

    freeing = True
    permission = Permission.ADMIN
    subject = ("tables", "name")

    name: str

    def run(self, tx: Tx) -> TableDescription:
        definition = find(tx, self.name)
        if definition.protected:
            raise Invalid(
                "Resource cannot be deleted as it is currently protected against deletion. "
                "Disable deletion protection first."
            )
        if definition.copies:
            raise InUse(f"Table is being backed up or restored, try again in a moment: {self.name}")
        described = describe(tx, definition)
        change_stream.close(tx, definition)
        tx.delete(TABLES, definition.name)
        drop_policies(tx, definition.name)
        drop_space(tx, definition.space)
        for index in definition.indexes:
            drop_space(tx, index.space)
        for space in (definition.ttl_space, definition.partials_space):
            if space is not None:
                drop_space(tx, space)
        for route in definition.backfilled:
            drop_space(tx, route.backfill)
        return described


def new_space(tx: Tx) -> int:
    """The number of a new space."""
    return tx.next_id(_SPACE)


def drop_space(tx: Tx, space: int) -> None:
    """Drop a space: its rows are unreachable from now on, and housekeeping removes them."""
    tx.delete(COUNTS, space)
    tx.delete(BACKFILLS, space)
    tx.put(DROPPED_SPACES, DroppedRow(space))
    tx.notify(HOUSEKEEPING, None)


def _enable(tx: Tx, definition: Definition, stream: schema.StreamSpec) -> Definition:
    assert stream.view is not None
    return change_stream.enable(tx, definition, stream.view, max_age_s=stream.max_age_s, max_count=stream.max_count)


# -- describe, list


class DescribeTable(Query[TableDescription], frozen=True):
    """Describe a table."""

    subject = ("tables", "name")

    name: str

    def run(self, reader: Reader) -> TableDescription:
        return describe(reader, find(reader, self.name))


class ListTables(Query[TableNames], frozen=True):
    """The names of tables with at least `characters_min` characters, `after` a name that need not exist."""

    after: str | None = None
    limit: int = limits.LIST_TABLES_MAX
    characters_min: int = limits.TABLE_NAME_CHARACTERS_MIN

    def run(self, reader: Reader) -> TableNames:
        found = (row.name for row in reader.scan(TABLES, after=self.after))
        names = list(islice((name for name in found if len(name) >= self.characters_min), self.limit + 1))
        more = len(names) > self.limit
        names = names[: self.limit]
        return TableNames(names, names[-1] if more and names else None)


# -- update


class UpdateTable(Command[TableDescription], frozen=True):
    """Change a table."""

    permission = Permission.ADMIN
    subject = ("tables", "name")

    name: str
    changes: TableChanges

    def run(self, tx: Tx) -> TableDescription:
        changes = self.changes
        schema.check_changes(changes)
        definition = find(tx, self.name)
        schema.check_against(definition, changes)
        definition = _rebill(definition, changes, tx.now_ms)
        for change in changes.indexes:
            if change.update is not None:
                definition = _update_index(definition, change.update, changes.billing, tx.now_ms)
            elif change.create is not None:
                definition = _create_index(tx, definition, change.create, changes.attributes)
            else:
                assert change.delete is not None
                definition = _delete_index(tx, definition, change.delete)
        definition = msgspec.structs.replace(
            definition,
            on_demand=changes.on_demand or definition.on_demand,
            warm=changes.warm or definition.warm,
            table_class=changes.table_class or definition.table_class,
            protected=definition.protected if changes.protected is None else changes.protected,
            encryption=definition.encryption if changes.encryption is None else changes.encryption or None,
        )
        if changes.stream is None:
            save(tx, definition)
        elif changes.stream.enabled:
            definition = _enable(tx, definition, changes.stream)
        else:
            definition = change_stream.disable(tx, definition)
        return describe(tx, definition)


def _rebill(definition: Definition, changes: TableChanges, now_ms: int) -> Definition:
    """Change how the table is billed, and its throughput."""
    if changes.billing == PAY_PER_REQUEST:
        if definition.billing == PAY_PER_REQUEST:
            return definition
        indexes = tuple(
            index if index.local else msgspec.structs.replace(index, throughput=_lowered(index.throughput, now_ms))
            for index in definition.indexes
        )
        return msgspec.structs.replace(
            definition,
            billing=PAY_PER_REQUEST,
            billing_ms=now_ms,
            throughput=_lowered(definition.throughput, now_ms),
            indexes=indexes,
        )
    if changes.throughput is None:
        return definition
    throughput = _changed(definition.throughput, changes.throughput, "table", now_ms)
    return msgspec.structs.replace(definition, billing=PROVISIONED, throughput=throughput)


def _lowered(throughput: Throughput | None, now_ms: int) -> Throughput:
    return _counted(throughput or Throughput(), (0, 0), now_ms)


def _changed(throughput: Throughput, wanted: tuple[int, int], what: str, now_ms: int) -> Throughput:
    """The throughput of a table or an index after a request for another."""
    read, write = wanted
    if (throughput.read, throughput.write) == wanted:
        where = what.split()[0]
        raise Invalid(
            f"The provisioned throughput for the {what} will not change. The requested value equals the current value. "
            f"Current ReadCapacityUnits provisioned for the {where}: {read}. Requested ReadCapacityUnits: {read}. "
            f"Current WriteCapacityUnits provisioned for the {where}: {write}. Requested WriteCapacityUnits: {write}. "
            "Refer to the Amazon DynamoDB Developer Guide for current limits and how to request higher limits."
        )
    return _counted(throughput, wanted, now_ms)


def _counted(throughput: Throughput, wanted: tuple[int, int], now_ms: int) -> Throughput:
    """The new throughput with the times of the last changes, and the number of decreases today (UTC)."""
    read, write = wanted
    more = read > throughput.read or write > throughput.write
    less = read < throughput.read or write < throughput.write
    today = throughput.decreased_ms is not None and throughput.decreased_ms // _DAY_MS == now_ms // _DAY_MS
    return Throughput(
        read,
        write,
        now_ms if more else throughput.increased_ms,
        now_ms if less else throughput.decreased_ms,
        (throughput.decreases if today else 0) + less,
    )


def _update_index(definition: Definition, update: IndexUpdate, billing: str | None, now_ms: int) -> Definition:
    index = _global(definition, update.name)
    if update.throughput is not None:
        if definition.billing == PAY_PER_REQUEST:
            raise Invalid(
                f"{INVALID}ProvisionedThroughput should not be specified for index: {index.name} when "
                "BillingMode is PAY_PER_REQUEST"
            )
        schema.check_units(update.throughput)
        throughput = _changed(index.throughput or Throughput(), update.throughput, f"index {index.name}", now_ms)
        index = msgspec.structs.replace(index, throughput=throughput)
    elif billing == PROVISIONED and update.on_demand is not None:
        raise Invalid(f"{INVALID}OnDemandThroughput cannot be specified when BillingMode is PROVISIONED")
    index = msgspec.structs.replace(
        index, on_demand=update.on_demand or index.on_demand, warm=update.warm or index.warm
    )
    return with_index(definition, index)


def _global(definition: Definition, name: str) -> IndexDefinition:
    index = definition.by_name.get(name)
    if index is None:
        raise NotFound("Requested resource not found", code="INDEX_NOT_FOUND")
    if index.local:
        raise Invalid(f"{INVALID}Index {name} is a LocalSecondaryIndex, which cannot be updated or deleted")
    return index


def with_index(definition: Definition, index: IndexDefinition) -> Definition:
    """The table with this index instead of the one of its name."""
    indexes = tuple(index if known.name == index.name else known for known in definition.indexes)
    return msgspec.structs.replace(definition, indexes=indexes)


def _create_index(
    tx: Tx, definition: Definition, spec: schema.IndexSpec, attributes: tuple[Attribute, ...]
) -> Definition:
    schema.check_new_index(definition, spec, attributes, definition.billing)
    if any(index.status != ACTIVE for index in definition.indexes):
        raise InUse(f"Attempt to change a resource which is still in use: Table is being updated: {definition.name}")
    space = new_space(tx)
    filling = _backfill(tx, definition, space)
    index = msgspec.structs.replace(
        schema.index_of(spec, space, local=False),
        throughput=Throughput(*(spec.throughput or (0, 0))),
        status=CREATING if filling else ACTIVE,
    )
    used = {element.name for element in spec.keys} - definition.kinds.keys()
    return msgspec.structs.replace(
        definition,
        attributes=(*definition.attributes, *(attribute for attribute in attributes if attribute.name in used)),
        indexes=(*definition.indexes, index),
    )


def _backfill(tx: Tx, definition: Definition, space: int) -> bool:
    """Schedule the backfill of a new index or expiry order; True if there are items."""
    if counted(tx, definition.space).items == 0:
        return False
    tx.put(BACKFILLS, BackfillRow(space, definition.name, b""))
    tx.notify(HOUSEKEEPING, None)
    return True


def _delete_index(tx: Tx, definition: Definition, name: str) -> Definition:
    index = _global(definition, name)
    drop_space(tx, index.space)
    indexes = tuple(known for known in definition.indexes if known is not index)
    definition = msgspec.structs.replace(definition, indexes=indexes)
    return msgspec.structs.replace(definition, attributes=schema.attributes_in_use(definition))


# -- time to live


class SetTimeToLive(Command[TimeToLive], frozen=True):
    """Enable or disable the expiry of items, at the time (seconds since 1970) in an attribute."""

    permission = Permission.ADMIN
    subject = ("tables", "name")

    name: str
    attribute: str
    enabled: bool

    def run(self, tx: Tx) -> TimeToLive:
        if not 1 <= len(self.attribute) <= limits.KEY_ATTRIBUTE_CHARACTERS_MAX:
            raise Invalid(
                f"{INVALID}TimeToLive AttributeName has {len(self.attribute)} characters, it must have a length of 1 "
                f"to {limits.KEY_ATTRIBUTE_CHARACTERS_MAX}"
            )
        definition = find(tx, self.name)
        if definition.ttl is not None and definition.ttl != self.attribute:
            raise Invalid(
                f"TimeToLive is active on a different AttributeName: current AttributeName is {definition.ttl}"
            )
        if self.enabled:
            if definition.ttl is not None:
                raise Invalid("TimeToLive is already enabled")
            space = new_space(tx)
            save(tx, msgspec.structs.replace(definition, ttl=self.attribute, ttl_space=space))
            _backfill(tx, definition, space)
            return TimeToLive(self.attribute)
        if definition.ttl is None or definition.ttl_space is None:
            raise Invalid("TimeToLive is already disabled")
        drop_space(tx, definition.ttl_space)
        save(tx, msgspec.structs.replace(definition, ttl=None, ttl_space=None))
        return TimeToLive(None)


class DescribeTimeToLive(Query[TimeToLive], frozen=True):
    """Whether and by which attribute a table's items expire."""

    subject = ("tables", "name")

    name: str

    def run(self, reader: Reader) -> TimeToLive:
        return TimeToLive(find(reader, self.name).ttl)


# -- tags


class TagTable(Command[None], frozen=True):
    """Add tags to a table, or replace those of the same keys."""

    permission = Permission.ADMIN
    subject = ("tables", "name")

    name: str
    tags: dict[str, str]

    def run(self, tx: Tx) -> None:
        if not self.tags:
            raise Invalid("Atleast one Tag needs to be provided as Input.")
        definition = find(tx, self.name)
        schema.check_tags(self.tags)
        tags = {**definition.tags, **self.tags}
        schema.check_tags(tags)
        save(tx, msgspec.structs.replace(definition, tags=tags))


class UntagTable(Command[None], frozen=True):
    """Remove tags from a table; unknown keys are ignored."""

    permission = Permission.ADMIN
    subject = ("tables", "name")

    name: str
    keys: tuple[str, ...]

    def run(self, tx: Tx) -> None:
        if not self.keys:
            raise Invalid("Atleast one Tag Key needs to be provided as Input.")
        definition = find(tx, self.name)
        tags = {key: text for key, text in definition.tags.items() if key not in self.keys}
        save(tx, msgspec.structs.replace(definition, tags=tags))


class ListTags(Query[dict[str, str]], frozen=True):
    """A table's tags."""

    subject = ("tables", "name")

    name: str

    def run(self, reader: Reader) -> dict[str, str]:
        return dict(find(reader, self.name).tags)
