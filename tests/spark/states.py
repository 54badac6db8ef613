"""Random histories of tables with a model beside them, and what the tests of snapshots, restores and copies look at."""

from __future__ import annotations

import base64
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg

from tailrace.client import Client
from tests.support.patience import PATIENCE_S

Typed = dict[str, Any]
Model = dict[tuple[Any, ...], Typed]

KEYS = (("id", "S"), ("at", "N"))
_POSTGRES = Path("/usr/lib/postgresql")
_TEXTS = ("", "a", "Grüße", "line\nbreak", 'quo"te', "back\\slash", "\\u0000", "😀", "<&>", "null", "\t")
_NUMBERS = (
    "0", "-1", "7", "12345678901234567890123456789012345678", "0.00000000000000000000000000000000000001",
    "-9.9999999999999999999999999999999999999", "1" + "0" * 60, "3.14", "9007199254740993",
)  # fmt: skip


# -- items


def value(random: random.Random, depth: int = 0, *, nul: bool = False) -> Typed:
    """A value of any type that there is."""
    kinds = ["S", "N", "B", "BOOL", "NULL", "SS", "NS", "BS"] + (["L", "M"] if depth < 3 else [])
    match random.choice(kinds):
        case "S":
            return {"S": text(random) + ("\0" if nul and random.random() < 0.1 else "")}
        case "N":
            return {"N": random.choice(_NUMBERS)}
        case "B":
            return {"B": base64.b64encode(random.randbytes(random.randrange(6))).decode()}
        case "BOOL":
            return {"BOOL": random.random() < 0.5}
        case "NULL":
            return {"NULL": True}
        case "SS":
            return {"SS": sorted({text(random) + str(i) for i in range(random.randrange(1, 4))})}
        case "NS":
            return {"NS": random.sample(_NUMBERS, random.randrange(1, 4))}
        case "BS":
            found = {random.randbytes(random.randrange(1, 4)) for _ in range(3)}
            return {"BS": [base64.b64encode(each).decode() for each in sorted(found)]}
        case "L":
            return {"L": [value(random, depth + 1, nul=nul) for _ in range(random.randrange(4))]}
    return {"M": {f"m{i}{text(random)}": value(random, depth + 1, nul=nul) for i in range(random.randrange(4))}}


def text(random: random.Random) -> str:
    return random.choice(_TEXTS) + random.choice(_TEXTS)


def same(typed: Any) -> Any:
    """A value in a form in which equal ones are equal: numbers by value, sets in any order."""
    ((kind, held),) = typed.items()
    match kind:
        case "N":
            return ("N", Decimal(held))
        case "NS":
            return ("NS", frozenset(Decimal(each) for each in held))
        case "SS" | "BS":
            return (kind, frozenset(held))
        case "L":
            return ("L", tuple(same(each) for each in held))
        case "M":
            return ("M", tuple(sorted((name, same(each)) for name, each in held.items())))
    return (kind, held)


def same_item(item: Typed) -> Any:
    return same({"M": item})


def same_items(items: Model) -> dict[Any, Any]:
    return {key: same_item(item) for key, item in items.items()}


def key_of(item: Typed, names: tuple[str, ...] = ("id", "at")) -> tuple[Any, ...]:
    return tuple(same(item[name]) for name in names)


def live(client: Client, table: str) -> dict[Any, Any]:
    """What is in the table now, by key."""
    found: Model = {}
    start: dict[str, Any] = {}
    while True:
        page = client.call("Scan", {"TableName": table, "ConsistentRead": True, **start})
        for item in page["Items"]:
            assert key_of(item) not in found
            found[key_of(item)] = item
        if "LastEvaluatedKey" not in page:
            return same_items(found)
        start = {"ExclusiveStartKey": page["LastEvaluatedKey"]}


# -- histories


