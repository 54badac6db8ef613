"""Pages, hosts and peers that a server refuses, on every one of its routes; and the CORS fields that it sends."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tailrace.auth.users import create_user
from tailrace.config import Config, HttpConfig, load, origin_of
from tailrace.errors import Forbidden, Invalid
from tailrace.http.asgi import create_app
from tailrace.http.message import Request
from tailrace.http.origins import OriginPolicy, is_loopback_address, is_loopback_name
from tailrace.http.routes import ROUTES
from tests.unit.http.inprocess import Up, serve

EVIL = "https://evil.example"
FOREIGN = [
    EVIL, "null", "http://localhost.evil.example", "http://evil.example:4437", "file://", "http://0.0.0.0:4437",
    "http://127.0.0.1.evil.example", "http://localhost@evil.example", "", "http://127.0.0.2x", "ftp://localhost",
    "http://localhost:80, https://evil.example", "http://[::2]", "http://2130706433", "http://notlocalhost",
    "http://localhost/", "capacitor://localhost", "http://local\u017fhost",
]  # fmt: skip
LOCAL = [
    "http://localhost", "https://localhost:3000", "http://127.0.0.1:4437", "http://[::1]:8080", "HTTP://LOCALHOST",
    "http://app.localhost:5173", "http://127.3.2.1",
]  # fmt: skip
BAD_HOSTS = [
    "evil.example", "evil.example:4437", "localhost.evil.example", "127.0.0.1.evil.example", "0.0.0.0:4437",
    "[::]:4437", "10.0.0.1", "2130706433", "xlocalhost", "localhost:4437:1", "[::1", "127.1",
]  # fmt: skip
GOOD_HOSTS = ["localhost", "LOCALHOST:1", "127.0.0.1:4437", "127.9.9.9", "[::1]:4437", "x.localhost:80", "localhost."]
PATHS = list(dict.fromkeys(["/nothing", *(re.sub(r"\{\w+\*?\}", "x", route.path) for route in ROUTES)]))
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
TOKEN = "a-token-of-many-characters"


def run(data_dir: Path, scenario: Callable[[Up], Awaitable[None]], **settings: Any) -> None:
    serve(data_dir, scenario, **settings)


def code(answer: httpx.Response) -> str:
    return str(answer.json()["error"]["code"])


# -- dev mode


def test_in_dev_mode_no_route_answers_a_page_of_another_machine(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        for path in PATHS:
            for method in METHODS:
                answer = await up.http.request(method, path, headers={"origin": EVIL}, content=b"{}")
                assert answer.status_code == 403, (method, path)
                assert not [name for name in answer.headers if name.startswith("access-control-")]
                if method != "HEAD":
                    assert EVIL in answer.text and "allowed_origins" in answer.text, (method, path)
        for origin in FOREIGN:
            headers = {b"origin": origin.encode()}
            assert (await up.http.get("/healthz", headers=headers)).status_code == 403, origin  # type: ignore[arg-type]

    run(data_dir, scenario)


def test_in_dev_mode_no_route_answers_a_host_that_is_not_loopback(data_dir: Path) -> None:
    """A page whose own name was made to resolve to 127.0.0.1 is of the same origin, and has no foreign Origin."""

    async def scenario(up: Up) -> None:
        for path in PATHS:
            for method in (*METHODS, "OPTIONS"):
                answer = await up.http.request(method, path, headers={"host": "evil.example:4437"})
                assert answer.status_code == 403, (method, path)
                if method != "HEAD":
                    assert "evil.example" in answer.text and "allowed_hosts" in answer.text
        for host in BAD_HOSTS:
            answer = await up.http.get("/healthz", headers={"host": host})
            assert answer.status_code in (400, 403), host
        for host in GOOD_HOSTS:
            assert (await up.http.get("/healthz", headers={"host": host})).status_code == 200, host

    run(data_dir, scenario)


def test_an_absolute_request_target_is_checked_as_the_host(data_dir: Path) -> None:
    policy = OriginPolicy(Config(dev=True))
    with pytest.raises(Forbidden):
        policy.check(Request(b"GET", b"/healthz", b"", {}, b"", peer="127.0.0.1"))  # HTTP/1.0 without a Host

    async def scenario(up: Up) -> None:
        host, port = up.http.base_url.host, up.http.base_url.port
        for target, status in (("http://evil.example/healthz", b"403"), ("http://localhost/healthz", b"200")):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            assert (await reader.read()).split(b" ")[1] == status
            writer.close()
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).split(b" ")[1] == b"400"
        writer.close()

    run(data_dir, scenario)


def test_in_dev_mode_pages_of_this_machine_read_and_write(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        for origin in LOCAL:
            headers = {"origin": origin, "content-type": "text/plain"}
            assert (await up.http.put("/v1/stream/a", headers=headers)).status_code in (200, 201)
            answer = await up.http.get("/v1/stream/a?offset=-1", headers=headers)
            assert answer.headers["access-control-allow-origin"] == origin
            assert "Stream-Next-Offset" in answer.headers["access-control-expose-headers"]
            assert "origin" in answer.headers["vary"]

    run(data_dir, scenario)


def test_in_dev_mode_a_page_elsewhere_embeds_nothing(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a")
        embedded = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "script"}
        framed = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}
        followed = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
        for headers, status in ((embedded, 403), (framed, 403), (followed, 200), ({"sec-fetch-site": "none"}, 200)):
            assert (await up.http.get("/v1/stream/a?offset=-1", headers=headers)).status_code == status
        for method in ("POST", "PUT", "PATCH", "DELETE"):  # a form is sent by navigating, but is no link
            answer = await up.http.request(method, "/v1/stream/a", headers={**followed, "content-type": "text/plain"})
            assert answer.status_code == 403 and code(answer) == "FOREIGN_ORIGIN", method

    run(data_dir, scenario)


def test_listed_origins_and_hosts_are_served_in_dev_mode(data_dir: Path) -> None:
    settings = HttpConfig(allowed_hosts=("devbox.internal",), allowed_origins=("https://app.example:8443",))

    async def scenario(up: Up) -> None:
        headers = {"host": "devbox.internal:4437", "origin": "https://app.example:8443"}
        answer = await up.http.get("/v1/topics", headers=headers)
        assert answer.headers["access-control-allow-origin"] == "https://app.example:8443"
        assert (await up.http.get("/v1/topics", headers={"origin": "https://app.example"})).status_code == 403
        own = {"host": "devbox.internal:4437", "origin": "http://devbox.internal:4437"}
        assert (await up.http.get("/v1/topics", headers=own)).status_code == 200

    run(data_dir, scenario, http=settings)


def test_a_preflight_lets_listed_origins_alone_go_on(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        for path in ("/", "/v1/stream/a", "/v1/api/sql", "/v1/stream/__ds/subscriptions/s"):
            preflight = {"access-control-request-method": "POST", "access-control-request-headers": "x-amz-target"}
            answer = await up.http.options(path, headers={"origin": "http://localhost:3000", **preflight})
            assert answer.headers["access-control-allow-origin"] == "http://localhost:3000"
            assert answer.headers["access-control-allow-methods"]
            for origin in (EVIL, "null"):
                answer = await up.http.options(path, headers={"origin": origin, **preflight})
                assert "access-control-allow-origin" not in answer.headers

    run(data_dir, scenario)


# -- peers of the ASGI application


async def _status(app: Any, peer: tuple[str, int] | None, **headers: str) -> int:
    transport = httpx.ASGITransport(app)
    transport.client = peer  # type: ignore[assignment]
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        return (
            await client.get("/v1/topics", headers={k.replace("_", "-"): v for k, v in headers.items()})
        ).status_code


def test_the_asgi_application_in_dev_mode_serves_loopback_peers_alone(data_dir: Path) -> None:
    async def main() -> None:
        app = create_app(dev=True, data=str(data_dir), environ={})
        async with app.lifespan():
            for peer in (("127.0.0.1", 1), ("127.8.0.1", 1), ("::1", 1), ("::ffff:127.0.0.1", 1)):
                assert await _status(app, peer) == 200, peer
            for other in (("10.0.0.9", 1), ("203.0.113.5", 1), ("2001:db8::1", 1), ("testclient", 1), ("", 1), None):
                assert await _status(app, other) == 403, other
            for field in (
                "x_forwarded_for",
                "x_forwarded_host",
                "x_forwarded_proto",
                "x_forwarded_port",
                "forwarded",
                "via",
                "x_real_ip",
                "x_client_ip",
                "cf_connecting_ip",
            ):  # a proxy does not ask
                assert await _status(app, ("127.0.0.1", 1), **{field: "127.0.0.1"}) == 403
            assert await _status(app, ("203.0.113.5", 1), x_forwarded_for="127.0.0.1") == 403

    asyncio.run(main())


# -- with authentication


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


async def _with_boss(up: Up) -> str:
    await up.db.aexecute(create_user("boss", "correct horse", "dba"))
    return basic("boss", "correct horse")


def test_basic_credentials_are_not_taken_from_a_page_that_is_not_listed(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        boss = await _with_boss(up)
        sql = {"sql": "CREATE USER evil WITH PASSWORD 'correct horse' ROLE dba"}
        for origin in (EVIL, "null", "http://localhost:5173"):
            for path in ("/v1/api/sql", "/v1/topics/x", "/v1/stream/x", "/v1/admin/users", "/"):
                for scheme in (boss, boss.replace("Basic", "basic")):
                    headers = {"origin": origin, "authorization": scheme, "content-type": "application/json"}
                    answer = await up.http.post(path, json=sql, headers=headers)
                    assert answer.status_code == 403, (origin, path)
        authority = f"{up.http.base_url.host}:{up.http.base_url.port}"
        for origin in (f"http://{authority}", "https://app.example"):  # its own pages, and listed ones
            headers = {"origin": origin, "authorization": boss}
            answer = await up.http.get("/v1/admin/users", headers=headers)
            assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == origin
            assert "access-control-allow-credentials" not in answer.headers
        assert [user["name"] for user in answer.json()["users"]] == ["boss"]
        embedded = {"sec-fetch-site": "cross-site", "authorization": boss}
        assert (await up.http.get("/v1/admin/users", headers=embedded)).status_code == 403

    run(data_dir, scenario, token=TOKEN, http=HttpConfig(allowed_origins=("https://app.example",)))


def test_bearer_tokens_are_taken_from_any_page_but_only_listed_ones_read_the_response(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        headers = {"origin": EVIL, "authorization": f"Bearer {TOKEN}"}
        answer = await up.http.post("/v1/api/sql", json={"sql": "CREATE TOPIC t"}, headers=headers)
        assert answer.status_code == 200 and "access-control-allow-origin" not in answer.headers
        headers["origin"] = "https://app.example"
        answer = await up.http.get("/v1/topics", headers=headers)
        assert answer.headers["access-control-allow-origin"] == "https://app.example"

    run(data_dir, scenario, token=TOKEN, http=HttpConfig(allowed_origins=("https://app.example",)))


def test_a_star_is_for_requests_without_basic_credentials(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        boss = await _with_boss(up)
        answer = await up.http.get("/v1/topics", headers={"origin": EVIL, "authorization": f"Bearer {TOKEN}"})
        assert answer.headers["access-control-allow-origin"] == EVIL
        answer = await up.http.get("/v1/topics", headers={"origin": EVIL, "authorization": boss})
        assert answer.status_code == 403 and code(answer) == "FOREIGN_ORIGIN"

    run(data_dir, scenario, token=TOKEN, http=HttpConfig(allowed_origins=("*",)))


def test_listed_hosts_are_the_only_ones_where_there_are_some(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        assert (await up.http.get("/healthz", headers={"host": "data.example"})).status_code == 200
        assert (await up.http.get("/healthz", headers={"host": "evil.example"})).status_code == 403

    run(data_dir, scenario, token=TOKEN, http=HttpConfig(allowed_hosts=("data.example",)))


@pytest.mark.parametrize("listed", ["data.example", "Data.Example.", "DATA.example:4437", "data.example.:4437"])
def test_a_listed_host_is_compared_as_the_host_of_a_request_is(listed: str) -> None:
    policy = OriginPolicy(Config(http=HttpConfig(allowed_hosts=(listed,))))
    for host in (b"data.example:4437", b"DATA.EXAMPLE:4437", b"data.example.:4437"):
        policy.check(Request(b"GET", b"/healthz", b"", {b"host": host}, b""))
    with pytest.raises(Forbidden):
        policy.check(Request(b"GET", b"/healthz", b"", {b"host": b"evil.example:4437"}, b""))


def test_without_listed_hosts_every_host_is_served(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        assert (await up.http.get("/healthz", headers={"host": "data.example"})).status_code == 200

    run(data_dir, scenario, token=TOKEN)


# -- content types


JSON_ROUTES = [
    ("POST", "/v1/api/sql"), ("POST", "/v1/api/topics/publish"), ("POST", "/api/topics/consume"),
    ("POST", "/v1/admin/keys"), ("POST", "/v1/admin/users"), ("PATCH", "/v1/admin/users/boss"),
    ("POST", "/v1/api/auth/login"), ("POST", "/v1/api/auth/refresh"), ("PUT", "/v1/jobs/j"),
    ("POST", "/v1/jobs/j/report"), ("POST", "/v1/cold/attach"), ("POST", "/v1/stages/commit"),
    ("PUT", "/v1/stream/__ds/subscriptions/s"), ("POST", "/v1/stream/__ds/subscriptions/s/claim"),
    ("PATCH", "/v1/tables/t/stream"), ("POST", "/v1/tables/t/stream/prune"), ("PUT", "/v1/tables/t/cursors/c"),
    ("POST", "/v1/views/v/apply"), ("POST", "/v1/stages?table=t"),
]  # fmt: skip
SIMPLE = ["text/plain", "text/plain;charset=UTF-8", "application/x-www-form-urlencoded", "multipart/form-data", "", "x"]


def test_a_body_that_any_page_can_send_is_not_taken_for_json(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        for method, path in JSON_ROUTES:
            for kind in SIMPLE:
                headers = {"content-type": kind, "authorization": f"Bearer {TOKEN}"}
                if not kind:
                    del headers["content-type"]
                answer = await up.http.request(method, path, content=b'{"sql": "CREATE TOPIC t"}', headers=headers)
                assert answer.status_code == 415, (method, path, kind)
                assert code(answer) == "WRONG_CONTENT_TYPE" and "send Content-Type: application/" in answer.text
            headers = {"content-type": "Application/JSON; charset=utf-8", "authorization": f"Bearer {TOKEN}"}
            answer = await up.http.request(method, path, content=b"{}", headers=headers)
            assert answer.status_code != 415 or "msgpack" in answer.text, (method, path)
        target = {"x-amz-target": "DynamoDB_20120810.ListTables", "authorization": f"Bearer {TOKEN}"}
        for kind in SIMPLE:
            answer = await up.http.post("/", content=b"{}", headers={**target, "content-type": kind})
            assert answer.status_code == 404 and b"UnknownOperation" in answer.content  # as the service has it

    run(data_dir, scenario, token=TOKEN)


# -- content that could run in a browser

ACTIVE = [
    "text/html", "TEXT/HTML; charset=utf-8", "image/svg+xml", "application/xml", "text/xml", "application/xhtml+xml",
    "text/javascript", "application/pdf", "application/atom+xml", "text/plain;a=b, text/html", "x/unknown", "text/css",
]  # fmt: skip


def test_streams_that_a_browser_could_run_are_sandboxed(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        for number, kind in enumerate(ACTIVE):
            if (await up.ask("PUT", f"s{number}", b"<script>alert(1)</script>", content_type=kind)).status_code == 400:
                continue  # no media type at all
            for answer in (await up.get(f"s{number}"), await up.ask("HEAD", f"s{number}")):
                assert answer.headers["content-security-policy"] == "sandbox", kind
                assert answer.headers["x-content-type-options"] == "nosniff"
            answer = await up.get(f"s{number}", 0, live="long-poll")
            assert answer.headers["content-security-policy"] == "sandbox", kind
        for number, kind in enumerate(("text/plain", "application/json", "application/octet-stream")):
            await up.create(f"inert{number}", kind)
            assert "content-security-policy" not in (await up.get(f"inert{number}")).headers

    run(data_dir, scenario)


def test_errors_repeat_what_was_sent_as_json_alone(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        for path in ("/<script>", "/v1/stream/a?offset=<script>", "/v1/topics/<script>", "/v1/tables/<script>/stream"):
            answer = await up.http.get(path)
            assert answer.status_code >= 400 and answer.headers["content-type"] == "application/json", path

    run(data_dir, scenario)


# -- the rules by themselves


def test_what_an_origin_is() -> None:
    assert origin_of("HTTPS://App.Example:443") == origin_of("https://app.example") == "https://app.example"
    assert origin_of("http://a:443") == "http://a:443"
    for text in (
        "null",
        "",
        "https://",
        "https://a/",
        "https://a b",
        "https://u@a",
        "a.example",
        "https://a,https://b",
    ):
        assert origin_of(text) is None, text


def test_loopback_names_and_addresses() -> None:
    assert all(map(is_loopback_name, ("localhost", "a.localhost", "127.0.0.1", "127.255.0.3", "[::1]")))
    assert not any(map(is_loopback_name, ("", "localhosts", "1", "::1", "[::2]", "[127.0.0.1", "127.1", "0.0.0.0")))
    assert all(map(is_loopback_address, ("127.0.0.1", "::1", "::ffff:127.0.0.1", "::1%lo")))
    assert not any(map(is_loopback_address, ("", "localhost", "10.0.0.1", "::ffff:10.0.0.1", "unix:")))


def test_settings_of_hosts_and_origins_come_from_file_environment_and_command_line(tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.write_text('[http]\nallowed_hosts = ["a.example"]\nallowed_origins = ["https://a.example"]\n')
    assert load(str(file), environ={}).http.allowed_hosts == ("a.example",)
    environ = {"TAILRACE_HTTP_ALLOWED_ORIGINS": "https://b.example, https://c.example:1"}
    assert load(str(file), environ=environ).http.allowed_origins == ("https://b.example", "https://c.example:1")
    assert load(str(file), environ=environ, http_allowed_origins=("https://d",)).http.allowed_origins == ("https://d",)
    assert load(str(file), environ={}, http_allowed_origins=()).http.allowed_origins == ("https://a.example",)
    for wrong in ({"http_allowed_origins": ("a.example",)}, {"http_allowed_hosts": ("http://a",)}):
        with pytest.raises(Invalid, match=next(iter(wrong)).replace("http_", "http.")):
            load(str(file), environ={}, **wrong)
    with pytest.raises(Invalid, match="every web page"):
        load(str(file), environ={}, dev=True, http_allowed_origins=("*",))
