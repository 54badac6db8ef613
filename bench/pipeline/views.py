"""Views: how fast a job works off a backlog, and how soon a few changes are visible."""

from __future__ import annotations

import time
from typing import Any, ClassVar, Final

from bench.load import Failed
from bench.pipeline import orders
from bench.pipeline.plant import Plant, say
from bench.pipeline.row import PARQUET, LapRow, Part, PipelineRow, compare, cpu_lines, note_cpu
from bench.rows import Line, Sample, Settings, milliseconds
from tailrace.client import Client

ADDITIVE_RATE: Final = 150_000  # changes a second of views that only add up
VIEW_RATE: Final = 40_000  # of the others
VISIBLE_MS: Final = 2_000.0  # from the acknowledgement of a few changes to the view's rows
FEW: Final = 10  # changes
VISIBLE_TIMEOUT_S: Final = 60.0
CAUGHT_UP_TIMEOUT_S: Final = 600.0
POLL_S: Final = 0.01


class Views(LapRow):
    """A view that was made before the first change, brought up to the last one."""

    name = "pipeline-view"
    goal = ADDITIVE_RATE

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.title = (
            f"view job over {self.most:,} hot changes: {orders.VIEW_SQL}; beside it Spark's SELECT over Parquet, once"
        )

    def ready(self) -> None:
        self.plant.spark(2)
        self.plant.parquet()

    def ours(self, sample: Sample) -> dict[str, Any]:
        return self.plant.spark(2).ask("view", name=orders.VIEW, marks=list(self.sizes))

    def native(self, size: int) -> float:
        return selected_s(self.plant, orders.VIEW, size)

    def verify(self, server: Part, sample: Sample) -> None:
        if server.name == PARQUET:
            return
        with self.plant.client() as client:
            rows = client.sql(f"SELECT status, n, total FROM {orders.VIEW}")[-1].rows
        found = {each["status"]: (int(each["n"]), int(each["total"])) for each in rows}
        compare(sample, "the view", found, self.plant.model(self.most).groups)


def selected_s(plant: Plant, view: str, size: int) -> float:
    """The seconds of the SELECT of a view, run by Spark over so many changes as Parquet."""
    done = plant.spark(2).ask(
        "select", path=str(plant.parquet()), sql=orders.VIEWS[view][0], until=plant.until(size)
    )  # fmt: skip
    return float(done["seconds"])


class OtherViews(PipelineRow):
    """Views of other kinds, each from the first change to the last, by a job that starts for it."""

    name = "pipeline-views"
    contenders = ("tailrace", PARQUET)
    views: ClassVar[tuple[str, ...]] = tuple(name for name in orders.VIEWS if name != orders.VIEW)

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.title = f"view jobs over {self.most:,} hot changes, with their start; beside it Spark over Parquet"

    def lines(self) -> list[Line]:
        found = []
        for view in self.views:
            goal = ADDITIVE_RATE if view in orders.ADDITIVE else VIEW_RATE
            found.append(Line(f"rate {view}", f"{view}: {orders.VIEWS[view][0]}", "/s", at_least=goal))
            found += cpu_lines(f" {view}", f"{view}, ")
        return [*found, self.others()]

    def ready(self) -> None:
        self.plant.spark(2)
        self.plant.parquet()

    def work(self, server: Part, sample: Sample) -> None:
        for view in self.views:
            before = self.plant.chain()
            if server.name == PARQUET:
                took_s = selected_s(self.plant, view, self.most)
            else:
                took_s = self.plant.spark(2).ask("view", name=view, marks=[self.most])["seconds"]
            sample.figures[f"rate {view}"] = self.most / took_s
            note_cpu(sample, before, self.plant.chain(), self.most, f" {view}")

    def verify(self, server: Part, sample: Sample) -> None:
        if server.name != PARQUET:
            with self.plant.client() as client:
                verify_views(sample, client, self.plant.model(self.most), self.views)


