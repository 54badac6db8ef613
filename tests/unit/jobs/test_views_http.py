"""`/v1/views`: what the job sends is taken once, and what is malformed is refused with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import msgspec

from tests.support.views import check, run, stage
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
        shape = {
            "keys": [["status", "S"]],
            "columns": [["status", "string"], ["t", "decimal(38,18)"]],
            "strategy": "additive",
        }
        planned = (await post(up, "app.totals/plan", {"shape": shape})).json()
        assert (planned["phase"], planned["keys"], planned["strategy"]) == ("new", [["status", "S"]], "additive")

        def staged() -> list[str]:
            return [stage(up.db, "app.totals", [("PUT", {"status": {"S": "paid"}, "t": {"N": "1.5"}})])]

        fill = (await post(up, "app.totals/fill", {"step": "begin"})).json()["fill"]
        assert (await up.http.get("/v1/views/app.totals")).json()["phase"] == "filling"
        assert (await post(up, "app.totals/fill", {"step": "clear", "fill": fill})).json() == {"more": False}
        piece = {"step": "piece", "fill": fill, "piece": 1, "stages": staged()}
        assert (await post(up, "app.totals/fill", piece)).json() == {"applied": True}
        done = await post(up, "app.totals/fill", {"step": "finish", "fill": fill, "sequences": {"orders": 10_000}})
        assert done.json()["phase"] == "live"
        check(up.db, "app.totals")

        run(up.db, "UPDATE orders SET total = 1.5 WHERE id = '1'; INSERT INTO orders VALUES ('2', NULL, 1)")
        run(up.db, "DELETE FROM orders WHERE id = '2'")
        (view,) = (await up.http.get("/v1/views")).json()["views"]
        assert view == (await up.http.get("/v1/views/app.totals")).json()
        (source,) = view["sources"]
        for applied in (True, False):
            body = {
                "ranges": {str(source["log"]): [source["position"], source["next"]]}, "stages": staged(), "records": 1,
            }  # fmt: skip
            answer = (await post(up, "app.totals/apply", body)).json()
            assert answer == {"applied": applied, "positions": {str(source["log"]): source["next"]}}
        check(up.db, "app.totals")
        body["ranges"] = {str(source["log"]): [source["position"] + 1, source["next"] + 1]}
        fenced = await post(up, "app.totals/apply", body)
        assert (fenced.status_code, fenced.json()["error"]["code"]) == (409, "FENCED")
        assert fenced.json()["error"]["positions"] == {str(source["log"]): source["next"]}

    serve(data_dir, scenario)


def test_mistakes_are_reported(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        run(up.db, "CREATE TABLE orders (id TEXT PRIMARY KEY) WITH (stream = true)")
        run(up.db, "CREATE MATERIALIZED VIEW good AS SELECT count(*) AS n FROM orders")
        for path, body, status, code in (
            ("nope/apply", {"ranges": {}}, 404, "VIEW_NOT_FOUND"),
            ("nope/plan", {"error": "x"}, 404, "VIEW_NOT_FOUND"),
            ("nope/fill", {"step": "begin"}, 404, "VIEW_NOT_FOUND"),
            ("good/apply", b"\xc1", 400, "INVALID_REQUEST"),
            ("good/apply", b"", 400, "INVALID_REQUEST"),
            ("good/apply", {"ranges": {"x": [1, 2]}}, 400, "INVALID_REQUEST"),
            ("good/apply", {"ranges": {"1": [1, -2]}}, 400, "INVALID_REQUEST"),
            ("good/apply", {"ranges": {}, "stages": [1]}, 400, "INVALID_REQUEST"),
            ("good/apply", {"ranges": {}, "more": 1}, 400, "INVALID_REQUEST"),
            ("good/plan", {"shape": {"keys": []}}, 400, "INVALID_REQUEST"),
            ("good/apply", {"ranges": {}}, 409, "VIEW_NOT_LIVE"),
            ("good/fill", {"step": "begin"}, 409, "VIEW_NOT_PLANNED"),
            ("good/fill", {"step": "dance"}, 400, "INVALID_REQUEST"),
            ("good/fill", {"step": "clear", "fill": "not mine"}, 409, "FENCED"),
            ("good/what", {}, 404, "NOT_FOUND"),
        ):
            answer = await post(up, path, body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), (path, body, answer.text)
        assert (await up.http.get("/v1/views/good/apply")).status_code == 405
        assert (await up.http.delete("/v1/views/good")).status_code == 405

    serve(data_dir, scenario)
