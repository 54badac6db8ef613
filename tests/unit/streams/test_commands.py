"""Every branch of what can be done to a stream; what is refused names the value and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace.check import check_database
from tailrace.clock import ManualClock
from tailrace.command import Command
from tailrace.database import Database
from tailrace.errors import Closed, Conflict, Error, Gone, Invalid, NotFound, SequenceGap, StaleEpoch, Trimmed
from tailrace.log.log import CLOSED, DROPPED, Advanced
from tailrace.storage.sqlite import SqliteEngine
from tailrace.storage.table import META
from tailrace.streams.commands import (
    Append,
    Appended,
    CreatedStream,
    CreateStream,
    DeleteStream,
    Fork,
    TouchStream,
    check_retention,
)
from tailrace.streams.producer import PRODUCERS, ProducerClaim, ProducerState
from tailrace.streams.queries import DescribeStream, ListStreams, ReadStream
from tailrace.streams.stream import DEADLINES, RETAINED, STREAMS
from tests.migration.test_schema import TABLES

TEXT = "text/plain"


class Place:
    def __init__(self, directory: Path) -> None:
        self.clock = ManualClock()
        self.engine = SqliteEngine(directory)
        self.db = Database(self.engine, clock=self.clock, housekeeping_s=None)
        self.do = self.db.execute
        self.notices: list[Any] = []

    def listen(self, path: str) -> None:
        self.db.tail.subscribe(self.describe(path).log.id, self.notices.extend)

    def describe(self, path: str) -> Any:
        return self.do(DescribeStream(path))

    def text(self, path: str) -> bytes:
        return b"".join(self.bodies(path))

    def bodies(self, path: str) -> list[bytes]:
        found = self.do(ReadStream(path, None, 10**9))
        return [entry.body for entry in found.page.entries]

    def everything(self) -> dict[str, list[Any]]:
        """All rows of the database."""
        with self.engine.reader() as reader:
            return {name: list(reader.scan(table)) for name, table in TABLES.items()}

    def refused(self, command: Command[Any], kind: type[Error], match: str, *, code: str | None = None) -> Any:
        """Run a command that must fail, and change nothing."""
        before = self.everything()
        with pytest.raises(kind, match=match) as raised:
            self.do(command)
        assert type(raised.value) is kind
        if code is not None:
            assert raised.value.code == code
        assert self.everything() == before
        return raised.value


@pytest.fixture
def place(data_dir: Path) -> Iterator[Place]:
    place = Place(data_dir)
    yield place
    place.db.close()
    assert check_database(data_dir).findings == []


# -- create


def test_create(place: Place) -> None:
    created = place.do(CreateStream("a/b", "Text/Plain; charset=utf-8", b"hello"))
    assert isinstance(created, CreatedStream)
    assert (created.fresh, created.tail) == (True, 5)
    stream = created.stream
    assert (stream.path, stream.content_type, stream.closed, stream.deleted) == (
        "a/b",
        "Text/Plain; charset=utf-8",
        0,
        0,
    )
    assert stream.created_ms == place.clock.now_ms()
    assert place.text("a/b") == b"hello"


def test_create_without_a_content_type(place: Place) -> None:
    assert place.do(CreateStream("a")).stream.content_type == "application/octet-stream"


def test_create_again_finds_it(place: Place) -> None:
    place.do(CreateStream("a", TEXT, b"hello", ttl_s=60, max_bytes=100))
    again = place.do(CreateStream("a", "TEXT/plain; charset=x", b"ignored", ttl_s=60, max_bytes=100))
    assert (again.fresh, again.tail) == (False, 5)
    assert place.text("a") == b"hello"
    place.do(CreateStream("c", TEXT, b"x", closed=True))
    assert not place.do(CreateStream("c", TEXT, closed=True)).fresh


@pytest.mark.parametrize(
    ("command", "what"),
    [
        (CreateStream("a", "text/html", ttl_s=60, max_age_s=5), "content type"),
        (CreateStream("a", None, ttl_s=60, max_age_s=5), "content type"),
        (CreateStream("a", TEXT, ttl_s=61, max_age_s=5), "TTL or expiry"),
        (CreateStream("a", TEXT, max_age_s=5), "TTL or expiry"),
        (CreateStream("a", TEXT, expires_ms=5, max_age_s=5), "TTL or expiry"),
        (CreateStream("a", TEXT, ttl_s=60, max_age_s=6), "retention"),
        (CreateStream("a", TEXT, ttl_s=60), "retention"),
        (CreateStream("a", TEXT, ttl_s=60, max_age_s=5, max_bytes=9), "retention"),
        (CreateStream("a", TEXT, ttl_s=60, max_age_s=5, closed=True), "closure status"),
        (CreateStream("a", TEXT, ttl_s=60, max_age_s=5, fork=Fork("other")), "fork source or offset"),
    ],
)
def test_create_with_another_configuration(place: Place, command: CreateStream, what: str) -> None:
    place.do(CreateStream("a", TEXT, b"x", ttl_s=60, max_age_s=5))
    place.refused(
        command, Conflict, f"stream 'a' exists with a different {what}; delete it first", code="STREAM_EXISTS"
    )


@pytest.mark.parametrize(
    ("command", "match", "code"),
    [
        (CreateStream("", TEXT), "path is empty", "INVALID_PATH"),
        (CreateStream("a//b", TEXT), "'a//b' has an empty", "INVALID_PATH"),
        (CreateStream("__ds/x", TEXT), "reserved", "INVALID_PATH"),
        (CreateStream("a", "nonsense"), "'nonsense' is not a media type", "INVALID_CONTENT_TYPE"),
        (CreateStream("a", "application/json", b"{"), "not valid JSON", "INVALID_JSON"),
    ],
)
def test_create_refused(place: Place, command: CreateStream, match: str, code: str) -> None:
    place.refused(command, Invalid, match, code=code)


def test_a_refused_create_uses_no_number(place: Place) -> None:
    place.do(CreateStream("a"))
    place.refused(CreateStream("b", "application/json", b"{"), Invalid, "JSON")
    assert place.do(CreateStream("c")).stream.log == 2


def test_create_json(place: Place) -> None:
    assert place.do(CreateStream("a", "application/json", b"[1, 2]")).tail == 4
    assert place.text("a") == b"1, 2"
    assert place.do(CreateStream("b", "application/json", b"[]")).tail == 0
    assert place.do(CreateStream("c", "application/json")).tail == 0


def test_create_over_an_expired_one_starts_over(place: Place) -> None:
    first = place.do(CreateStream("a", TEXT, b"old", ttl_s=10))
    place.do(Append("a", b"er", TEXT, ProducerClaim("p", 0, 0)))
    place.clock.advance(10)
    second = place.do(CreateStream("a", "text/html", b"new"))
    assert second.fresh
    assert second.stream.log != first.stream.log
    assert place.text("a") == b"new"
    assert place.do(Append("a", b"!", "text/html", ProducerClaim("p", 0, 0))).duplicate is False, (
        "producers are forgotten"
    )
    place.db.sweep()


def test_create_keeps_lists_of_what_is_to_be_done(place: Place) -> None:
    place.do(CreateStream("a", TEXT, ttl_s=10))
    place.do(CreateStream("b", TEXT, expires_ms=5_000, expires_text="x"))
    place.do(CreateStream("c", TEXT, max_age_s=10))
    rows = place.everything()
    assert [(row.at_ms, row.path) for row in rows[DEADLINES.name]] == [
        (5_000, "b"), (place.clock.now_ms() + 10_000, "a"),
    ]  # fmt: skip
    assert [row.path for row in rows[RETAINED.name]] == ["c"]


@pytest.mark.parametrize("value", [0, -1, 10**17])
def test_retention_has_bounds(value: int) -> None:
    with pytest.raises(Invalid, match=f"max age {value} is out of range"):
        check_retention(value, None)
    with pytest.raises(Invalid, match=f"max bytes {value} is out of range"):
        check_retention(None, value)
    check_retention(1, 1)
    check_retention(None, None)


# -- append


def test_append(place: Place) -> None:
    place.do(CreateStream("a", TEXT))
    place.listen("a")
    assert place.do(Append("a", b"one", "text/PLAIN")) == Appended(3, False)
    assert place.do(Append("a", b"two", "text/plain;x=y")) == Appended(6, False)
    assert place.text("a") == b"onetwo"
    assert [type(notice) for notice in place.notices] == [Advanced, Advanced]


def test_append_json(place: Place) -> None:
    place.do(CreateStream("a", "application/json"))
    assert place.do(Append("a", b'[{"a": 1} , 2]', "application/json")).tail == 12
    assert place.bodies("a") == [b'{"a": 1} , 2']


def refused_appends() -> list[Any]:
    return [
        (Append("missing", b"x", TEXT), NotFound, "there is no stream 'missing'; create it with PUT", "NOT_FOUND"),
        (Append("a", b"", TEXT), Invalid, "the body is empty", "INVALID_REQUEST"),
        (Append("a", b"", None), Invalid, "the body is empty", "INVALID_REQUEST"),
        (Append("a", b"x", None), Invalid, "Content-Type is missing", "MISSING_CONTENT_TYPE"),
        (Append("a", b"x", "text/html"), Conflict, "'text/html' does not match the stream's", "CONTENT_TYPE_MISMATCH"),
        (Append("a", b"x", ""), Conflict, "does not match", "CONTENT_TYPE_MISMATCH"),
        (
            Append("a", b"x", TEXT, seq="b"),
            Conflict,
            "sequence conflict: Stream-Seq 'b' does not sort after the last one, 'b'",
            "SEQUENCE_REGRESSION",
        ),
        (Append("a", b"x", TEXT, seq="a"), Conflict, "does not sort after", "SEQUENCE_REGRESSION"),
        (Append("a", b"x", TEXT, seq="B"), Conflict, "does not sort after", "SEQUENCE_REGRESSION"),
        (Append("json", b"[]", "application/json"), Invalid, "the array is empty", "EMPTY_ARRAY"),
        (Append("json", b"[1", "application/json"), Invalid, "not valid JSON", "INVALID_JSON"),
        (
            Append("a", b"x", TEXT, ProducerClaim("p", 0, 5)),
            SequenceGap,
            "5 leaves a gap, 2 is expected",
            "SEQUENCE_GAP",
        ),
        (Append("a", b"x", TEXT, ProducerClaim("new", 0, 1)), SequenceGap, "0 is expected", "SEQUENCE_GAP"),
        (Append("a", b"x", TEXT, ProducerClaim("old", 2, 0)), StaleEpoch, "epoch 2 is stale", "STALE_EPOCH"),
        (
            Append("a", b"x", TEXT, ProducerClaim("old", 4, 3)),
            Invalid,
            "must start at sequence 0",
            "INVALID_EPOCH_SEQUENCE",
        ),
        (Append("a", b"", TEXT, ProducerClaim("p", 0, 2)), Invalid, "the body is empty", "INVALID_REQUEST"),
        (Append("closed", b"x", TEXT), Closed, "'closed' is closed and takes no more", "STREAM_CLOSED"),
        (Append("closed", b"x", TEXT, close=True), Closed, "is closed", "STREAM_CLOSED"),
        (Append("closed", b"x", TEXT, ProducerClaim("p", 0, 0)), Closed, "is closed", "STREAM_CLOSED"),
        (Append("closed", b"", None, ProducerClaim("p", 0, 0), close=True), Closed, "is closed", "STREAM_CLOSED"),
        (Append("expired", b"x", TEXT), NotFound, "it has expired", "NOT_FOUND"),
        (Append("deleted", b"x", TEXT), Gone, "was deleted; only its forks remain", "GONE"),
    ]


@pytest.fixture
def busy(place: Place) -> Place:
    """One of everything that an append can meet."""
    place.do(CreateStream("a", TEXT))
    place.do(Append("a", b"0", TEXT, ProducerClaim("p", 0, 0), seq="b"))
    place.do(Append("a", b"1", TEXT, ProducerClaim("p", 0, 1)))
    place.do(Append("a", b"2", TEXT, ProducerClaim("old", 3, 0)))
    place.do(CreateStream("json", "application/json"))
    place.do(CreateStream("closed", TEXT, b"end", closed=True))
    place.do(CreateStream("expired", TEXT, b"x", ttl_s=5))
    place.do(CreateStream("deleted", TEXT, b"x"))
    place.do(CreateStream("fork", fork=Fork("deleted")))
    place.do(DeleteStream("deleted"))
    place.clock.advance(5)
    return place


@pytest.mark.parametrize(("command", "kind", "match", "code"), refused_appends())
def test_append_refused(busy: Place, command: Append, kind: type[Error], match: str, code: str) -> None:
    busy.refused(command, kind, match, code=code)


def test_a_closed_stream_says_where_it_ended(busy: Place) -> None:
    error = busy.refused(Append("closed", b"x", TEXT), Closed, "closed")
    assert error.tail == 3


def test_stream_seq(place: Place) -> None:
    place.do(CreateStream("a", TEXT))
    for seq in ("1", "10", "2", "a", "ä"):  # as text, byte by byte
        place.do(Append("a", b"x", TEXT, seq=seq))
    place.do(Append("a", b"x", TEXT))
    assert place.describe("a").stream.seq == "ä"


def test_close(place: Place) -> None:
    place.do(CreateStream("a", TEXT))
    place.listen("a")
    assert place.do(Append("a", b"last", TEXT, close=True)) == Appended(4, True)
    assert [notice if notice == CLOSED else type(notice) for notice in place.notices] == [Advanced, CLOSED]
    assert place.describe("a").stream.closed == 1
    assert place.do(Append("a", close=True)) == Appended(4, True, True), "closing again does no harm"
    assert len(place.notices) == 2
    assert place.text("a") == b"last"


def test_close_alone(place: Place) -> None:
    place.do(CreateStream("a", TEXT, b"x"))
    assert place.do(Append("a", close=True)) == Appended(1, True)
    place.do(CreateStream("b", TEXT, b"x"))
    assert place.do(Append("b", b"", "text/html", close=True)) == Appended(1, True), "no body, no matching type"


# -- producers


def test_a_request_sent_twice_has_the_effect_of_one(place: Place) -> None:
    place.do(CreateStream("a", TEXT))
    claim = ProducerClaim("p", 0, 0)
    assert place.do(Append("a", b"x", TEXT, claim)) == Appended(1, False, False, 0)
    before = place.everything()
    for body in (b"x", b"other", b""):
        assert place.do(Append("a", body, TEXT, claim)) == Appended(1, False, True, 0)
    assert place.everything() == before
    assert place.do(Append("a", b"y", TEXT, ProducerClaim("p", 0, 1))) == Appended(2, False, False, 1)
    assert place.do(Append("a", b"x", TEXT, claim)) == Appended(2, False, True, 1), "the highest sequence is returned"
    assert place.do(Append("a", b"z", TEXT, ProducerClaim("q", 0, 0))) == Appended(3, False, False, 0)
    assert place.text("a") == b"xyz"


def test_a_new_epoch_begins_at_zero(place: Place) -> None:
    place.do(CreateStream("a", TEXT))
    place.do(Append("a", b"x", TEXT, ProducerClaim("p", 0, 0)))
    place.do(Append("a", b"y", TEXT, ProducerClaim("p", 7, 0)))
    with place.engine.reader() as reader:
        assert reader.get(PRODUCERS, 1, "p") == ProducerState(1, "p", 7, 0)


def test_a_duplicate_comes_before_all_other_checks(place: Place) -> None:
    """A retry is recognised though the stream has moved on: its Stream-Seq is old, its type wrong, it is closed."""
    place.do(CreateStream("a", TEXT))
    place.do(Append("a", b"x", TEXT, ProducerClaim("p", 0, 0), seq="a"))
    place.do(Append("a", b"y", TEXT, seq="b"))
    assert place.do(Append("a", b"x", TEXT, ProducerClaim("p", 0, 0), seq="a")).duplicate
    assert place.do(Append("a", b"x", "text/html", ProducerClaim("p", 0, 0))).duplicate
    place.do(Append("a", close=True))
    assert place.do(Append("a", b"x", TEXT, ProducerClaim("p", 0, 0))) == Appended(2, True, True, 0)


def test_a_close_by_a_producer_can_be_repeated(place: Place) -> None:
    place.do(CreateStream("a", TEXT))
    last = Append("a", b"x", TEXT, ProducerClaim("p", 0, 0), close=True)
    assert place.do(last) == Appended(1, True, False, 0)
    assert place.do(last) == Appended(1, True, True, 0)
    place.refused(Append("a", b"x", TEXT, ProducerClaim("p", 0, 1), close=True), Closed, "closed")
    place.do(CreateStream("b", TEXT))
    only = Append("b", claim=ProducerClaim("p", 0, 0), close=True)
    assert place.do(only) == Appended(0, True, False, 0)
    assert place.do(only) == Appended(0, True, True, 0)


def test_a_refused_append_does_not_count_for_its_producer(place: Place) -> None:
    place.do(CreateStream("a", "application/json"))
    place.refused(Append("a", b"{", "application/json", ProducerClaim("p", 0, 0)), Invalid, "JSON")
    assert place.do(Append("a", b"{}", "application/json", ProducerClaim("p", 0, 0))).duplicate is False


# -- delete, touch


def test_delete(place: Place) -> None:
    place.do(CreateStream("a", TEXT, b"x", ttl_s=5, max_bytes=5))
    place.listen("a")
    place.do(DeleteStream("a"))
    assert place.notices == [DROPPED]
    place.refused(Append("a", b"x", TEXT), NotFound, "no stream 'a'")
    place.refused(DeleteStream("a"), NotFound, "no stream 'a'")
    assert place.do(CreateStream("a", TEXT)).tail == 0
    place.db.sweep()


@pytest.mark.parametrize(("path", "kind"), [("missing", NotFound), ("expired", NotFound), ("deleted", Gone)])
def test_delete_refused(busy: Place, path: str, kind: type[Error]) -> None:
    busy.refused(DeleteStream(path), kind, path)


def test_touch(busy: Place) -> None:
    before = busy.everything()
    for path in ("missing", "expired", "deleted", "a"):
        busy.do(TouchStream(path))
    assert busy.everything() == before
    busy.do(CreateStream("ttl", TEXT, ttl_s=60))
    busy.clock.advance(30)
    busy.do(TouchStream("ttl"))
    assert busy.describe("ttl").stream.expires_ms == busy.clock.now_ms() + 60_000


# -- forks


@pytest.fixture
def source(place: Place) -> Place:
    """`s` has messages of 3, 3 and 4 bytes; `j` has entries of two and one JSON messages."""
    place.do(CreateStream("s", TEXT))
    for body in (b"abc", b"def", b"ghij"):
        place.do(Append("s", body, TEXT))
    place.do(CreateStream("j", "application/json"))
    place.do(Append("j", b'[1, "two"]', "application/json"))
    place.do(Append("j", b"3", "application/json"))
    return place


@pytest.mark.parametrize(
    ("fork", "expected"),
    [
        (Fork("s"), [b"abc", b"def", b"ghij"]),
        (Fork("s", 0), []),
        (Fork("s", 3), [b"abc"]),
        (Fork("s", 10), [b"abc", b"def", b"ghij"]),
        (Fork("s", 3, 1), [b"abc", b"d"]),
        (Fork("s", 3, 2), [b"abc", b"de"]),
        (Fork("s", 3, 3), [b"abc", b"def"]),
        (Fork("s", 0, 1), [b"a"]),
        (Fork("j", 0, 1), [b"1"]),
        (Fork("j", 0, 2), [b'1, "two"']),
        (Fork("j", 8, 1), [b'1, "two"', b"3"]),
        (Fork("j"), [b'1, "two"', b"3"]),
    ],
)
def test_fork(source: Place, fork: Fork, expected: list[bytes]) -> None:
    created = source.do(CreateStream("f", fork=fork))
    assert created.fresh
    assert source.bodies("f") == expected
    assert created.tail == sum(map(len, expected))
    assert created.stream.content_type == source.describe(fork.source).stream.content_type
    before = source.bodies(fork.source)
    source.do(Append("f", b"9", created.stream.content_type))
    source.do(Append(fork.source, b"8", created.stream.content_type))
    assert source.bodies("f") == [*expected, b"9"]
    assert source.bodies(fork.source) == [*before, b"8"]
    again = source.do(CreateStream("f", fork=fork))
    assert again.fresh is False


def test_fork_with_content_of_its_own(source: Place) -> None:
    source.do(CreateStream("f", TEXT, b"!", fork=Fork("s", 3)))
    assert source.bodies("f") == [b"abc", b"!"]
    source.do(CreateStream("g", fork=Fork("s", 3), closed=True))
    source.refused(Append("g", b"x", TEXT), Closed, "closed")


@pytest.mark.parametrize(
    ("fork", "kind", "match", "code"),
    [
        (Fork("missing"), NotFound, "there is no stream 'missing' to fork", "NOT_FOUND"),
        (Fork("s", 11), Invalid, "_0000000000000011 is beyond the source's tail", "INVALID_FORK_OFFSET"),
        (Fork("s", 4), Invalid, "lies inside a message", "INVALID_FORK_OFFSET"),
        (
            Fork("s", 3, 4),
            Invalid,
            "4 is past the end of the next message, which has 3 bytes",
            "INVALID_FORK_SUB_OFFSET",
        ),
        (Fork("s", 10, 1), Invalid, "needs a message after", "INVALID_FORK_SUB_OFFSET"),
        (Fork("s", None, 1), Invalid, "needs a message after", "INVALID_FORK_SUB_OFFSET"),
        (Fork("j", 0, 3), Invalid, "which has 2 messages", "INVALID_FORK_SUB_OFFSET"),
        (Fork("j", 1), Invalid, "lies inside a message", "INVALID_FORK_OFFSET"),
    ],
)
def test_fork_refused(source: Place, fork: Fork, kind: type[Error], match: str, code: str) -> None:
    """And leaks no reference: nothing at all has changed, the source's count of forks included."""
    source.refused(CreateStream("f", fork=fork), kind, match, code=code)


