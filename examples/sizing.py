"""The bytes that a record takes: hot, in the database, and cold, in Parquet files.

The records are orders of a shop, each written by itself. Change `order` to measure your own items;
`.venv/bin/python examples/sizing.py 20000` writes more of them.
"""

import asyncio
import json
import random
import sys
import tempfile
from decimal import Decimal
from pathlib import Path

import tailrace
from tailrace.bulk.cold_rows import cold_batch
from tailrace.bulk.queries import LogSelector, PackedEntries, plan
from tailrace.cold.schemas import place_of
from tailrace.cold.store import Store
from tailrace.cold.writing import write_rows

ORDERS = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000
TOGETHER = 100  # concurrent writes
chance = random.Random(7)


def order(number, status):
    return {
        "id": f"o-{number:08d}",
        "customer": f"c-{chance.randrange(ORDERS):06d}",
        "status": status,
        "total": Decimal(chance.randrange(100, 100_000)) / 100,
        "note": chance.choice(["", "leave it at the gate", "ring twice", "a present"]),
    }


async def write(db):
    """Write each order twice: it comes, and it is paid."""
    table = await db.aio.table("orders")
    for status in ("new", "paid"):
        for first in range(0, ORDERS, TOGETHER):
            numbers = range(first, min(first + TOGETHER, ORDERS))
            await asyncio.gather(*(table.put(order(number, status)) for number in numbers))


def hot(folder, stream=None, topic=False):
    """The bytes of a database with these orders."""
    with tailrace.open(folder) as db:
        db.create_table("orders", partition_key="id", stream=stream)
        if topic:
            db.sql("CREATE TOPIC paid; ALTER TOPIC paid ADD SOURCE orders ON UPDATE WITH (payload = 'full')")
        asyncio.run(write(db))
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def cold(folder, kind, name):
    """The bytes of the same in cold storage, as the job `tier` writes them."""
    which = LogSelector(kind, name)
    with tailrace.open(folder) as db:
        planned = db.execute(plan(which, 0, None, None))
        batches, at = [], planned.first
        while at < planned.end:
            run = db.execute(PackedEntries(which, planned.log, at, planned.end))
            batches.append(cold_batch(kind, run.entries))
            at = run.next
    return sum(file.size for file in write_rows(Store(folder / "cold"), place_of(kind, name), batches))


with tempfile.TemporaryDirectory() as scratch:
    items, changes, messages = (Path(scratch) / name for name in ("items", "changes", "messages"))
    size = hot(items)
    with_changes = hot(changes, "NEW_AND_OLD_IMAGES")
    with_messages = hot(messages, "NEW_AND_OLD_IMAGES", topic=True)
    print(f"an order as JSON         {len(json.dumps(order(1, 'paid'), default=float)):5,} bytes")
    print(f"an item                  {size / ORDERS:5,.0f}")
    print(f"a change, hot            {(with_changes - size) / ORDERS / 2:5,.0f}   (old and new image)")
    print(f"a change, cold           {cold(changes, 'table', 'orders') / ORDERS / 2:5,.0f}")
    print(f"a message, hot           {(with_messages - with_changes) / ORDERS:5,.0f}   (the whole row)")
    print(f"a message, cold          {cold(messages, 'topic', 'paid') / ORDERS:5,.0f}")
