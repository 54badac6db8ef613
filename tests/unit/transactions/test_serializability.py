"""Histories of concurrent transactions are serializable; and the checker that says so finds planted anomalies."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import pytest

from tailrace.client import Client
from tailrace.errors import TransactionConflict
from tests.support.serializability import Performed, anomalies
from tests.support.server import ServerProcess
from tests.support.soak import rounds

KEYS = ("x", "y", "z")
TABLE, PARTITION = "lists", "p"


def did(number: int, reads: Any, appends: Any, outcome: bool | None = True, *times: float) -> Performed:
    return Performed(number, reads, appends, outcome, *times)


# -- the checker


@pytest.mark.parametrize(
    ("history", "anomaly"),
    [
        pytest.param([did(1, {"x": ()}, {"x": (1,)}), did(2, {"x": (1,)}, {"x": (2,)})], None, id="serial"),
        pytest.param(
            [
                did(1, {"x": ()}, {"x": (1,)}), did(2, {"x": ()}, {"x": (2,)}),
                did(3, {"x": (1, 2)}, {}),
            ],
            "rw x", id="lost update",
        ),
        pytest.param(
            [
                did(1, {"x": (), "y": ()}, {"x": (1,)}), did(2, {"x": (), "y": ()}, {"y": (2,)}),
                did(3, {"x": (1,), "y": (2,)}, {}),
            ],
            "rw", id="write skew",
        ),
        pytest.param([did(1, {}, {"x": (1,)}, False), did(2, {"x": (1,)}, {})], "not committed", id="aborted read"),
        pytest.param([did(1, {}, {"x": (1, 2)}), did(2, {"x": (1,)}, {})], "a part", id="intermediate read"),
        pytest.param(
            [did(1, {"y": (2,)}, {"x": (1,)}), did(2, {"x": (1,)}, {"y": (2,)})], "wr", id="circular reads",
        ),
        pytest.param(
            [
                did(1, {}, {"x": (1,)}), did(2, {}, {"x": (2,)}),
                did(3, {"x": (1, 2)}, {}), did(4, {"x": (2, 1)}, {}),
            ],
            "do not fit", id="orders differ",
        ),
        pytest.param([did(1, {}, {"x": (1,)}), did(2, {"x": (1, 1)}, {})], "twice", id="twice"),
        pytest.param(
            [
                did(1, {}, {"x": (1,)}, True, 0, 1), did(2, {"x": ()}, {}, True, 2, 3),
                did(3, {"x": (1,)}, {}, True, 4, 5),
            ],
            "time", id="stale read",
        ),
        pytest.param(
            [did(1, {}, {"x": (1,)}, None, 0, 9), did(2, {"x": (1,)}, {}, True, 1, 2)], None, id="unknown outcome",
        ),
    ],
)  # fmt: skip
def test_anomalies_are_found(history: list[Performed], anomaly: str | None) -> None:
    found = anomalies(history)
    if anomaly is None:
        assert found == []
    else:
        assert found
        assert anomaly in found[0]


# -- the server


@pytest.fixture(scope="module")
def table(server: ServerProcess) -> str:
    with Client(server.url) as client:
        client.sql(f"CREATE TABLE {TABLE} (p TEXT, id TEXT, elements JSON, PRIMARY KEY (p, id))")
    return TABLE


def key_of(run: str, key: str) -> tuple[str, str]:
    return PARTITION + run, key


def read(tx: Any, run: str, keys: list[str], whole: bool) -> dict[str, tuple[int, ...]]:
    """Some lists: one by one, or by a query of all of them."""
    if whole:
        found = {item["id"]: item["elements"] for item in tx.query(TABLE, PARTITION + run)}
    else:
        found = {key: (tx.get(TABLE, key_of(run, key)) or {}).get("elements", []) for key in keys}
    return {key: tuple(found.get(key, ())) for key in keys}


def append(tx: Any, run: str, seen: dict[str, tuple[int, ...]], key: str, element: int) -> None:
    """To a list that was read: put it. To another one: an update that is evaluated by the commit."""
    if key in seen:
        tx.put(TABLE, {"p": PARTITION + run, "id": key, "elements": [*seen[key], element]})
    else:
        values = {"none": [], "one": [element]}
        tx.update(
            TABLE, key_of(run, key), "SET elements = list_append(if_not_exists(elements, :none), :one)", values=values
        )


def test_random_transactions_are_serializable(server: ServerProcess, table: str) -> None:
    run, seed = str(time.monotonic_ns()), random.SystemRandom().randrange(1_000_000)
    history: list[Performed] = []
    lock = threading.Lock()

    def work(worker: int) -> None:
        chosen = random.Random(seed * 100 + worker)
        with Client(server.url) as client:
            for step in range(rounds(25)):
                number = worker * 1_000_000 + step
                keys = chosen.sample(KEYS, chosen.randint(1, len(KEYS)))
                written = chosen.sample(KEYS, chosen.randint(0, 2))
                began, outcome = time.monotonic(), True
                reads: dict[str, tuple[int, ...]] = {}
                try:
                    with client.transaction() as tx:
                        reads = read(tx, run, keys, chosen.random() < 0.3)
                        for key in written:
                            append(tx, run, reads, key, number)
                except TransactionConflict:
                    outcome = False
                one = Performed(number, reads, dict.fromkeys(written, (number,)), outcome, began, time.monotonic())
                with lock:
                    history.append(one)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(history) == 6 * rounds(25)
    assert anomalies(history) == [], f"seed {seed}"
    outcomes = [each.outcome for each in history]
    assert outcomes.count(True) > 10
    assert outcomes.count(False) > 0, "there was no contention, so nothing was shown"


@pytest.mark.parametrize("compared", [True, False])
def test_write_skew_is_a_conflict_and_would_be_found(server: ServerProcess, table: str, compared: bool) -> None:
    """Two transactions that each read what the other writes. Without their reads both commit; the checker sees it."""
    run = f"skew-{compared}"
    history = []
    with Client(server.url) as client:
        first, second = client.transaction(), client.transaction()
        seen = [read(tx, run, ["x", "y"], whole) for tx, whole in ((first, False), (second, True))]
        for number, (tx, key) in enumerate(((first, "x"), (second, "y"))):
            append(tx, run, seen[number], key, number)
            if not compared:
                tx._reads.clear()
            try:
                tx.commit()
                outcome = True
            except TransactionConflict:
                outcome = False
            history.append(Performed(number, seen[number], {key: (number,)}, outcome))
        last = client.transaction()
        history.append(Performed(2, read(last, run, ["x", "y"], True), {}, True))
        last.rollback()
    assert [each.outcome for each in history] == [True, not compared, True]
    assert (anomalies(history) == []) is compared
