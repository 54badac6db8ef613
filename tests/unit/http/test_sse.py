"""Events must come out of a browser's parser as they went in; the parser here is written from the standard."""

from __future__ import annotations

import json
import tracemalloc
from base64 import b64decode

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tailrace.http.sse import BINARY, HEARTBEAT, JSON, PART_BYTES, TEXT, Encoding, SharedEvent, control, encoding


def parse(stream: bytes) -> list[tuple[str, str]]:
    """Section 9.2.6 of the HTML standard: lines end with CRLF, LF or CR; one space after the colon is dropped."""
    text = stream.decode().replace("\r\n", "\n").replace("\r", "\n")
    events, name, data = [], "message", None
    for line in text.split("\n"):
        if line == "":
            if data is not None:
                events.append((name, data))
            name, data = "message", None
        elif not line.startswith(":"):
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "event":
                name = value
            elif field == "data":
                data = value if data is None else data + "\n" + value
    return events


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        ("application/json", JSON),
        ("Application/JSON; charset=utf-8", JSON),
        ("text/plain", TEXT),
        ("text/html; charset=utf-8", TEXT),
        ("application/octet-stream", BINARY),
        ("image/png", BINARY),
        ("application/x-ndjson", BINARY),
    ],
)
def test_which_encoding(content_type: str, expected: object) -> None:
    assert encoding(content_type) is expected


def test_bodies() -> None:
    assert BINARY.body([]) == TEXT.body([]) == b""
    assert BINARY.body([b"\0", b"\xff"]) == b"\0\xff"
    assert TEXT.body([b"a", b"b"]) == b"ab"
    assert JSON.body([]) == b"[]"
    assert JSON.body([b"1,2", b"3"]) == b"[1,2,3]"


@pytest.mark.parametrize(
    ("text", "event"),
    [
        (b"hello", b"event: data\ndata:hello\n\n"),
        (b" hello", b"event: data\ndata:  hello\n\n"),
        (b"  hello", b"event: data\ndata:   hello\n\n"),
        (b"a\nb", b"event: data\ndata:a\ndata:b\n\n"),
        (b"a\n b", b"event: data\ndata:a\ndata:  b\n\n"),
        (b"a\n", b"event: data\ndata:a\ndata:\n\n"),
        (b"\n", b"event: data\ndata:\ndata:\n\n"),
        (b"\n\nevent: control\ndata:{}", b"event: data\ndata:\ndata:\ndata:event: control\ndata:data:{}\n\n"),
        (b"a\r\nb", b"event: data\ndata:a\ndata:b\n\n"),
        (b"a\rb", b"event: data\ndata:a\ndata:b\n\n"),
        (b"a\r\r\nb", b"event: data\ndata:a\ndata:\ndata:b\n\n"),
        (b": comment", b"event: data\ndata:: comment\n\n"),
        ("ä\u2028b".encode(), "event: data\ndata:ä\u2028b\n\n".encode()),
    ],
)
def test_text_events(text: bytes, event: bytes) -> None:
    assert TEXT.event([text]) == event


def line_wise(text: bytes) -> bytes:
    """What an event is by definition: a ``data:`` line for each line, with a space before one that begins so."""
    lines = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    return b"event: data\n" + b"".join(b"data:" + b" " * line.startswith(b" ") + line + b"\n" for line in lines) + b"\n"


@given(st.one_of(st.binary(), st.text(alphabet=" \r\n:dat", max_size=40).map(str.encode)))
@example(b"\ndata: x")
@example(b" \n \n  \ndata:\n data: ")
def test_an_event_is_what_its_lines_make_it(text: bytes) -> None:
    assert TEXT.event([text]) == line_wise(text)


def test_a_text_of_nothing_but_line_breaks_takes_memory_as_its_event_does() -> None:
    text = b"\n" * 500_000
    tracemalloc.start()
    event = TEXT.event([text])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(event) == 12 + 6 * 500_001 + 1
    assert peak < 4 * len(event), "no object for each line"


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=4))
def test_text_comes_out_as_it_went_in(texts: list[str]) -> None:
    """But for carriage returns, which an event stream cannot carry."""
    whole = "".join(texts)
    expected = whole.replace("\r\n", "\n").replace("\r", "\n")
    assert parse(TEXT.event([text.encode() for text in texts])) == [("data", expected)]


@given(st.text(alphabet=" \r\n:ad{}", max_size=30))
def test_nothing_breaks_out_of_an_event(text: str) -> None:
    found = parse(TEXT.event([text.encode()]) + control(5, 7, at_tail=True, closed=False))
    assert [name for name, _ in found] == ["data", "control"]


@given(st.lists(st.binary(), min_size=1, max_size=4))
def test_binary_comes_out_as_it_went_in(bodies: list[bytes]) -> None:
    ((name, data),) = parse(BINARY.event(bodies))
    assert (name, b64decode(data, validate=True)) == ("data", b"".join(bodies))


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=4), st.sampled_from([None, 2]))
def test_json_comes_out_as_it_went_in(values: list[str], indent: int | None) -> None:
    bodies = [json.dumps({"text": value}, indent=indent, ensure_ascii=False).encode() for value in values]
    ((name, data),) = parse(JSON.event(bodies))
    assert (name, json.loads(data)) == ("data", [{"text": value} for value in values])


@pytest.mark.parametrize(
    ("at_tail", "closed", "facts"),
    [
        (False, False, {"streamNextOffset": "0000000000000000_0000000000000005", "streamCursor": "7"}),
        (True, False, {"streamNextOffset": "0000000000000000_0000000000000005", "streamCursor": "7", "upToDate": True}),
        (True, True, {"streamNextOffset": "0000000000000000_0000000000000005", "streamClosed": True, "upToDate": True}),
    ],
)
def test_control(at_tail: bool, closed: bool, facts: dict[str, object]) -> None:
    event = control(5, 7, at_tail=at_tail, closed=closed)
    assert event.startswith(b"event: control\ndata:{"), "no space: other readers look for just this"
    ((name, data),) = parse(event)
    assert (name, json.loads(data)) == ("control", facts)


def test_a_heartbeat_is_no_event() -> None:
    assert parse(HEARTBEAT) == []
    assert HEARTBEAT.endswith(b"\n\n")


@pytest.mark.parametrize("chosen", [TEXT, JSON, BINARY])
@given(
    body=st.one_of(
        st.binary(min_size=1, max_size=60),
        st.text(st.sampled_from("\r\n ax:"), min_size=1, max_size=60).map(str.encode),
    )
)
@example(body=b"ab\r\n \r\r\n\n  x\r")
def test_the_slices_of_an_event_are_the_event(chosen: Encoding, body: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tailrace.http.sse.PART_BYTES", 3)
        parts = [chosen.part(body, at) for at in range(0, len(body), 3)]
    assert chosen.opening + b"".join(parts) + chosen.closing == chosen.event([body])


def test_readers_of_a_large_event_share_its_slices() -> None:
    event = SharedEvent(TEXT, b"\n" * 1_000_000)
    assert event.part(0) is event.part(0)
    assert event.part(PART_BYTES) is event.part(PART_BYTES)
    for at in range(0, 1_000_000, PART_BYTES):
        assert len(event.part(at).data) <= 6 * PART_BYTES
