"""`make demo`: from a write to a live change, a message, a row of a view and cold history, with a check of each step.

Every step prints what it did, how long it took and what it compared. A difference ends the walkthrough with an error
that names the expected value.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec

from examples.shop import orders
from examples.shop.processes import Program, Server
from tailrace.check import check_database
from tailrace.client import Client, Consumer
from tailrace.errors import Error, Unavailable

START_S: Final = 60.0  # for the server
LOOK_S: Final = 0.2
WRITES: Final = 400
# Short intervals, because a person is watching.
PIPELINE: Final = f"""\
[tier]
tables = ["{orders.TABLE}"]
topics = ["{orders.TOPIC}"]
interval_s = 0.5
age_s = 1.0

[compact]
enabled = false

[views]
poll_s = 1.0
interval_s = 0.2
"""

Say = Callable[[str, str], None]


class StepFailed(Error):
    """A step found something else than it must."""

    status = 500
    code = "DEMO_FAILED"


class Live:
    """The changes of the table as a browser receives them: server-sent events."""

    def __init__(self, url: str) -> None:
        self._target = f"{url}/v1/tables/{orders.TABLE}/stream"
        self._changed = threading.Condition()
        self._changes: list[dict[str, Any]] = []
        self._stop = False
        threading.Thread(target=self._follow, name="live", daemon=True).start()

    def _follow(self) -> None:
        offset = "-1"
        with httpx.Client(timeout=httpx.Timeout(10.0, read=90.0)) as http:
            while not self._stop:
                try:
                    with http.stream("GET", self._target, params={"offset": offset, "live": "sse"}) as response:
                        offset = self._take(response, offset)
                except httpx.HTTPError:
                    time.sleep(LOOK_S)  # the server is busy, or gone

    def _take(self, response: httpx.Response, offset: str) -> str:
        event = ""
        for line in response.iter_lines():
            name, _, value = line.partition(":")
            if name == "event":
                event = value.strip()
            elif name == "data" and event == "control":
                offset = msgspec.json.decode(value)["streamNextOffset"]
            elif name == "data":
                with self._changed:
                    self._changes += msgspec.json.decode(value)
                    self._changed.notify_all()
        return offset

    def until(self, count: int, within_s: float) -> list[dict[str, Any]]:
        """All changes, when there are so many."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._changes) >= count, within_s):
                raise StepFailed(f"only {len(self._changes)} of {count} changes arrived live within {within_s:g} s")
            return list(self._changes)

    def close(self) -> None:
        self._stop = True