def test_fork_of_another_type_is_refused(source: Place) -> None:
    source.refused(
        CreateStream("f", "application/json", fork=Fork("s")),
        Conflict,
        "differs from the source's",
        code="CONTENT_TYPE_MISMATCH",
    )
    source.refused(CreateStream("f", "application/json", b"{", fork=Fork("j")), Invalid, "not valid JSON")


def test_fork_of_what_is_gone(source: Place) -> None:
    source.do(CreateStream("f", fork=Fork("s")))
    source.do(DeleteStream("s"))
    source.refused(
        CreateStream("g", fork=Fork("s")), Conflict, "'s' was deleted; only its forks remain; fork one of them"
    )
    source.do(CreateStream("g", fork=Fork("f")))
    source.do(CreateStream("t", TEXT, ttl_s=5))
    source.do(CreateStream("tf", fork=Fork("t"), ttl_s=500))
    source.do(CreateStream("u", TEXT, ttl_s=5))
    source.clock.advance(5)
    source.refused(CreateStream("h", fork=Fork("t")), Conflict, "only its forks remain")
    source.refused(CreateStream("h", fork=Fork("u")), NotFound, "it has expired")


def test_fork_below_what_is_retained(place: Place) -> None:
    place.do(CreateStream("s", TEXT, b"old", max_bytes=3))
    place.do(Append("s", b"new", TEXT))
    place.db.sweep()
    error = place.refused(
        CreateStream("f", fork=Fork("s", 0)), Trimmed, "earliest offset is 0000000000000000_0000000000000003"
    )
    assert error.earliest == 3
    place.do(CreateStream("f", fork=Fork("s", 3, 1), max_bytes=1000))
    assert place.text("f") == b"n"


