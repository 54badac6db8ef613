"""``python -m tests.crash.table_child DATA STATE``: threads write to the tables of an embedded database until killed.

Each request is written to standard output before it is made (``?``) and after it was answered (``!``). STATE says, as
JSON, with which number each writer goes on. Transactions carry tokens, so those that got no answer are sent again.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import tailrace
from tailrace.errors import Error, InUse, Invalid, NotFound
from tailrace.tables import schema, value
from tailrace.tables.change import BOTH
from tailrace.tables.commands import BatchWrite, DeleteItem, PutItem, TransactWrite, UpdateItem
from tailrace.tables.definition import Attribute
from tailrace.tables.expression import Placeholders, update
from tailrace.tables.lifecycle import CreateTable, SetTimeToLive, UpdateTable

BATCH = 30  # items of one batch
BALLAST = 600  # items that are there before an index is made: it takes several steps to fill
ORDERS, STOCK = "orders", "stock"
LIVE = "live"


def put(table: str, **item: Any) -> PutItem:
    return PutItem(table, *value.item_from_plain(item))


def key(name: str) -> Any:
    return value.item_from_plain({"id": name})[0]


def add_one(table: str, name: str) -> UpdateItem:
    return UpdateItem(table, key(name), update("ADD n :one", Placeholders(None, {":one": {"N": "1"}})))


def both(name: str, number: int) -> TransactWrite:
    """One more of the same in two tables, once for each number."""
    token = f"{name}-{number}"
    return TransactWrite((add_one(ORDERS, name), add_one(STOCK, name)), token, token.encode())


def spec(name: str, *, view: str) -> schema.TableSpec:
    by_group = schema.IndexSpec("by-group", (schema.KeyElement("group", "HASH"), schema.KeyElement("n", "RANGE")))
    return schema.TableSpec(
        name=name,
        attributes=(Attribute("id", "S"), Attribute("group", "S"), Attribute("n", "N")),
        keys=(schema.KeyElement("id", "HASH"),),
        globals=(by_group,),
        billing=schema.PAY_PER_REQUEST,
        stream=schema.StreamSpec(True, view),
    )


LIVE_INDEX = schema.TableChanges(
    attributes=(Attribute("kind", "S"),),
    indexes=(schema.IndexChange(create=schema.IndexSpec(LIVE, (schema.KeyElement("kind", "HASH"),))),),
)
NO_INDEX = schema.TableChanges(indexes=(schema.IndexChange(delete=LIVE),))


def prepare(db: tailrace.Database) -> None:
    """The tables, and something to fill indexes from; whatever of it was there already."""
    for name, view in ((ORDERS, BOTH), (STOCK, "NEW_IMAGE")):
        for command in (CreateTable(spec(name, view=view)), SetTimeToLive(name, "until", True)):
            try:
                db.execute(command)
            except (InUse, Invalid):
                pass  # it was done before the last crash
    for first in range(0, BALLAST, 100):
        db.execute(BatchWrite(tuple(put(ORDERS, id=f"ballast-{n}", kind="x") for n in range(first, first + 100))))


def say(mark: str, name: str, number: int) -> None:
    os.write(1, f"{mark} {name} {number}\n".encode())


def single(db: tailrace.Database, name: str, number: int) -> None:
    """Versions of one item: put twice, then deleted."""
    if number % 3 == 2:
        db.execute(DeleteItem(ORDERS, key(name)))
    else:
        db.execute(put(ORDERS, id=name, n=number, group=name[0], kind="x"))


def batch(db: tailrace.Database, name: str, number: int) -> None:
    db.execute(BatchWrite(tuple(put(ORDERS, id=f"{name}-{n}", n=number, group="b") for n in range(BATCH))))


def transact(db: tailrace.Database, name: str, number: int) -> None:
    db.execute(both(name, number))


def expire(db: tailrace.Database, name: str, number: int) -> None:
    db.execute(put(STOCK, id=f"{name}-{number}", until=int(time.time()) - 1, n=number, group="t"))


def reindex(db: tailrace.Database, name: str, number: int) -> None:
    """An index made and deleted again, filled or not. Those that fail were done before the last crash."""
    for changes in (LIVE_INDEX, NO_INDEX) if number % 2 else (NO_INDEX, LIVE_INDEX):
        try:
            db.execute(UpdateTable(ORDERS, changes))
        except (InUse, NotFound):
            pass
        except Error as error:
            if "already exists" not in str(error):
                raise


WRITERS: dict[str, Callable[[tailrace.Database, str, int], None]] = {
    "single0": single,
    "single1": single,
    "batch0": batch,
    "transact0": transact,
    "transact1": transact,
    "expire0": expire,
    "reindex0": reindex,
}


def write(db: tailrace.Database, name: str, first: int) -> None:
    for number in itertools.count(first):
        say("?", name, number)
        WRITERS[name](db, name, number)
        say("!", name, number)


def main(data: str, state: dict[str, int]) -> None:
    db = tailrace.open(data, housekeeping_s=0.02)
    prepare(db)
    threads = [threading.Thread(target=write, args=(db, name, state.get(name, 0))) for name in WRITERS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
