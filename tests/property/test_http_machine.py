"""The Durable Streams API against the model, over real HTTP: statuses, headers, pages, entity tags.

The server answers in pages of a few bytes, so that every read has several. Time stands still here: what depends on
it is in `test_streams_machine.py`.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import httpx
import hypothesis.strategies as st
import pytest
from hypothesis import note, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.model import Answer, Fork, Model, Stream
from tests.support.patience import PATIENCE_S
from tests.support.server import ServerProcess, check
from tests.support.soak import examples

PAGE_BYTES = 12
NAMES = ["a", "b", "c/d", "é e"]
TYPES = st.sampled_from(["text/plain", "application/json", "application/octet-stream"])
BYTES = st.binary(min_size=1, max_size=20)
JSON = st.sampled_from([b'{"a":1}', b"[1,2,3]", b"[[1],[2]]", b'"x"', b' [ {"k": [1, 2]} , null ] ', b"[]", b"{"])
RARELY = st.sampled_from([False] * 7 + [True])

runs = itertools.count()
client = httpx.Client(timeout=PATIENCE_S, trust_env=False)


@pytest.fixture(scope="module", autouse=True)
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    data = tmp_path_factory.mktemp("http") / "data"
    with ServerProcess.tailrace(data, env={"TAILRACE_PAGE_BYTES": str(PAGE_BYTES)}) as server:
        client.base_url = httpx.URL(server.url)
        yield
    checked = check(data)
    assert checked.returncode == 0, f"tailrace check:\n{checked.stdout}{checked.stderr}"


class StreamsHttpMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = f"/v1/stream/run{next(runs)}"
        self.model = Model(beginning="-1")

    def url(self, path: str) -> str:
        return f"{self.root}/{path}"

    @initialize(kinds=st.lists(TYPES, min_size=2, max_size=2), data=st.data())
    def begin(self, kinds: list[str], data: st.DataObject) -> None:
        for path, kind in zip(NAMES, kinds, strict=False):
            self.send("PUT", path, self.model.create(path, kind), {"Content-Type": kind})
            for _ in range(data.draw(st.integers(0, 3), label="messages")):
                self._append(path, data)

    def some(self, data: st.DataObject, label: str = "path") -> str:
        return data.draw(st.sampled_from(sorted(self.model.streams) * 4 + NAMES), label=label)

    # -- requests

    @rule(kind=st.none() | TYPES, closed=RARELY, data=st.data())
    def create(self, kind: str | None, closed: bool, data: st.DataObject) -> None:
        path = self.some(data)
        headers = {} if kind is None else {"Content-Type": kind}
        if closed:
            headers["Stream-Closed"] = "true"
        self.send("PUT", path, self.model.create(path, kind, closed=closed), headers)

    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        path, source = self.some(data), self.some(data, "source")
        stream = self.model.streams.get(source)
        headers = {"Stream-Forked-From": httpx.URL(self.url(source)).raw_path.decode()}
        index, sub = None, 0
        if stream is not None:
            index = data.draw(st.none() | st.integers(0, len(stream.messages)), label="index")
            if index is not None:
                headers["Stream-Fork-Offset"] = stream.offsets[index]
                sub = data.draw(st.sampled_from([0, 0, 1, 2, 30]), label="sub")
                headers |= {"Stream-Fork-Sub-Offset": str(sub)} if sub else {}
        self.send("PUT", path, self.model.create(path, fork=Fork(source, index, sub)), headers)

    @rule(data=st.data(), close=RARELY, seq=st.none() | st.sampled_from(["1", "10", "2"]))
    def append(self, data: st.DataObject, close: bool, seq: str | None) -> None:
        self._append(self.some(data), data, close=close, seq=seq)

    @rule(
        data=st.data(), epoch=st.sampled_from([0, 0, 0, 0, 1, -1]), step=st.sampled_from([1, 1, 1, 0, 2]), close=RARELY
    )
    def produce(self, data: st.DataObject, epoch: int, step: int, close: bool) -> None:
        path = self.some(data)
        stream = self.model.streams.get(path)
        known = stream.producers.get("p", (0, -1)) if stream is not None else (0, -1)
        sequence = 0 if epoch == 1 else max(0, known[1] + step)
        self._append(path, data, close=close, producer=("p", max(0, known[0] + epoch), sequence))

    def _append(self, path: str, data: st.DataObject, **options: Any) -> None:
        stream = self.model.streams.get(path)
        right = stream.content_type if stream is not None else "text/plain"
        kind = data.draw(st.sampled_from([right] * 9 + ["a/b"]), label="type")
        empty = data.draw(RARELY, label="empty")
        body = b"" if empty else data.draw(JSON if right == "application/json" else BYTES, label="body")
        headers = {"Content-Type": kind}
        if options.get("close"):
            headers["Stream-Closed"] = "True"
        if options.get("seq") is not None:
            headers["Stream-Seq"] = options["seq"]
        producer = options.get("producer")
        if producer is not None:
            names = ("Producer-Id", "Producer-Epoch", "Producer-Seq")
            headers |= dict(zip(names, map(str, producer), strict=True))
        answer = self.model.append(path, body, kind, **options)
        reply = self.send("POST", path, answer, headers, body)
        if producer is not None and answer.status < 300:
            known = self.model.streams[path].producers[producer[0]]
            assert (reply.headers["producer-epoch"], reply.headers["producer-seq"]) == tuple(map(str, known))
        if answer.status == 403:
            assert reply.headers["producer-epoch"] == str(self.model.streams[path].producers["p"][0])

    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        path = self.some(data)
        self.send("POST", path, self.model.append(path, close=True), {"Stream-Closed": "true"})

    @precondition(lambda self: len(self.model.live()) > 2)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        path = self.some(data)
        self.send("DELETE", path, self.model.delete(path), {})

    def send(
        self, method: str, path: str, answer: Answer, headers: dict[str, str], body: bytes = b""
    ) -> httpx.Response:
        """Send it and compare the answer with the model's."""
        note(f"{method} {path} {headers} {body!r}, expected {answer}")
        reply = client.request(method, self.url(path), headers=headers, content=body)
        assert reply.status_code == answer.status, f"{reply} {reply.text}, expected {answer}"
        if answer.status < 300 and method != "DELETE":
            assert ("stream-closed" in reply.headers) == answer.closed
            self.model.answered(path, reply.headers["stream-next-offset"])
        if answer.status == 201:
            assert httpx.URL(reply.headers["location"]).path == httpx.URL(self.url(path)).path
        if answer.status == 409 and answer.closed and method == "POST":
            assert reply.headers["stream-closed"] == "true"
            assert reply.headers["stream-next-offset"] == self.model.streams[path].tail
        if answer.status >= 400:
            assert reply.json()["error"]["code"]
        return reply

    # -- what is read

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        path = self.some(data)
        status, stream = self.model.find(path)
        if status != 200 or stream is None:
            assert client.get(self.url(path)).status_code == status
            assert client.head(self.url(path)).status_code == status
            return
        self.read_from(stream, data.draw(st.integers(0, len(stream.messages)), label="from"))
        now = client.get(self.url(path), params={"offset": "now"})
        assert now.headers["stream-next-offset"] == stream.tail
        assert now.content == (b"[]" if stream.json else b"")
        for bad in ("", "1", "-2", "now,now", f"{stream.tail}x"):
            assert client.get(self.url(path), params={"offset": bad}).status_code == 400

    def read_from(self, stream: Stream, index: int) -> None:
        """Page after page: complete, up to date and closed exactly at the end; each page once more is 304."""
        at, found = stream.offsets[index], []
        while True:
            page = client.get(self.url(stream.path), params={"offset": at})
            assert page.status_code == 200
            found.append(json.loads(page.content) if stream.json else page.content)
            after = page.headers["stream-next-offset"]
            assert after in stream.offsets
            assert page.headers["content-type"] == stream.content_type
            last = after == stream.tail
            assert ("stream-up-to-date" in page.headers) == last
            assert ("stream-closed" in page.headers) == (last and stream.closed)
            same = client.get(
                self.url(stream.path), params={"offset": at}, headers={"If-None-Match": page.headers["etag"]}
            )
            assert (same.status_code, same.content) == (304, b"")
            other = client.get(self.url(stream.path), params={"offset": at}, headers={"If-None-Match": '"other"'})
            assert other.content == page.content
            if last:
                break
            assert after > at
            at = after
        whole = list(itertools.chain(*found)) if stream.json else b"".join(found)
        assert whole == stream.content(index)

    @precondition(lambda self: any(not stream.closed for stream in self.model.live()))
    @rule(data=st.data(), how=st.sampled_from(["append", "close"]))
    def tag_changes(self, data: st.DataObject, how: str) -> None:
        """An entity tag of the tail does not hide what came after it: an append, or the closure alone."""
        open_ = sorted(stream.path for stream in self.model.live() if not stream.closed)
        path = data.draw(st.sampled_from(open_), label="path")
        stream = self.model.streams[path]
        tag = client.get(self.url(path), params={"offset": stream.tail}).headers["etag"]
        at = stream.tail
        if how == "close":
            self.send("POST", path, self.model.append(path, close=True), {"Stream-Closed": "true"})
        else:
            answer = self.model.append(path, b"7", stream.content_type)
            self.send("POST", path, answer, {"Content-Type": stream.content_type}, b"7")
        reply = client.get(self.url(path), params={"offset": at}, headers={"If-None-Match": tag})
        assert reply.status_code == 200
        assert ("stream-closed" in reply.headers) == (how == "close")

    @invariant()
    def heads_agree(self) -> None:
        for path in NAMES:
            status, stream = self.model.find(path)
            reply = client.head(self.url(path))
            assert reply.status_code == status
            if status == 200 and stream is not None:
                assert reply.headers["stream-next-offset"] == stream.tail
                assert ("stream-closed" in reply.headers) == stream.closed
                assert reply.headers["content-type"] == stream.content_type

    def teardown(self) -> None:
        for stream in self.model.live():
            self.read_from(stream, 0)


TestDoor = StreamsHttpMachine.TestCase
TestDoor.settings = settings(max_examples=examples(50), stateful_step_count=25)
