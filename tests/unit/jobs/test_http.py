"""The endpoints of jobs, stages and cold storage, and the client that uses them, over a real server."""

from __future__ import annotations

import io
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import msgspec
import pyarrow as pa
import pytest

from tailrace import limits
from tailrace.client import Client, bodies
from tailrace.errors import Conflict, Error, Forbidden, Invalid, NotFound, TooLarge, Unavailable
from tests.support.patience import PATIENCE_S
from tests.support.server import ServerProcess

MSGPACK = {"content-type": "application/vnd.msgpack"}
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.url) as made:
        made.create("copy", "application/json")
        made.create("docs", "text/plain")
        made.append("docs", b"12345")
        made.sql("CREATE TABLE orders (id TEXT PRIMARY KEY, n BIGINT)")
        made.sql("CREATE TOPIC news PARTITIONS 2")
        yield made


@pytest.fixture
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=PATIENCE_S) as made:
        yield made


# -- stages


def test_rows_are_staged_and_committed(client: Client) -> None:
    one = client.stage([["PUT", {"id": {"S": "a"}, "n": {"N": "1"}}]], table="orders")
    two = client.stage(
        [["PUT", {"id": {"S": "b"}, "n": {"N": "2.50"}}], ["DELETE", {"id": {"S": "x"}}]], table="orders"
    )
    assert one is not None and two is not None
    done = client.commit_stages("q1", 0, [one, two], table="orders", consumer="c1", ranges={7: (0, 5)})
    assert done == {"applied": True, "rows": 3, "positions": {7: 5}}
    assert client.commit_stages("q1", 0, [one, two], table="orders", consumer="c1", ranges={7: (0, 5)}) == {
        "applied": False,
        "rows": 0,
        "positions": {7: 5},
    }
    rows = client.sql("SELECT id, n FROM orders ORDER BY id")[0].rows
    assert [row["id"] for row in rows] == ["a", "b"]


def test_many_rows_go_in_chunks(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "CHUNK_BYTES", 1_000)
    rows = [b'{"n": %d}' % number for number in range(500)]
    stage = client.stage(iter(rows), stream="copy")
    assert stage is not None
    assert client.commit_stages("q2", 0, [stage], stream="copy")["rows"] == 500
    assert msgspec.json.decode(client.read("copy").body) == [{"n": number} for number in range(500)]
    assert client.stage([], stream="copy") is None


def test_messages_are_staged(client: Client) -> None:
    stage = client.stage([[b"k", b"one", None], [None, b"two", 1]], topic="news")
    assert stage is not None
    assert client.commit_stages("q3", 7, [stage], topic="news")["applied"]
    assert client.describe_topic("news")["partition_list"][1]["next_offset"] >= 1


def test_what_is_fenced_says_where_it_is(client: Client) -> None:
    client.commit_stages("q4", 0, [], stream="copy", consumer="c4", ranges={7: (0, 5)})
    with pytest.raises(Conflict) as caught:
        client.commit_stages("q4", 1, [], stream="copy", consumer="c4", ranges={7: (3, 9)})
    assert (caught.value.code, caught.value.facts) == ("FENCED", {"positions": {"7": 5}})
    assert client.commit_stages("q4", 1, [], stream="copy", consumer="c4", ranges={7: (6, 9)}, strict=False)["applied"]


def test_a_stage_is_dropped(client: Client) -> None:
    stage = client.stage([b"1"], stream="copy")
    assert stage is not None
    client.drop_stage(stage)
    with pytest.raises(NotFound, match="there is no stage"):
        client.drop_stage(stage)
    with pytest.raises(NotFound, match="there is no stage"):
        client.commit_stages("q5", 0, [stage], stream="copy")


@pytest.mark.parametrize(
    ("call", "kind", "why"),
    [
        (lambda c: c.stage([b"1"]), Invalid, "exactly one"),
        (lambda c: c.stage([b"1"], stream="copy", table="orders"), Invalid, "exactly one"),
        (lambda c: c.stage([b"{"], stream="copy"), Invalid, "row 0: the body is not valid JSON"),
        (lambda c: c.stage([object()], stream="copy"), Invalid, "cannot be sent"),
        (lambda c: c.stage([b"1"], stream="missing"), NotFound, "there is no stream 'missing'"),
        (lambda c: c.stage([["PUT", {}]], table="missing"), NotFound, "there is no table 'missing'"),
        (lambda c: c.stage([[None, b"x"]], topic="missing"), NotFound, "there is no topic 'missing'"),
        (lambda c: c.commit_stages("", 0, [], stream="copy"), Invalid, "cannot name a query"),
        (lambda c: c.commit_stages("q", -1, [], stream="copy"), Invalid, "batch"),
        (lambda c: c.commit_stages("q", 0, [], stream="copy", consumer="c"), Invalid, "go together"),
        (lambda c: c.drop_stage(""), Invalid, "cannot name a stage"),
    ],
)
def test_mistakes_are_reported(client: Client, call: Callable[[Client], Any], kind: type[Error], why: str) -> None:
    with pytest.raises(kind, match=why):
        call(client)