class History:
    """Writes at random to a table with a sort key, and remembers what it was after each transaction."""

    def __init__(
        self, client: Client, table: str, seed: int, *, keys: int = 40, stream: str | None = "NEW_AND_OLD_IMAGES"
    ) -> None:
        self.client, self.table = client, table
        self.random = random.Random(seed)
        self.items: Model = {}
        self.states: list[tuple[int, Model]] = []  # sequence, and the items then
        self._keys = keys
        parameters: dict[str, Any] = {
            "TableName": table,
            "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}, {"AttributeName": "at", "KeyType": "RANGE"}],
            "AttributeDefinitions": [
                {"AttributeName": name, "AttributeType": kind} for name, kind in (*KEYS, ("tag", "S"))
            ],
            "GlobalSecondaryIndexes": [
                {
                    "IndexName": "by-tag",
                    "KeySchema": [{"AttributeName": "tag", "KeyType": "HASH"}],
                    "Projection": {"ProjectionType": "ALL"},
                }
            ],
            "BillingMode": "PAY_PER_REQUEST",
        }
        if stream is not None:
            parameters["StreamSpecification"] = {"StreamEnabled": True, "StreamViewType": stream}
        client.call("CreateTable", parameters)

    def enable(self, view: str = "NEW_AND_OLD_IMAGES") -> None:
        specification = {"StreamEnabled": True, "StreamViewType": view}
        self.client.call("UpdateTable", {"TableName": self.table, "StreamSpecification": specification})

    def disable(self) -> None:
        self.client.call("UpdateTable", {"TableName": self.table, "StreamSpecification": {"StreamEnabled": False}})

    @property
    def sequence(self) -> int:
        latest: int = self.client.logs(table=self.table)["partitions"][0]["next"] - 1
        return latest

    def run(self, steps: int, *, note: bool = True) -> None:
        for _ in range(steps):
            self.step()
            if note:
                self.states.append((self.sequence, dict(self.items)))

    def step(self) -> None:
        match self.random.randrange(10):
            case 0 | 1:
                self._write(self.random.randrange(2, 6))
            case 2 | 3 | 4 if self.items:
                self._delete()
            case 5 if self.items:
                self._update()
            case _:
                self._write(1)

    def _key(self) -> Typed:
        number = self.random.randrange(self._keys)
        return {"id": {"S": f"k{number % 7}{_TEXTS[number % len(_TEXTS)]}"}, "at": {"N": str(number)}}

    def _write(self, count: int) -> None:
        """Put and delete in one transaction."""
        actions, done = [], dict(self.items)
        for key in {key_of(key): key for key in (self._key() for _ in range(count))}.values():
            if count > 1 and self.random.random() < 0.3:
                actions.append({"Delete": {"TableName": self.table, "Key": key}})
                done.pop(key_of(key), None)
            else:
                item = key | {f"a{i}": value(self.random) for i in range(self.random.randrange(5))}
                if self.random.random() < 0.3:
                    item["tag"] = {"S": self.random.choice("xyz")}
                actions.append({"Put": {"TableName": self.table, "Item": item}})
                done[key_of(key)] = item
        self.client.call("TransactWriteItems", {"TransactItems": actions})
        self.items = done

    def _delete(self) -> None:
        item = self.random.choice(list(self.items.values()))
        self.client.call("DeleteItem", {"TableName": self.table, "Key": {name: item[name] for name, _ in KEYS}})
        del self.items[key_of(item)]

    def _update(self) -> None:
        item = self.random.choice(list(self.items.values()))
        new = value(self.random)
        self.client.call(
            "UpdateItem",
            {
                "TableName": self.table,
                "Key": {name: item[name] for name, _ in KEYS},
                "UpdateExpression": "SET a0 = :new REMOVE a1",
                "ExpressionAttributeValues": {":new": new},
            },
        )
        changed = {name: held for name, held in item.items() if name != "a1"} | {"a0": new}
        self.items[key_of(item)] = changed


# -- PostgreSQL


@contextmanager
def postgres() -> Iterator[str]:
    """The URL of a private PostgreSQL, of an unprivileged user where the tests run as root."""
    programs = sorted(_POSTGRES.glob("*/bin"))[-1]
    home = Path(tempfile.mkdtemp(prefix="tailrace-postgres-"))
    user: list[str] = []
    if os.geteuid() == 0:
        owner = pwd.getpwnam("postgres")
        os.chown(home, owner.pw_uid, owner.pw_gid)
        user = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups"]
    made = [*user, programs / "initdb", "-D", home / "data", "-U", "tester", "-A", "trust", "-N", "-E", "UTF8"]
    subprocess.run([str(word) for word in made], cwd=home, check=True, capture_output=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = [f"port={port}", "listen_addresses=127.0.0.1", "unix_socket_directories=", "fsync=off"]
    command = [*user, programs / "postgres", "-D", home / "data", *(word for each in settings for word in ("-c", each))]
    log = (home / "log").open("wb")
    child = subprocess.Popen([str(word) for word in command], cwd=home, stdout=log, stderr=log)
    url = f"postgresql://tester@127.0.0.1:{port}/postgres"
    try:
        _answers(url, child)
        yield url
    finally:
        child.send_signal(signal.SIGINT)  # SIGTERM waits for those who are connected
        child.wait(PATIENCE_S)
        log.close()
        shutil.rmtree(home, ignore_errors=True)


def _answers(url: str, child: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            psycopg.connect(url).close()
            return
        except psycopg.OperationalError:
            assert child.poll() is None and time.monotonic() < end, "PostgreSQL did not start"
            time.sleep(0.1)
