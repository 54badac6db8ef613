"""A table whose items are written by hand, so that a test says what is one transaction."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tailrace.clock import ManualClock
from tailrace.command import Command
from tailrace.database import Database
from tailrace.storage.engine import Tx
from tailrace.storage.sqlite import SqliteEngine
from tailrace.tables import key as keys
from tailrace.tables import value
from tailrace.tables import write as writing
from tailrace.tables.change import Capture
from tailrace.tables.definition import Attribute, Definition, find, save

T = TypeVar("T")


class Do(Command[T], frozen=True):
    """Any work as a command."""

    work: Callable[[Tx], T]

    def run(self, tx: Tx) -> T:
        return self.work(tx)


def opened(path: Path, clock: ManualClock | None = None) -> Database:
    return Database(SqliteEngine(path), clock=clock or ManualClock(), housekeeping_s=None)


def define(db: Database, name: str = "orders", *, range_key: str | None = None) -> None:
    """A table of that name, without a stream."""

    def work(tx: Tx) -> None:
        attributes = [Attribute("pk", "S")] + ([Attribute(range_key, "N")] if range_key else [])
        save(tx, Definition(name, tx.next_id("space"), "uuid", tx.now_ms, tuple(attributes), "pk", range_key))

    db.execute(Do(work))


def item(number: int | str, **more: Any) -> dict[str, Any]:
    return {"pk": {"S": f"k{number}"}, **more}


def write(db: Database, *images: dict[str, Any] | str, table: str = "orders", by: str = "me") -> int:
    """One transaction: an item is put, a text is the key of one that is deleted; its sequence."""

    def work(tx: Tx) -> int:
        definition = find(tx, table)
        capture = Capture()
        for image in images:
            new = None if isinstance(image, str) else image
            key = {"pk": {"S": image}} if isinstance(image, str) else {"pk": image["pk"]}
            plan = writing.find(tx, definition, keys.key_of(definition, key), key)
            if new is not None:
                plan.new, plan.size = new, value.item_size(new)
            writing.do(tx, plan, capture)
        return capture.append(tx, by) or 0  # 0: nothing was recorded

    return db.execute(Do(work))


def put(db: Database, *numbers: int, table: str = "orders", **more: Any) -> int:
    """One transaction that puts these items."""
    return write(db, *(item(number, **more) for number in numbers), table=table)