@pytest.mark.parametrize(
    ("method", "target", "options", "status", "code"),
    [
        ("POST", "/v1/stages", {"json": []}, 415, "WRONG_CONTENT_TYPE"),
        ("POST", "/v1/stages?stream=copy", {"content": b"", "headers": MSGPACK}, 400, "INVALID_ROWS"),
        ("POST", "/v1/stages?stream=copy", {"content": b"\x90", "headers": MSGPACK}, 400, "INVALID_ROWS"),
        ("POST", "/v1/stages?stream=copy", {"content": b"\xc1", "headers": MSGPACK}, 400, "INVALID_ROWS"),
        ("POST", "/v1/stages", {"content": b"\x90", "headers": MSGPACK}, 400, "INVALID_TARGET"),
        ("POST", "/v1/stages?stream=copy&x=1", {"content": b"\x90", "headers": MSGPACK}, 400, "INVALID_REQUEST"),
        ("POST", "/v1/stages?stream=a&stream=b", {"content": b"\x90", "headers": MSGPACK}, 400, "INVALID_REQUEST"),
        ("POST", "/v1/stages?stream=%ff", {"content": b"\x90", "headers": MSGPACK}, 400, "INVALID_REQUEST"),
        (
            "POST",
            "/v1/stages?stream=copy&stage=x&chunk=y",
            {"content": b"\x91\xc4\x011", "headers": MSGPACK},
            400,
            "INVALID_REQUEST",
        ),
        (
            "POST",
            "/v1/stages?stream=copy&stage=x",
            {"content": b"\x91\xc4\x011", "headers": MSGPACK},
            404,
            "STAGE_NOT_FOUND",
        ),
        ("GET", "/v1/stages", {}, 405, "METHOD_NOT_ALLOWED"),
        ("GET", "/v1/stages/x", {}, 405, "METHOD_NOT_ALLOWED"),
        ("POST", "/v1/stages/x/y", {}, 404, "NOT_FOUND"),
        ("GET", "/v1/stages/commit", {}, 405, "METHOD_NOT_ALLOWED"),
        ("POST", "/v1/stages/commit", {"json": {}}, 400, "INVALID_REQUEST"),
        ("POST", "/v1/stages/commit", {"content": b"{", "headers": JSON}, 400, "INVALID_REQUEST"),
        (
            "POST",
            "/v1/stages/commit",
            {"json": {"query": "q", "batch": 0, "target": {"stream": "copy"}, "stages": [], "more": 1}},
            400,
            "INVALID_REQUEST",
        ),
        (
            "POST",
            "/v1/stages/commit",
            {"json": {"query": "q", "batch": 0, "target": {}, "stages": []}},
            400,
            "INVALID_TARGET",
        ),
        (
            "POST",
            "/v1/stages/commit",
            {
                "json": {
                    "query": "q", "batch": 0, "target": {"stream": "copy"}, "stages": [], "consumer": "c",
                    "ranges": {"seven": [0, 1]},
                }
            },
            400,
            "INVALID_REQUEST",
        ),
        ("DELETE", "/v1/stages/x", {}, 404, "STAGE_NOT_FOUND"),
        ("POST", "/v1/jobs", {}, 405, "METHOD_NOT_ALLOWED"),
        ("POST", "/v1/jobs/x", {}, 405, "METHOD_NOT_ALLOWED"),
        ("GET", "/v1/jobs/x", {}, 404, "JOB_NOT_FOUND"),
        ("GET", "/v1/jobs/x/y", {}, 404, "NOT_FOUND"),
        ("GET", "/v1/jobs/x/pin", {}, 405, "METHOD_NOT_ALLOWED"),
        ("PUT", "/v1/jobs/x", {"json": {"kind": "view", "more": 1}}, 400, "INVALID_REQUEST"),
        ("PUT", "/v1/jobs/x", {"json": {"kind": ""}}, 400, "INVALID_NAME"),
        ("PUT", "/v1/jobs/x", {"json": {"kind": "view", "definition": []}}, 400, "INVALID_REQUEST"),
        (
            "PUT",
            "/v1/jobs/x",
            {"content": b'{"kind":"v","definition":{"n":1e999}}', "headers": JSON},
            400,
            "INVALID_REQUEST",
        ),
        ("PUT", "/v1/jobs/" + "x" * 300, {"json": {"kind": "view"}}, 400, "INVALID_NAME"),
        ("POST", "/v1/jobs/x/report", {"json": {"state": "running"}}, 404, "JOB_NOT_FOUND"),
        ("POST", "/v1/jobs/x/pin", {"json": {"positions": {"7": -1}}}, 400, "INVALID_REQUEST"),
        ("DELETE", "/v1/jobs/x", {}, 404, "JOB_NOT_FOUND"),
        ("POST", "/v1/cold", {}, 405, "METHOD_NOT_ALLOWED"),
        ("GET", "/v1/cold/attach", {}, 405, "METHOD_NOT_ALLOWED"),
        ("POST", "/v1/cold/x", {}, 404, "NOT_FOUND"),
        ("POST", "/v1/cold/attach", {"json": {}}, 400, "INVALID_TARGET"),
        ("POST", "/v1/cold/attach", {"json": {"table": "x"}}, 404, None),
        ("POST", "/v1/cold/tiered", {"json": {"place": "x", "generation": 1, "ranges": {}}}, 404, "PLACE_NOT_FOUND"),
        ("POST", "/v1/cold/forget", {"json": {"place": "x", "starts": {}}}, 404, "PLACE_NOT_FOUND"),
    ],
)  # fmt: skip
def test_bad_requests_get_a_clear_error(
    client: Client, http: httpx.Client, method: str, target: str, options: dict[str, Any], status: int, code: str | None
) -> None:
    answer = http.request(method, target, **options)
    assert answer.status_code == status, answer.text
    assert code is None or answer.json()["error"]["code"] == code, answer.text


