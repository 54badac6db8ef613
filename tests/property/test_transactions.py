"""Transactions against a simple model: interleaved ones commit exactly if nothing that they read has changed, and then
have the effect of running alone at that moment."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import tailrace
from tailrace import Index
from tailrace.check import check_database
from tailrace.errors import ConditionFailed, TransactionConflict
from tests.support.soak import examples

Key = tuple[str, int]
State = dict[Key, int]  # the number of each item

keys = st.tuples(st.sampled_from("pq"), st.integers(0, 3))
steps = st.one_of(
    st.tuples(st.just("get"), keys),
    st.tuples(st.just("query"), st.sampled_from("pq"), st.sampled_from([None, 1, 2]), st.booleans()),
    st.tuples(st.just("index"), st.integers(0, 2)),
    st.tuples(st.just("scan")),
    st.tuples(st.just("put"), keys, st.integers(0, 2)),
    st.tuples(st.just("add"), keys),
    st.tuples(st.just("delete"), keys),
    st.tuples(st.just("check"), keys, st.booleans()),
    st.tuples(st.just("publish"), st.integers(0, 9)),
    st.tuples(st.just("alter"), st.booleans()),
)
# Three transactions at once: each step belongs to one of them; "commit" ends one and begins another.
histories = st.lists(st.tuples(st.integers(0, 2), st.one_of(steps, st.tuples(st.just("commit")))), max_size=30)


class ModelTransaction:
    """What a transaction does, as functions of the state; and what it has seen."""

    def __init__(self) -> None:
        self.writes: list[Callable[[State], bool]] = []  # each changes the state; False: the condition fails
        self.seen: list[tuple[int, Callable[[State], Any], Any]] = []  # after so many writes, a read and its result
        self.published: list[int] = []
        self.states: list[tuple[int, State]] = []  # at each read, with the version of the table

    def read(self, view: Callable[[State], Any], state: State, version: int) -> Any:
        self.states.append((version, dict(state)))
        self.seen.append((len(self.writes), view, self.view(view, state, len(self.writes))))
        return self.seen[-1][2]

    def view(self, view: Callable[[State], Any], state: State, writes: int) -> Any:
        after = dict(state)
        for write in self.writes[:writes]:
            write(after)
        return view(after)

    def unchanged(self, state: State, now: int) -> bool:
        return all(version == now for version, _ in self.states) and all(
            self.view(view, state, writes) == result for writes, view, result in self.seen
        )

    def commit(self, state: State) -> State | None:
        """The state after it; None if a condition fails."""
        after = dict(state)
        return after if all(write(after) for write in self.writes) else None


def stored(state: State, key: Key, number: int) -> bool:
    state[key] = number
    return True


def item(key: Key, number: int) -> dict[str, Any]:
    return {"p": key[0], "s": key[1], "n": number}


def listed(state: State, partition: str, limit: int | None, reverse: bool) -> list[Any]:
    found = sorted(((key, number) for key, number in state.items() if key[0] == partition), reverse=reverse)
    return [item(key, number) for key, number in found[:limit]]


def by_number(state: State, number: int) -> list[Any]:
    return sorted(([*key] for key, each in state.items() if each == number), key=lambda each: (each[1], each[0]))


class Run:
    """A database, and the model beside it."""

    def __init__(self, db: tailrace.Database) -> None:
        self.db = db
        self.state: State = {}
        self.version = 0  # of the definition; 0 is the first one, which may come back
        self.alterations = 0
        self.published: list[int] = []
        self.open: dict[int, tuple[Any, ModelTransaction]] = {}

    def step(self, which: int, step: tuple[Any, ...]) -> None:
        tx, model = self.open.setdefault(which, (self.db.transaction(), ModelTransaction()))
        try:
            getattr(self, step[0])(which, tx, model, *step[1:])
        except TransactionConflict:
            # Within a transaction, a read may fail for what was read before; never without a reason.
            assert step[0] in ("get", "query", "index", "scan", "commit")
            del self.open[which]
            assert any(seen != (self.version, self.state) for seen in model.states), "a conflict without a change"
        except ConditionFailed:
            # A condition is tested by the commit, and by reads of what it has left.
            assert model.commit(self.state) is None
            del self.open[which]

    def get(self, which: int, tx: Any, model: ModelTransaction, key: Key) -> None:
        found = tx.get("t", key)
        wanted = model.read(lambda state: item(key, state[key]) if key in state else None, self.state, self.version)
        assert found == wanted

    def query(self, which: int, tx: Any, model: ModelTransaction, partition: str, limit: Any, reverse: bool) -> None:
        found = tx.query("t", partition, limit=limit, reverse=reverse)
        assert found == model.read(lambda state: listed(state, partition, limit, reverse), self.state, self.version)

    def index(self, which: int, tx: Any, model: ModelTransaction, number: int) -> None:
        found = tx.query("t", number, index="by-n")
        shown = sorted(([each["p"], each["s"]] for each in found), key=lambda each: (each[1], each[0]))
        assert [each["s"] for each in found] == sorted(each["s"] for each in found)
        assert shown == model.read(lambda state: by_number(state, number), self.state, self.version)

    def scan(self, which: int, tx: Any, model: ModelTransaction) -> None:
        found = {(each["p"], each["s"]): each["n"] for each in tx.scan("t")}
        assert found == model.read(dict, self.state, self.version)

    def put(self, which: int, tx: Any, model: ModelTransaction, key: Key, number: int) -> None:
        tx.put("t", item(key, number))
        model.writes.append(lambda state: stored(state, key, number))

    def add(self, which: int, tx: Any, model: ModelTransaction, key: Key) -> None:
        tx.update("t", key, "ADD n :one", values={"one": 1})
        model.writes.append(lambda state: stored(state, key, state.get(key, 0) + 1))

    def delete(self, which: int, tx: Any, model: ModelTransaction, key: Key) -> None:
        tx.delete("t", key)
        model.writes.append(lambda state: state.pop(key, 0) >= 0)

    def check(self, which: int, tx: Any, model: ModelTransaction, key: Key, exists: bool) -> None:
        tx.check("t", key, f"attribute_{'exists' if exists else 'not_exists'}(p)")
        model.writes.append(lambda state: (key in state) is exists)

    def publish(self, which: int, tx: Any, model: ModelTransaction, number: int) -> None:
        tx.publish("topic", number)
        model.published.append(number)

    def alter(self, which: int, tx: Any, model: ModelTransaction, expires: bool) -> None:
        """By itself, at once: the table gets another definition, or the first one again."""
        if expires is (self.version == 0):
            self.db.table("t").set_ttl("at" if expires else None)
            self.alterations += 1
            self.version = self.alterations if expires else 0

    def commit(self, which: int, tx: Any, model: ModelTransaction) -> None:
        tx.commit()
        assert model.unchanged(self.state, self.version), "a change was not seen"
        after = model.commit(self.state)
        assert after is not None, "a condition was not seen"
        self.state = after
        self.published += model.published
        del self.open[which]

    def verify(self) -> None:
        found = {(each["p"], each["s"]): each["n"] for each in self.db.table("t").scan()}
        assert found == self.state
        assert [message.json() for message in self.db.consume("topic", None, limit=1_000)] == self.published
        rebuilt: State = {}  # one change for each item and transaction
        changes = self.db.table("t").changes(limit=10_000)
        places = [(change.sequence, change.keys["p"], change.keys["s"]) for change in changes]
        assert len(set(places)) == len(places)
        for change in changes:
            key = change.keys["p"], change.keys["s"]
            assert (None if change.old is None else change.old["n"]) == rebuilt.get(key)
            if change.new is None:
                del rebuilt[key]
            else:
                rebuilt[key] = change.new["n"]
        assert rebuilt == self.state


@settings(max_examples=examples(25))
@given(histories)
def test_transactions_are_those_of_the_model(history: list[tuple[int, tuple[Any, ...]]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory) / "data"
        with tailrace.open(data, housekeeping_s=None) as db:
            db.create_table(
                "t", "p", ("s", "N"), stream="NEW_AND_OLD_IMAGES", indexes=[Index("by-n", ("n", "N"), ("s", "N"))]
            )
            db.create_topic("topic")
            run = Run(db)
            for which, step in history:
                run.step(which, step)
            for which in list(run.open):
                run.step(which, ("commit",))
            run.verify()
        assert check_database(data).findings == []
