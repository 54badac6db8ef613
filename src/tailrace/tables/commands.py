"""Writing items: one by one, in batches, in transactions.

Each of the four actions on one item is a command of its own and can be part of a `TransactWrite`. All of them plan
first (`plan`: read, test the condition, compute the new item) and then write.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tailrace import limits
from tailrace.command import Command
from tailrace.errors import (
    ConditionFailed,
    Error,
    Invalid,
    TableNotFound,
    TokenMismatch,
    TooLarge,
    TransactionCanceled,
)
from tailrace.storage.engine import Peek, Tx
from tailrace.tables import key as keys
from tailrace.tables import messages, value, write
from tailrace.tables.capacity import Capacity, read_units
from tailrace.tables.change import SEQUENCE, Capture, too_large
from tailrace.tables.definition import (
    COUNTS,
    ITEMS,
    TABLES,
    TOKEN_AGES,
    TOKENS,
    Definition,
    ItemRow,
    TokenAgeRow,
    TokenRow,
    decoded,
    find,
)
from tailrace.tables.expression import ItemCondition, ItemUpdate, Updated, check_scalars
from tailrace.tables.value import Item
from tailrace.tables.write import WritePlan, WrittenItem

NONE: Final = "NONE"
ALL_OLD: Final = "ALL_OLD"
ALL_NEW: Final = "ALL_NEW"
UPDATED_OLD: Final = "UPDATED_OLD"
UPDATED_NEW: Final = "UPDATED_NEW"


class ItemCommand(Command[WrittenItem], frozen=True, kw_only=True, gc=False):
    """An action on one item of a table, if the condition holds."""

    subject = ("tables", "table")

    condition: ItemCondition | None = None
    on_failure: bool = False  # return the stored item if the condition fails
    returns: str = NONE
    capacity: bool = False
    request_bytes: int = 1024  # the approximate bytes of its key and of the values in its expressions

    def size(self) -> int:
        return self.request_bytes

    def prefetch(self, peek: Peek) -> None:
        row = peek(TABLES, getattr(self, self.subject[1]))
        if row is None:
            return
        definition = decoded(row)
        try:
            key = keys.item_key(definition, self.named(definition))
        except Error:  # `run` will raise it
            return
        peek(ITEMS, definition.space, key)
        peek(COUNTS, definition.space)

    def plan(self, tx: Tx) -> WritePlan:
        raise AssertionError(f"{type(self).__name__} has no plan()")

    def run(self, tx: Tx) -> WrittenItem:
        plan = self.plan(tx)
        capture = Capture()
        write.do(tx, plan, capture)
        sequence = capture.append(tx)
        consumed = write.units(plan) if self.capacity else None
        return WrittenItem(plan.definition, self.attributes(plan), consumed, sequence)

    def attributes(self, plan: WritePlan) -> Item | None:
        return plan.old if self.returns == ALL_OLD else None

    def named(self, definition: Definition) -> Item:
        """An item with at least the attributes of the key."""
        raise AssertionError(f"{type(self).__name__} has no named()")

    def check(self, plan: WritePlan) -> None:
        """Raise if the condition does not hold for the stored item."""
        if self.condition is not None and not self.condition.test(plan.old):
            raise ConditionFailed(plan.old if self.on_failure else None)


class PutItem(ItemCommand, frozen=True, gc=False):
    """Put an item; replaces an item with the same key."""

    together = True
    signed = True

    table: str
    item: Item
    item_size: int

    def size(self) -> int:
        return self.item_size if self.condition is None else self.item_size + self.request_bytes

    def named(self, definition: Definition) -> Item:
        return self.item

    @classmethod
    def run_together(cls, tx: Tx, commands: list[PutItem]) -> list[WrittenItem]:
        """As `Command.run_together`: puts without a condition that return nothing, with one pass over each table."""
        tables: dict[str, tuple[Definition, write.PlainWrites]] = {}
        written: list[tuple[Definition, int | None]] = []  # and the number of the transaction, if there is a record
        count = 0
        for command in commands:
            if command.condition is not None or command.returns != NONE or command.capacity:
                break
            try:
                if command.table not in tables:
                    definition = find(tx, command.table)
                    if not write.PlainWrites.possible(tx, definition):
                        break
                    tables[command.table] = definition, write.PlainWrites(tx, definition)
                definition, puts = tables[command.table]
                key = command.stored_key(definition)
            except (Invalid, TableNotFound):
                break
            recorded = puts.put(key, command.item, command.item_size, count)
            written.append((definition, count if recorded else None))
            count += recorded
        first = tx.next_id(SEQUENCE, count) if count else 0
        for _, puts in tables.values():
            puts.apply(first)
        return [
            WrittenItem(definition, sequence=None if number is None else first + number)
            for definition, number in written
        ]

    def plan(self, tx: Tx) -> WritePlan:
        definition = find(tx, self.table)
        key = self.stored_key(definition)
        return self.planned(definition, key, tx.get(ITEMS, definition.space, key))

    def stored_key(self, definition: Definition) -> bytes:
        """The key of the item, which may be written to the table."""
        key = keys.item_key(definition, self.item)
        if self.item_size > value.NAME_BYTES_MAX or "" in self.item:
            value.check_names(self.item)
        if self.item_size > limits.ITEM_BYTES_MAX:
            raise Invalid(messages.ITEM_TOO_LARGE)
        return key

    def planned(self, definition: Definition, key: bytes, row: ItemRow | None) -> WritePlan:
        """The plan; `row` is the item that has the key."""
        plan = WritePlan(definition, key, self.item, row)
        if self.condition is not None:
            self.check(plan)
        plan.new, plan.size = self.item, self.item_size
        return plan


class DeleteItem(ItemCommand, frozen=True, gc=False):
    """Delete the item with this key, if there is one."""

    freeing = True

    table: str
    key: Item

    def named(self, definition: Definition) -> Item:
        return self.key

    def plan(self, tx: Tx) -> WritePlan:
        definition = find(tx, self.table)
        key = self.stored_key(definition)
        return self.planned(definition, key, tx.get(ITEMS, definition.space, key))

    def stored_key(self, definition: Definition) -> bytes:
        """As of a `PutItem`."""
        return keys.key_of(definition, self.key)

    def planned(self, definition: Definition, key: bytes, row: ItemRow | None) -> WritePlan:
        """As of a `PutItem`."""
        plan = WritePlan(definition, key, self.key, row)
        self.check(plan)
        return plan


class UpdateItem(ItemCommand, frozen=True, gc=False):
    """Change some attributes of the item with this key; creates it if it does not exist."""

    table: str
    key: Item
    update: ItemUpdate | None = None

    def named(self, definition: Definition) -> Item:
        return self.key

    def plan(self, tx: Tx) -> WritePlan:
        definition = find(tx, self.table)
        plan = UpdatePlan(definition, keys.key_of(definition, self.key), self.key, tx)
        if self.update is not None:
            for name in definition.keys:
                if name in self.update.names:
                    raise Invalid(
                        f"One or more parameter values were invalid: Cannot update attribute {name}. "
                        "This attribute is part of the key"
                    )
            _check_indexes(definition, self.update)
        self.check(plan)
        old = plan.old
        if self.update is None:
            plan.new = self.key if old is None else old
        else:
            plan.updated = self.update.apply(old, self.key)
            creates = old is not None or self.update.creates
            plan.new = plan.updated.item if creates else None
            _check_indexed(definition, self.update, plan.updated.item)
        if plan.new is not None:
            plan.size = value.item_size(plan.new)
            if plan.size > limits.ITEM_BYTES_MAX:
                raise Invalid(messages.UPDATED_ITEM_TOO_LARGE)
        return plan

    def attributes(self, plan: WritePlan) -> Item | None:
        if self.returns == ALL_NEW:
            return plan.new
        if self.returns in (UPDATED_OLD, UPDATED_NEW):
            assert isinstance(plan, UpdatePlan)
            if plan.updated is None:
                return None
            return plan.updated.old(plan.old) if self.returns == UPDATED_OLD else plan.updated.new()
        return super().attributes(plan)


def _check_indexes(definition: Definition, update: ItemUpdate) -> None:
    """Raise if an update cannot fit an index, as far as that is known before it is applied."""
    if update.types:
        for index in definition.indexes:
            for name in index.hash + index.range:
                actual = update.types.get(name)
                if actual is not None and actual != definition.kinds[name]:
                    raise messages.mismatched_index_key(name, definition.kinds[name], actual, index.name)
    check_scalars(definition, update)


def _check_indexed(definition: Definition, update: ItemUpdate, item: Item) -> None:
    """Raise if the updated item has an index key of the wrong type, for example copied from another attribute."""
    for index in definition.indexes:
        for name in index.hash + index.range:
            if name in update.names and name in item and definition.kinds[name] not in item[name]:
                raise Invalid(messages.UNSUPPORTED_INDEX_KEY)


class UpdatePlan(WritePlan):
    """A plan that remembers what the update touched."""

    __slots__ = ("updated",)

    def __init__(self, definition: Definition, key: bytes, attributes: Item, tx: Tx) -> None:
        found = write.find(tx, definition, key, attributes)
        super().__init__(definition, key, attributes, found.row)
        self.updated: Updated | None = None


class CheckItem(ItemCommand, frozen=True, gc=False):
    """Change nothing, but fail the transaction unless the condition holds."""

    table: str
    key: Item

    def named(self, definition: Definition) -> Item:
        return self.key

    def plan(self, tx: Tx) -> WritePlan:
        definition = find(tx, self.table)
        plan = write.find(tx, definition, keys.key_of(definition, self.key), self.key)
        self.check(plan)
        plan.new = plan.old
        plan.size = 0 if plan.row is None else plan.row.size
        return plan


class BatchWritten(msgspec.Struct, frozen=True):
    """The outcome of a batch or a transaction, per action."""

    written: list[WrittenItem]
    replayed: bool = False  # the token was used before; nothing was written

    def consumed(self) -> dict[str, Capacity]:
        """Units by table."""
        totals: dict[str, Capacity] = {}
        for one in self.written:
            if one.consumed is not None:
                table = one.consumed.table
                totals[table] = totals[table] + one.consumed if table in totals else one.consumed
        return totals


class BatchWrite(Command[BatchWritten], frozen=True):
    """Several puts and deletes in one commit. `atomic`: as one transaction, whose records share a sequence; otherwise
    each is a transaction of its own in the change stream."""

    writes: tuple[PutItem | DeleteItem, ...]
    atomic: bool = True
    capacity: bool = False

    def prefetch(self, peek: Peek) -> None:
        for action in self.writes:
            action.prefetch(peek)

    def size(self) -> int:
        return sum([action.size() for action in self.writes])

    def heavy(self) -> bool:
        return len(self.writes) > limits.LOOP_WRITES or self.size() > limits.LOOP_BYTES

    def frees(self) -> bool:
        return all(action.freeing for action in self.writes)

    def subjects(self) -> tuple[str, ...]:
        return tuple({f"tables/{action.table}" for action in self.writes})

    def run(self, tx: Tx) -> BatchWritten:
        places = self._places(tx)
        tables = {definition.space: definition for definition, _ in places}
        conditional = any(action.condition is not None for action in self.writes)
        if not (conditional or self.capacity) and all(
            write.PlainWrites.possible(tx, definition) for definition in tables.values()
        ):
            return self._write_plainly(tx, places, tables)
        plans = self._plan(tx, places)
        _check_distinct(places)
        capture = Capture()
        sequences: list[int | None] = []
        for plan in plans:
            write.do(tx, plan, capture)
            if not self.atomic:
                sequences.append(capture.append(tx))
        if self.atomic:
            sequences = [capture.append(tx)] * len(plans)
        return BatchWritten(
            [
                WrittenItem(plan.definition, None, write.units(plan) if self.capacity else None, sequence)
                for plan, sequence in zip(plans, sequences, strict=True)
            ]
        )

    def _places(self, tx: Tx) -> list[tuple[Definition, bytes]]:
        """The table and the key of each action."""
        found: dict[str, Definition] = {}
        places: list[tuple[Definition, bytes]] = []
        for action in self.writes:
            definition = found.get(action.table)
            if definition is None:
                definition = found[action.table] = find(tx, action.table)
            places.append((definition, action.stored_key(definition)))
        return places

    def _write_plainly(
        self, tx: Tx, places: list[tuple[Definition, bytes]], tables: dict[int, Definition]
    ) -> BatchWritten:
        """Write to tables of which nothing else is affected, with one pass over each."""
        writes = {
            space: write.PlainWrites(tx, definition, [key for owner, key in places if owner.space == space])
            for space, definition in tables.items()
        }
        numbers: list[int | None] = []  # of each action's transaction, if there is a record
        number = 0
        for action, (definition, key) in zip(self.writes, places, strict=True):
            table = writes[definition.space]
            if isinstance(action, PutItem):
                recorded = table.put(key, action.item, action.item_size, number)
            else:
                recorded = table.delete(key, action.key, number)
            numbers.append(number if recorded else None)
            if recorded and not self.atomic:
                number += 1
        size = sum([table.bytes for table in writes.values()])
        if max(size, sum([table.records_bytes for table in writes.values()])) > limits.TRANSACTION_BYTES_MAX:
            raise too_large()
        _check_distinct(places)
        count = len(set(numbers) - {None})
        first = tx.next_id(SEQUENCE, count) if count else 0
        for table in writes.values():
            table.apply(first)
        if self.atomic:
            numbers = [0 if count else None] * len(numbers)
        return BatchWritten(
            [
                WrittenItem(definition, sequence=None if number is None else first + number)
                for (definition, _), number in zip(places, numbers, strict=True)
            ]
        )

    def _plan(self, tx: Tx, places: list[tuple[Definition, bytes]]) -> list[WritePlan]:
        """All plans; raises if they are too large to be held in memory and written at once."""
        wanted: dict[int, list[bytes]] = {}
        for definition, key in places:
            wanted.setdefault(definition.space, []).append(key)
        rows = {space: tx.get_each(ITEMS, (space,), stored) for space, stored in wanted.items()}
        plans: list[WritePlan] = []
        total = 0
        for action, (definition, key) in zip(self.writes, places, strict=True):
            plan = action.planned(definition, key, rows[definition.space].get(key))
            plans.append(plan)
            total += plan.size_old + plan.size
            if total > limits.TRANSACTION_BYTES_MAX:
                raise too_large()
        return plans


def _check_distinct(places: list[tuple[Definition, bytes]]) -> None:
    if len({(definition.space, key) for definition, key in places}) != len(places):
        raise Invalid("Provided list of item keys contains duplicates")


def _fitting(plan: WritePlan) -> WritePlan:
    """The plan; raises if its item does not fit the table's indexes. A transaction checks this before it writes."""
    new = plan.new
    if new is not None:
        for index in plan.definition.indexes:
            keys.index_key(plan.definition, index, new, plan.key)
    return plan


