"""The matcher of the route table: which row a path finds, with which values; and the table itself."""

from __future__ import annotations

import pytest

from tailrace import limits
from tailrace.errors import Invalid, NotFound
from tailrace.http import wire
from tailrace.http.message import Request
from tailrace.http.route import OPEN, PRINCIPAL, RouteTable, not_allowed
from tailrace.http.routes import ROUTES

TABLE = RouteTable(ROUTES)


def found(method: str, path: str) -> tuple[str, tuple[str, ...]]:
    methods, values = TABLE.find(path.encode())
    return methods[method.encode()].path, values


@pytest.mark.parametrize(
    ("path", "template", "values"),
    [
        ("/v1/stream/a", "/v1/stream/{path*}", ("a",)),
        ("/v1/stream/a/b/c", "/v1/stream/{path*}", ("a/b/c",)),
        ("/v1/stream/a%2Fb/%C3%BC", "/v1/stream/{path*}", ("a/b/ü",)),
        ("/v1/stream/", "/v1/stream/{path*}", ("",)),
        ("/v1/stream/__ds", "/v1/stream/{path*}", ("__ds",)),
        ("/v1/stream/__dsx/a", "/v1/stream/{path*}", ("__dsx/a",)),
        ("/v1/stream/__ds/subscriptions", "/v1/stream/__ds/subscriptions", ()),
        ("/v1/stream/__ds/subscriptions/", "/v1/stream/__ds/subscriptions", ()),
        ("/v1/stream/__ds/subscriptions/s", "/v1/stream/__ds/subscriptions/{id}", ("s",)),
        ("/v1/tables/orders/stream", "/v1/tables/{name}/stream", ("orders",)),
        ("/v1/tables/orders/cursors/a%20b", "/v1/tables/{name}/cursors/{cursor}", ("orders", "a b")),
        ("/v1/topics", "/v1/topics", ()),
        ("/v1/topics/", "/v1/topics", ()),
        ("/v1/topics/news", "/v1/topics/{name}", ("news",)),
        ("/v1/topics/news/7/stream", "/v1/topics/{name}/{partition}/stream", ("news", "7")),
        ("/", "/", ()),
    ],
)
def test_a_path_finds_its_row(path: str, template: str, values: tuple[str, ...]) -> None:
    assert found("GET", path) == (template, values)


def test_a_literal_goes_before_a_placeholder() -> None:
    assert found("POST", "/v1/stages/commit") == ("/v1/stages/commit", ())
    assert found("DELETE", "/v1/stages/some") == ("/v1/stages/{id}", ("some",))


def test_a_row_has_other_spellings() -> None:
    assert found("POST", "/api/topics/ack") == found("POST", "/v1/api/topics/ack") == ("/v1/api/topics/ack", ())


def test_get_answers_head_unless_that_has_a_row() -> None:
    methods, _ = TABLE.find(b"/v1/topics")
    assert methods[b"HEAD"] is methods[b"GET"]
    methods, _ = TABLE.find(b"/v1/stream/a")
    assert methods[b"HEAD"].method == "HEAD"


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("/nothing", "/v1/stream/<path>"),
        ("/v1", "/v1/stream/<path>"),
        ("/v1/stream", "/v1/stream/<path>"),
        ("//v1/stream/a", "/v1/stream/<path>"),
        ("/v1/topics/news/7", "/v1/topics/<name>/<partition>/stream"),
        ("/v1/cold/x", "/v1/cold/attach"),
        ("/v1/stream/__ds/x", "/v1/stream/__ds/jwks.json"),
        ("/v1/stream/__ds/subscriptions/s/x", "/v1/stream/__ds/subscriptions/<id>/claim"),
        ("/healthz/x", "/healthz"),
    ],
)
def test_what_is_not_there_is_not_found_and_its_neighbours_are_named(path: str, near: str) -> None:
    with pytest.raises(NotFound) as raised:
        TABLE.find(path.encode())
    assert near in str(raised.value)


@pytest.mark.parametrize("path", [b"/v1/stream/%FF", b"/v1/topics/%C3"])
def test_a_path_is_utf8(path: bytes) -> None:
    with pytest.raises(Invalid) as raised:
        TABLE.find(path)
    assert raised.value.code == "INVALID_PATH"


def test_a_long_path_is_refused_and_not_remembered() -> None:
    table = RouteTable(ROUTES)
    for size in (3 * limits.PATH_BYTES_MAX + 1, 100_000):
        with pytest.raises(Invalid):
            table.find(b"/v1/stream/" + b"x" * size)
    assert table.find.cache_info().currsize == 0


def test_the_methods_of_a_path_are_named() -> None:
    methods, _ = TABLE.find(b"/v1/stream/a")
    error = not_allowed(Request(b"PATCH", b"/v1/stream/a", b"", {}, b""), methods)
    assert error.allow == "GET, HEAD, PUT, POST, DELETE, OPTIONS"


def test_a_row_is_answered_in_one_way() -> None:
    for route in ROUTES:
        where = f"{route.method} {route.path}"
        assert (route.parse is None) == (route.render is None) != (route.answer is None), where
        assert route.parse is not None or not (route.offload or route.count), where
        if route.access == PRINCIPAL and route.tag != "server" and not route.path.endswith("/me"):
            assert route.permissions, f"{where}: say which permission it needs"


def test_the_paths_that_the_transport_knows_are_in_the_table() -> None:
    for path in wire.CLAIMS | wire.QUERIES:
        methods, _ = TABLE.find(path)
        assert b"POST" in methods and methods[b"POST"].answer is not None


def test_few_routes_take_no_credentials() -> None:
    assert {f"{route.method} {route.path}" for route in ROUTES if route.access == OPEN} == {
        "GET /v1/stream/__ds/jwks.json", "POST /", "GET /", "* /", "POST /v1/api/auth/login",
        "POST /v1/api/auth/refresh", "POST /v1/api/auth/logout", "GET /healthz", "GET /readyz", "GET /openapi.json",
        "GET /console", "GET /console/{file}",
    }  # fmt: skip