def test_a_body_has_an_end(client: Client) -> None:
    with pytest.raises(TooLarge):
        client.stage([b'"%s"' % (b"x" * limits.BODY_BYTES_MAX)], stream="copy")


# -- jobs


def test_jobs_report_their_progress(client: Client) -> None:
    made = client.register_job(
        "nightly/α", "view", source="tables/orders", target="tables/x", definition={"n": [1, None]}
    )
    assert (made["state"], made["definition"], made["positions"]) == ("registered", {"n": [1, None]}, {})
    assert client.register_job(
        "nightly/α", "view", source="tables/orders", target="tables/x", definition={"n": [1, None]}
    )
    with pytest.raises(Conflict, match="it is a view"):
        client.register_job("nightly/α", "tier")
    job = client.report_job("nightly/α", "running", rows=5, message="fine")
    assert (job["state"], job["rows"], job["message"]) == ("running", 5, "fine")
    assert client.pin("nightly/α", {7: 3}) == {7: 3}
    assert client.pin("nightly/α", {7: 4, 8: 1}) == {7: 3, 8: 1}
    assert client.job("nightly/α")["positions"] == {7: 3, 8: 1}
    (listed,) = [each for each in client.jobs() if each["name"] == "nightly/α"]
    assert listed["positions"] == {7: 3, 8: 1}
    assert client.sql("SELECT state FROM system.pipelines WHERE kind = 'view'")[0].rows == [{"state": "running"}]
    client.drop_job("nightly/α")
    with pytest.raises(NotFound):
        client.job("nightly/α")


def test_jobs_are_paused_and_resumed(client: Client, http: httpx.Client) -> None:
    client.register_job("nightly", "snapshot")
    assert client.job("nightly")["paused"] is False
    paused = client.pause_job("nightly")
    assert paused["paused"] is True and paused["paused_at"] and paused["paused_by"]
    (listed,) = [each for each in client.jobs() if each["name"] == "nightly"]
    assert (listed["paused"], listed["paused_at"]) == (True, paused["paused_at"])
    rows = client.sql("SELECT paused, paused_by FROM system.pipelines WHERE name = 'nightly'")[0].rows
    assert rows == [{"paused": True, "paused_by": paused["paused_by"]}]
    resumed = client.resume_job("nightly")
    assert (resumed["paused"], resumed["paused_at"], resumed["paused_by"]) == (False, None, None)
    assert http.post("/v1/jobs/nobody/pause").status_code == http.post("/v1/jobs/nobody/resume").status_code == 404
    client.drop_job("nightly")


