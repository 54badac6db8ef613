"""An export has the items of its sequence, whatever is written while it is read: compared with a model."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

import tailrace
from tailrace import limits
from tailrace.database import Database
from tailrace.errors import ConditionFailed, Gone, Unavailable
from tailrace.tables import value
from tailrace.tables.export import Export, ReadExport

VIEWS = [None, "KEYS_ONLY", "NEW_AND_OLD_IMAGES"]


def page(db: Database, export: Export) -> list[dict[str, object]] | None:
    found = db.execute(ReadExport(export))
    if found is None:
        return None
    items, start = [], 0
    for size in found.sizes:
        items.append(value.item_to_plain(value.decode(found.body[start : start + size])))
        start += size
    return items


def rest(db: Database, export: Export, items: list[dict[str, object]]) -> dict[str, dict[str, object]]:
    while (more := page(db, export)) is not None:
        items += more
    db.exports.end(export)
    found = {str(item["id"]): item for item in items}
    assert len(found) == len(items), "an item came twice"
    return found


def write(db: Database, draw: random.Random, model: dict[str, dict[str, object]], names: int) -> None:
    """One random write, in the database and in the model."""
    table = db.table("orders")
    name = f"o-{draw.randrange(names)}"
    item = {"id": name, "n": draw.randrange(1_000), "text": "x" * draw.choice([0, 1, 300])}
    match draw.randrange(6):
        case 0 | 1:
            table.put(item)
            model[name] = item
        case 2:
            table.delete(name)
            model.pop(name, None)
        case 3:
            changed = table.update(name, "SET n = :n", values={":n": item["n"]}, returns="ALL_NEW")
            assert changed is not None
            model[name] = {"id": name, **model.get(name, {}), "n": item["n"]}
        case 4:
            other = f"o-{draw.randrange(names)}"
            if other != name:
                db.transact_write([tailrace.Put("orders", item), tailrace.Delete("orders", other)])
                model[name] = item
                model.pop(other, None)
        case _:
            with pytest.raises(ConditionFailed):  # the write is undone, and an old image was kept for nothing
                table.put(item, condition="attribute_exists(absent)")


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("seed", range(6))
def test_an_export_is_the_table_at_its_sequence(
    seed: int, view: str | None, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BULK_ENTRIES", 7)
    monkeypatch.setattr("tailrace.tables.export._IMAGES_AT_ONCE", 3)
    draw = random.Random(seed)
    model: dict[str, dict[str, object]] = {}
    with tailrace.open(data_dir, housekeeping_s=None) as db:
        db.create_table("orders", partition_key="id", stream=view)
        for _ in range(150):
            write(db, draw, model, 120)
        running: list[tuple[Export, list[dict[str, object]], dict[str, dict[str, object]]]] = []
        for _ in range(12):
            if len(running) < 4:
                running.append((db.exports.begin("orders"), [], dict(model)))
            for _ in range(draw.randrange(40)):
                write(db, draw, model, draw.choice([120, 240]))
            for export, items, _ in running:
                for _ in range(draw.randrange(3)):
                    items += page(db, export) or []
            if draw.random() < 0.4:
                export, items, expected = running.pop(draw.randrange(len(running)))
                assert rest(db, export, items) == expected
        for name in list(model):  # all of it goes: what is left of the exports is old images alone
            db.table("orders").delete(name)
        for export, items, expected in running:
            assert rest(db, export, items) == expected
        assert not db._runner.exports
        assert rest(db, db.exports.begin("orders"), []) == {}


def test_exports_beside_writers_that_race(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums that every transaction keeps: two items change together, so that a mix of two moments shows."""
    monkeypatch.setattr(limits, "BULK_ENTRIES", 11)
    done = threading.Event()
    with tailrace.open(data_dir, housekeeping_s=None) as db:
        table = db.create_table("orders", partition_key="id", stream="NEW_IMAGE")
        for number in range(200):
            table.put({"id": f"o-{number}", "n": 100})

        def transfer(seed: int) -> None:
            draw = random.Random(seed)
            while not done.is_set():
                one, other = draw.sample(range(200), 2)
                amount = draw.randrange(10)
                db.transact_write(
                    [
                        tailrace.Update("orders", f"o-{one}", "SET n = n - :a", values={":a": amount}),
                        tailrace.Update("orders", f"o-{other}", "SET n = n + :a", values={":a": amount}),
                    ]
                )

        writers = [threading.Thread(target=transfer, args=(seed,)) for seed in range(3)]
        for writer in writers:
            writer.start()
        try:
            for _ in range(10):
                export = db.exports.begin("orders")
                found = rest(db, export, [])
                assert len(found) == 200
                assert sum(int(str(item["n"])) for item in found.values()) == 20_000
        finally:
            done.set()
            for writer in writers:
                writer.join()


