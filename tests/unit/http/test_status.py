"""The status of the server, and its samples."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest

from tailrace import __version__, limits
from tailrace.http.samples import COLUMNS, percentiles_ms
from tailrace.topics.commands import CreateTopic
from tailrace.topics.overview import CountObjects
from tests.unit.http.inprocess import Up, serve


def test_the_status_has_what_a_console_shows_first(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a", body=b"x")
        await up.db.aexecute(CreateTopic("news"))
        await asyncio.to_thread(up.db.create_table, "orders", partition_key="id", stream="NEW_IMAGE")
        consume = {"topic": "news", "group_id": "g", "timeout_seconds": 0, "limit": 1}
        await up.http.post("/v1/api/topics/consume", json=consume)
        messages = [{"value": number} for number in range(3)]
        await up.http.post("/v1/api/topics/publish", json={"topic": "news", "messages": messages})
        assert (await up.http.post("/v1/api/topics/consume", json=consume)).json()["messages"]
        found = (await up.http.get("/v1/status")).json()
        assert found["version"] == __version__ and "Python" in found["build"]
        assert found["ready"] and found["writes"] == {"status": "ok", "error": None}
        assert found["objects"]["streams"] == {"count": 1, "more": False}
        assert found["objects"]["topics"]["count"] >= 1 and found["objects"]["tables"]["count"] >= 1
        assert found["disk"]["database_bytes"] > 0 < found["disk"]["free_bytes"]
        assert found["connections"]["open"] >= 1
        assert found["commit"]["p50_ms"] <= found["commit"]["p99_ms"]
        assert found["totals"]["commits"] >= 3 and found["rates"]["commits"] > 0
        (worst,) = found["groups"]["worst"]
        assert (worst["topic"], worst["group_id"], worst["lag"], worst["in_flight"]) == ("news", "g", 3, 1)
        assert worst["oldest_at"] <= found["time"]

    serve(data_dir, scenario)


def test_counts_are_bounded(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(up: Up) -> None:
        for name in "abc":
            await up.create(name)
        found = await up.db.aexecute(CountObjects(limit=2))
        assert (found["streams"].count, found["streams"].more) == (2, True)

    serve(data_dir, scenario)


def test_samples_are_a_ring_of_columns(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SAMPLES_MAX", 4)

    async def scenario(up: Up) -> None:
        samples = up.running.app.services.samples
        assert (await up.http.get("/v1/status/samples")).json()["columns"]["at_ms"] == []
        await up.create("a")
        for number in range(6):
            if number == 5:
                await up.append("a", "x")
            await samples.take()
        found = (await up.http.get("/v1/status/samples?step_s=1")).json()["columns"]
        assert set(found) == {"at_ms", *COLUMNS}
        assert {len(column) for column in found.values()} <= {1, 2, 3, 4}
        whole = samples.copied().since(0, 1)
        assert whole["at_ms"] == sorted(at for at in whole["at_ms"] if at is not None)
        assert samples._columns["commits"][samples._first - 1] > 0, "the newest is the last"
        assert len(samples._times) == 4
        assert (await up.http.get(f"/v1/status/samples?since={whole['at_ms'][-1]}")).json()["columns"]["lag"] == []
        (one,) = samples.copied().since(0, 24 * 3600)["entries"]
        assert one is not None
        for wrong in ("since=x", "since=-1", "step_s=0", "step_s=99999999", "other=1"):
            assert (await up.http.get(f"/v1/status/samples?{wrong}")).status_code == 400

    serve(data_dir, scenario)


def test_steps_are_means_and_the_worst_latency(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        samples = up.running.app.services.samples
        for at_s, queries, p99 in ((100, 2.0, 5.0), (109, 4.0, math.nan), (110, 9.0, 7.0)):
            samples._add(at_s * 1000, {**dict.fromkeys(COLUMNS, None), "queries": queries, "commit_p99_ms": p99})
        found = samples.copied().since(0, 10)
        assert found["at_ms"] == [109_000, 110_000]
        assert found["queries"] == [3, 9] and found["commit_p99_ms"] == [5, 7]
        assert found["lag"] == [None, None]

    serve(data_dir, scenario)


def test_percentiles() -> None:
    assert math.isnan(percentiles_ms([])[0])
    assert percentiles_ms([0.001]) == (1.0, 1.0)
    assert percentiles_ms([number / 1000 for number in range(101)]) == (50.0, 99.0)
