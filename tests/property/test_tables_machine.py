"""Tables and change streams against dicts: whatever is done in whatever order, contents and records agree.

The machine drives the commands with a clock of its own, on two tables with indexes of each kind, one of them made and
deleted again while the table is in use. Housekeeping runs in steps of three items, alone or all at once, so that writes
come between them. After every step the tables hold what the model holds, the streams of each view hold the records
that the model expects and lead from their beginning to the table as it is, and `tailrace check` finds nothing.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from unittest import mock

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import note, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import tailrace
from tailrace import limits
from tailrace.access import EVERYTHING, Principal
from tailrace.check import Report, check_database, check_rows
from tailrace.clock import ManualClock
from tailrace.errors import ConditionFailed, Invalid, NotFound, TokenMismatch, TransactionCanceled, Trimmed
from tailrace.tables import change_info, change_reading, change_stream, change_trimming, queries, sweep, value
from tailrace.tables import cursors as named
from tailrace.tables import schema as schemas
from tailrace.tables.change import BOTH, KEYS_ONLY, OLD_IMAGE, VIEWS
from tailrace.tables.commands import BatchWrite, CheckItem, DeleteItem, PutItem, TransactWrite, UpdateItem
from tailrace.tables.definition import BACKFILLS, Attribute
from tailrace.tables.expression import KeyCondition, Placeholders, condition, update
from tailrace.tables.lifecycle import CreateTable, DeleteTable, DescribeTable, SetTimeToLive, UpdateTable
from tailrace.tables.schema import (
    IndexChange,
    IndexSpec,
    KeyElement,
    ProjectionSpec,
    StreamSpec,
    TableChanges,
    TableSpec,
)
from tailrace.tables.write import WrittenItem
from tests.support.directories import scratch_directory
from tests.support.soak import examples
from tests.support.table_model import (
    CONDITIONS,
    TOKEN_MS,
    UPDATES,
    Action,
    Cursor,
    Index,
    Key,
    Model,
    Plain,
    Record,
    Stream,
    Table,
    as_stored,
    assert_reasons,
    counted,
    expected_record,
    from_python,
    meets,
    plain_item,
    seen,
    twice,
)

NOW_S = 1_700_000_000
PEOPLE = [Principal("ann", EVERYTHING), Principal("bob", EVERYTHING)]
LIVE = "live"  # the index that comes and goes
KINDS = {"pk": "S", "sk": "N", "g": "S", "h": "N", "l": "S"}

# Few keys and few values, so that writes meet.
PARTITIONS = st.sampled_from(["a", "b", "ä\0"])
NUMBERS = st.sampled_from([Decimal(text) for text in ("0", "1", "-1", "2.5", "10", "1E+20")])
VALUES = st.one_of(
    NUMBERS, st.sampled_from(["", "x", "y\0z", None, b"", b"\xff", frozenset("x"), (Decimal(1), "x", ())]),
)  # fmt: skip
SETS = st.sets(st.sampled_from("xyz"), min_size=1).map(frozenset)
SECONDS = st.sampled_from([NOW_S - 6 * 365 * 86_400, NOW_S - 5, NOW_S + 30, NOW_S + 100, NOW_S + 10_000]).map(Decimal)
RARELY = st.sampled_from([False] * 7 + [True])
ATTRIBUTES: dict[str, st.SearchStrategy[Any]] = {
    "v": VALUES,
    "n": NUMBERS,
    "s": SETS,
    "g": st.sampled_from(["x", "y", "y", "x\0"]),
    "h": NUMBERS,
    "l": st.sampled_from(["m", "m\xff", "m\0"]),
    "t": SECONDS,
}
WRONG: dict[str, Any] = {"g": Decimal(1), "h": "text", "l": "", "t": "never"}
OPERANDS = {"g": "g", "h": "h", "l": "l", "t": "t", "n": "n", "s": "s"}


def keys_of(*names: str | None) -> tuple[KeyElement, ...]:
    roles = ("HASH", "RANGE")
    return tuple(KeyElement(name, role) for name, role in zip(names, roles, strict=False) if name is not None)


def attributes(*names: str | None) -> tuple[Attribute, ...]:
    return tuple(Attribute(name, KINDS[name]) for name in dict.fromkeys(names) if name is not None)


def new_table(name: str) -> Table:
    kinds = {"g": str, "h": Decimal, "l": str}
    if name == "hashed":
        indexes = [Index("by-g", "g", "h")]
        return Table(name, ("pk",), kinds, indexes={index.name: index for index in indexes})
    indexes = [Index("by-l", "pk", "l", (), local=True), Index("by-h", "h", None, ("v",))]
    return Table(name, ("pk", "sk"), kinds, indexes={index.name: index for index in indexes})


def index_spec(index: Index) -> IndexSpec:
    if index.projection is None:
        projection = ProjectionSpec("ALL")
    else:
        projection = ProjectionSpec("INCLUDE", index.projection) if index.projection else ProjectionSpec("KEYS_ONLY")
    return IndexSpec(index.name, keys_of(index.hash, index.range), projection)


class Tables(RuleBasedStateMachine):
    """The database and the model, side by side."""

    def __init__(self) -> None:
        super().__init__()
        # Cursors are cut off as part of the play; the test's end puts the level back.
        logging.getLogger("tailrace").setLevel(logging.CRITICAL + 1)
        self.small = [
            mock.patch.object(limits, "SWEEP_ITEMS", 3),
            mock.patch.object(limits, "SWEEP_ROWS", 3),
            mock.patch.object(queries, "_POINTERS", 2),
            mock.patch("tailrace.limits.SLICE_ENTRIES", 3),
        ]
        for patch in self.small:
            patch.start()
        self.directory = scratch_directory()
        self.clock = ManualClock(NOW_S * 1000)
        self.db = tailrace.open(self.directory, clock=self.clock, housekeeping_s=None)
        self.model = Model()
        self.snapshots: list[tuple[str, str, int, dict[Key, Plain]]] = []

    @initialize(views=st.tuples(st.sampled_from([None, *VIEWS]), st.sampled_from(VIEWS)), data=st.data())
    def begin(self, views: tuple[str | None, str], data: st.DataObject) -> None:
        for name, view in zip(("hashed", "ranged"), views, strict=True):
            self.make(name, view)
            if data.draw(st.booleans(), label="ttl"):
                self.toggle_ttl(name)
            for _ in range(data.draw(st.integers(2, 6), label="items")):
                self.one(self.draw_action(data, name, "put"), PEOPLE[0])

    # -- tables

    def make(self, name: str, view: str | None) -> None:
        table = new_table(name)
        used = [part for index in table.indexes.values() for part in (index.hash, index.range)]
        local = tuple(index_spec(index) for index in table.indexes.values() if index.local)
        shared = tuple(index_spec(index) for index in table.indexes.values() if not index.local)
        spec = TableSpec(
            name=name,
            attributes=attributes(*table.keys, *used),
            keys=keys_of(*table.keys),
            local=local or None,
            globals=shared,
            billing=schemas.PAY_PER_REQUEST,
            stream=None if view is None else StreamSpec(True, view, None, None),
        )
        described = self.db.execute(CreateTable(spec))
        self.model.tables[name] = table
        if view is not None:
            assert described.definition.stream is not None
            self.opened(table, described.definition.stream.label, view, None, None)

    def opened(self, table: Table, label: str, view: str, max_age_s: int | None, max_count: int | None) -> None:
        self.model.sequence += 1  # enabling takes one, and the stream begins after it
        first = self.model.sequence + 1
        table.streams.append(Stream(label, view, first, max_age_s, max_count, dict(table.items), first))
        table.streaming = True

    @rule(name=st.sampled_from(["hashed", "ranged"]), view=st.sampled_from([None, *VIEWS]), really=RARELY)
    def remake(self, name: str, view: str | None, really: bool) -> None:
        """Delete the table and make one of that name again: nothing of the old one is in the new one."""
        if not really:
            return
        self.db.execute(DeleteTable(name))
        table = self.model.tables.pop(name)
        self.close_stream(table)
        self.model.orphans.setdefault(name, []).extend(table.streams)
        with pytest.raises(NotFound):
            self.db.execute(DescribeTable(name))
        self.make(name, view)

    def close_stream(self, table: Table) -> None:
        if table.stream is not None:
            table.stream.closed_ms = self.clock.now_ms()
            table.streaming = False

    @rule(name=st.sampled_from(["hashed", "ranged"]), ranged=st.booleans(),
          projection=st.sampled_from([None, (), ("n",)]))  # fmt: skip
    def toggle_index(self, name: str, ranged: bool, projection: tuple[str, ...] | None) -> None:
        """Make an index of a table with items in it, or delete it, filled or not."""
        table = self.model.tables[name]
        if LIVE in table.indexes:
            self.db.execute(UpdateTable(name, TableChanges(indexes=(IndexChange(delete=LIVE),))))
            del table.indexes[LIVE]
            return
        index = Index(LIVE, "l" if name == "hashed" else "g", "h" if ranged else None, projection)
        index.active = not table.items
        used = attributes(index.hash, index.range)
        changes = TableChanges(attributes=used, indexes=(IndexChange(create=index_spec(index)),))
        self.db.execute(UpdateTable(name, changes))
        table.indexes[LIVE] = index

    @rule(name=st.sampled_from(["hashed", "ranged"]))
    def toggle_ttl(self, name: str) -> None:
        table = self.model.tables[name]
        self.db.execute(SetTimeToLive(name, "t", table.ttl is None))
        table.ttl = "t" if table.ttl is None else None

    # -- writes

    def draw_item(self, data: st.DataObject, table: Table, key: Key) -> Plain:
        item = dict(zip(table.keys, key, strict=True))
        for name in data.draw(st.sets(st.sampled_from(sorted(ATTRIBUTES)), max_size=5), label="attributes"):
            item[name] = data.draw(ATTRIBUTES[name], label=name)
        if data.draw(RARELY, label="wrong"):
            name = data.draw(st.sampled_from(sorted(WRONG)))
            item[name] = WRONG[name]
        return item

    def draw_action(self, data: st.DataObject, name: str, kind: str) -> Action:
        table = self.model.tables[name]
        there = sorted(table.items, key=repr)
        fresh: st.SearchStrategy[Key]
        if len(table.keys) == 1:
            fresh = st.tuples(PARTITIONS)
        else:
            fresh = st.tuples(PARTITIONS, NUMBERS)
        key = data.draw(st.sampled_from(there) | fresh if there else fresh, label="key")
        chosen = data.draw(st.sampled_from([None] * 8 + [*CONDITIONS]), label="condition")
        if kind == "check" and chosen is None:
            chosen = "attribute_exists(pk)"
        compared = None
        if chosen is not None and ":c" in chosen:
            compared = data.draw(NUMBERS if "<" in chosen else VALUES, label="compared")
        rest: dict[str, Any] = {"condition": chosen, "compared": compared}
        if kind == "put":
            old = table.items.get(key)
            same = old is not None and data.draw(RARELY, label="the same again")
            return Action(kind, name, key, old if same else self.draw_item(data, table, key), **rest)
        if kind == "update":
            text = data.draw(st.sampled_from(sorted(UPDATES)), label="update")
            touched = text.split()[1]
            operand = None
            if ":u" in text:
                wrong = touched in WRONG and data.draw(RARELY, label="wrong")
                operand = WRONG[touched] if wrong else data.draw(ATTRIBUTES[touched], label="operand")
            return Action(kind, name, key, update=text, operand=operand, **rest)
        return Action(kind, name, key, **rest)

    def command(self, action: Action, returns: str = "NONE") -> Any:
        table = self.model.tables[action.table]
        key, _ = value.item_from_plain(dict(zip(table.keys, action.key, strict=True)))
        wanted = None
        if action.condition is not None:
            operands = {":c": value.from_plain(action.compared)} if ":c" in action.condition else None
            wanted = condition(action.condition, Placeholders(None, operands))
        if action.kind == "put":
            assert action.item is not None
            return PutItem(action.table, *value.item_from_plain(action.item), condition=wanted, returns=returns)
        if action.kind == "delete":
            return DeleteItem(action.table, key, condition=wanted, returns=returns)
        if action.kind == "check":
            return CheckItem(action.table, key, condition=wanted)
        assert action.update is not None
        operands = {":u": value.from_plain(action.operand)} if ":u" in action.update else None
        changes = update(action.update, Placeholders(None, operands))
        return UpdateItem(action.table, key, changes, condition=wanted, returns=returns)

    def one(self, action: Action, who: Principal) -> None:
        """One action, in the database and in the model."""
        reasons, results = self.model.judge([action])
        old = self.model.tables[action.table].items.get(action.key)
        command = self.command(action, "ALL_OLD")
        if reasons[0] == "condition":
            with pytest.raises(ConditionFailed):
                self.db.execute(command, who)
        elif reasons[0] or self.model.misfits([action], results):
            with pytest.raises(Invalid):
                self.db.execute(command, who)
        else:
            written: WrittenItem = self.db.execute(command, who)
            assert plain_item(written.attributes) == old
            assert written.sequence == self.model.write([action], results, self.clock.now_ms(), who.name)

    @rule(data=st.data(), name=st.sampled_from(["hashed", "ranged"]), who=st.sampled_from(PEOPLE),
          kind=st.sampled_from(["put", "put", "update", "update", "delete"]))  # fmt: skip
    def write(self, data: st.DataObject, name: str, kind: str, who: Principal) -> None:
        self.one(self.draw_action(data, name, kind), who)

    def draw_actions(self, data: st.DataObject, kinds: list[str], size: int) -> list[Action]:
        actions = []
        for _ in range(data.draw(st.integers(1, size), label="actions")):
            name = data.draw(st.sampled_from(["hashed", "ranged"]), label="table")
            actions.append(self.draw_action(data, name, data.draw(st.sampled_from(kinds), label="kind")))
        return actions

    @rule(data=st.data(), atomic=st.booleans(), who=st.sampled_from(PEOPLE))
    def batch(self, data: st.DataObject, atomic: bool, who: Principal) -> None:
        actions = [
            Action(action.kind, action.table, action.key, action.item)
            for action in self.draw_actions(data, ["put", "put", "delete"], 6)
        ]
        _, results = self.model.judge(actions)
        command = BatchWrite(tuple(self.command(action) for action in actions), atomic=atomic)
        if twice(actions) or self.model.misfits(actions, results):
            with pytest.raises(Invalid):
                self.db.execute(command, who)
            return
        written = self.db.execute(command, who).written
        if atomic:
            sequence = self.model.write(actions, results, self.clock.now_ms(), who.name)
            assert [one.sequence for one in written] == [sequence] * len(actions)
            stream = self.model.tables[actions[0].table].stream
            if stream is not None and stream.records and stream.records[-1].index and data.draw(st.booleans()):
                self.alter_retention(actions[0].table, None, 1, True)  # the last transaction stays, however large
            return
        for one, action, result in zip(written, actions, results, strict=True):
            assert one.sequence == self.model.write([action], [result], self.clock.now_ms(), who.name)

    @rule(data=st.data(), token=st.sampled_from([None, None, "t1", "t2"]), who=st.sampled_from(PEOPLE))
    def transact(self, data: st.DataObject, token: str | None, who: Principal) -> None:
        actions = self.draw_actions(data, ["put", "put", "update", "update", "delete", "check"], 8)
        digest = repr(actions).encode()
        command = TransactWrite(tuple(self.command(action) for action in actions), token, digest)
        self.transact_once(command, actions, token, digest, who)
        for seconds in data.draw(st.sampled_from([(), (0,), (599,), (600,), (0, 601)]), label="repeated after"):
            self.clock.advance(seconds)
            self.transact_once(command, actions, token, digest, who)

    def transact_once(
        self, command: TransactWrite, actions: list[Action], token: str | None, digest: bytes, who: Principal
    ) -> None:
        name = f"{who.name}/{token}"
        now_ms = self.clock.now_ms()
        used = self.model.tokens.get(name) if token is not None else None
        if used is not None and used[1] + TOKEN_MS > now_ms:
            if used[0] != digest:
                with pytest.raises(TokenMismatch):
                    self.db.execute(command, who)
            else:
                assert self.db.execute(command, who).replayed
            return
        reasons, results = self.model.judge(actions)
        note(f"reasons: {reasons}")
        if any(reasons):
            with pytest.raises((TransactionCanceled, Invalid)) as caught:
                self.db.execute(command, who)
            misfits = [self.model.misfits([one], [new]) for one, new in zip(actions, results, strict=True)]
            if isinstance(caught.value, TransactionCanceled):
                assert_reasons([code for code, _, _ in caught.value.reasons], reasons, misfits)
            else:
                assert twice(actions) or any(misfits)
            return
        if twice(actions) or self.model.misfits(actions, results):
            with pytest.raises((TransactionCanceled, Invalid)):
                self.db.execute(command, who)
            return
        done = self.db.execute(command, who)
        assert not done.replayed
        sequence = self.model.write(actions, results, now_ms, who.name)
        assert [one.sequence for one in done.written] == [sequence] * len(actions)
        if token is not None:
            self.model.tokens[name] = (digest, now_ms)

    # -- time and housekeeping

    @rule(seconds=st.sampled_from([1, 20, 40, 90, 601]), swept=st.booleans())
    def advance(self, seconds: int, swept: bool) -> None:
        self.clock.advance(seconds)
        if swept:
            self.sweep()

    @rule()
    def sweep(self) -> None:
        now_ms = self.clock.now_ms()
        due = {name: table.expired(now_ms) for name, table in self.model.tables.items()}
        self.db.sweep()
        self.adopt(due, everything=True)
        for table in self.model.tables.values():
            for index in table.indexes.values():
                index.active = True
            table.streams = self.retained(table.streams)
        for name, left in self.model.orphans.items():
            self.model.orphans[name] = self.retained(left)

    def retained(self, streams: list[Stream]) -> list[Stream]:
        now_ms = self.clock.now_ms()
        kept = []
        for stream in streams:
            stream.retain(now_ms)
            over = stream.closed_ms is not None and stream.max_age_s is not None and not stream.records
            if not (over and stream.closed_ms + (stream.max_age_s or 0) * 1000 < now_ms):  # type: ignore[operator]
                kept.append(stream)
        return kept

    @rule(name=st.sampled_from(["hashed", "ranged"]))
    def expire_some(self, name: str) -> None:
        """One step of the TTL service alone."""
        table = self.model.tables[name]
        due = table.expired(self.clock.now_ms())
        self.db.execute(sweep.ExpireItems(name))
        self.adopt({name: due}, everything=False)

    def adopt(self, due: dict[str, dict[Key, Plain]], *, everything: bool) -> None:
        """What expired is gone, each item under a sequence of its own, in an order that nobody promises."""
        gone: list[tuple[int | None, str, Key]] = []
        for name, expected in sorted(due.items()):
            table = self.model.tables[name]
            missing = table.items.keys() - self.contents(name).keys()
            assert missing <= expected.keys(), f"removed before its time: {missing - expected.keys()}"
            assert not everything or missing == expected.keys(), f"not removed: {expected.keys() - missing}"
            found = dict.fromkeys(missing)
            if table.stream is not None and missing:
                # Retention may have let go of some already; those are the oldest.
                page = self.db.execute(change_info.DescribeChangeStream(name))
                for record in self.read(name, table.stream, max(self.model.sequence, page.log.start - 1)):
                    found[tuple(part for _, part in record.keys)] = record.sequence
                unseen = [key for key, sequence in found.items() if sequence is None]
                assert len(unseen) == 0 or page.log.start > self.model.sequence + 1
                if unseen:
                    self.adopt_unseen(name, unseen, page.log.start)
                    found = {key: sequence for key, sequence in found.items() if sequence is not None}
            gone += [(sequence, name, key) for key, sequence in found.items()]
        for sequence, name, key in sorted(gone, key=lambda one: one[0] or 0):
            self.model.expire(name, key, self.clock.now_ms(), sequence)

    def adopt_unseen(self, name: str, keys: list[Key], start: int) -> None:
        """Records that were trimmed in the same sweep; their order makes no difference any more."""
        for number, key in enumerate(sorted(keys, key=repr)):
            sequence = start - len(keys) + number
            self.model.sequence = max(self.model.sequence, sequence - 1)
            self.model.expire(name, key, self.clock.now_ms(), self.model.sequence + 1)

    @rule(name=st.sampled_from(["hashed", "ranged"]))
    def fill_some(self, name: str) -> None:
        """One step of filling an index, or an order of expiry."""
        with self.db._engine.reader() as reader:
            work = [row.space for row in reader.scan(BACKFILLS) if row.owner == name]
        for space in work[:1]:
            self.db.execute(sweep.BackfillIndex(space))
        described = self.db.execute(DescribeTable(name)).definition
        if LIVE in described.by_name:
            self.model.tables[name].indexes[LIVE].active = described.by_name[LIVE].status == "ACTIVE"

    @rule()
    def reopen(self) -> None:
        self.db.close()
        self.db = tailrace.open(self.directory, clock=self.clock, housekeeping_s=None)

    # -- streams

    @rule(name=st.sampled_from(["hashed", "ranged"]), view=st.sampled_from(VIEWS),
          age=st.sampled_from([None, None, 60]), count=st.sampled_from([None, None, 5]))  # fmt: skip
    def toggle_stream(self, name: str, view: str, age: int | None, count: int | None) -> None:
        """Disable the stream, or enable one: a change of the view is both."""
        table = self.model.tables[name]
        if table.stream is not None:
            self.db.execute(change_stream.DisableStream(name))
            self.close_stream(table)
            return
        made = self.db.execute(change_stream.EnableStream(name, view, age, count))
        self.opened(table, made.label, view, age, count)

    @rule(name=st.sampled_from(["hashed", "ranged"]), age=st.sampled_from([None, 30, 1000]),
          count=st.sampled_from([None, 1, 2, 3, 5]), swept=st.booleans())  # fmt: skip
    def alter_retention(self, name: str, age: int | None, count: int | None, swept: bool) -> None:
        stream = self.model.tables[name].stream
        if stream is not None:
            self.db.execute(change_trimming.AlterRetention(name, age, count))
            stream.max_age_s, stream.max_count = age, count
            if swept:
                self.sweep()

    @rule(name=st.sampled_from(["hashed", "ranged"]), data=st.data(), really=RARELY)
    def prune(self, name: str, data: st.DataObject, really: bool) -> None:
        stream = self.model.tables[name].stream
        if stream is None or not really:
            return
        most = min(stream.next + 1, self.model.sequence)
        through = data.draw(st.none() | st.integers(min(stream.start, most), most), label="through")
        before = len(stream.records)
        pruned = self.db.execute(change_trimming.PruneStream(name, through))
        stream.trim(stream.next if through is None else min(stream.aligned(through + 1), stream.next))
        assert pruned.records == before - len(stream.records)

    @rule(name=st.sampled_from(["hashed", "ranged"]), cursor=st.sampled_from("pq"), hold=st.booleans(), data=st.data())
    def save_cursor(self, name: str, cursor: str, hold: bool, data: st.DataObject) -> None:
        stream = self.model.tables[name].stream
        if stream is None:
            return
        after = data.draw(st.integers(stream.start - 1, stream.next - 1), label="after")
        saved = self.db.execute(named.SaveCursor(name, cursor, after, 10**9 if hold else 0))
        assert not saved.cut_off
        known = stream.cursors.get(cursor)
        stream.cursors[cursor] = Cursor(after + 1, hold, known.lost if known else 0)
        if data.draw(st.booleans(), label="retained"):
            self.alter_retention(name, None, 2, True)

    @rule(name=st.sampled_from(["hashed", "ranged"]))
    def snapshot(self, name: str) -> None:
        """A copy of the table; what is recorded later must lead from it to the table as it will be."""
        stream = self.model.tables[name].stream
        if stream is None:
            return
        sequence, taken = self.db.table(name).snapshot()
        table = self.model.tables[name]
        items = {table.key_of(item): item for item in map(from_python, taken)}
        assert items == table.items
        assert sequence == self.model.sequence
        self.snapshots = [*self.snapshots[-2:], (name, stream.label, sequence, items)]

    # -- reads

    def pages(self, query: Any) -> Iterator[queries.ItemPage]:
        while True:
            pager: queries.Pager[Any] = queries.Pager(query)
            while (step := pager.next()) is not None:
                pager.add(self.db.execute(step))
            page = pager.page()
            yield page
            if page.last_key is None:
                return
            query = msgspec.structs.replace(query, start=page.last_key)

    def all_of(self, query: Any) -> list[Plain]:
        found: list[Plain] = []
        for page in self.pages(query):
            assert page.items is not None
            assert query.limit is None or page.scanned <= query.limit
            found += [plain_item(item) or {} for item in page.items]
        return found

    def contents(self, name: str) -> dict[Key, Plain]:
        table = self.model.tables[name]
        found = self.all_of(queries.ScanItems(table=name))
        items = {table.key_of(item): item for item in found}
        assert len(items) == len(found), "an item was returned twice"
        return items

    @rule(name=st.sampled_from(["hashed", "ranged"]), limit=st.sampled_from([None, 1, 2, 3]), total=st.integers(1, 5),
          data=st.data())  # fmt: skip
    def scan(self, name: str, limit: int | None, total: int, data: st.DataObject) -> None:
        """All pages of all segments of a table or an index, each item once."""
        table = self.model.tables[name]
        index = data.draw(st.sampled_from([None, *table.indexes.values()]), label="index")
        question = queries.ScanItems(table=name, index=index.name if index else None, limit=limit)
        if index is not None and not index.active:
            with pytest.raises(Invalid):
                self.all_of(question)
            return
        expected = list(table.items.values()) if index is None else table.entries(index)
        shown = [item if index is None else table.shown(index, item) for item in expected]
        found: list[Plain] = []
        for segment in range(total):
            found += self.all_of(msgspec.structs.replace(question, segment=segment, total=total))
        assert found == self.all_of(question), "segments are pieces of the whole, in its order"
        assert counted(found) == counted(shown)

    @rule(name=st.sampled_from(["hashed", "ranged"]), limit=st.sampled_from([None, 1, 2, 3]), reverse=st.booleans(),
          op=st.sampled_from([None, "=", "<", "<=", ">", ">=", "BETWEEN"]), data=st.data())  # fmt: skip
    def query(self, name: str, limit: int | None, reverse: bool, op: str | None, data: st.DataObject) -> None:
        """A partition of a table or an index, in both directions, in pages."""
        table = self.model.tables[name]
        index = data.draw(st.sampled_from([None, *table.indexes.values()]), label="index")
        hash_name = table.keys[0] if index is None else index.hash
        sort_name = (table.keys[1] if len(table.keys) > 1 else None) if index is None else index.range
        any_of = PARTITIONS if hash_name == "pk" else ATTRIBUTES[hash_name]
        there = [item[hash_name] for item in (table.items.values() if index is None else table.entries(index))]
        wanted = data.draw(st.sampled_from(there) if there else any_of, label="partition")
        draw_sort = NUMBERS if sort_name in ("sk", "h") else ATTRIBUTES["l"]
        operands = [] if sort_name is None or op is None else [data.draw(draw_sort, label="operand")]
        if operands and op == "BETWEEN":
            operands = sorted([*operands, data.draw(draw_sort, label="high")])
        given = [value.from_plain(operand) for operand in operands]
        bound = KeyCondition([value.from_plain(wanted)], given, None, []) if given and op == "=" else None
        bound = bound or KeyCondition([value.from_plain(wanted)], [], op if given else None, given)
        question = queries.QueryItems(
            table=name, condition=lambda *_: bound, index=index.name if index else None, limit=limit, reverse=reverse
        )
        if index is not None and not index.active:
            with pytest.raises(Invalid):
                self.all_of(question)
            return
        found = self.all_of(question)
        held = list(table.items.values()) if index is None else table.entries(index)
        expected = [item for item in held if item[hash_name] == wanted and meets(item, sort_name, op, operands)]
        shown = [item if index is None else table.shown(index, item) for item in expected]
        assert counted(found) == counted(shown)
        if sort_name is not None:
            order = [item[sort_name] for item in found]
            assert order == sorted(order, key=as_stored, reverse=reverse)
        whole = self.all_of(msgspec.structs.replace(question, limit=None, reverse=not reverse))
        assert whole == found[::-1], "the other direction is the other way round"

    # -- what always holds

    def read(self, name: str, stream: Stream, after: int | None, limits: list[int] | None = None) -> list[Record]:
        """Records after a sequence, page after page; no page splits a transaction."""
        found: list[Record] = []
        number = 0
        while True:
            limit = limits[number % len(limits)] if limits else 1000
            page = self.db.execute(change_reading.ReadChanges(name, after, limit, label=stream.label))
            records = [expected_record(record) for record in page.records]
            assert not records or (records[-1].last and records[0].index == 0), "a transaction was split"
            assert not records or len(records) < limit + 100
            found += records
            after, number = page.after, number + 1
            if not page.more:
                assert page.latest == stream.next - 1 or limits is None
                return found
            assert records, "a page that is not the last one leads on"

    @rule(name=st.sampled_from(["hashed", "ranged"]), limits=st.lists(st.integers(1, 4), min_size=1, max_size=3),
          data=st.data())  # fmt: skip
    def read_pages(self, name: str, limits: list[int], data: st.DataObject) -> None:
        """From any sequence on, in pages of any size: each record once."""
        table = self.model.tables[name]
        stream = data.draw(st.sampled_from([*table.streams, None]), label="stream")
        if stream is None:
            return
        after = data.draw(st.integers(max(0, stream.start - 3), self.model.sequence), label="after")
        if after + 1 < stream.start and not (after == 0 and stream.start == stream.first):
            with pytest.raises(Trimmed):
                self.read(name, stream, after, limits)
            return
        expected = [record for record in stream.records if record.sequence > after]
        assert self.read(name, stream, after, limits) == seen(expected, stream.view)

    @invariant()
    def contents_agree(self) -> None:
        for name, table in self.model.tables.items():
            assert self.contents(name) == table.items
            described = self.db.execute(DescribeTable(name))
            assert described.counts[described.definition.space].items == len(table.items)
            for index in described.definition.indexes:
                known = table.indexes[index.name]
                assert (index.status == "ACTIVE") == known.active
                assert not known.active or described.counts[index.space].items == len(table.entries(known))

    @invariant()
    def records_agree(self) -> None:
        """Each stream holds what the model expects, and leads from its beginning to the table as it is."""
        for name, table in self.model.tables.items():
            known = self.db.execute(change_info.ListTableStreams(name))
            both = [*self.model.orphans.get(name, []), *table.streams]
            assert [info.stream.label for info in known] == [stream.label for stream in both]
            for stream in both:
                found = self.read(name, stream, None)
                assert found == seen(stream.records, stream.view)
                sequences = [record.sequence for record in found if record.index == 0]
                assert sequences == sorted(set(sequences)), "sequences only grow"
                times = [record.at_ms for record in found]
                assert times == sorted(times)
            if table.stream is not None:
                self.assert_replays(table.stream, table.items, self.read(name, table.stream, None), table.stream.base)
                cursors = self.db.execute(named.ListCursors(name))
                assert {one.name: one.lost for one in cursors} == {
                    cursor: one.lost for cursor, one in table.stream.cursors.items()
                }

    def assert_replays(
        self, stream: Stream, items: dict[Key, Plain], records: list[Record], base: dict[Key, Plain]
    ) -> None:
        """The change stream alone, from a base on, tells what is there."""
        if stream.view == KEYS_ONLY or stream.view == OLD_IMAGE:
            there = set(base)
            before = dict(base)
            for record in records:
                key = tuple(part for _, part in record.keys)
                assert (key in there) == (record.event != "INSERT")
                (there.discard if record.event == "REMOVE" else there.add)(key)
            assert there == items.keys()
            if stream.view == OLD_IMAGE:  # backwards: from the table as it is to the base
                back = dict(items)
                for record in reversed(records):
                    key = tuple(part for _, part in record.keys)
                    back.pop(key, None)
                    if record.old is not None:
                        back[key] = record.old
                assert back == before
            return
        replica = dict(base)
        for record in records:
            key = tuple(part for _, part in record.keys)
            assert (key in replica) == (record.event != "INSERT")
            if stream.view == BOTH:
                assert record.old == replica.get(key), "the old image is what the record before it left"
            if record.event == "REMOVE":
                del replica[key]
            else:
                assert record.new is not None
                assert record.new != replica.get(key), "a record for a write that changed nothing"
                replica[key] = record.new
        assert replica == items

    @precondition(lambda self: self.snapshots)
    @invariant()
    def snapshots_lead_on(self) -> None:
        """A snapshot and the changes after its sequence make the table."""
        for name, label, sequence, items in self.snapshots:
            table = self.model.tables[name]
            if table.stream is None or table.stream.label != label or sequence + 1 < table.stream.start:
                continue
            self.assert_replays(table.stream, table.items, self.read(name, table.stream, sequence), items)

    @invariant()
    def nothing_is_wrong(self) -> None:
        report = Report([])
        with self.db._engine.reader() as reader:
            check_rows(reader, report, lambda what, done, total: None)
        assert report.findings == [], report.findings

    def teardown(self) -> None:
        try:
            self.db.close()
            report = check_database(self.directory)
        finally:
            shutil.rmtree(self.directory)
            for patch in self.small:
                patch.stop()
        assert report.findings == [], report.findings


TestTables = Tables.TestCase
TestTables.settings = settings(max_examples=examples(60), stateful_step_count=40)
