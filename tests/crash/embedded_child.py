"""``python -m tests.crash.embedded_child DATA STATE``: threads and a loop write to an embedded database until killed.

Each request is written to standard output before it is made (``?``) and after it was answered (``!``). STATE says, as
JSON, with which number each writer goes on; producers send that one again.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import threading

import tailrace
from tailrace.streams.commands import Append, CreateStream, DeleteStream
from tailrace.streams.producer import ProducerClaim

TEXT = "text/plain"


def say(mark: str, name: str, number: int) -> None:
    os.write(1, f"{mark} {name} {number}\n".encode())


def command(name: str, number: int) -> Append:
    body = f"{name}.{number};".encode()
    return Append("s", body, TEXT, ProducerClaim(name, 0, number) if name.startswith("p") else None)


def write(db: tailrace.Database, name: str, first: int) -> None:
    for number in itertools.count(first):
        say("?", name, number)
        db.execute(command(name, number))
        say("!", name, number)


async def awrite(db: tailrace.Database, name: str, first: int) -> None:
    for number in itertools.count(first):
        say("?", name, number)
        await db.aexecute(command(name, number))
        say("!", name, number)


def remake(db: tailrace.Database, first: int) -> None:
    """One path, made and deleted again and again: its content says which time it is."""
    for number in itertools.count(first):
        say("?", "make", number)
        db.execute(CreateStream("again", TEXT, b"%d" % number))
        say("!", "make", number)
        say("?", "unmake", number)
        db.execute(DeleteStream("again"))
        say("!", "unmake", number)


async def main(data: str, state: dict[str, int]) -> None:
    db = tailrace.open(data, housekeeping_s=0.05)
    db.attach(asyncio.get_running_loop())
    await db.aexecute(CreateStream("s", TEXT))
    for name in ("p0", "p1", "t0", "t1"):
        threading.Thread(target=write, args=(db, name, state.get(name, 0)), daemon=True).start()
    threading.Thread(target=remake, args=(db, state.get("make", 0)), daemon=True).start()
    await asyncio.gather(*(awrite(db, name, state.get(name, 0)) for name in ("p2", "p3", "t2", "t3")))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
