"""`POST /v1/api/sql`: what is answered, what is refused, and that the event loop goes on meanwhile."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tailrace import limits
from tailrace.access import ROLES, SYSTEM, Access, Principal
from tailrace.database import Database
from tailrace.http import sql
from tailrace.http.message import Request, Response
from tailrace.http.sql import SqlHandler
from tailrace.sql import session
from tailrace.sql.selected import ArrowResult, ArrowRows
from tests.support.patience import PATIENCE_S
from tests.support.server import ServerProcess
from tests.unit.http.inprocess import Up, serve

USER = Principal("user", ROLES["user"], "user")


class SqlCaller:
    """A handler and its callers."""

    def __init__(self, db: Database, handler: SqlHandler) -> None:
        self.db = db
        self.handler = handler

    async def raw(self, body: bytes, principal: Principal = SYSTEM, method: bytes = b"POST") -> Response:
        answer = await self.handler(Request(method, b"/v1/api/sql", b"", {}, body), principal)
        assert isinstance(answer, Response)
        return answer

    async def __call__(self, sql: str, *params: Any, principal: Principal = SYSTEM) -> tuple[int, dict[str, Any]]:
        answer = await self.raw(json.dumps({"sql": sql, "params": params}).encode(), principal)
        assert (b"content-type", b"application/json") in answer.headers
        assert (b"cache-control", b"no-store") in answer.headers
        return answer.status, json.loads(answer.body)

    async def done(self, sql: str, *params: Any) -> list[dict[str, Any]]:
        status, answer = await self(sql, *params)
        assert (status, answer["status"]) == (200, "success"), answer
        results: list[dict[str, Any]] = answer["results"]
        return results


def run(data_dir: Path, scenario: Callable[[SqlCaller], Awaitable[None]], **options: int) -> None:
    async def whole() -> None:
        db = await asyncio.to_thread(lambda: tailrace.open(data_dir, housekeeping_s=None))
        handler = SqlHandler(db, **options)
        try:
            await scenario(SqlCaller(db, handler))
        finally:
            await asyncio.to_thread(handler.close)
            await db.aclose()

    asyncio.run(whole())


def test_results_are_returned(data_dir: Path) -> None:
    async def scenario(ask: SqlCaller) -> None:
        status, answer = await ask(
            "CREATE TOPIC t; PUBLISH TO t VALUES (?), ('b'); CONSUME FROM t GROUP 'g' LIMIT 1", "a"
        )
        assert (status, answer["status"]) == (200, "success")
        assert answer["took_ms"] >= 0
        made, published, consumed = answer["results"]
        assert (made["statement"], made["rows"], made["created"]) == ("CREATE TOPIC", [], True)
        assert made["message"] == "topic t created with 1 partition"
        assert published["columns"] == [
            {"name": "partition_id", "type": "BIGINT"},
            {"name": "offset", "type": "BIGINT"},
        ]
        assert published["rows"] == [{"partition_id": 0, "offset": 0}, {"partition_id": 0, "offset": 1}]
        assert (consumed["row_count"], consumed["rows"][0]["payload"], consumed["rows"][0]["value"]) == (1, "YQ==", "a")
        assert (consumed["next_offset"], consumed["has_more"], consumed["skipped"]) == (1, True, 0)

    run(data_dir, scenario)


def test_names_in_another_case(data_dir: Path) -> None:
    granted = Principal("ann", ROLES["user"], "user", Access(("tables/Orders",)))

    async def scenario(call: SqlCaller) -> None:
        await call.done("CREATE TABLE Orders (id TEXT PRIMARY KEY); CREATE TABLE hidden (id TEXT PRIMARY KEY)")
        await call.done("INSERT INTO orders VALUES ('a')")
        status, answer = await call("UPDATE ORDERS SET n = 1 WHERE id = 'a'")
        assert (status, answer["error"]["code"]) == (400, "UNKNOWN_COLUMN")
        both = "INSERT INTO orders VALUES ('b'); SELECT id FROM orders ORDER BY id"
        status, answer = await call(both, principal=granted)
        assert [row["id"] for row in answer["results"][1]["rows"]] == ["a", "b"]
        for text in ("SELECT id FROM Hidden", "DELETE FROM Hidden WHERE id = 'a'"):
            status, answer = await call(text, principal=granted)
            assert (status, answer["error"]["code"]) == (403, "NOT_GIVEN")
        status, answer = await call("CREATE TABLE orders (id TEXT PRIMARY KEY)")
        assert (status, answer["error"]["code"]) == (409, "ALREADY_EXISTS")
        assert "'Orders'" in answer["error"]["message"]

    run(data_dir, scenario)


def test_numbers_and_bytes_pass_unharmed(data_dir: Path) -> None:
    digits = "12345678901234567890.123456789"

    async def scenario(ask: SqlCaller) -> None:
        await ask.done("CREATE TABLE things (id TEXT PRIMARY KEY, n DECIMAL, x BLOB, j JSON)")
        body = '{"sql": "INSERT INTO things VALUES (?, ?, ?, ?)", "params": ["a", %s, {"$base64": "AP8="}, {"k": 0.1}]}'
        answer = await ask.raw((body % digits).encode())
        assert answer.status == 200, answer.body
        found = await asyncio.to_thread(lambda: ask.db.table("things").get("a"))
        assert found is not None and str(found["n"]) == digits
        assert (found["x"], str(found["j"]["k"])) == (b"\x00\xff", "0.1")
        answer = await ask.raw(b'{"sql": "SELECT n FROM things"}')
        assert b'"n":' + digits.encode() in answer.body, answer.body

    run(data_dir, scenario)


def test_an_error_says_where_and_what_was_done(data_dir: Path) -> None:
    async def scenario(ask: SqlCaller) -> None:
        status, answer = await ask("CREATE TOPIC a;\n  CLEAR TOPIC b; CREATE TOPIC c")
        assert (status, answer["status"]) == (404, "error")
        error = answer["error"]
        assert (error["code"], error["line"], error["column"]) == ("TOPIC_NOT_FOUND", 2, 3)
        assert [result["statement"] for result in answer["results"]] == ["CREATE TOPIC"]
        status, answer = await ask("CREATE TOPIC d; CREATE TPIC e")
        assert (status, answer["error"]["code"]) == (400, "SQL_SYNTAX")
        assert (answer["error"]["line"], answer["error"]["column"], answer["results"]) == (1, 24, [])
        assert "found 'TPIC', expected TOPIC, TABLE, INDEX, USER or MATERIALIZED" in answer["error"]["message"]
        (shown,) = await ask.done("SHOW TOPICS")
        assert [row["name"] for row in shown["rows"]] == ["a"]

    run(data_dir, scenario)


def test_what_is_refused(data_dir: Path) -> None:
    async def scenario(ask: SqlCaller) -> None:
        for body in (
            b"",
            b"[]",
            b'"x"',
            b"{}",
            b'{"sql": 5}',
            b'{"sql": "x", "params": 5}',
            b'{"sql": "x", "more": 1}',
            b"\xff",
        ):
            answer = await ask.raw(body)
            assert answer.status == 400, body
            assert json.loads(answer.body)["status"] == "error"
        assert (await ask("DROP TOPIC ?", {"$base64": "!"}))[0] == 400
        assert (await ask("SHOW TOPICS", 1))[1]["error"]["code"] == "SQL_PARAMETERS"
        assert (await ask("x" * (1024 * 1024 + 1)))[0] == 413
        assert (await ask("CREATE TOPIC t", principal=USER))[0] == 403
        assert (await ask("CONSUME FROM t", principal=USER))[0] == 403

    run(data_dir, scenario)


def test_a_password_is_not_shown(data_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(ask: SqlCaller) -> None:
        for text in ("CREATE USER bob PASSWORD 'hunter2hunter2' ROLL dba", "CREATE USER bob PASSWORD 'hunter2hunter2"):
            answer = await ask.raw(json.dumps({"sql": text}).encode())
            assert answer.status == 400 and b"hunter2" not in answer.body
        answer = await ask.raw(
            json.dumps({"sql": "CREATE USER bob PASSWORD ?; SHOW USERS", "params": ["hunter2hunter2"]}).encode()
        )
        assert answer.status == 200 and b"hunter2" not in answer.body

    with caplog.at_level("DEBUG"):
        run(data_dir, scenario)
    assert "hunter2" not in caplog.text


def test_statements_run_in_threads_and_wait_in_a_bounded_line(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, leave = threading.Event(), threading.Event()
    names: list[str] = []

    def slow(text: str, params: Any) -> list[Any]:
        names.append(threading.current_thread().name)
        entered.set()
        assert leave.wait(PATIENCE_S)
        return []

    monkeypatch.setattr(session, "parse", slow)

    async def scenario(ask: SqlCaller) -> None:
        try:
            running = [asyncio.create_task(ask("SHOW TOPICS")) for _ in range(2)]
            await asyncio.to_thread(entered.wait, 30)
            status, answer = await ask("SHOW TOPICS")  # the loop goes on, and the line is full
            assert (status, answer["error"]["code"]) == (503, "QUEUE_FULL")
        finally:
            leave.set()
        assert [status for status, _ in await asyncio.gather(*running)] == [200, 200]
        assert threading.current_thread().name not in names

    run(data_dir, scenario, threads=1, requests_max=2)


def test_a_body_that_is_too_large_is_not_looked_at(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql, "_read", lambda body: pytest.fail("it was decoded"))

    async def scenario(ask: SqlCaller) -> None:
        answer = await ask.raw(b" " * (limits.SQL_BODY_BYTES_MAX + 1))
        assert answer.status == 413

    run(data_dir, scenario)


class Held:
    """SELECT that runs until it is let go, in place of the real one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.leave = threading.Event()
        self.running = 0
        self.changed = threading.Condition()
        monkeypatch.setattr("tailrace.sql.select.selection", self)

    def __call__(self, execute: Any, text: str, params: Any, budget: Any, *place: Any) -> ArrowResult:
        with self.changed:
            self.running += 1
            self.changed.notify_all()
        assert self.leave.wait(PATIENCE_S)
        return ArrowResult("SELECT", [], [], 0, "0 rows", selected=ArrowRows([]))

    async def has(self, running: int) -> None:
        def wait() -> bool:
            with self.changed:
                return self.changed.wait_for(lambda: self.running >= running, 30)

        assert await asyncio.to_thread(wait)


