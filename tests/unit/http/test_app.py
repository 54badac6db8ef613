"""Dispatching: routes, credentials, and the fields that every response has."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from tailrace import failpoints, limits
from tailrace.auth.users import CreateUser, alter_user
from tailrace.clock import ManualClock
from tailrace.config import Config
from tailrace.database import Database
from tailrace.database import open as open_database
from tailrace.errors import Invalid, Unavailable
from tailrace.http import system
from tailrace.http.serve import allow_open_files, start
from tailrace.http.submitted import Submitted
from tailrace.metrics import NAMES
from tests.support.patience import PATIENCE_S
from tests.unit.http.inprocess import Up, serve

SECURITY = {"x-content-type-options": "nosniff", "cross-origin-resource-policy": "same-origin"}


def test_every_answer_carries_what_browsers_need(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a")
        answers = [
            await up.get("a"),
            await up.get("missing"),
            await up.ask("POST", "a", b"x", content_type="text/plain"),
            await up.ask("PATCH", "a"),
            await up.http.get("/nothing"),
            await up.http.get("/healthz"),
            await up.http.options("/v1/stream/a"),
        ]
        for answer in answers:
            for name, value in SECURITY.items():
                assert answer.headers[name] == value
            assert "origin" in answer.headers["vary"]
            assert not [name for name in answer.headers if name.startswith("access-control-")]
        up.http.headers["origin"] = "http://localhost:5173"
        for answer in (await up.get("a"), await up.get("missing"), await up.ask("PATCH", "a")):
            assert answer.headers["access-control-allow-origin"] == "http://localhost:5173"
            exposed = answer.headers["access-control-expose-headers"]
            for name in (
                "Stream-Next-Offset",
                "Stream-Closed",
                "Stream-Earliest-Offset",
                "ETag",
                "Producer-Expected-Seq",
                "Topic-Partition",
                "Topic-Offset",
            ):
                assert name in exposed
            assert "date" in answer.headers

    serve(data_dir, scenario)


def test_preflight_names_every_field_a_client_may_send(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        answer = await up.http.options(
            "/v1/stream/a", headers={"origin": "http://localhost:5173", "access-control-request-method": "PUT"}
        )
        assert answer.status_code == 204
        assert answer.headers["access-control-allow-methods"] == "GET, HEAD, PUT, POST, DELETE, OPTIONS, PATCH"
        allowed = {name.strip().lower() for name in answer.headers["access-control-allow-headers"].split(",")}
        assert {
            "content-type", "authorization", "if-none-match", "stream-seq", "stream-ttl", "stream-expires-at",
            "stream-closed", "stream-forked-from", "stream-fork-offset", "stream-fork-sub-offset", "producer-id",
            "producer-epoch", "producer-seq", "topic-key", "topic-partition",
        } <= allowed  # fmt: skip

    serve(data_dir, scenario)


def test_the_index_is_for_those_who_look(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        index = (await up.http.get("/", headers={"accept": "text/plain"})).text
        for path in ("/v1/stream/<path>", "POST   / ", "/v1/tables/<name>/stream", "/metrics"):
            assert path in index
        assert (await up.http.get("/")).text.startswith("healthy: ")

    serve(data_dir, scenario)


def test_what_is_not_there_and_what_is_not_allowed(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        for path in ("/nothing", "/v1", "/v1/stream", "/v2/stream/a", "/healthz/x", "//v1/stream/a"):
            answer = await up.http.get(path)
            assert answer.status_code == 404, path
            assert answer.json()["error"]["code"] == "NOT_FOUND"
        await up.create("a")
        known = "/v1/stream/a", "/v1/stream/__ds/subscriptions/s", "/v1/stream/__ds/subscriptions/s/claim"
        for path in (*known, "/v1/stream/__ds/jwks.json", "/healthz", "/readyz", "/metrics", "/nothing"):
            for method in ("PATCH", "TRACE", "PROPFIND", "MKCOL", "M-SEARCH", "LOCK", "REPORT", "PURGE"):
                answer = await up.http.request(method, path)
                assert answer.status_code == (404 if path == "/nothing" else 405), (method, path)
                assert ("allow" in answer.headers) == (answer.status_code == 405)
        answer = await up.ask("PATCH", "a")
        assert answer.status_code == 405
        assert answer.headers["allow"] == "GET, HEAD, PUT, POST, DELETE, OPTIONS"
        assert answer.json()["error"]["code"] == "METHOD_NOT_ALLOWED"
        for path in ("/healthz", "/readyz", "/metrics"):
            answer = await up.http.post(path)
            assert answer.status_code == 405
            assert answer.headers["allow"] == "GET, HEAD, OPTIONS"

    serve(data_dir, scenario)


def test_a_token_is_required(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOGIN_PEER_FREE", 1000)

    async def scenario(up: Up) -> None:
        right = {"authorization": "Bearer s3cret-s3cret-s3cret"}
        url = "/v1/stream/a"
        assert (await up.http.put(url, headers=right)).status_code == 201
        for method in ("GET", "PUT", "POST", "HEAD", "DELETE"):
            answer = await up.http.request(method, url)
            assert answer.status_code == 401, method
            assert answer.headers["www-authenticate"].startswith("Bearer")
            for wrong in (
                "Bearer wrong",
                "Bearer",
                "Bearer s3cret-s3cret-s3cretx",
                "Bearer s3cre",
                "Basic s3cret-s3cret-s3cret",
                "s3cret-s3cret-s3cret",
                "Bearer ſ",
            ):
                answer = await up.http.request(method, url, headers={"authorization": wrong.encode()})
                assert answer.status_code == 401, (method, wrong)
                invalid = wrong.lower().startswith("bearer")
                challenge = 'Bearer realm="tailrace"' + ', error="invalid_token"' * invalid
                challenge += ', Basic realm="tailrace", charset="UTF-8"'
                assert answer.headers.get("www-authenticate") == challenge
        for good in ("bearer s3cret-s3cret-s3cret", "BEARER  s3cret-s3cret-s3cret"):
            assert (await up.http.get(url, headers={"authorization": good})).status_code == 200
        assert (await up.http.get("/metrics")).status_code == 401
        assert (await up.http.get("/metrics", headers=right)).status_code == 200
        for path in ("/healthz", "/readyz", "/"):
            assert (await up.http.get(path)).status_code == 200, "those who run the server need no token for these"
        assert (await up.http.options(url)).status_code == 204, "a browser's preflight carries none"

    serve(data_dir, scenario, token="s3cret-s3cret-s3cret")


def test_what_needed_credentials_is_not_for_public_caches(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        up.http.headers["authorization"] = "Bearer s3cret-s3cret-s3cret"
        await up.create("a", body=b"x")
        for answer in (await up.get("a"), await up.get("a", live="long-poll")):
            assert answer.headers["cache-control"].startswith("private,")
            assert "public" not in answer.headers["cache-control"]
        etag = (await up.get("a")).headers["etag"]
        again = await up.http.get("/v1/stream/a?offset=-1", headers={"if-none-match": etag})
        assert again.status_code == 304
        assert again.headers["cache-control"].startswith("private,")

    serve(data_dir, scenario, token="s3cret-s3cret-s3cret")


def test_public_caches_may_keep_what_everyone_may_read(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a", body=b"x")
        assert (await up.get("a")).headers["cache-control"] == "public, max-age=60, stale-while-revalidate=300"

    serve(data_dir, scenario)


def test_health_and_readiness(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        assert (await up.http.get("/healthz")).json() == {"status": "ok"}
        assert (await up.http.get("/readyz")).json() == {"status": "ready"}
        assert (await up.http.head("/readyz")).content == b""
        await up.create("a", body=b"x")
        failpoints.arm("batch.flushed")
        answer = await up.ask("POST", "a", b"lost", content_type="text/plain")
        assert answer.status_code == 503
        answer = await up.ask("POST", "a", b"y", content_type="text/plain")
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "WRITES_STOPPED"
        assert answer.headers["retry-after"] == "1"
        ready = await up.http.get("/readyz")
        assert ready.status_code == 503
        assert ready.json()["status"] == "stopped"
        assert "restart" in ready.json()["reason"]
        assert (await up.http.get("/healthz")).status_code == 200
        assert (await up.get("a")).content == b"x", "reads go on"

    try:
        serve(data_dir, scenario)
    finally:
        failpoints.disarm()


async def measured(up: Up) -> dict[str, float]:
    answer = await up.http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    lines = [line.rpartition(" ") for line in answer.text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def test_metrics(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        before = await measured(up)
        await up.create("a")
        await up.append("a", b"one", b"two")
        await up.ask("POST", "missing", b"x", content_type="text/plain")
        await up.get("a")
        after = await measured(up)
        for name, (kind, _) in NAMES.items():
            assert f"tailrace_{name}{'_total' if kind == 'counter' else ''}" in after
        gained = {name: after[name] - before[name] for name in after if name in before}
        assert gained["tailrace_commits_total"] >= 3
        assert gained["tailrace_commands_total"] >= 4
        assert gained["tailrace_commands_failed_total"] == 1
        assert gained["tailrace_queries_total"] >= 1

    serve(data_dir, scenario)


def test_the_front_page_says_what_to_do(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        answer = await up.http.get("/", headers={"accept": "text/html, */*"})
        assert answer.headers["content-type"].startswith("text/html")
        assert answer.text == (await up.http.get("/console")).text
        answer = await up.http.get("/")  # not a browser: the service's own words
        assert answer.text.startswith("healthy: ")

    serve(data_dir, scenario)


def test_a_server_without_credentials_does_not_start(data_dir: Path) -> None:
    config = Config(port=0, data=str(data_dir))
    with pytest.raises(Invalid, match="no credentials would be accepted"):
        asyncio.run(start(config))
    assert not data_dir.exists(), "nothing was made for it"
    with open_database(data_dir) as db:
        db.execute(CreateUser(name="ann"))  # who has no password
    with pytest.raises(Invalid, match="no credentials would be accepted"):
        asyncio.run(start(config))
    with open_database(data_dir) as db:  # it was let go
        db.execute(alter_user("ann", password="correct horse"))

    async def starts() -> None:
        await (await start(config)).stop()

    asyncio.run(starts())


def test_an_address_in_use(data_dir: Path, tmp_path: Path) -> None:
    async def scenario(up: Up) -> None:
        port = int(up.running.url.rsplit(":", 1)[1])
        with pytest.raises(Invalid, match=f"cannot listen on 127.0.0.1:{port}"):
            await start(Config(dev=True, port=port, data=str(tmp_path / "other")))
        running = await start(Config(dev=True, port=0, data=str(tmp_path / "other")))  # it was let go
        await running.stop()

    serve(data_dir, scenario)


def test_tls_files_that_cannot_be_used(data_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.pem").write_text("nonsense")
    for name in ("bad.pem", "missing.pem"):
        file = str(tmp_path / name)
        with pytest.raises(Invalid, match="cannot use the TLS files"):
            asyncio.run(start(Config(dev=True, port=0, data=str(data_dir), tls_certificate=file, tls_key=file)))
    assert not data_dir.exists(), "nothing was opened for it"


def test_readiness_tells_of_commits_that_fail(data_dir: Path) -> None:
    class Troubled:
        stopped = None
        clock = ManualClock()
        trouble: Unavailable | None = Unavailable("the disk is full; make room", code="DISK_FULL")

        def verify(self) -> None:
            pass

    answer = system.ready(cast(Database, Troubled()))
    assert answer.status == 503
    assert json.loads(answer.body) == {"status": "failing", "reason": "the disk is full; make room"}
    Troubled.trouble = None
    assert system.ready(cast(Database, Troubled())).status == 200


# -- a server's life


def test_everything_stops_within_one_deadline(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Deliveries and connections that do not end are waited for at the same time, not one after the other."""
    monkeypatch.setattr(limits, "SHUTDOWN_S", PATIENCE_S)

    async def main() -> None:
        running = await start(Config(dev=True, port=0, data=str(data_dir)))
        running._server.limits = dataclasses.replace(running._server.limits, shutdown_s=1.0)

        deliveries, connections = asyncio.Event(), asyncio.Event()
        stop = running._server.stop

        async def stop_deliveries() -> None:
            deliveries.set()
            await asyncio.wait_for(connections.wait(), PATIENCE_S)
            ended.append("deliveries")

        async def stop_connections() -> None:
            connections.set()
            await asyncio.wait_for(deliveries.wait(), PATIENCE_S)
            await stop()

        ended: list[str] = []
        monkeypatch.setattr(running.app._dispatcher, "stop", stop_deliveries)
        monkeypatch.setattr(running._server, "stop", stop_connections)
        host, port = running.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/stream/a HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nx")  # and never the rest
        await writer.drain()
        while not running._server.connections:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        await running.stop()  # each of the two waits for the other
        assert ended == ["deliveries"]
        assert caplog.records == [], "nothing was cut off"
        assert running.db.stopped is not None
        writer.close()

    asyncio.run(main())