# -- cold storage


def test_marks_move_over_http(client: Client, http: httpx.Client) -> None:
    answer = http.post("/v1/cold/attach", json={"stream": "docs"})
    assert answer.status_code == 200, answer.text
    cold = client.cold()
    assert cold["url"]
    (place,) = [each for each in cold["places"] if each["name"] == "streams"]
    (tier,) = place["logs"]
    assert (place["generation"], tier["start"], tier["tiered"]) == (0, 0, 0)
    assert client.tiered("streams", 1, {tier["log"]: (0, 5)}) == 1
    with pytest.raises(Conflict) as caught:
        client.tiered("streams", 1, {tier["log"]: (0, 5)})
    assert (caught.value.code, caught.value.facts) == ("FENCED", {"generation": 1, "tiered": {str(tier["log"]): 5}})
    assert client.forget("streams", {tier["log"]: 5}) == {"starts": {str(tier["log"]): 5}}
    assert http.post("/v1/cold/detach", json={"stream": "docs"}).status_code == 200


# -- what comes as Arrow


class Once:
    """A server that answers one request with these bytes, and hangs up."""

    def __init__(self, *pieces: bytes) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._pieces = pieces
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            while b"\r\n\r\n" not in connection.recv(65536):
                pass
            for piece in self._pieces:
                connection.sendall(piece)


def arrow_stream(batches: int) -> bytes:
    sink = io.BytesIO()
    schema = pa.schema([("n", pa.int64())])
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in range(batches):
            writer.write_batch(pa.record_batch([pa.array(range(batch * 10, batch * 10 + 10))], schema=schema))
    return sink.getvalue()


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/vnd.apache.arrow.stream\r\ntailrace-sequence: 7\r\n"


def chunked(*bodies: bytes, end: bool = True) -> list[bytes]:
    pieces = [b"%x\r\n%b\r\n" % (len(body), body) for body in bodies]
    return [HEAD + b"transfer-encoding: chunked\r\n\r\n", *pieces, *([b"0\r\n\r\n"] if end else [])]


def test_batches_are_read_as_they_come() -> None:
    body = arrow_stream(3)
    server = Once(*chunked(body[:100], body[100:101], body[101:]))
    with Client(server.url) as client, client.arrow(stream="x", form="entries") as reader:
        assert [batch.num_rows for batch in reader] == [10, 10, 10]
    server = Once(*chunked(body))
    with Client(server.url) as client, client.items("orders") as (sequence, reader):
        assert sequence == 7
        assert reader.read_all().column("n").to_pylist() == list(range(30))


@pytest.mark.parametrize("end", [False, True], ids=["broken off", "ended too early"])
@pytest.mark.parametrize("cut", [10, 300, -8, -20])
def test_a_stream_that_is_cut_raises(cut: int, end: bool) -> None:
    server = Once(*chunked(arrow_stream(3)[:cut], end=end))
    client = Client(server.url)
    with pytest.raises(Unavailable, match="broke off") as caught, client, client.arrow(stream="x") as reader:
        for _ in reader:
            pass
    assert caught.value.code == "CUT_OFF"


def test_a_stream_of_known_length_that_is_cut_raises() -> None:
    body = arrow_stream(3)
    server = Once(HEAD + b"content-length: %d\r\n\r\n" % len(body), body[:-100])
    client = Client(server.url)
    with pytest.raises(Unavailable, match="broke off"), client, client.arrow(stream="x") as reader:
        reader.read_all()


def test_errors_are_ours() -> None:
    body = b'{"error":{"code":"FORBIDDEN","message":"you may not"}}'
    server = Once(
        b"HTTP/1.1 403 Forbidden\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body), body
    )
    with pytest.raises(Forbidden, match="you may not"), Client(server.url) as client, client.arrow(stream="x"):
        pass
    server = Once(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 2\r\n\r\nhi")
    client = Client(server.url)
    with pytest.raises(Unavailable, match="not answered in Arrow"), client, client.arrow(stream="x"):
        pass
    server = Once(*chunked(b"this is no Arrow at all, but long enough"))
    with pytest.raises(Unavailable), Client(server.url) as client, client.arrow(stream="x"):
        pass


def test_a_reader_that_leaves_early_closes_the_answer(client: Client) -> None:
    server = Once(*chunked(arrow_stream(50)))
    with Client(server.url) as mine, mine.arrow(stream="x") as reader:
        assert reader.read_next_batch().num_rows == 10
    with pytest.raises(NotFound), client.arrow(stream="missing"):
        pass
