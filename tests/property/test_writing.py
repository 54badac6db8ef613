"""Items that are written by one batch: applied at once, they are those of one by one."""

from __future__ import annotations

import tempfile
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tailrace
from tailrace import Index, limits
from tailrace.check import check_database
from tailrace.clock import ManualClock
from tailrace.log import segments
from tailrace.log.entry import LOGS
from tailrace.runner import QueuedCommand, _Batch
from tailrace.storage.table import META
from tailrace.tables import change, expression, value
from tailrace.tables.commands import ALL_OLD, BatchWrite, BatchWritten, DeleteItem, PutItem
from tailrace.tables.definition import COUNTS, INDEX_ENTRIES, ITEMS
from tailrace.tables.expression import Placeholders
from tailrace.tables.partiql_commands import InsertItem
from tailrace.tables.write import PlainWrites, WrittenItem

TABLES = ("silent", "both", "keys", "indexed")
ROWS: tuple[Any, ...] = (ITEMS, INDEX_ENTRIES, COUNTS)
Item = dict[str, dict[str, Any]]


def item(key: str, number: str, **others: dict[str, Any]) -> Item:
    return {"id": {"S": key}, "sort": {"N": "1"}, "number": {"N": number}} | others


def put(table: str, content: Item, **options: Any) -> PutItem:
    return PutItem(table, content, value.item_size(content), **options)


def condition(text: str) -> Any:
    return expression.condition(text, Placeholders(None, None), "ConditionExpression")


OTHERS = (
    put("missing", item("a", "1")),
    put("both", {"other": {"S": "a"}}),
    put("both", {"id": {"N": "1"}}),
    put("both", item("", "1")),
    put("both", item("a", "1", **{"": {"S": "x"}})),
    put("both", item("a", "1", large={"S": "x" * limits.ITEM_BYTES_MAX})),
    put("both", item("a", "7"), condition=condition("attribute_exists(id)")),
    put("both", item("new", "7"), condition=condition("attribute_exists(id)")),
    put("both", item("a", "8"), returns=ALL_OLD),
    put("silent", item("a", "9"), capacity=True),
    InsertItem("both", item("stored", "9"), value.item_size(item("stored", "9"))),
    InsertItem("both", item("inserted", "9"), value.item_size(item("inserted", "9"))),
    DeleteItem("both", {"id": {"S": "a"}}),
    DeleteItem("keys", {"id": {"S": "b"}, "sort": {"N": "1"}}),
)
PUT = st.builds(
    lambda table, key, number: put(table, item(key, number)),
    st.sampled_from((*TABLES, "both", "both")),
    st.sampled_from(("a", "b", "c", "stored")),
    st.sampled_from(("1", "2", "3.5")),
)
DELETE = st.builds(
    lambda table, key: DeleteItem(table, {"id": {"S": key}} | ({"sort": {"N": "1"}} if table == "keys" else {})),
    st.sampled_from(TABLES),
    st.sampled_from(("a", "stored", "none")),
)
BATCH = st.builds(
    lambda writes, atomic, capacity: BatchWrite(tuple(writes), atomic, capacity),
    st.lists(PUT | DELETE, min_size=1, max_size=5),
    st.booleans(),
    st.sampled_from((False, False, True)),
)
JOB = st.tuples(PUT | BATCH | DELETE | st.sampled_from(OTHERS), st.sampled_from(("ann", "ann", "bob")))


def shown(result: Any) -> Any:
    """A result without what differs between two databases: the identity of a table."""
    if isinstance(result, BatchWritten):
        return [shown(one) for one in result.written]
    if isinstance(result, WrittenItem):
        return result.definition.name, result.attributes, result.consumed, result.sequence
    return result


