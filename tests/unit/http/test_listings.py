"""Lists of streams and tables: pages, search, and what a principal with grants sees."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tailrace import limits
from tailrace.access import Access
from tailrace.auth import passwords
from tailrace.auth.users import CreateUser
from tailrace.http.codec import rfc3339
from tailrace.listing import NameFilter
from tailrace.streams.commands import CreateStream
from tailrace.streams.queries import FindStreamPage
from tests.unit.http.inprocess import Up, serve

PASSWORD = "correct horse"


async def listed(up: Up, what: str, **given: Any) -> tuple[list[dict[str, Any]], Any]:
    answer = await up.http.get(f"/v1/{what}", params=given, auth=given.pop("auth", None))
    assert answer.status_code == 200, answer.text
    found = answer.json()
    return found[what], found["next"]


async def paths(up: Up, **given: Any) -> list[str]:
    return [each["path"] for each in (await listed(up, "streams", **given))[0]]


def test_streams_are_described(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("docs/a", stream_ttl="60")
        tail = await up.append("docs/a", "hello", "you")
        await up.create("docs/b", "application/json")
        await up.create("docs/fork", stream_forked_from="/v1/stream/docs/a", stream_fork_offset=tail)
        await up.close("docs/b")
        await up.create("gone")
        await up.delete("gone")
        (a, b, fork_), following = await listed(up, "streams")
        assert following is None
        assert (a["path"], a["content_type"], a["bytes"], a["tail_offset"]) == ("docs/a", "text/plain", 8, tail)
        assert a["ttl_s"] == 60 and a["expires_at"] > a["created_at"]
        assert a["created_at"] <= a["appended_at"] <= rfc3339(up.db.clock.now_ms())
        assert not a["closed"] and b["closed"]
        assert (b["bytes"], b["entries"], b["appended_at"]) == (0, 0, None)
        assert (fork_["forked_from"], fork_["fork_offset"], fork_["bytes"]) == ("docs/a", tail, 8)

    serve(data_dir, scenario)


def test_pages_go_on_where_they_ended(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(up: Up) -> None:
        names = [f"{first}/{number}" for first in ("a", "b", "ö") for number in range(4)]
        for name in names:
            await up.db.aexecute(CreateStream(name, "text/plain"))
        seen, after = [], None
        while True:
            page, after = await listed(up, "streams", limit=5, **({} if after is None else {"after": after}))
            seen += [each["path"] for each in page]
            if after is None:
                break
        assert seen == names
        assert await paths(up, prefix="b/") == names[4:8]
        assert await paths(up, search="Ö/", limit=2) == names[8:10]
        assert await paths(up, prefix="c") == []
        monkeypatch.setattr(limits, "LISTING_EXAMINED", 3)
        page, after = await listed(up, "streams", search="b/3")
        assert (page, after) == ([], "a/2"), "a page that found nothing says where to go on"
        for limit in ("0", "1001", "x", "-1", ""):
            answer = await up.http.get(f"/v1/streams?limit={limit}")
            assert answer.status_code == 400 and answer.json()["error"]["code"] == "INVALID_LIMIT"

    serve(data_dir, scenario)


def test_a_principal_sees_what_it_was_granted(data_dir: Path) -> None:
    patterns = ("streams/b/*", "streams/b/1/*", "streams/a/2", "streams/zz", "tables/or*", "topics/other")

    async def scenario(up: Up) -> None:
        for name in ("a/1", "a/2", "a/2/x", "b/1", "b/1/x", "b/2", "c"):
            await up.db.aexecute(CreateStream(name, "text/plain"))
        for name in ("orders", "others"):
            await asyncio.to_thread(up.db.create_table, name, partition_key="id", stream="NEW_IMAGE")
        await asyncio.to_thread(up.db.sql, "CREATE TOPIC news; ALTER TOPIC news ADD SOURCE orders ON INSERT")
        await up.db.aexecute(CreateUser(name="sam", role="user", password=passwords.hashed(PASSWORD), access=patterns))
        auth = ("sam", PASSWORD)
        answer = await up.http.get("/v1/streams", auth=auth)
        assert [each["path"] for each in answer.json()["streams"]] == ["a/2", "b/1", "b/1/x", "b/2"]
        answer = await up.http.get("/v1/streams?prefix=b/1&after=b/1", auth=auth)
        assert [each["path"] for each in answer.json()["streams"]] == ["b/1/x"]
        (table,) = (await up.http.get("/v1/tables", auth=auth)).json()["tables"]
        assert (table["name"], table["routes"]) == ("orders", []), "the topic was not granted"
        assert (await up.http.get("/v1/status", auth=auth)).status_code == 403
        seen, after = [], None
        while True:
            wanted = NameFilter(after=after, limit=1, access=Access(patterns))
            page = await up.db.aexecute(FindStreamPage(wanted))
            seen += [each.stream.path for each in page.rows]
            after = page.next
            if after is None:
                break
        assert seen == ["a/2", "b/1", "b/1/x", "b/2"], "each once, page by page"

    serve(data_dir, scenario, token="s3cret-s3cret-s3cret")


def test_tables_are_described(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await asyncio.to_thread(
            up.db.sql,
            "CREATE TABLE orders (id TEXT, at BIGINT, total DECIMAL NOT NULL, PRIMARY KEY (id, at)); CREATE TOPIC news;"
            "ALTER TABLE orders ENABLE STREAM WITH (view = 'NEW_AND_OLD_IMAGES');"
            "ALTER TOPIC news ADD SOURCE orders ON INSERT WHERE total > 3;"
            "INSERT INTO orders VALUES ('a', 1, 2.5)",
        )
        (table,), following = await listed(up, "tables", search="ORD")
        assert following is None
        assert table["partition_key"] == {"name": "id", "type": "S"}
        assert table["sort_key"] == {"name": "at", "type": "N"}
        assert table["items"] == 1 and table["bytes"] > 3
        assert table["stream"]["view"] == "NEW_AND_OLD_IMAGES" and table["stream"]["enabled"]
        (route,) = table["routes"]
        assert (route["topic"], route["op"], route["filter"]) == ("news", "Insert", "total > 3")
        assert {"name": "total", "type": "DECIMAL", "required": True} in table["columns"]
        assert (await listed(up, "tables", search="zzz"))[0] == []

    serve(data_dir, scenario)
