"""The official Durable Streams clients follow a topic's partition live while messages are published.

Live tests wait for what they expect, never for a time: each message follows a read that was seen.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from durable_streams import DurableStream, DurableStreamError, stream

import tailrace
from tailrace.topics.commands import CreateTopic
from tests.support.patience import PATIENCE_S
from tests.support.server import ServerProcess, check

pytestmark = pytest.mark.clients

HERE = Path(__file__).resolve().parent
MESSAGES = [b"one", b"\x00\xff", b'{"text": "drei"}', b"", b"x" * 100_000, "fünf".encode()]
NAMES = [f"app.feed{number}" for number in range(8)]
_unused = itertools.count()


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with a topic for each test."""
    data = tmp_path_factory.mktemp("topics") / "data"
    with tailrace.open(data) as db:
        for name in NAMES:
            db.execute(CreateTopic(name, 2))
    with ServerProcess.tailrace(data) as process:
        yield process
    checked = check(data)
    assert checked.returncode == 0, f"tailrace check:\n{checked.stdout}{checked.stderr}"


class Topic:
    """A topic that is published to over HTTP."""

    def __init__(self, url: str, name: str) -> None:
        self.url = f"{url}/v1/topics/{name}"
        self.feed = f"{self.url}/1/stream"

    def step(self, number: int) -> None:
        """Publish the next message to the partition that is followed, and one to the other."""
        with httpx.Client(timeout=PATIENCE_S) as http:
            for partition in (0, 1):
                answer = http.post(self.url, params={"partition": partition}, content=MESSAGES[number])
                assert answer.status_code == 204, answer.text
            assert answer.headers["topic-offset"] == str(number)


def judge(found: list[dict[str, Any]]) -> None:
    """That these are all messages of the partition, in order."""
    assert [b64decode(each["payload"], validate=True) for each in found] == MESSAGES
    assert [each["offset"] for each in found] == list(range(len(MESSAGES)))
    assert {(each["partition_id"], each["op"], each["source_table"]) for each in found} == {(1, "Publish", None)}
    assert len({each["message_id"] for each in found}) == len(MESSAGES)
    assert not any("attempt" in each or "lease_id" in each for each in found)
    assert [each["ts"] for each in found] == sorted(each["ts"] for each in found)


@pytest.fixture
def topic(topics: ServerProcess) -> Topic:
    return Topic(topics.url, NAMES[next(_unused)])


@pytest.fixture
def follow(request: pytest.FixtureRequest, topic: Topic) -> Iterator[subprocess.Popen[str]]:
    """follow.mjs on the partition, in the live mode that the test is parametrized with."""
    executable = shutil.which("node")
    assert executable is not None, "node is not installed; `make node-modules` installs it where it can"
    assert (HERE / "node_modules").is_dir(), f"{HERE}/node_modules is missing; run `make node-modules`"
    process = subprocess.Popen(
        [executable, "follow.mjs", topic.feed, request.param],
        cwd=HERE,
        env={**os.environ, "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.parametrize("follow", ["long-poll", "sse"], indirect=True)
def test_the_javascript_client_follows_a_partition(topic: Topic, follow: subprocess.Popen[str]) -> None:
    assert follow.stdout is not None
    found: list[dict[str, Any]] = []
    for line in follow.stdout:
        what, *rest = json.loads(line)
        if what == "ready":
            assert rest == [405]
        else:
            assert what == "record"
            found += rest
        if len(found) == len(MESSAGES):
            break
        topic.step(len(found))
    judge(found)


@pytest.mark.parametrize("live", ["long-poll", "sse"])
def test_the_python_client_follows_a_partition(topic: Topic, live: Any) -> None:
    topic.step(0)
    found: list[dict[str, Any]] = []
    with stream(topic.feed, offset="-1", live=live) as response:
        for message in response.iter_json():
            found.append(message)
            if len(found) == len(MESSAGES):
                break
            topic.step(len(found))
    judge(found)


def test_a_reader_goes_on_where_it_stopped(topic: Topic) -> None:
    found: list[dict[str, Any]] = []
    offset = "-1"
    for number in range(len(MESSAGES)):
        topic.step(number)
        with stream(topic.feed, offset=offset, live=False) as response:
            found += response.read_json()
            assert response.up_to_date
            offset = response.offset
    judge(found)


def test_a_partition_takes_no_appends(topic: Topic) -> None:
    topic.step(0)
    with DurableStream.connect(topic.feed) as handle:
        assert handle.content_type == "application/json"
        with pytest.raises(DurableStreamError) as refused:
            handle.append({"n": 1})
        assert refused.value.status == 405
    with stream(topic.feed, offset="-1", live=False) as response:
        assert len(response.read_json()) == 1