class Walkthrough:
    """The steps, over one server and one pipeline."""

    def __init__(self, client: Client, url: str, cold: Path, pipeline: Program, say: Say, within_s: float) -> None:
        self._client = client
        self._url = url
        self._cold = cold
        self._pipeline = pipeline
        self._say = say
        self._within_s = within_s
        self._shop = orders.Shop(client, seed=1)
        self._live = Live(url)

    def run(self) -> None:
        try:
            self._write()
            self._consume()
            self._view()
            changes = self._tier()
            self._trim(changes)
            self._open(changes)
        finally:
            self._live.close()

    # -- hot

    def _write(self) -> None:
        self._live.until(0, self._within_s)
        began = time.monotonic()
        first = self._shop.insert()
        (change,) = self._live.until(1, self._within_s)
        self._same("the first live change", change["keys"], {"id": first})
        self._say("live", f"an order was written, and its change seen by SSE {_ms(began)} later")
        began = time.monotonic()
        while self._shop.writes < WRITES:
            self._shop.write()
        took_s = time.monotonic() - began
        changes = self._live.until(self._shop.writes, self._within_s)
        self._same("the table, folded from its changes", _folded(changes), self._rows())
        self._say("write", f"{WRITES:,} writes in {took_s:.1f} s, each synced to disk; each seen live, once, in order")

    def _consume(self) -> None:
        taken: list[str] = []
        with Consumer(self._client, orders.TOPIC, "demo") as consumer:
            for message in consumer:
                taken.append(message.json()["id"])
                if len(taken) == len(self._shop.inserted):
                    consumer.stop()
        self._same("the messages", taken, self._shop.inserted)
        self._say("topic", f"{len(taken):,} messages consumed by a group: each insert, in order")

    # -- the pipeline

    def _view(self) -> None:
        self._until("the view", self._view_is_right)
        rows = orders.exact(self._client.sql(f"SELECT * FROM {orders.VIEW} ORDER BY status")[-1].rows)
        shown = ", ".join(f"{row['n']} {row['status']} ({row['total']})" for row in rows)
        self._say("view", f"{orders.VIEW} equals its SELECT: {shown}")
        for row in rows:
            request = {"TableName": orders.VIEW, "Key": {"status": {"S": row["status"]}}}
            item = self._client.call("GetItem", request)["Item"]
            found = {"status": item["status"]["S"], "n": Decimal(item["n"]["N"]), "total": Decimal(item["total"]["N"])}
            self._same(f"the point read of {row['status']!r}", found, row)
        began = time.monotonic()
        while self._shop.writes < WRITES + 20:
            self._shop.write()
        self._until("the view, after more writes", self._view_is_right)
        self._say("view", f"a row is one point read; 20 more writes were in it {_ms(began)} after the first of them")

    def _view_is_right(self) -> bool:
        if not orders.view_has_rows(self._client):
            return False
        statements = f"SELECT * FROM {orders.VIEW} ORDER BY status; {orders.QUERY} ORDER BY status"
        kept, computed = self._client.sql(statements)
        return len(computed.rows) > 0 and orders.exact(kept.rows) == orders.exact(computed.rows)

    def _tier(self) -> list[dict[str, Any]]:
        self._until("cold storage", lambda: self._is_tiered(table=orders.TABLE) and self._is_tiered(topic=orders.TOPIC))
        changes = self._live.until(self._shop.writes, self._within_s)
        self._say("cold", f"{len(changes):,} changes and their messages are in Delta tables, below {self._cold}")
        return changes

    def _is_tiered(self, **named: str) -> bool:
        return all(each["tiered"] == each["next"] for each in self._client.logs(**named)["partitions"])

    def _trim(self, changes: list[dict[str, Any]]) -> None:
        last = changes[-2]["sequence"]
        self._client.alter_retention(orders.TABLE, {"max_count": 1})
        self._until("retention", lambda: self._hot_start() > last)
        began = time.monotonic()
        history: list[dict[str, Any]] = []
        offset = "-1"
        while True:
            page = self._client.changes(orders.TABLE, offset)
            history += msgspec.json.decode(page.body)
            offset = page.next
            if page.up_to_date:
                break
        self._same("the history, read again", history, changes)
        trimmed = f"retention removed {len(changes) - 1:,} changes from the database"
        self._say("trim", f"{trimmed}; read again at the same offsets, from cold storage, in {_ms(began)}: identical")

    def _hot_start(self) -> int:
        (log,) = self._client.logs(table=orders.TABLE)["partitions"]
        return int(log["hot"])

    # -- without us

    def _open(self, changes: list[dict[str, Any]]) -> None:
        """Cold storage without Tailrace: deltalake and DuckDB alone."""
        import duckdb
        from deltalake import DeltaTable

        dataset = DeltaTable(str(self._cold / "tables" / orders.TABLE)).to_pyarrow_dataset()
        self._same("the rows of the Delta table", dataset.count_rows(), len(changes))
        with duckdb.connect() as db:
            db.register("history", dataset)
            counted = dict(db.execute("SELECT event, count(*) FROM history GROUP BY event").fetchall())
            images = db.execute("SELECT keys, new_image FROM history ORDER BY sequence, index").fetchall()
        self._same("DuckDB's count of events", counted, dict(Counter(each["event"] for each in changes)))
        last = dict(images)  # the last of each key
        rows = {
            msgspec.json.decode(k)["id"]: msgspec.json.decode(image) for k, image in last.items() if image is not None
        }
        self._same("the table, folded from its Delta table", rows, self._rows())
        events = ", ".join(f"{count:,} {event}" for event, count in sorted(counted.items()))
        self._say("open", f"deltalake and DuckDB read it without Tailrace: {events}; folded, they equal the table")

    # -- comparing

    def _rows(self) -> dict[str, Any]:
        rows = self._client.sql(f"SELECT * FROM {orders.TABLE}")[-1].rows
        found = {row["id"]: {**row, "total": float(row["total"])} for row in rows}
        self._same("the table", found, self._shop.orders)
        return found

    def _until(self, what: str, there: Callable[[], bool]) -> None:
        end = time.monotonic() + self._within_s
        while not there():
            if self._pipeline.status is not None:
                raise Unavailable(f"the pipeline has ended: {self._pipeline.reason}")
            if time.monotonic() > end:
                raise StepFailed(f"{what} was not right after {self._within_s:g} s; --timeout gives it longer")
            time.sleep(LOOK_S)

    def _same(self, what: str, found: Any, expected: Any) -> None:
        if found != expected:
            raise StepFailed(f"{what}: found {str(found)[:300]}, and expected {str(expected)[:300]}")


def run(folder: Path, say: Say, within_s: float) -> None:
    """Go through all steps, with a server and a pipeline of their own in this directory."""
    data = folder / "data"
    quiet = {"TAILRACE_TOKEN": "", "TAILRACE_CONFIG": ""}
    server = Server(data, 0, environ=quiet, cwd=folder)
    pipeline: Program | None = None
    try:
        url = server.url(START_S)
        say("server", f"up at {url}, over {data}")
        settings = folder / "pipeline.toml"
        settings.write_text(PIPELINE, encoding="utf-8")
        with Client(url) as client:
            orders.prepare(client)
            say("tables", f"table {orders.TABLE}, topic {orders.TOPIC}, view {orders.VIEW}: {orders.QUERY}")
            environ = {**quiet, "TAILRACE_URL": url}
            pipeline = Program("pipeline", "run", "--config", str(settings), "--quiet", environ=environ, cwd=folder)
            say("spark", "the pipeline is starting; Spark takes 10 to 20 seconds")
            Walkthrough(client, url, data / "cold", pipeline, say, within_s).run()
    finally:
        ended = [program.stop() for program in (pipeline, server) if program is not None]
    if any(ended):
        raise StepFailed(f"the pipeline and the server ended with {ended} instead of 0")
    findings = check_database(data).findings
    if findings:
        raise StepFailed(f"the database is not sound: {findings[0]}")
    say("check", "the pipeline and the server stopped cleanly, and the database is sound")


def _folded(changes: list[dict[str, Any]]) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for change in changes:
        if change["new"] is None:
            del rows[change["keys"]["id"]]
        else:
            rows[change["keys"]["id"]] = change["new"]
    return rows


def _ms(began: float) -> str:
    took_s = time.monotonic() - began
    return f"{took_s:.1f} s" if took_s >= 1 else f"{took_s * 1000:.0f} ms"
