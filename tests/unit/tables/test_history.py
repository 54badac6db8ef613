"""The versions of an item and the items of an earlier moment, compared with a model, hot and cold."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tailrace import Put, limits
from tailrace.clock import ManualClock
from tailrace.database import Database
from tailrace.errors import Gone, Invalid, NotFound, TooLarge, Trimmed
from tailrace.storage.sqlite import SqliteEngine
from tailrace.tables import history, value
from tailrace.tables.change_info import FindStreamBounds
from tailrace.tables.change_trimming import PruneStream
from tailrace.tables.history import ItemHistory, item_history, past_items
from tests.unit.test_cold_reads import DictCache, tier

Model = dict[str, dict[str, Any]]


class Written:
    """A table with a history, and what a model says about it."""

    def __init__(self, db: Database, clock: ManualClock, cache: DictCache) -> None:
        self.db, self.clock, self.cache = db, clock, cache
        self.states: dict[int, Model] = {}  # by sequence
        self.times: dict[int, int] = {}
        self.versions: dict[str, list[tuple[int, str]]] = {}
        self.log = db.execute(FindStreamBounds("t")).log.id

    def write(self, count: int) -> None:
        chance, table, other = random.Random(7), self.db.table("t"), self.db.table("other")
        model: Model = {}
        for number in range(count):
            self.clock.advance(1.0)
            key = f"k{chance.randrange(6)}"
            if key in model and chance.random() < 0.3:
                table.delete(key)
                del model[key]
                event = "REMOVE"
            else:
                event = "MODIFY" if key in model else "INSERT"
                table.put({"id": key, "n": number})
                model[key] = {"id": key, "n": number}
            other.put({"id": "x", "n": number})  # sequences of this table are not dense
            sequence = self.db.execute(FindStreamBounds("t")).log.next - 1
            self.states[sequence] = dict(model)
            self.times[sequence] = self.clock.now_ms()
            self.versions.setdefault(key, []).append((sequence, event))

    def history(self, key: str, before: int | None = None, limit: int = 100) -> ItemHistory:
        return item_history(self.db.execute, "t", json.dumps({"id": key}), before, limit)

    def whole_history(self, key: str, limit: int = 2) -> list[tuple[int, str]]:
        found: list[tuple[int, str]] = []
        before = None
        for _ in range(1000):
            page = self.history(key, before, limit)
            found += [(each.sequence, each.event) for each in page.versions]
            if page.before is None:
                return found
            assert before is None or page.before < before
            before = page.before
        raise AssertionError("the pages do not end")

    def past(self, limit: int = 2, **moment: Any) -> Model:
        found: Model = {}
        after = None
        while True:
            page = past_items(self.db.execute, "t", after=after, limit=limit, **moment)
            for item in page.items:
                plain = value.item_to_plain(item)
                assert plain["id"] not in found
                found[plain["id"]] = plain
            if page.after is None:
                return found
            after = json.dumps(page.after)


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Written]:
    clock, cache = ManualClock(), DictCache()
    with Database(SqliteEngine(tmp_path), clock=clock, housekeeping_s=None, cold=cache) as db:  # type: ignore[arg-type]
        for name in ("t", "other"):
            db.create_table(name, partition_key="id", stream="NEW_AND_OLD_IMAGES")
        made = Written(db, clock, cache)
        made.write(60)
        yield made


@pytest.mark.parametrize("cold", [0, 1, 25, 60])
def test_all_versions_are_found_hot_and_cold(written: Written, cold: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_WINDOW", 5)
    if cold:
        tier(written.db, written.cache, written.log, cold)
    start = written.db.execute(FindStreamBounds("t")).log.start
    for key, versions in written.versions.items():
        assert written.whole_history(key) == versions[::-1]
        page = written.history(key, limit=1000)
        assert [(each.sequence, each.event) for each in page.versions] == versions[::-1]
        for each in page.versions:
            assert each.cold == (each.sequence < start) and each.by == "system"
            assert each.at_ms == written.times[each.sequence]
            after = written.states[each.sequence].get(key)
            assert (None if each.new is None else value.item_to_plain(each.new)) == after
    assert written.whole_history("never") == []


@pytest.mark.parametrize("cold", [0, 30])
def test_a_page_examines_a_bounded_part(written: Written, cold: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if cold:
        tier(written.db, written.cache, written.log, cold)
    monkeypatch.setattr(limits, "HISTORY_ENTRIES", 4)
    page = written.history("never")
    assert page.versions == [] and page.before is not None
    for key, versions in written.versions.items():
        assert written.whole_history(key) == versions[::-1]
    monkeypatch.setattr(limits, "HISTORY_ENTRIES", 20_000)
    monkeypatch.setattr(limits, "HISTORY_BYTES", 100)
    monkeypatch.setattr(limits, "CHANGE_PAGE_BYTES", 1)
    for key, versions in written.versions.items():
        assert written.whole_history(key) == versions[::-1]


@pytest.mark.parametrize("cold", [0, 30, 60])
def test_items_are_as_they_were(written: Written, cold: int) -> None:
    if cold:
        tier(written.db, written.cache, written.log, cold)
    first = min(written.states)
    assert written.past(sequence=first - 1) == {}, "before the first change"
    for sequence, state in written.states.items():
        assert written.past(sequence=sequence) == state
        assert written.past(sequence=sequence + 1) == state, "a sequence of another table"
        assert written.past(at_ms=written.times[sequence] + 500) == state
        assert written.past(at_ms=written.times[sequence], limit=100) == state


def test_moments_that_are_not_known_are_refused(written: Written) -> None:
    last = max(written.states)
    with pytest.raises(Invalid, match="never assigned"):
        written.past(sequence=last + 100)
    with pytest.raises(NotFound, match="began later"):
        written.past(at_ms=1)
    written.db.execute(PruneStream("t", sorted(written.states)[10]))
    with pytest.raises(Trimmed):
        written.past(sequence=min(written.states))
    with pytest.raises(Gone, match="no longer retained"):
        written.past(at_ms=written.times[min(written.states)] + 1)
    assert written.past(sequence=sorted(written.states)[10]) == written.states[sorted(written.states)[10]]


def test_a_moment_too_far_back_is_refused(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    sequence = sorted(written.states)[-5]
    monkeypatch.setattr(limits, "UNDONE_RECORDS_MAX", 4)
    assert written.past(sequence=sequence) == written.states[sequence]
    with pytest.raises(TooLarge, match="choose a later moment"):
        written.past(sequence=sorted(written.states)[-6])
    tier(written.db, written.cache, written.log, 58)
    with pytest.raises(TooLarge):
        written.past(sequence=sorted(written.states)[-6])


def test_old_images_are_needed(written: Written) -> None:
    written.db.create_table("new", partition_key="id", stream="NEW_IMAGE")
    written.db.create_table("none", partition_key="id")
    for table in ("new", "none"):
        with pytest.raises(Invalid, match="NEW_AND_OLD_IMAGES"):
            past_items(written.db.execute, table, sequence=1)


def test_keys_of_every_type(written: Written) -> None:
    db = written.db
    db.create_table("pairs", partition_key=("n", "N"), sort_key=("b", "B"), stream="NEW_IMAGE")
    db.table("pairs").put({"n": 10**30, "b": b"\xff\x00", "v": Decimal("1.5")})
    key = {"n": 10**30, "b": "/wA="}
    typed = {"n": {"N": str(10**30)}, "b": {"B": "/wA="}}
    for given in (json.dumps(key), json.dumps(typed)):
        (version,) = item_history(db.execute, "pairs", given).versions
        assert (
            version.old is None and version.new is not None and value.item_to_plain(version.new)["v"] == Decimal("1.5")
        )
    for wrong in ("", "[]", "{}", "nonsense", '{"n": 1}', '{"n": "x", "b": "/wA="}', '{"n": 1, "b": "/wA=", "c": 1}'):
        with pytest.raises(Invalid):
            item_history(db.execute, "pairs", wrong)
    for limit in (0, limits.HISTORY_VERSIONS_MAX + 1):
        with pytest.raises(Invalid, match="limit is 1 to"):
            item_history(db.execute, "pairs", json.dumps(key), limit=limit)


def test_a_large_transaction_is_not_cut(written: Written) -> None:
    db = written.db
    db.transact_write([Put("t", {"id": f"b{number}", "n": number}) for number in range(50)])
    page = written.history("b49", limit=1)
    assert [each.index for each in page.versions] == [49]