def run_in_one_batch(commands: list[tuple[Any, str]]) -> tuple[list[Any], list[Any], dict[int, list[Any]]]:
    """The outcomes, the rows and the entries of the notices of a batch."""
    with tempfile.TemporaryDirectory() as directory:
        with tailrace.open(directory, clock=ManualClock(), housekeeping_s=None) as db:
            db.create_table("silent", "id")
            db.create_table("both", "id", stream=change.BOTH)
            db.create_table("keys", "id", ("sort", "N"), stream=change.KEYS_ONLY)
            db.create_table("indexed", "id", indexes=[Index("by-number", ("number", "N"))], stream=change.NEW_IMAGE)
            for table in TABLES:
                db.execute(BatchWrite((put(table, item("stored", "1")),)))
            jobs = [QueuedCommand(command, by) for command, by in commands]
            batch = db._runner._prepare(_Batch(jobs))
            db._runner._commit(batch)
            assert batch.error is None
            outcomes = [(shown(job.result), repr(job.error)) for job in jobs]
            with db._engine.reader() as reader:
                logs = [(log.id, log.next, log.at_ms) for log in reader.scan(LOGS)]
                rows: list[Any] = [logs, *(list(reader.scan(table)) for table in ROWS)]
                rows.append([row for row in reader.scan(META) if row.name.startswith("counter/")])
                rows += [list(segments.scan(reader, number)) for number, _, _ in logs]
            noticed: dict[int, list[Any]] = {}
            for notice in batch.notices:
                noticed.setdefault(notice.log, []).extend(segments.entries(notice.item.segment))
        assert check_database(directory).findings == []
        return outcomes, rows, noticed


@settings(max_examples=60)
@given(st.lists(JOB, min_size=2, max_size=12))
def test_items_that_are_written_at_once_are_those_of_one_by_one(commands: list[tuple[Any, str]]) -> None:
    together = run_in_one_batch(commands)
    with mock.patch.object(PlainWrites, "possible", return_value=False):
        alone = run_in_one_batch(commands)
    assert together == alone


@pytest.mark.parametrize("other", OTHERS, ids=lambda other: repr(other)[:60])
def test_a_write_that_is_not_plain_among_plain_ones(other: Any) -> None:
    puts = [put("both", item(key, number)) for key, number in (("a", "1"), ("b", "2"), ("a", "3"))]
    commands = [(each, "ann") for each in (puts[0], puts[1], other, puts[2], other, puts[0])]
    test_items_that_are_written_at_once_are_those_of_one_by_one.hypothesis.inner_test(  # type: ignore[attr-defined]
        [*commands, (puts[1], "bob"), (puts[2], "bob")]
    )


def test_plain_puts_run_together() -> None:
    """Otherwise the tests above would compare nothing. Each is a transaction of its own, with its principal."""
    commands = [(put(table, item(key, "5")), "ann") for table, key in (("both", "a"), ("keys", "b"), ("both", "c"))]
    same = dict(reversed(item("c", "5").items()))
    commands.append((put("both", same), "ann"))  # unchanged: it has no record
    with mock.patch.object(PutItem, "run", side_effect=AssertionError("it ran alone")):
        outcomes, _, noticed = run_in_one_batch(commands)
    first = outcomes[0][0][3]
    assert [result[3] for result, _ in outcomes] == [first, first + 1, first + 2, None]
    entries = [entry for each in noticed.values() for entry in each]
    assert sorted(entry.next - 1 for entry in entries) == [first, first + 1, first + 2]
    assert {change.opened(entry.body).by for entry in entries} == {"ann"}


@pytest.mark.parametrize("atomic", [True, False])
def test_a_batch_is_too_large_by_the_items_as_they_were_and_as_they_are(
    atomic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [value.item_size(item(key, "2")) for key in ("stored", "b")]
    batch = BatchWrite((put("silent", item("stored", "2")), put("silent", item("b", "2"))), atomic)
    for limit, fits in ((sizes[0] + sum(sizes), True), (sizes[0] + sum(sizes) - 1, False)):
        monkeypatch.setattr(limits, "TRANSACTION_BYTES_MAX", limit)
        ((result, error),), _, _ = run_in_one_batch([(batch, "ann")])
        assert (result is not None) is fits, error
        assert ("TooLarge" in error) is not fits


def test_inserts_of_one_item_fail_but_for_the_first() -> None:
    insert = InsertItem("both", item("new", "1"), value.item_size(item("new", "1")))
    outcomes, _, _ = run_in_one_batch([(insert, "ann"), (insert, "ann")])
    assert [result is None for result, _ in outcomes] == [False, True]
    assert "DuplicateItem" in outcomes[1][1]
