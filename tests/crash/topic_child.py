"""``python -m tests.crash.topic_child DATA STATE HOW``: write routed rows, publish and consume until killed. HOW is
`threads`, or `loop`: coroutines, where consumers wait and the commits of writers take their claims along.

Each request is written to standard output before it is made (``?``) and after it was answered (``!``). STATE says, as
JSON, with which number each writer goes on; producers send the one again that got no answer.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import threading
from typing import Any

import tailrace
from tailrace.access import SYSTEM
from tailrace.errors import Conflict
from tailrace.http.consumers import ConsumerQueues
from tailrace.http.revocation import Caller
from tailrace.streams.producer import ProducerClaim
from tailrace.tables import value
from tailrace.tables.commands import BatchWrite, DeleteItem, PutItem, TransactWrite
from tailrace.topics.commands import AddSource, CreateTopic, Outgoing, Publish, TopicOptions
from tailrace.topics.consuming import Ack, Consume, Nack

CHAT, LIKES = "chat.messages", "chat.likes"
EVENTS, FULL, SHORT = "app.events", "app.full", "app.short"
GROUP = "workers"
WRITERS = ("w0", "w1", "t0", "b0", "p0")


def put(table: str, **item: Any) -> PutItem:
    return PutItem(table, *value.item_from_plain(item))


def key(name: str) -> Any:
    return value.item_from_plain({"id": name})[0]


def prepare(db: tailrace.Database) -> None:
    """The tables, topics and routes; whatever of it was there already."""
    for table in (CHAT, LIKES):
        db.create_table(table, partition_key="id", stream="NEW_AND_OLD_IMAGES", exist_ok=True)
    for name, partitions, options in (
        (EVENTS, 3, TopicOptions()),
        (FULL, 1, TopicOptions()),
        (SHORT, 1, TopicOptions(retention_max_bytes=2_000)),
    ):
        db.execute(CreateTopic(name, partitions, options, if_not_exists=True))
    for table in (CHAT, LIKES):
        for event in range(3):
            for topic, mode, where in ((EVENTS, 0, None), (FULL, 1, "n >= 0")):
                try:
                    db.execute(AddSource(topic, table, event, where, None, mode))
                except Conflict:
                    pass  # it was done before the last crash


def say(mark: str, name: str, number: int) -> None:
    os.write(1, f"{mark} {name} {number}\n".encode())


def commands(name: str, number: int) -> Any:
    """What a writer does with a number."""
    here = f"{name}-{number}"
    match name[0]:
        case "w":  # one row: put, changed and deleted in turn
            before = f"{name}-{number - number % 4}"
            if number % 4 == 3:
                return DeleteItem(CHAT, key(before))
            return put(CHAT, id=before, n=number, text="x" * (number % 50))
        case "t":  # a transaction over both tables, once
            return TransactWrite((put(CHAT, id=here, n=number), put(LIKES, id=here, n=number)), here, here.encode())
        case "b":  # a batch
            return BatchWrite(tuple(put(LIKES, id=f"{here}-{at}", n=number) for at in range(5)))
    return Publish(SHORT, (Outgoing(b"%d" % number),), ProducerClaim(name, 0, number))


def write(db: tailrace.Database, name: str, first: int) -> None:
    for number in itertools.count(first):
        say("?", name, number)
        db.execute(commands(name, number))
        say("!", name, number)


def consume(db: tailrace.Database, name: str) -> None:
    """Take messages of one topic; acknowledge most of them, give some back, forget some."""
    for turn in itertools.count():
        delivery = db.execute(Consume(FULL, GROUP, limit=3, consumer=name, visibility_ms=500))
        if not delivery.messages:
            continue
        offsets = [message.offset for message in delivery.messages]
        if turn % 5 == 4:
            db.execute(Nack(FULL, GROUP, consumer=name, lease=delivery.lease))
        elif turn % 5 != 3:
            for offset in offsets:
                say("?", "ack", offset)
            db.execute(Ack(FULL, GROUP, offsets[-1], consumer=name, lease=delivery.lease))
            for offset in offsets:
                say("!", "ack", offset)


async def write_on_loop(db: tailrace.Database, name: str, first: int) -> None:
    for number in itertools.count(first):
        say("?", name, number)
        await db.aexecute(commands(name, number))
        say("!", name, number)


async def wait_on_loop(db: tailrace.Database, queues: ConsumerQueues, name: str) -> None:
    """Wait for messages as requests do; acknowledge most of them, and forget some."""
    command = Consume(FULL, GROUP, consumer=name, visibility_ms=500)
    for turn in itertools.count():
        delivery = await queues.claim(command, Caller(None, None, SYSTEM), 60)
        if turn % 5 == 4 or not delivery.ranges:
            continue
        offsets = [message.offset for message in delivery.messages]
        for offset in offsets:
            say("?", "ack", offset)
        await db.aexecute(Ack(FULL, GROUP, offsets[-1], consumer=name, lease=delivery.lease))
        for offset in offsets:
            say("!", "ack", offset)


async def on_loop(db: tailrace.Database, state: dict[str, int]) -> None:
    queues = ConsumerQueues(db)
    await asyncio.gather(
        *(write_on_loop(db, name, state.get(name, 0)) for name in WRITERS),
        *(wait_on_loop(db, queues, f"c{at}") for at in range(4)),
    )


def on_threads(db: tailrace.Database, state: dict[str, int]) -> None:
    threads = [threading.Thread(target=write, args=(db, name, state.get(name, 0)), daemon=True) for name in WRITERS]
    threads += [threading.Thread(target=consume, args=(db, f"c{at}"), daemon=True) for at in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main(data: str, state: dict[str, int], how: str) -> None:
    db = tailrace.open(data, housekeeping_s=0.02)
    prepare(db)
    say("!", "prepare", 0)
    if how == "loop":
        asyncio.run(on_loop(db, state))
    else:
        on_threads(db, state)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3])
