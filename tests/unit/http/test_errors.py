"""Each error on the wire: its status, its JSON, and what the protocol adds."""

from __future__ import annotations

import json

import pytest

from tailrace import errors
from tailrace.http.errors import response


def all_errors() -> list[type[errors.Error]]:
    found, queue = [], [errors.Error]
    while queue:
        kind = queue.pop()
        if kind.__module__ == "tailrace.errors":
            found.append(kind)
        queue += kind.__subclasses__()
    return found


@pytest.mark.parametrize(
    ("error", "status", "code", "headers", "extra"),
    [
        (errors.Invalid("no"), 400, "INVALID_REQUEST", {}, {}),
        (errors.Invalid("no", code="INVALID_OFFSET"), 400, "INVALID_OFFSET", {}, {}),
        (
            errors.Unauthenticated("who"), 401, "UNAUTHENTICATED",
            {b"www-authenticate": b'Bearer realm="tailrace", Basic realm="tailrace", charset="UTF-8"'}, {},
        ),
        (errors.LoginThrottled(3.2), 429, "TOO_MANY_ATTEMPTS", {b"retry-after": b"4"}, {}),
        (errors.Forbidden("no"), 403, "FORBIDDEN", {}, {}),
        (errors.StaleEpoch(current=5, received=3), 403, "STALE_EPOCH", {b"producer-epoch": b"5"}, {}),
        (errors.NotFound("no"), 404, "NOT_FOUND", {}, {}),
        (errors.NotAllowed("no", allow="GET"), 405, "METHOD_NOT_ALLOWED", {b"allow": b"GET"}, {}),
        (errors.Conflict("no"), 409, "CONFLICT", {}, {}),
        (
            errors.Closed(path="a", tail=3), 409, "STREAM_CLOSED",
            {b"stream-closed": b"true", b"stream-next-offset": b"0000000000000000_0000000000000003"}, {},
        ),
        (
            errors.SequenceGap(expected=4, received=7), 409, "SEQUENCE_GAP",
            {b"producer-expected-seq": b"4", b"producer-received-seq": b"7"}, {},
        ),
        (
            errors.AlreadyClaimed(holder="w", generation=2), 409, "ALREADY_CLAIMED", {},
            {"current_holder": "w", "generation": 2},
        ),
        (errors.Gone("gone"), 410, "GONE", {}, {}),
        (
            errors.Trimmed(requested=0, earliest=2, offset="x_2"), 410, "OFFSET_TRIMMED",
            {b"stream-earliest-offset": b"x_2"}, {"earliest_offset": "x_2"},
        ),
        (errors.TooLarge("big"), 413, "TOO_LARGE", {}, {}),
        (errors.TooMany("many"), 429, "TOO_MANY", {b"retry-after": b"1"}, {}),
        (errors.Unavailable("later"), 503, "UNAVAILABLE", {b"retry-after": b"1"}, {}),
        (errors.Corrupt("broken"), 500, "CORRUPT", {}, {}),
    ],
)  # fmt: skip
def test_on_the_wire(
    error: errors.Error, status: int, code: str, headers: dict[bytes, bytes], extra: dict[str, object]
) -> None:
    answer = response(error)
    assert answer.status == status
    assert json.loads(answer.body)["error"] == {"code": code, "message": str(error), **extra}
    common = {b"content-type": b"application/json", b"cache-control": b"no-store"}
    assert dict(answer.headers) == {**common, **headers}
    assert len(answer.headers) == len({name for name, _ in answer.headers})


def test_a_message_with_anything_in_it_is_json() -> None:
    answer = response(errors.Invalid('a "quoted" \n ünïcode \x00 \u2028 value'))
    assert json.loads(answer.body)["error"]["message"] == 'a "quoted" \n ünïcode \x00 \u2028 value'


def test_every_error_has_a_code_and_a_status_of_its_own() -> None:
    kinds = all_errors()
    assert len(kinds) > 15
    for kind in kinds:
        assert 400 <= kind.status <= 503
        assert kind.code.isupper()
    codes = [kind.code for kind in kinds]
    assert len(codes) == len(set(codes))
    for kind in kinds:
        assert kind.__name__ in (errors.__doc__ or "") or kind is errors.Error, f"{kind.__name__} is not in the tree"