class TransactWrite(Command[BatchWritten], frozen=True):
    """Several actions on different items, all or none. A token makes it idempotent for ten minutes."""

    actions: tuple[ItemCommand, ...]
    token: str | None = None
    digest: bytes = b""  # of the request that the token identifies
    capacity: bool = False
    bytes_max: int = limits.TRANSACTION_BYTES_MAX  # the sum over all items of the larger of the old and new size
    statements: bool = False  # the actions are PartiQL statements: each has its own reason, also a missing table

    def prefetch(self, peek: Peek) -> None:
        if self.token is not None:
            peek(TOKENS, self.token)
        for action in self.actions:
            action.prefetch(peek)

    def size(self) -> int:
        return sum([action.size() for action in self.actions])

    def heavy(self) -> bool:
        return len(self.actions) > limits.LOOP_ACTIONS or self.size() > limits.LOOP_BYTES

    def frees(self) -> bool:
        return all(action.freeing for action in self.actions)

    def subjects(self) -> tuple[str, ...]:
        return tuple({subject for action in self.actions for subject in action.subjects()})

    def run(self, tx: Tx) -> BatchWritten:
        if self.token is not None and token_used(tx, self.token, self.digest):
            return BatchWritten([self._replayed(tx, action) for action in self.actions], replayed=True)
        plans = self._plan(tx)
        capture = Capture()
        for plan in plans:
            write.do(tx, plan, capture)
        sequence = capture.append(tx)
        if self.token is not None:
            keep_token(tx, self.token, self.digest)
        return BatchWritten(
            [
                WrittenItem(
                    plan.definition, None, write.units(plan, transactional=True) if self.capacity else None, sequence
                )
                for plan in plans
            ]
        )

    def _plan(self, tx: Tx) -> list[WritePlan]:
        """All plans; raises `TransactionCanceled` with the reason of each that failed."""
        plans: list[WritePlan] = []
        reasons: list[tuple[str, str | None, Any]] = [("None", None, None)] * len(self.actions)
        total = 0
        for at, action in enumerate(self.actions):
            try:
                plan = _fitting(action.plan(tx))
                plans.append(plan)
                total += max(plan.size_old, plan.size)
                if total > self.bytes_max:
                    raise TooLarge(f"Transaction payload size cannot exceed {self.bytes_max} bytes")
            except messages.RequestInvalid:
                raise
            except ConditionFailed as error:
                reasons[at] = (error.reason, str(error), error.item)
            except TableNotFound:
                if not self.statements:
                    raise
                reasons[at] = ("ResourceNotFound", "Requested resource not found", None)
            except Invalid as error:
                if not self.statements:  # an invalid request is reported alone, whatever the conditions
                    reasons = [("None", None, None)] * len(self.actions)
                reasons[at] = ("ValidationError", str(error), None)
                if not self.statements:
                    break
        if len(plans) < len(self.actions):
            raise TransactionCanceled(reasons)
        if len({(plan.definition.space, plan.key) for plan in plans}) != len(plans):
            raise Invalid("Transaction request cannot include multiple operations on one item")
        return plans

    def _replayed(self, tx: Tx, action: ItemCommand) -> WrittenItem:
        assert isinstance(action, PutItem | DeleteItem | UpdateItem | CheckItem)
        definition = find(tx, action.table)
        if not self.capacity:
            return WrittenItem(definition)
        attributes = action.named(definition)
        key = keys.item_key(definition, attributes)
        row = write.find(tx, definition, key, attributes).row
        units = read_units(row.size if row else 0, consistent=True, transactional=True)
        return WrittenItem(definition, None, Capacity(definition.name, units))


# -- tokens


def token_used(tx: Tx, token: str, digest: bytes) -> bool:
    """Whether a token was used for the same request in the last ten minutes."""
    row = tx.get(TOKENS, _token_name(tx, token))
    if row is None or row.at_ms + limits.TOKEN_S * 1000 <= tx.settled_ms:
        return False
    if row.digest != digest:
        raise TokenMismatch(
            "The request uses the same client token as a previous, but non-identical request. "
            "Do not reuse a client token with different requests, unless the requests are identical"
        )
    return True


def keep_token(tx: Tx, token: str, digest: bytes) -> None:
    """Remember that a token was used for a request."""
    name = _token_name(tx, token)
    tx.put(TOKENS, TokenRow(name, digest, tx.now_ms))
    tx.put(TOKEN_AGES, TokenAgeRow(tx.now_ms, name))


def _token_name(tx: Tx, token: str) -> str:
    """The key of a token, unique per principal, whatever slashes are in either."""
    return f"{len(tx.by)}/{tx.by}/{token}"