def test_a_snapshot_and_the_changes_after_it_are_the_table(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BULK_ENTRIES", 11)
    done = threading.Event()
    with tailrace.open(data_dir, housekeeping_s=None) as db:
        table = db.create_table("orders", partition_key="id", stream="NEW_IMAGE")
        for number in range(100):
            table.put({"id": f"o-{number}", "n": 0})

        def count() -> None:
            draw = random.Random(1)
            while not done.is_set():
                table.put({"id": f"o-{draw.randrange(200)}", "n": draw.randrange(1_000)})

        writer = threading.Thread(target=count)
        writer.start()
        try:
            sequence, items = table.snapshot()
        finally:
            done.set()
            writer.join()
        state = {item["id"]: item for item in items}
        after = sequence
        while changes := table.changes(after=after, limit=1_000):
            for change in changes:
                state[change.keys["id"]] = change.new
            after = changes[-1].sequence
        assert state == {item["id"]: item for item in table.scan()}


def test_an_export_that_falls_too_far_behind_ends_with_a_reason(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "EXPORT_IMAGES_BYTES", 10_000)
    monkeypatch.setattr(limits, "BULK_ENTRIES", 5)
    with tailrace.open(data_dir, housekeeping_s=None) as db:
        table = db.create_table("orders", partition_key="id")
        for number in range(100):
            table.put({"id": f"o-{number}", "text": "x" * 300})
        export = db.exports.begin("orders")
        assert page(db, export)
        for number in range(100):
            table.put({"id": f"o-{number}", "text": "y"})
        with pytest.raises(Unavailable) as caught:
            page(db, export)
        assert caught.value.code == "EXPORT_BEHIND"
        db.exports.end(export)
        assert len(rest(db, db.exports.begin("orders"), [])) == 100


def test_a_table_that_is_dropped_ends_its_export(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BULK_ENTRIES", 5)
    with tailrace.open(data_dir, housekeeping_s=None) as db:
        table = db.create_table("orders", partition_key="id")
        for number in range(20):
            table.put({"id": f"o-{number}"})
        export = db.exports.begin("orders")
        assert page(db, export)
        db.drop_table("orders")
        db.create_table("orders", partition_key="id")
        with pytest.raises(Gone):
            page(db, export)
        db.exports.end(export)


def test_a_disk_that_takes_no_images_fails_the_export_and_not_the_write(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: object, key: bytes, body: bytes | None) -> None:
        raise Unavailable("no space", code="SCRATCH")

    with tailrace.open(data_dir, housekeeping_s=None) as db:
        table = db.create_table("orders", partition_key="id")
        table.put({"id": "a", "n": 1})
        export = db.exports.begin("orders")
        monkeypatch.setattr("tailrace.storage.scratch.Scratch.keep", full)
        table.put({"id": "a", "n": 2})
        assert table.get("a") == {"id": "a", "n": 2}
        with pytest.raises(Unavailable, match="no space"):
            page(db, export)
        db.exports.end(export)


def test_no_more_exports_than_there_may_be(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EXPORTS_MAX", 2)
    with tailrace.open(data_dir, housekeeping_s=None) as db:
        db.create_table("orders", partition_key="id").put({"id": "a"})
        exports = [db.exports.begin("orders") for _ in range(2)]
        with pytest.raises(Unavailable) as caught:
            db.exports.begin("orders")
        assert caught.value.code == "SCANS_BUSY"
        db.exports.end(exports[0])
        assert len(rest(db, db.exports.begin("orders"), [])) == 1


def test_old_images_leave_no_file_behind(data_dir: Path) -> None:
    with tailrace.open(data_dir, housekeeping_s=None) as db:
        table = db.create_table("orders", partition_key="id")
        for number in range(60):
            table.put({"id": f"o-{number}", "text": "x" * 300_000})
        export = db.exports.begin("orders")
        for number in range(60):  # more than the cache holds
            table.put({"id": f"o-{number}", "text": "y"})
        assert not [path.name for path in data_dir.iterdir() if "scratch" in path.name]
        found = rest(db, export, [])
        assert all(item["text"] == "x" * 300_000 for item in found.values())
        assert len(found) == 60