def test_what_does_not_stop_is_not_waited_for(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limits, "SHUTDOWN_S", 0.2)

    async def main() -> None:
        running = await start(Config(dev=True, port=0, data=str(data_dir)))
        monkeypatch.setattr(running.app._dispatcher, "stop", lambda: asyncio.sleep(60))
        await running.stop()
        assert running.db.stopped is not None
        assert "did not end within" in caplog.text

    asyncio.run(main())


@pytest.mark.parametrize(("hard", "warned"), [(200_000, False), (20_000, False), (4096, True), (-1, False)])
def test_as_many_files_may_be_open_as_the_system_allows(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, hard: int, warned: bool
) -> None:
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1024, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, bounds: found.append(bounds))
    allow_open_files(10_000)
    assert found == [(hard, hard)]
    assert ("connections_max is 10000, but only 4096 files" in caplog.text) == warned


def test_a_limit_of_open_files_that_cannot_be_raised_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(kind: int, bounds: tuple[int, int]) -> None:
        raise ValueError("not allowed")

    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    allow_open_files(100)
    assert [record.message for record in caplog.records] == ["the limit of open files stays at 1024: not allowed"]


def test_the_memory_of_a_refused_request_is_released_at_once(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a")
        for path, content_type in (("a", "text/html"), ("missing", "text/plain"), ("a", "application/json")):
            answer = await up.ask("POST", path, b"x" * 1_000, content_type=content_type)
            assert answer.status_code in (404, 409)
        kept = [each for each in gc.get_objects() if type(each) is Submitted]
        assert len(kept) <= 1  # the committer may have the last one still

    gc.collect()
    gc.disable()
    try:
        serve(data_dir, scenario)
    finally:
        gc.enable()


FAULTS = """
import resource
from tailrace.http.serve import keep_freed_memory

if not keep_freed_memory():
    raise SystemExit("no such options")
for rounds in (2, 50):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(rounds):
        page = [b"%d" % n * 524_288 for n in range(10, 26)]
        del page
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_memory_of_a_page_is_used_again() -> None:
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=False)
    if "no such options" in done.stderr:
        pytest.skip("malloc has no such options here")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 4_096, "otherwise as many for each of the pages"
