"""The past of a table over HTTP, and the trace of a write through topics, groups and jobs."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

from tailrace.auth import passwords
from tailrace.auth.users import CreateUser
from tailrace.bulk.queries import LogSelector
from tailrace.jobs.commands import PinPositions, RegisterJob
from tests.support.cold import Trim, tier
from tests.unit.http.inprocess import Up, serve

PASSWORD = "correct horse"
MADE = """
CREATE TABLE orders (id TEXT PRIMARY KEY, total BIGINT);
ALTER TABLE orders ENABLE STREAM WITH (view = 'NEW_AND_OLD_IMAGES');
CREATE TOPIC bills PARTITIONS 4;
CREATE TOPIC changes;
ALTER TOPIC bills ADD SOURCE orders ON INSERT WHERE total > 1 WITH (payload = 'full');
ALTER TOPIC changes ADD SOURCE orders ON UPDATE WITH (payload = 'diff');
INSERT INTO orders VALUES ('a', 2);
INSERT INTO orders VALUES ('b', 1);
UPDATE orders SET total = 5 WHERE id = 'a';
INSERT INTO orders VALUES ('c', 7), ('d', 8)
"""


async def prepare(up: Up) -> list[int]:
    """The sequences of the four writes."""
    await asyncio.to_thread(up.db.sql, MADE)
    records = (await up.http.get("/v1/tables/orders/stream?offset=-1")).json()
    return list(dict.fromkeys(record["sequence"] for record in records))


async def got(up: Up, path: str, status: int = 200, **given: Any) -> Any:
    answer = await up.http.get(f"/v1/tables/orders/{path}", params=given)
    assert answer.status_code == status, answer.text
    return answer.json() if status == 200 else answer.json()["error"]["code"]


def test_the_versions_of_an_item(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        first, _, update, _ = await prepare(up)
        found = await got(up, "items/history", key='{"id":"a"}')
        assert found["view"] == "NEW_AND_OLD_IMAGES" and found["next"] is None and found["key"] == {"id": "a"}
        newest, oldest = found["versions"]
        assert (newest["sequence"], newest["event"], newest["where"]) == (update, "MODIFY", "hot")
        assert newest["old"] == {"id": "a", "total": 2} and newest["new"] == {"id": "a", "total": 5}
        assert (oldest["sequence"], oldest["event"], oldest["old"]) == (first, "INSERT", None)
        typed = await got(up, "items/history", key='{"id":{"S":"a"}}', values="typed", limit="1")
        assert typed["versions"][0]["new"]["total"] == {"N": "5"} and typed["next"] == update
        older = await got(up, "items/history", key='{"id":"a"}', before=str(typed["next"]))
        assert [each["sequence"] for each in older["versions"]] == [first]
        assert await got(up, "items/history", 400) == "INVALID_KEY"
        assert await got(up, "items/history", 400, key="{}") == "INVALID_KEY"
        assert await got(up, "items/history", 400, key='{"id":"a"}', before="0") == "INVALID_BEFORE"
        assert await got(up, "items/history", 400, key='{"id":"a"}', values="x") == "INVALID_VALUES"
        missing = await up.http.get("/v1/tables/missing/items/history?key={}")
        assert missing.status_code == 404

    serve(data_dir, scenario)


def test_the_items_of_an_earlier_moment(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        first, second, update, last = await prepare(up)
        page = await got(up, "at", sequence=str(second), limit="1")
        rest = await got(up, "at", sequence=str(second), after=f'{{"id":"{page["next"]["id"]}"}}')
        assert rest["next"] is None and rest["sequence"] == second
        items = {item["id"]: item["total"] for item in page["items"] + rest["items"]}
        assert items == {"a": 2, "b": 1}
        whole = await got(up, "at", time="2999-01-01T00:00:00Z", values="typed")
        assert {item["id"]["S"] for item in whole["items"]} == {"a", "b", "c", "d"} and whole["sequence"] >= last
        assert len((await got(up, "at", sequence=str(update)))["items"]) == 2
        assert await got(up, "at", 404, time="2001-01-01T00:00:00Z") == "NOT_RECORDED"
        for wrong in ("yesterday", "2001-01-01T00:00:00", ""):
            assert await got(up, "at", 400, time=wrong) == "INVALID_TIME"
        for neither in ({}, {"time": "1", "sequence": "1"}):
            await got(up, "at", 400, **neither)
        assert await got(up, "at", 400, sequence=str(last + 1000)) == "INVALID_OFFSET"
        assert first

    serve(data_dir, scenario)


def test_a_write_is_followed_to_its_messages_and_jobs(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        first, second, update, last = await prepare(up)
        consume = {"topic": "bills", "group_id": "g", "timeout_seconds": 0, "limit": 10}
        trace = await got(up, f"writes/{first}")
        (record,) = trace["records"]
        assert record["new"] == {"id": "a", "total": 2} and trace["by"] and trace["complete"]
        (message,) = trace["messages"]
        assert (message["topic"], message["op"], message["payload_mode"]) == ("bills", "Insert", "Full")
        assert message["groups"] == [] and message["kept"]["hot"]
        assert trace["kept"]["hot"] and trace["kept"]["cold_table"] is None and trace["jobs"] == []
        place = {"partition_id": message["partition_id"]}
        delivered = (await up.http.post("/v1/api/topics/consume", json={**consume, **place})).json()["messages"]
        assert delivered[0]["offset"] == message["offset"]

        async def state() -> str:
            (found,) = (await got(up, f"writes/{first}"))["messages"]
            (group,) = found["groups"]
            return str(group["state"])

        assert await state() == "in_flight"
        ack = {"topic": "bills", "group_id": "g", **place}
        await up.http.post("/v1/api/topics/nack", json=ack)
        assert await state() == "waiting"
        await up.http.post("/v1/api/topics/consume", json={**consume, **place})
        ours = {**ack, "consumer_id": "till-3"}
        await up.http.post("/v1/api/topics/nack", json=ack)
        await up.http.post("/v1/api/topics/consume", json={**consume, **place, "consumer_id": "till-3"})
        await up.http.post("/v1/api/topics/ack", json={**ours, "upto_offset": delivered[0]["offset"]})
        assert await state() == "acknowledged"
        await asyncio.to_thread(up.db.sweep)
        (group,) = (await got(up, f"writes/{first}"))["messages"][0]["groups"]
        assert (group["consumer_id"], group["acknowledged_by"]) == ("till-3", "everyone")
        assert group["acknowledged_at"] >= message["at"]
        listed = await up.http.get("/v1/topics/bills/acknowledgements", params={"group": "g"})
        (recorded,) = listed.json()["acknowledgements"]
        at = message["offset"]
        assert recorded == {
            **place, "first_offset": at, "last_offset": at, "at": group["acknowledged_at"], "consumer_id": "till-3",
            "by": "everyone",
        }  # fmt: skip
        for given, status in (({}, 400), ({"group": "x"}, 404), ({"group": "g", "limit": "0"}, 400)):
            refused = await up.http.get("/v1/topics/bills/acknowledgements", params=given)
            assert refused.status_code == status, refused.text

        assert (await got(up, f"writes/{second}"))["messages"] == [], "the filter of the route kept it back"
        (changed,) = (await got(up, f"writes/{update}", key='{"id":"a"}'))["messages"]
        assert changed["topic"] == "changes"
        both = await got(up, f"writes/{last}")
        assert len(both["records"]) == len(both["messages"]) == 2
        one = await got(up, f"writes/{last}", key='{"id":"d"}', values="typed")
        assert one["records"][0]["keys"] == {"id": {"S": "d"}} and len(one["messages"]) == 1
        assert await got(up, f"writes/{last}", 404, key='{"id":"a"}') == "SEQUENCE_NOT_FOUND"
        assert await got(up, "writes/0", 400) == "INVALID_SEQUENCE"
        assert await got(up, f"writes/{last + 100}", 400) == "INVALID_OFFSET"

        log = trace["kept"]["log"]
        await up.db.aexecute(RegisterJob("copy", "replicate", "tables/orders", ""))
        await up.db.aexecute(PinPositions("copy", {log: second + 1}))
        for sequence, applied in ((first, True), (second, True), (update, False)):
            (job,) = (await got(up, f"writes/{sequence}"))["jobs"]
            assert (job["name"], job["kind"], job["applied"]) == ("copy", "replicate", applied)

    serve(data_dir, scenario)


def test_grants_restrict_what_a_trace_shows(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await asyncio.to_thread(up.db.sql, MADE)
        sam = CreateUser(
            name="sam", role="user", password=passwords.hashed(PASSWORD), access=("tables/orders", "topics/changes")
        )
        await up.db.aexecute(sam)
        records = await up.http.get("/v1/tables/orders/stream?offset=-1", auth=("sam", PASSWORD))
        for sequence, topics in ((records.json()[0]["sequence"], []), (records.json()[2]["sequence"], ["changes"])):
            answer = await up.http.get(f"/v1/tables/orders/writes/{sequence}", auth=("sam", PASSWORD))
            assert [each["topic"] for each in answer.json()["messages"]] == topics

    serve(data_dir, scenario, token="s3cret-s3cret-s3cret")


def test_history_in_cold_storage_is_found_with_its_files(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        first, second, update, _ = await prepare(up)
        which = LogSelector("table", "orders")
        (file,) = await asyncio.to_thread(tier, up.db, which, 3)
        (log,) = (await up.http.get("/v1/logs?table=orders")).json()["partitions"]
        await up.db.aexecute(Trim(log["log"], second + 1))
        trace = await got(up, f"writes/{first}")
        assert not trace["kept"]["hot"] and trace["kept"]["cold_table"] == "tables/orders"
        assert trace["kept"]["files"] == [file.name] and trace["records"][0]["new"] == {"id": "a", "total": 2}
        (message,) = trace["messages"]
        assert message["kept"] == {**message["kept"], "hot": True, "cold_table": None, "files": []}
        both = (await got(up, f"writes/{update}"))["kept"]
        assert both["hot"] and both["files"] == [file.name], "it is in both"
        found = await got(up, "items/history", key='{"id":"a"}')
        assert [each["where"] for each in found["versions"]] == ["hot", "cold"] and found["next"] is None
        assert len((await got(up, "at", sequence=str(first)))["items"]) == 1
        await asyncio.to_thread(shutil.rmtree, file.parent)
        assert (await got(up, f"writes/{update}"))["kept"]["files"] in (None, [])

    serve(data_dir, scenario, cold_files=False)
