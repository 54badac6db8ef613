"""The program on docs/how-to/iceberg.md copies each entry once: over repeats, crashes, races and compaction."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException

from tailrace.cold import compacting
from tailrace.cold.store import Store
from tests.support.pages import FENCE, ROOT
from tests.unit.cold.rows import ORDERS, change_rows, entries, tiered

NAME = "shop.orders"
LOGS = (1, 2)


class HistoryCopy:
    """The cold storage of a table, and its copy in Iceberg."""

    def __init__(self, folder: Path) -> None:
        page = (ROOT / "docs" / "how-to" / "iceberg.md").read_text(encoding="utf-8")
        scope: dict[str, Any] = {}
        exec(next(match["code"] for match in FENCE.finditer(page) if match["language"] == "python"), scope)
        self.program: Callable[[Any, str, str], None] = scope["copy"]
        self.store = Store(folder / "cold")
        self.uri = str(folder / "cold" / ORDERS)
        self.catalog = SqlCatalog("lake", uri=f"sqlite:///{folder}/catalog", warehouse=f"file://{folder}/lake")
        self.catalog.create_namespace("shop")

    def tier(self, generation: int) -> None:
        start = (generation - 1) * 10
        batches = [change_rows(entries(log, start, start + 10), records=2) for log in LOGS]
        assert tiered(self.store, ORDERS, batches, generation)[0] == "committed"

    def run(self, catalog: Any = None) -> None:
        self.program(catalog or self.catalog, NAME, self.uri)

    def check(self, generations: int) -> None:
        """The copy has the rows of so many generations, each once and as it was written."""
        batches = [change_rows(entries(log, 0, generations * 10), records=2) for log in LOGS]
        found = self.catalog.load_table(NAME).scan().to_arrow().to_pylist()
        found.sort(key=lambda row: (row["log"], row["position"], row["index"]))
        assert found == [row for batch in batches for row in batch.to_pylist()]


class OvertakenCatalog:
    """A catalog whose user is overtaken by another copy after it has loaded the table."""

    def __init__(self, history: HistoryCopy) -> None:
        self.history = history

    def __getattr__(self, name: str) -> Any:
        return getattr(self.history.catalog, name)

    def load_table(self, name: str) -> Any:
        table = self.history.catalog.load_table(name)
        self.history.run()
        return table


@pytest.fixture
def history(tmp_path: Path) -> HistoryCopy:
    return HistoryCopy(tmp_path)


def test_only_new_entries_are_copied(history: HistoryCopy) -> None:
    for generation in (1, 2, 3):
        history.tier(generation)
        history.run()
        history.run()
        history.check(generation)


def test_compaction_retention_and_vacuum_do_not_change_the_copy(history: HistoryCopy) -> None:
    history.tier(1)
    history.tier(2)
    history.run()
    compacting.compact(history.store, ORDERS)
    compacting.forget(history.store, ORDERS, {1: 15})
    compacting.vacuum(history.store, ORDERS, hours=0)
    history.run()
    history.check(2)
    history.tier(3)
    compacting.compact(history.store, ORDERS)
    history.run()
    history.check(3)


@pytest.mark.parametrize("copied", [False, True])
def test_of_two_copies_at_once_one_is_refused(history: HistoryCopy, copied: bool) -> None:
    history.tier(1)
    if copied:
        history.run()
        history.tier(2)
    with pytest.raises(CommitFailedException):
        history.run(OvertakenCatalog(history))
    history.check(2 if copied else 1)


@pytest.mark.parametrize("committed", [False, True])
def test_a_copy_continues_after_a_crash(history: HistoryCopy, committed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    history.tier(1)
    history.run()
    history.tier(2)
    catalog = type(history.catalog)
    commit = catalog.commit_table

    def crash(*arguments: Any, **named: Any) -> None:
        if committed:
            commit(*arguments, **named)
        raise ConnectionError("the response is lost")

    with monkeypatch.context() as patch:
        patch.setattr(catalog, "commit_table", crash)
        with pytest.raises(ConnectionError):
            history.run()
    history.check(2 if committed else 1)
    history.run()
    history.check(2)