def test_other_statements_do_not_wait_for_select_and_no_caller_takes_all_workers(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    monkeypatch.setattr(limits, "SELECTS_WAITING_MAX", 16)
    ann, bob = (Principal(name, ROLES["user"], "user") for name in ("ann", "bob"))

    async def scenario(ask: SqlCaller) -> None:
        many = limits.SELECTS_OF_ONE_MAX + limits.SELECTS_WAITING_MAX
        running = [asyncio.create_task(ask("SELECT 1", principal=ann)) for _ in range(many)]
        try:
            await held.has(limits.SELECTS_OF_ONE_MAX)
            assert (await ask("SHOW TOPICS", principal=ann))[0] == 200
            running.append(asyncio.create_task(ask("SELECT 1", principal=bob)))
            await held.has(limits.SELECTS_OF_ONE_MAX + 1)  # bob's, though ann's wait
            assert held.running == limits.SELECTS_OF_ONE_MAX + 1
            gone = running.pop(many - 1)
            gone.cancel()  # one that waits makes room
            await asyncio.wait([gone])
            running.append(asyncio.create_task(ask("SELECT 1", principal=ann)))
            await asyncio.sleep(0)
            status, answer = await ask("SHOW TOPICS", principal=ann)
            while status == 200:  # until all that were sent are in line
                status, answer = await asyncio.wait_for(ask("SHOW TOPICS", principal=ann), 30)
                if len(ask.handler._selecting._lines["ann"].waiting) == limits.SELECTS_WAITING_MAX:
                    status, answer = await ask("SELECT 1", principal=ann)
            assert (status, answer["error"]["code"]) == (429, "TOO_MANY")
        finally:
            held.leave.set()
        assert {status for status, _ in await asyncio.gather(*running)} == {200}
        assert held.running == many + 1
        assert ask.handler._selecting._lines == {}

    run(data_dir, scenario)


def test_sixty_small_selects_of_one_principal_at_once_are_all_answered(data_dir: Path) -> None:
    async def scenario(ask: SqlCaller) -> None:
        answers = await asyncio.gather(*(ask("SELECT ? + 1 AS n", number, principal=USER) for number in range(60)))
        assert [(status, answer["results"][0]["rows"]) for status, answer in answers] == [
            (200, [{"n": number + 1}]) for number in range(60)
        ]
        assert ask.handler._selecting._lines == {} and ask.handler._selecting._waiting_bytes == 0

    run(data_dir, scenario)


def test_a_select_does_not_wait_for_ever_for_its_turn(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)
    monkeypatch.setattr(limits, "SELECT_WAIT_S", 0.05)

    async def scenario(ask: SqlCaller) -> None:
        running = [asyncio.create_task(ask("SELECT 1")) for _ in range(limits.SELECTS_OF_ONE_MAX)]
        try:
            await held.has(limits.SELECTS_OF_ONE_MAX)
            status, answer = await ask("SELECT 2")
            assert (status, answer["error"]["code"]) == (503, "SELECT_BUSY")
            assert ask.handler._selecting._waiting_bytes == 0
        finally:
            held.leave.set()
        assert {status for status, _ in await asyncio.gather(*running)} == {200}

    run(data_dir, scenario)


def test_what_waits_is_bounded_in_bytes(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)
    monkeypatch.setattr(limits, "SELECTS_WAITING_BYTES_MAX", 1_000)

    async def scenario(ask: SqlCaller) -> None:
        running = [asyncio.create_task(ask("SELECT 1")) for _ in range(limits.SELECTS_OF_ONE_MAX)]
        try:
            await held.has(limits.SELECTS_OF_ONE_MAX)
            status, answer = await ask("SELECT ?", "x" * 1_000)
            assert (status, answer["error"]["code"]) == (429, "TOO_MANY")
        finally:
            held.leave.set()
        await asyncio.gather(*running)

    run(data_dir, scenario)


def test_current_user_is_the_caller(data_dir: Path) -> None:
    ann = Principal("ann o'neil", ROLES["user"], "user")

    async def scenario(ask: SqlCaller) -> None:
        for principal in (ann, USER):
            for text in ("current_user", "session_user", "user", "CURRENT_USER", "current_user()"):
                status, answer = await ask(f"SELECT {text} AS it", principal=principal)
                assert (status, answer["results"][0]["rows"]) == (200, [{"it": principal.name}]), text

    run(data_dir, scenario)


def test_a_client_that_leaves_stops_its_query(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a real connection; the statement would go on for as long as nobody stops it."""
    begun, stopped = threading.Event(), threading.Event()

    def endless(execute: Any, text: str, params: Any, budget: Any, *place: Any) -> ArrowResult:
        begun.set()
        if budget.halted.wait(60):
            stopped.set()
        raise budget.late()

    monkeypatch.setattr("tailrace.sql.select.selection", endless)

    async def scenario(up: Up) -> None:
        url = up.http.base_url
        _, writer = await asyncio.open_connection(url.host, url.port)
        body = b'{"sql": "SELECT 1"}'
        head = f"POST /v1/api/sql HTTP/1.1\r\nHost: {url.host}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert await asyncio.to_thread(begun.wait, 60)
        writer.transport.abort()
        assert await asyncio.to_thread(stopped.wait, 60)

    serve(data_dir, scenario)


def test_a_server_that_stops_does_not_wait_for_a_select(data_dir: Path) -> None:
    """Of a product of rows that would take for ever; it runs when the signal comes, and is cancelled."""
    rows = ", ".join(f"('{number}')" for number in range(20))
    sources = ", ".join(f"rows AS t{number}" for number in range(12))
    answers: list[int] = []

    with ServerProcess.tailrace(data_dir) as server:

        def ask(text: str) -> int:
            request = urllib.request.Request(
                f"{server.url}/v1/api/sql", json.dumps({"sql": text}).encode(), {"content-type": "application/json"}
            )
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                    return int(answer.status)
            except urllib.error.HTTPError as error:
                return error.code

        assert ask(f"CREATE TABLE rows (id TEXT PRIMARY KEY); INSERT INTO rows VALUES {rows}; SELECT 1") == 200

        def select() -> None:
            try:
                answers.append(ask(f"SELECT count(t1.id || t2.id || t3.id) FROM {sources}"))
            except OSError:
                answers.append(0)  # it was cut off

        thread = threading.Thread(target=select)
        thread.start()
        deadline_s, idle_ticks = time.monotonic() + PATIENCE_S, _ticks(server.pid)
        while _ticks(server.pid) < idle_ticks + 50 and time.monotonic() < deadline_s:  # it has nothing else to do
            time.sleep(0.05)
        assert server.terminate() == 0, server.output  # the SELECT would take much longer than that waits
        thread.join(PATIENCE_S)
    assert answers in ([503], [0])


def _ticks(pid: int) -> int:
    """How long a process and its workers have computed, in hundredths of a second."""
    workers = [each for path in Path(f"/proc/{pid}/task").glob("*/children") for each in path.read_text().split()]
    stats = [Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split() for each in (pid, *workers)]
    return sum(int(user) + int(system) for user, system in (each[11:13] for each in stats))
