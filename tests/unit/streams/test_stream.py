"""The rules of streams: paths, content types, expiry."""

from __future__ import annotations

import msgspec
import pytest

from tailrace import limits
from tailrace.errors import Invalid
from tailrace.streams.stream import (
    StreamRow,
    check_content_type,
    check_path,
    expired,
    is_json,
    is_text,
    media_type,
    touch_due,
    touched,
)

STREAM = StreamRow(
    path="a", log=1, content_type="text/plain", created_ms=0, ttl_s=None, expires_ms=None, expires_text=None,
    deadline_ms=None,
    closed=0, seq=None, forked_from=None, fork_position=None, fork_sub=None, max_age_s=None,
    max_bytes=None, deleted=0,
)  # fmt: skip


@pytest.mark.parametrize(
    "path",
    [
        "a",
        "a/b/c",
        "ä/日本",
        "a b",
        "a%20b",
        "...",
        ".a",
        "a.",
        "..a",
        "__dsx",
        "x/__ds",
        "-1",
        "now",
        "x" * 1024,
        "\u00a0",
    ],
)
def test_paths(path: str) -> None:
    assert check_path(path) == path


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("", "is empty; name the stream"),
        ("/", "empty, '.' or '..' segment"),
        ("/a", "empty, '.' or '..' segment"),
        ("a/", "empty, '.' or '..' segment"),
        ("a//b", "empty, '.' or '..' segment"),
        (".", "segment"),
        ("..", "segment"),
        ("a/../b", "segment"),
        ("a/./b", "segment"),
        ("a\0b", "control character"),
        ("a\nb", "control character"),
        ("a\x7fb", "control character"),
        ("__ds", "reserved"),
        ("__ds/a", "reserved"),
        ("x" * 1025, "longer than 1024 bytes"),
        ("ä" * 513, "longer than 1024 bytes"),
    ],
)
def test_paths_that_are_refused(path: str, why: str) -> None:
    with pytest.raises(Invalid, match=why) as refused:
        check_path(path)
    assert refused.value.code == "INVALID_PATH"
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    "text",
    [
        "text/plain",
        "application/json",
        "application/json; charset=utf-8",
        "application/vnd.api+json",
        "TEXT/Plain",
        "a/b;c",
    ],
)
def test_content_types(text: str) -> None:
    assert check_content_type(text) == text
    assert check_content_type(f"  {text} ") == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "text",
        "text/",
        "/plain",
        "text/plain/x",
        "text plain",
        "a/b c",
        "a/b\nc",
        "a/b; ä",
        "tëxt/plain",
        "x/" + "y" * 300,
    ],
)
def test_content_types_that_are_refused(text: str) -> None:
    with pytest.raises(Invalid, match="is not a media type; use one like text/plain") as refused:
        check_content_type(text)
    assert refused.value.code == "INVALID_CONTENT_TYPE"
    assert len(str(refused.value)) < 250


def test_media_types_agree_without_parameters_and_case() -> None:
    assert media_type("Application/JSON ; charset=utf-8") == media_type("application/json") == "application/json"
    assert is_json("application/JSON;x")
    assert not is_json("application/json-seq")
    assert not is_json("application/ld+json")
    assert is_text("text/csv; header=present")
    assert is_text("application/json")
    assert not is_text("application/octet-stream")
    assert not is_text("image/png")


def test_expiry() -> None:
    assert not expired(STREAM, 10**18)
    stream = msgspec.structs.replace(STREAM, expires_ms=1000)
    assert [expired(stream, now) for now in (999, 1000, 1001)] == [False, True, True]
    assert touched(stream, 500) == stream, "an absolute expiry does not move"
    sliding = msgspec.structs.replace(STREAM, ttl_s=60, expires_ms=60_000)
    assert touched(sliding, 5_000).expires_ms == 65_000
    assert touched(STREAM, 5) == STREAM


@pytest.mark.parametrize(
    ("ttl_s", "elapsed_ms", "due"),
    [(60, 0, False), (60, 2_999, False), (60, 3_000, True), (1, 49, False), (1, 50, True), (10_000, 4_999, False),
     (10_000, 5_000, True), (0, 0, True)],
)  # fmt: skip
def test_reads_renew_a_ttl_but_not_every_one(ttl_s: int, elapsed_ms: int, due: bool) -> None:
    stream = msgspec.structs.replace(STREAM, ttl_s=ttl_s, expires_ms=ttl_s * 1000)
    assert touch_due(stream, elapsed_ms) is due


def test_nothing_to_renew() -> None:
    assert not touch_due(STREAM, 10**15)
    assert not touch_due(msgspec.structs.replace(STREAM, expires_ms=5), 10**15)


def test_the_limits_fit_the_wire() -> None:
    assert limits.POSITION_MAX == 10**16 - 1
