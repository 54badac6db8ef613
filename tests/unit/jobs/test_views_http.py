"""`/v1/views`: what the job sends is taken once, and what is malformed is refused with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import msgspec

from tests.support.views import check, run
from tests.unit.http.inprocess import Up, serve

MSGPACK = {"content-type": "application/vnd.msgpack"}


async def post(up: Up, path: str, body: Any) -> httpx.Response:
    content = body if isinstance(body, bytes) else msgspec.msgpack.encode(body)
    return await up.http.post(f"/v1/views/{path}", content=content, headers=MSGPACK)


def test_a_view_is_described_moved_on_and_filled(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        run(up.db, "CREATE TABLE orders (id TEXT PRIMARY KEY, status TEXT, total DECIMAL) WITH (stream = true)")
        run(up.db, "CREATE MATERIALIZED VIEW app.totals AS SELECT status, sum(total) AS t FROM orders GROUP BY status")
        run(up.db, "INSERT INTO orders VALUES ('1', 'paid', 1.5)")
        (view,) = (await up.http.get("/v1/views")).json()["views"]
        assert view == (await up.http.get("/v1/views/app.totals")).json()
        assert (view["name"], view["phase"], view["keys"], view["stale"]) == (
            "app.totals",
            "live",
            [["status", "S"]],
            "",
        )
        (source,) = view["sources"]
        moves = {"groups": [[[{"S": "paid"}], 1, [[1, 1, "1.5"]], []]], "records": 1}
        body = {"ranges": {str(source["log"]): [source["position"], source["next"]]}, "moves": moves}
        for applied in (True, False):
            answer = (await post(up, "app.totals/apply", body)).json()
            assert answer == {"applied": applied, "positions": {str(source["log"]): source["next"]}}
        check(up.db, "app.totals")
        body["ranges"] = {str(source["log"]): [source["position"] + 1, source["next"] + 1]}
        fenced = await post(up, "app.totals/apply", body)
        assert (fenced.status_code, fenced.json()["error"]["code"]) == (409, "FENCED")
        assert fenced.json()["error"]["positions"] == {str(source["log"]): source["next"]}

        fill = (await post(up, "app.totals/fill", {"step": "begin"})).json()["fill"]
        assert (await up.http.get("/v1/views/app.totals")).json()["phase"] == "filling"
        assert (await post(up, "app.totals/fill", {"step": "clear", "fill": fill})).json() == {"more": False}
        piece = {"step": "piece", "fill": fill, "piece": 1, "moves": moves}
        assert (await post(up, "app.totals/fill", piece)).json() == {"applied": True}
        done = await post(up, "app.totals/fill", {"step": "finish", "fill": fill, "sequences": {"orders": 10_000}})
        assert done.json()["phase"] == "live"
        check(up.db, "app.totals")

    serve(data_dir, scenario)


def test_mistakes_are_reported(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        run(up.db, "CREATE TABLE orders (id TEXT PRIMARY KEY) WITH (stream = true)")
        run(up.db, "CREATE MATERIALIZED VIEW good AS SELECT count(*) AS n FROM orders")
        for path, body, status, code in (
            ("nope/apply", {"ranges": {}, "moves": {}}, 404, "VIEW_NOT_FOUND"),
            ("nope/held", {"asked": []}, 404, "VIEW_NOT_FOUND"),
            ("nope/fill", {"step": "begin"}, 404, "VIEW_NOT_FOUND"),
            ("good/apply", b"\xc1", 400, "INVALID_REQUEST"),
            ("good/apply", b"", 400, "INVALID_REQUEST"),
            ("good/apply", {"ranges": {"x": [1, 2]}, "moves": {}}, 400, "INVALID_REQUEST"),
            ("good/apply", {"ranges": {"1": [1, -2]}, "moves": {}}, 400, "INVALID_REQUEST"),
            ("good/apply", {"ranges": {}, "moves": {"groups": [[[], 1]]}}, 400, "INVALID_REQUEST"),
            ("good/apply", {"ranges": {}, "moves": {}, "more": 1}, 400, "INVALID_REQUEST"),
            ("good/held", {"asked": [[7, "x", True, b""]]}, 400, "INVALID_REQUEST"),
            ("good/fill", {"step": "dance"}, 400, "INVALID_REQUEST"),
            ("good/fill", {"step": "clear", "fill": "not mine"}, 409, "FENCED"),
            ("good/what", {}, 404, "NOT_FOUND"),
        ):
            answer = await post(up, path, body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), (path, body, answer.text)
        assert (await up.http.get("/v1/views/good/apply")).status_code == 405
        assert (await up.http.delete("/v1/views/good")).status_code == 405

    serve(data_dir, scenario)


def test_values_that_are_none_are_refused_and_nothing_is_written(data_dir: Path) -> None:
    """The job is trusted with what it works out, not with the form of it."""

    async def scenario(up: Up) -> None:
        run(up.db, "CREATE TABLE orders (id TEXT PRIMARY KEY, a TEXT, b DECIMAL) WITH (stream = true)")
        run(up.db, "CREATE MATERIALIZED VIEW good AS SELECT a, max(b) AS m FROM orders GROUP BY a")
        (source,) = (await up.http.get("/v1/views/good")).json()["sources"]
        ranges = {str(source["log"]): [source["next"], source["next"] + 1]}
        for group in (
            [[{}], 1, [[1, 1, "1"]], []],
            [[{"S": 5}], 1, [[1, 1, "1"]], []],
            [[{"N": "x"}], 1, [[1, 1, "1"]], []],
            [[{"Q": "x"}], 1, [[1, 1, "1"]], []],
            [[{"S": "x"}], 1, [[1, 1, "one"]], []],
            [[{"S": "x"}], 1, [[1, 1, "NaN"]], []],
            [[{"S": "x"}], 1, [[1, 1, "1"]], [[9, {"N": "1"}, 1]]],
            [[{"S": "x"}], 1, [[1, 1, "1"]], [[0, {"L": []}, 1]]],
        ):
            answer = await post(up, "good/apply", {"ranges": ranges, "moves": {"groups": [group]}})
            assert answer.status_code == 400, (group, answer.text)
        again = (await up.http.get("/v1/views/good")).json()
        assert again["sources"][0]["position"] == source["position"] and again["items"] == 0

    serve(data_dir, scenario)