@pytest.mark.parametrize(
    ("again", "same"),
    [
        (CreateStream("f", fork=Fork("s", 3, 1)), True),
        (CreateStream("f", fork=Fork("s", None, 1)), True),
        (CreateStream("f", TEXT, fork=Fork("s", 3, 1)), True),
        (CreateStream("f", TEXT, fork=Fork("s", 3, 2)), False),
        (CreateStream("f", TEXT, fork=Fork("s", 0, 1)), False),
        (CreateStream("f", TEXT, fork=Fork("j", 3, 1)), False),
        (CreateStream("f", TEXT), False),
        (CreateStream("f", "text/html", fork=Fork("s", 3, 1)), False),
        (CreateStream("f", fork=Fork("s", 3, 1), ttl_s=9), False),
        (CreateStream("f", fork=Fork("s", 3, 1), max_bytes=9), False),
    ],
)
def test_fork_again(source: Place, again: CreateStream, same: bool) -> None:
    source.do(CreateStream("f", fork=Fork("s", 3, 1)))
    if same:
        assert source.do(again).fresh is False
    else:
        source.refused(again, Conflict, "exists with a different", code="STREAM_EXISTS")


def test_a_fork_inherits_life_and_retention_unless_given_its_own(place: Place) -> None:
    place.do(CreateStream("s", TEXT, ttl_s=60, max_age_s=7, max_bytes=8))
    place.clock.advance(30)
    inherited = place.do(CreateStream("f", fork=Fork("s"))).stream
    assert (inherited.ttl_s, inherited.expires_ms) == (60, place.clock.now_ms() + 60_000)
    assert (inherited.max_age_s, inherited.max_bytes) == (7, 8)
    own = place.do(CreateStream("g", fork=Fork("s"), ttl_s=5, max_bytes=1)).stream
    assert (own.ttl_s, own.max_age_s, own.max_bytes) == (5, None, 1)
    place.do(CreateStream("t", TEXT, expires_ms=place.clock.now_ms() + 9_000, expires_text="at nine"))
    absolute = place.do(CreateStream("h", fork=Fork("t"))).stream
    assert (absolute.ttl_s, absolute.expires_ms, absolute.expires_text) == (
        None, place.clock.now_ms() + 9_000, "at nine",
    )  # fmt: skip