def verify_views(sample: Sample, client: Client, model: orders.Model, views: tuple[str, ...]) -> None:
    """Compare views with what must come of the changes."""
    wanted = {
        orders.VIEW: (model.items, model.state_totals, len(model.groups)),
        "by_customer": (model.items, model.state_totals, model.customers),
        "largest": (model.largest_totals, model.largest),
        "latest": (model.customers, model.customers),
        "joined": (model.items, model.state_totals),
    }
    asked = {
        orders.VIEW: "sum(n) AS n, sum(total) AS t, count(*) AS g",
        "by_customer": "sum(n) AS n, sum(total) AS t, count(*) AS g",
        "largest": "sum(most) AS t, count(*) AS g",
        "latest": "count(DISTINCT customer) AS c, count(*) AS g",
        "joined": "count(*) AS n, sum(total) AS t",
    }
    for view in views:
        (row,) = client.sql(f"SELECT {asked[view]} FROM {view}")[-1].rows
        compare(sample, view, tuple(int(each or 0) for each in row.values()), wanted[view])


class FreshViews(PipelineRow):
    """A few changes in one transaction, while a job keeps the view: when a reader of the view sees them."""

    name = "pipeline-view-latency"
    views: ClassVar[tuple[str, ...]] = (orders.VIEW, "largest", "joined")
    warmup: Final = 3

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        items = self.most // orders.CHANGES_PER_KEY
        self.title = (
            f"{FEW} changes of a table of up to {items:,} items in a transaction, while a job keeps a view: "
            "from the acknowledgement to GetItem of a row of the view"
        )
        self._written = 0  # changes after the history

    def lines(self) -> list[Line]:
        found = []
        for view in self.views:
            found += [
                Line(f"p99 {view}", f"{view}: acknowledged → visible p99", "ms", higher=False, at_most=VISIBLE_MS),
                Line(f"p50 {view}", f"{view}: acknowledged → visible p50", "ms", higher=False),
                Line(f"cpu {view}", f"{view}: CPU of server and Spark per batch", "ms", higher=False, secondary=True),
            ]
        return [*found, self.others()]

    def ready(self) -> None:
        self.plant.spark(2)

    def work(self, server: Part, sample: Sample) -> None:
        spark = self.plant.spark(2)
        with self.plant.client() as client:
            for view in self.views:
                say(f"{self.name}: {view}")
                spark.ask("keep", name=view)  # returns when the job reports that it runs
                try:
                    self._caught_up(client, view)
                    latencies = [self._write(client, view) for _ in range(self.warmup)]
                    before, latencies = self.plant.chain(), []
                    for _ in range(self.settings.ticks):
                        latencies.append(self._write(client, view))
                    spent_s = sum(self.plant.chain()) - sum(before)
                finally:
                    spark.ask("stop_keeping")  # which says why, if the job has failed
                sample.figures |= {f"{each} {view}": ms for each, ms in milliseconds(latencies).items()}
                sample.figures[f"cpu {view}"] = spent_s / self.settings.ticks * 1e3

    def _caught_up(self, client: Client, view: str) -> None:
        end = time.monotonic() + CAUGHT_UP_TIMEOUT_S
        while True:
            known = client.view(view)
            if known["phase"] == "live" and all(each["position"] == each["next"] for each in known["sources"]):
                return
            if time.monotonic() > end:
                raise Failed(f"view {view} has not caught up within {CAUGHT_UP_TIMEOUT_S:g} s")
            time.sleep(0.2)

    def _write(self, client: Client, view: str) -> float:
        """Seconds until the last of some changes is visible in the view."""
        first = self.most + self._written
        items = [orders.order(number, self.plant.keys) for number in range(first, first + FEW)]
        last = items[-1]
        key = {orders.VIEW: "status", "largest": "customer", "joined": "id"}[view]
        asked = {"TableName": view, "Key": {key: last[key]}, "ConsistentRead": True}
        before = client.call("GetItem", asked).get("Item")
        puts = [{"Put": {"TableName": orders.TABLE, "Item": item}} for item in items]
        client.call("TransactWriteItems", {"TransactItems": puts})
        began = time.perf_counter()
        self._written += FEW
        while client.call("GetItem", asked).get("Item") == before:
            if time.perf_counter() - began > VISIBLE_TIMEOUT_S:
                raise Failed(f"{FEW} changes are not in view {view} after {VISIBLE_TIMEOUT_S:g} s")
            time.sleep(POLL_S)
        return time.perf_counter() - began

    def verify(self, server: Part, sample: Sample) -> None:
        spark = self.plant.spark(2)
        for view in self.views:
            spark.ask("view", name=view, marks=[])
        with self.plant.client() as client:
            verify_views(sample, client, self.plant.model(self.most + self._written), self.views)