def test_a_fork_inherits_neither_producers_nor_seq_nor_closure(source: Place) -> None:
    source.do(Append("s", b"x", TEXT, ProducerClaim("p", 3, 0), seq="z", close=True))
    source.do(CreateStream("f", fork=Fork("s")))
    assert source.do(Append("f", b"y", TEXT, ProducerClaim("p", 0, 0), seq="a")).duplicate is False


def test_soft_deletion(source: Place) -> None:
    source.do(CreateStream("f", fork=Fork("s")))
    source.do(CreateStream("g", fork=Fork("f", 3)))
    source.do(DeleteStream("s"))
    for command in (Append("s", b"x", TEXT), DeleteStream("s")):
        source.refused(command, Gone, "only its forks remain")
    with pytest.raises(Gone):
        source.text("s")
    blocked = source.refused(
        CreateStream("s", TEXT), Conflict, "forks still read from it; delete them first", code="PATH_BLOCKED"
    )
    assert blocked.status == 409
    assert source.bodies("f") == [b"abc", b"def", b"ghij"]
    source.do(DeleteStream("f"))
    source.refused(CreateStream("f", TEXT), Conflict, "forks still read", code="PATH_BLOCKED")
    assert source.bodies("g") == [b"abc"]
    source.do(DeleteStream("g"))
    with pytest.raises(NotFound):
        source.text("s")
    source.do(CreateStream("s", TEXT))
    source.do(CreateStream("f", TEXT))
    source.db.sweep()
    assert [stream.path for stream in source.do(ListStreams())] == ["f", "j", "s"]


# -- queries


def test_list_streams(place: Place) -> None:
    for path in ("b", "a/2", "a/1", "c"):
        place.do(CreateStream(path))

    def listed(**parameters: Any) -> list[str]:
        return [stream.path for stream in place.do(ListStreams(**parameters))]

    assert listed() == ["a/1", "a/2", "b", "c"]
    assert listed(after="a/2") == ["b", "c"]
    assert listed(limit=2) == ["a/1", "a/2"]


def test_a_slice_knows_whether_it_is_the_end(place: Place) -> None:
    place.do(CreateStream("a", TEXT, b"x"))
    place.do(Append("a", b"y", TEXT, close=True))
    slices = [(0, 1), (0, 10), (1, 1), (2, 1)]
    found = [place.do(ReadStream("a", position, size)).closed for position, size in slices]
    assert found == [False, True, True, True]


def test_the_counter_and_the_streams_table_are_the_truth(place: Place) -> None:
    place.do(CreateStream("a"))
    with place.engine.reader() as reader:
        row = reader.get(META, "counter/log")
        assert row is not None
        assert row.value == b"1"
        assert reader.get(STREAMS, "a") is not None
