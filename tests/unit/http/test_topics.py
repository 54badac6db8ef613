"""Topics over HTTP: consume, ack, extend, nack and publish in the documented shapes, and what is refused."""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tailrace import limits
from tailrace.errors import Invalid
from tailrace.http import topics as http_topics
from tailrace.http.consume import SLICE_MESSAGES
from tailrace.http.message import Request
from tailrace.http.topics import PUBLISH_BODY_BYTES_MAX, parse_publish
from tailrace.streams.producer import ProducerClaim
from tailrace.topics.commands import ClearTopic, Outgoing, Publish
from tests.unit.http.messages import GROUP, TOPIC, Topics, encoded, offsets_of, payloads_of, run

JSON = {"content-type": "application/json"}


@pytest.mark.parametrize("root", ["/api/topics", "/v1/api/topics"])
def test_consume_and_ack_have_the_documented_shapes(data_dir: Path, root: str) -> None:
    async def work(topics: Topics) -> None:
        await topics.publish(b"\x00\xff", b"two", b"three")
        parameters = {"topic": TOPIC, "group_id": GROUP, "start": "Earliest", "limit": 2, "partition_id": 0}
        answer = (await topics.http.post(f"{root}/consume", json={**parameters, "timeout_seconds": 30})).json()
        first = answer["messages"][0]
        assert answer == {
            "messages": answer["messages"],
            "next_offset": 2,
            "has_more": True,
            "skipped": 0,
            "lease_id": answer["lease_id"],
            "partition_id": 0,
        }
        assert first == {
            "topic_id": first["topic_id"],
            "partition_id": 0,
            "offset": 0,
            "message_id": first["message_id"],
            "source_table": None,
            "op": "Publish",
            "ts": first["ts"],
            "payload_mode": "Full",
            "by": "system",
            "payload": "AP8=",
            "attempt": 1,
            "lease_id": answer["lease_id"],
        }
        assert isinstance(first["topic_id"], str)
        assert first["topic_id"].isdigit()
        assert payloads_of(answer) == [b"\x00\xff", b"two"]
        assert len({message["message_id"] for message in answer["messages"]}) == 2
        done = await topics.http.post(
            f"{root}/ack", json={"topic": TOPIC, "group_id": GROUP, "partition_id": 0, "upto_offset": 0}
        )
        assert done.json() == {"success": True, "acknowledged_offset": 0}
        assert (await topics.ok("ack", upto_offset=1))["acknowledged_offset"] == 1

    run(data_dir, work)


@pytest.mark.parametrize(
    ("start", "found"),
    [
        ("Earliest", [0, 1, 2]),
        ("eArLiEsT", [0, 1, 2]),
        (None, [0, 1, 2]),
        ("Latest", []),
        ("latest", []),
        ({"Offset": 1}, [1, 2]),
        ({"offset": 3}, []),
        ({"Timestamp": 0}, [0, 1, 2]),
    ],
)
@pytest.mark.parametrize("group", [GROUP, None])
def test_where_a_consumer_starts(data_dir: Path, start: Any, found: list[int], group: str | None) -> None:
    async def work(topics: Topics) -> None:
        await topics.publish(b"a", b"b", b"c")
        answer = await topics.consume(start=start, group_id=group)
        assert offsets_of(answer) == found
        again = await topics.consume(start=start, group_id=group)
        # A group's start counts once; without a group it counts each time, and nothing is leased.
        assert offsets_of(again) == ([] if group else found)
        assert again["lease_id"] is None
        if not group and found:
            assert again["messages"][0]["attempt"] == 0

    run(data_dir, work)


def test_a_start_that_is_left_out_is_the_earliest(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        await topics.publish(b"a")
        assert offsets_of(await topics.consume()) == [0]

    run(data_dir, work)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("consume", {"start": "Sometimes"}, "Sometimes"),
    ("consume", {"start": {"Offset": -1}}, "Offset"),
    ("consume", {"start": {"Offset": "7"}}, "Offset"),
    ("consume", {"start": {"Offset": True}}, "Offset"),
    ("consume", {"start": {"Offset": 1, "Timestamp": 2}}, "Offset"),
    ("consume", {"start": 7}, "start"),
    ("consume", {"limit": 0}, "10000"),
    ("consume", {"limit": 10_001}, "10000"),
    ("consume", {"limit": "10"}, "limit"),
    ("consume", {"limit": 1.5}, "limit"),
    ("consume", {"limit": True}, "limit"),
    ("consume", {"partition_id": 1}, "1"),
    ("consume", {"partition_id": -1}, "partition_id"),
    ("consume", {"partition_id": "some"}, "any"),
    ("consume", {"partition_id": "any", "group_id": None}, "group_id"),
    ("consume", {"timeout_seconds": 301}, "300"),
    ("consume", {"timeout_seconds": -1}, "timeout_seconds"),
    ("consume", {"timeout_seconds": "1"}, "timeout_seconds"),
    ("consume", {"timeout_seconds": 1e300}, "300"),
    ("consume", {"visibility_timeout_seconds": 0.01}, "visibility_timeout_seconds"),
    ("consume", {"visibility_timeout_seconds": 43_201}, "43200"),
    ("consume", {"group_id": ""}, "group"),
    ("consume", {"group_id": "g" * 257}, "256"),
    ("consume", {"group_id": 5}, "group_id"),
    ("consume", {"consumer_id": "c" * 257}, "256"),
    ("consume", {"surprise": 1}, "surprise"),
    ("ack", {"upto_offset": 99}, "99"),
    ("ack", {"upto_offset": -1}, "upto_offset"),
    ("ack", {}, "upto_offset"),
    ("ack", {"upto_offset": 0, "lease_id": "mine"}, "mine"),
    ("ack", {"upto_offset": 0, "partition_id": 3}, "3"),
    ("ack", {"upto_offset": 0, "surprise": 1}, "surprise"),
    ("extend", {"visibility_timeout_seconds": 43_201}, "43200"),
    ("nack", {"offset": 0, "from_offset": 0}, "from_offset"),
    ("nack", {"from_offset": 2, "upto_offset": 0}, "range"),
    ("nack", {"delay_seconds": -1}, "delay_seconds"),
    ("nack", {"delay_seconds": 43_201}, "43200"),
    ("publish", {}, "messages"),
    ("publish", {"messages": []}, "messages"),
    ("publish", {"messages": [{}]}, "messages[0]"),
    ("publish", {"messages": [{"value": 1}, {"value": 1, "payload": ""}]}, "messages[1]"),
    ("publish", {"messages": [{"payload": "!"}]}, "payload"),
    ("publish", {"messages": [{"value": 1, "partition_id": 1}]}, "1"),
    ("publish", {"messages": [{"value": 1, "surprise": 1}]}, "surprise"),
    ("publish", {"messages": [{"value": 1}] * 1_001}, "1000"),
    ("publish", {"messages": [{"value": 1}], "producer": {"id": "p", "epoch": 0}}, "sequence"),
    ("publish", {"messages": [{"value": 1}], "producer": {"id": "", "epoch": 0, "sequence": 0}}, "producer"),
]


def test_bad_input_names_the_value_and_changes_nothing(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        await topics.publish(b"a", b"b", b"c")
        assert offsets_of(await topics.consume(limit=1)) == [0]
        for what, body, named in REFUSED:
            status, _, message = await topics.refused(what, **body)
            assert status == 400, (what, body, message)
            assert named in message, (what, body, message)
        answer = await topics.consume()
        assert offsets_of(answer) == [1, 2]
        assert not answer["has_more"]

    run(data_dir, work)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff", b'{"topic":"\xff"}', b"[" * 100_000])
@pytest.mark.parametrize("what", ["consume", "ack", "extend", "nack", "publish"])
def test_a_body_that_is_no_object_is_refused(data_dir: Path, what: str, body: bytes) -> None:
    async def work(topics: Topics) -> None:
        answer = await topics.http.post(f"/v1/api/topics/{what}", content=body, headers=JSON)
        assert answer.status_code == 400, answer.text

    run(data_dir, work, make=False)


def test_a_topic_that_is_not_there(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        for timeout_s in (0, 5):
            assert (await topics.refused("consume", timeout_seconds=timeout_s))[:2] == (404, "TOPIC_NOT_FOUND")
            refused = await topics.refused("consume", timeout_seconds=timeout_s, group_id=None)
            assert refused[:2] == (404, "TOPIC_NOT_FOUND")
        assert (await topics.refused("ack", upto_offset=0))[0] == 404
        assert (await topics.refused("publish", messages=[{"value": 1}]))[0] == 404
        assert (await topics.http.post(f"/v1/topics/{TOPIC}", content=b"x")).status_code == 404
        assert (await topics.http.get(f"/v1/topics/{TOPIC}")).status_code == 404
        assert (await topics.http.get("/v1/topics")).json() == {"topics": []}

    run(data_dir, work, make=False)


def test_other_methods_and_paths(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        for path, allow in (("/v1/api/topics/consume", "POST"), ("/api/topics/ack", "POST")):
            answer = await topics.http.get(path)
            assert answer.status_code == 405
            assert allow in answer.headers["allow"]
        assert (await topics.http.delete(f"/v1/topics/{TOPIC}")).status_code == 405
        assert (await topics.http.post("/v1/topics")).status_code == 405
        for path in ("/v1/api/topics/x", f"/v1/topics/{TOPIC}/0", f"/v1/topics/{TOPIC}/zero/stream"):
            assert (await topics.http.get(path)).status_code == 404

    run(data_dir, work)


def test_two_consumers_hold_disjoint_ranges_and_each_acks_its_own(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        await topics.publish(*(b"%d" % number for number in range(10)))
        first = await topics.consume(consumer_id="a", limit=5)
        second = await topics.consume(consumer_id="b", limit=5)
        assert (offsets_of(first), offsets_of(second)) == ([0, 1, 2, 3, 4], [5, 6, 7, 8, 9])
        assert first["lease_id"] != second["lease_id"]
        # What b acknowledges does not cover what a holds: the floor says so.
        assert await topics.ok("ack", consumer_id="b", upto_offset=9) == {"success": True, "acknowledged_offset": -1}
        assert (await topics.ok("ack", consumer_id="a", upto_offset=4))["acknowledged_offset"] == 9

    run(data_dir, work)


def test_a_consume_acknowledges_the_batch_before(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        await topics.publish(*(b"%d" % number for number in range(6)))
        taken = await topics.consume(consumer_id="a", limit=3)
        ack = {"upto_offset": 2, "lease_id": taken["lease_id"]}
        more = await topics.consume(consumer_id="a", limit=3, ack=ack)
        assert offsets_of(more) == [3, 4, 5]
        # What is acknowledged is so at once, also where there is nothing to deliver and the consumer waits for it.
        waiting = topics.waiting(consumer_id="a", ack={"upto_offset": 5, "lease_id": more["lease_id"]})
        await topics.parked(1)
        assert (await topics.ok("ack", consumer_id="b", upto_offset=5))["acknowledged_offset"] == 5
        await topics.publish(b"6")
        assert offsets_of(await waiting) == [6]
        assert topics.db.metrics.acked == 6

    run(data_dir, work)


def test_an_ack_that_is_refused_claims_nothing(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        await topics.publish(b"0", b"1")
        await topics.consume(consumer_id="a", limit=1)
        refused = await topics.refused("consume", consumer_id="a", timeout_seconds=0, ack={"upto_offset": 9})
        assert refused[:2] == (400, "NOT_DELIVERED")
        refused = await topics.refused("consume", timeout_seconds=0, partition_id="any", ack={"upto_offset": 0})
        assert refused[0] == 400
        assert "partition_id" in refused[2]
        refused = await topics.refused("consume", group_id=None, timeout_seconds=0, ack={"upto_offset": 0})
        assert refused[0] == 400
        assert "group_id" in refused[2]
        found = await topics.consume(partition_id="any", consumer_id="a", ack={"upto_offset": 0, "partition_id": 0})
        assert offsets_of(found) == [1]

    run(data_dir, work)


def test_extend_and_nack(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        await topics.publish(b"a", b"b", b"c", b"d")
        taken = await topics.consume(consumer_id="a", visibility_timeout_seconds=60)
        longer = await topics.ok("extend", consumer_id="a", lease_id=taken["lease_id"], visibility_timeout_seconds=3600)
        assert longer == {"success": True, "lease_until": longer["lease_until"], "messages": 4}
        assert longer["lease_until"] > topics.db.clock.now_ms() + 3_500_000
        refused = await topics.refused("extend", consumer_id="b")
        assert refused[:2] == (409, "LEASE_LOST")
        assert await topics.ok("nack", consumer_id="a", offset=1) == {"success": True, "messages": 1}
        assert await topics.ok("nack", consumer_id="a", from_offset=2, upto_offset=3) == {
            "success": True,
            "messages": 2,
        }
        again = await topics.consume(consumer_id="b")
        assert [(each["offset"], each["attempt"]) for each in again["messages"]] == [(1, 2), (2, 2), (3, 2)]
        assert (await topics.ok("nack", consumer_id="b", delay_seconds=3600))["messages"] == 3
        later = await topics.consume(consumer_id="c")
        assert (later["messages"], later["has_more"], later["next_offset"]) == ([], False, 4)

    run(data_dir, work)


def test_retention_that_overtakes_a_group_is_reported(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        await topics.publish(b"a", b"b", b"c")
        await topics.consume(limit=1)
        await topics.db.aexecute(ClearTopic(TOPIC))
        await topics.publish(b"d")
        answer = await topics.consume()
        assert offsets_of(answer) == [3]
        assert answer["skipped"] == 2

    run(data_dir, work)


# -- publishing


def test_publish_takes_bytes_and_json(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        done = await topics.ok(
            "publish",
            messages=[
                {"payload": encoded(b"\x00\x01")},
                {"value": {"a": [1, None, "é"]}, "partition_id": 1},
                {"value": None},
                {"payload": ""},
            ],
        )
        assert done == {
            "messages": [
                {"partition_id": 0, "offset": 0},
                {"partition_id": 1, "offset": 0},
                {"partition_id": 0, "offset": 1},
                {"partition_id": 0, "offset": 2},
            ],
            "duplicate": False,
        }
        assert payloads_of(await topics.consume()) == [b"\x00\x01", b"null", b""]
        (value,) = payloads_of(await topics.consume(partition_id=1))
        assert value.decode().replace(" ", "") in ('{"a":[1,null,"é"]}', '{"a":[1,null,"\\u00e9"]}')

    run(data_dir, work, partitions=2)


def test_a_key_finds_its_partition_and_comes_with_the_message(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        places = []
        for _ in range(2):
            done = await topics.ok("publish", messages=[{"value": 1, "key": f"kéy {number}"} for number in range(20)])
            places.append([place["partition_id"] for place in done["messages"]])
        assert places[0] == places[1]
        assert len(set(places[0])) > 1
        raw = await topics.http.post(f"/v1/topics/{TOPIC}", content=b"raw", params={"key": "kéy 3"})
        assert raw.headers["topic-partition"] == str(places[0][3])
        field = await topics.http.post(f"/v1/topics/{TOPIC}", content=b"raw", headers={"topic-key": "kéy 3".encode()})
        assert field.headers["topic-partition"] == str(places[0][3])
        found = await topics.consume(partition_id=places[0][3])
        assert found["messages"][-1]["key"] == found["messages"][-2]["key"] == "kéy 3"

    run(data_dir, work, partitions=8)


def test_publish_is_all_or_nothing(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        assert (await topics.refused("publish", messages=[{"value": 1}, {"value": 2, "partition_id": 9}]))[0] == 400
        assert (await topics.consume())["messages"] == []

    run(data_dir, work)


def test_a_producers_duplicate_is_published_once(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        body = {"messages": [{"value": 1}, {"value": 2}], "producer": {"id": "p", "epoch": 0, "sequence": 0}}
        assert not (await topics.ok("publish", **body))["duplicate"]
        assert await topics.ok("publish", **body) == {"messages": [], "duplicate": True}
        gap = {**body, "producer": {"id": "p", "epoch": 0, "sequence": 2}}
        assert (await topics.refused("publish", **gap))[:2] == (409, "SEQUENCE_GAP")
        assert offsets_of(await topics.consume()) == [0, 1]

    run(data_dir, work)


def test_a_body_is_a_message(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        url = f"/v1/topics/{TOPIC}"
        plain = await topics.http.post(url, content=b"\xff{", headers={"content-type": "image/png"})
        assert plain.status_code == 204
        assert (plain.headers["topic-partition"], plain.headers["topic-offset"]) == ("0", "0")
        fields = {"producer-id": "p", "producer-epoch": "0", "producer-seq": "0"}
        sent = await topics.http.post(f"{url}?partition=1", content=b"once", headers=fields)
        assert sent.status_code == 200
        assert (sent.headers["topic-partition"], sent.headers["topic-offset"]) == ("1", "0")
        assert (sent.headers["producer-epoch"], sent.headers["producer-seq"]) == ("0", "0")
        again = await topics.http.post(f"{url}?partition=1", content=b"once", headers=fields)
        assert again.status_code == 204
        assert "topic-offset" not in again.headers
        gap = await topics.http.post(url, content=b"x", headers={**fields, "producer-seq": "5"})
        assert (gap.status_code, gap.headers["producer-expected-seq"]) == (409, "1")
        assert payloads_of(await topics.consume()) == [b"\xff{"]
        assert payloads_of(await topics.consume(partition_id=1)) == [b"once"]
        for query in ("?partition=2", "?partition=x", "?partition=-1", "?partition=1&partition=1", "?color=red"):
            assert (await topics.http.post(url + query, content=b"x")).status_code == 400, query
        both = await topics.http.post(f"{url}?key=a", content=b"x", headers={"topic-key": "a"})
        assert both.status_code == 400
        half = await topics.http.post(url, content=b"x", headers={"producer-id": "p"})
        assert half.status_code == 400

    run(data_dir, work, partitions=2)


def test_what_is_too_large_is_refused(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        large = b" " * (PUBLISH_BODY_BYTES_MAX + 1)
        assert (await topics.http.post("/v1/api/topics/publish", content=large, headers=JSON)).status_code == 413
        large = b" " * (limits.CONTROL_BODY_BYTES_MAX + 1)
        assert (await topics.http.post("/v1/api/topics/consume", content=large, headers=JSON)).status_code == 413
        large = b" " * (limits.MESSAGE_BYTES_MAX + 1)
        assert (await topics.http.post(f"/v1/topics/{TOPIC}", content=large)).status_code == 413
        invalid = b'{"topic":"%b","messages":[{"value":"\xff"}]}' % TOPIC.encode()
        assert (await topics.http.post("/v1/api/topics/publish", content=invalid, headers=JSON)).status_code == 400

    run(data_dir, work)


def test_an_answer_has_an_end(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        size = limits.CONSUME_BYTES // 4
        await topics.publish(*(bytes([number]) * size for number in range(6)))
        seen: list[bytes] = []
        while len(seen) < 6:
            answer = await topics.consume(limit=10_000)
            assert 1 <= len(answer["messages"]) <= 4
            seen += payloads_of(answer)
            assert answer["has_more"] == (len(seen) < 6)
        assert [payload[0] for payload in seen] == list(range(6))

    run(data_dir, work)


def test_many_messages_are_encoded_in_slices(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        count = SLICE_MESSAGES * 2 + 7
        for at in range(0, count, 500):
            await topics.publish(*(b"%d" % number for number in range(at, min(at + 500, count))))
        answer = await topics.consume(limit=count)
        assert payloads_of(answer) == [b"%d" % number for number in range(count)]
        assert not answer["has_more"]

    run(data_dir, work)


# -- MessagePack

NAMES = ["application/msgpack", "application/vnd.msgpack", "application/x-msgpack"]


async def packed(topics: Topics, accept: str = NAMES[0], **body: Any) -> tuple[str, Any]:
    """What a consumer gets that accepts something else than JSON, and its type."""
    body = {"topic": TOPIC, "group_id": GROUP, "timeout_seconds": 0, **body}
    answer = await topics.http.post("/v1/api/topics/consume", json=body, headers={"accept": accept})
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    return answer.headers["content-type"], msgspec.msgpack.decode(answer.content)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("group", [GROUP, None])
def test_messagepack_has_the_fields_of_json_and_payloads_as_bytes(data_dir: Path, name: str, group: str | None) -> None:
    async def work(topics: Topics) -> None:
        messages = (Outgoing(b"\x00\xff", b"k"), Outgoing(b""), Outgoing("é".encode()))
        await topics.db.aexecute(Publish(TOPIC, messages))
        kind, answer = await packed(topics, name, group_id=group)
        assert kind == name
        expected = await topics.consume(group_id=None if group is None else "another")
        for message in expected["messages"]:
            message["payload"] = b64decode(message["payload"])
            message["lease_id"] = answer["lease_id"]
        assert answer == {**expected, "lease_id": answer["lease_id"]}
        assert [each["payload"] for each in answer["messages"]] == [each.payload for each in messages]
        assert (answer["lease_id"] is None) == (group is None)

    run(data_dir, work)


@pytest.mark.parametrize("count", [0, 1, 15, 16, SLICE_MESSAGES, SLICE_MESSAGES + 1, SLICE_MESSAGES * 2 + 16])
def test_any_number_of_messages_is_one_array(data_dir: Path, count: int) -> None:
    async def work(topics: Topics) -> None:
        for at in range(0, count, 500):
            await topics.publish(*(b"%d" % number for number in range(at, min(at + 500, count))))
        _, answer = await packed(topics, limit=10_000)
        assert [each["payload"] for each in answer["messages"]] == [b"%d" % number for number in range(count)]
        assert answer["next_offset"] == count

    run(data_dir, work)


def test_ranges_of_several_attempts_are_one_array_in_both_formats(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        count = SLICE_MESSAGES + 30
        for at in range(0, count, 500):
            await topics.publish(*(b"%d" % number for number in range(at, min(at + 500, count))))
        for group, read in ((GROUP, packed), ("other", None)):
            taken = await topics.consume(group_id=group, limit=20)
            assert len(taken["messages"]) == 20
            await topics.ok("nack", group_id=group, from_offset=3, upto_offset=4)
            if read is None:
                answer = await topics.consume(group_id=group, limit=count)
            else:
                _, answer = await read(topics, group_id=group, limit=count)
            assert offsets_of(answer) == [3, 4, *range(20, count)]
            assert [each["attempt"] for each in answer["messages"]] == [2, 2, *[1] * (count - 20)]

    run(data_dir, work)


@pytest.mark.parametrize(
    "accept",
    ["*/*", "application/json", "application/json, application/msgpack;q=0.5", "application/msgpack;q=0", "x/msgpack"],
)
def test_json_is_sent_to_those_who_prefer_it(data_dir: Path, accept: str) -> None:
    async def work(topics: Topics) -> None:
        body = {"topic": TOPIC, "group_id": GROUP, "timeout_seconds": 0}
        answer = await topics.http.post("/v1/api/topics/consume", json=body, headers={"accept": accept})
        assert answer.headers["content-type"] == "application/json"
        assert answer.json()["messages"] == []

    run(data_dir, work)


def test_bodies_may_be_messagepack(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        headers = {"content-type": "application/msgpack"}

        async def post(what: str, body: Any) -> tuple[int, Any]:
            content = body if isinstance(body, bytes) else msgspec.msgpack.encode({"topic": TOPIC, **body})
            answer = await topics.http.post(f"/v1/api/topics/{what}", content=content, headers=headers)
            assert answer.headers["content-type"] == "application/json"  # nothing else was asked for; errors always are
            return answer.status_code, answer.json()

        status, published = await post("publish", {"messages": [{"payload": b"\x00\xff", "key": "k"}]})
        assert (status, published) == (200, {"messages": [{"partition_id": 0, "offset": 0}], "duplicate": False})
        status, answer = await post("consume", {"group_id": GROUP, "timeout_seconds": 0})
        assert status == 200
        assert payloads_of(answer) == [b"\x00\xff"]
        assert answer["messages"][0]["key"] == "k"
        status, answer = await post("publish", {"messages": [{"payload": b"1"}, {"value": 1}]})
        assert (status, answer["error"]["message"].split()[0]) == (400, "messages[1]")
        status, answer = await post("publish", {"messages": [{}] * (limits.PUBLISH_MESSAGES_MAX + 1)})
        assert (status, answer["error"]["message"].split(": ")[1]) == (
            400,
            f"Expected `array` of length <= {limits.PUBLISH_MESSAGES_MAX} - at `$.messages`",  # before they are decoded
        )
        for what in ("publish", "consume"):
            status, answer = await post(what, b"\xc1")
            assert status == 400
            assert "MessagePack" in answer["error"]["message"]
            assert (await post(what, {"surprise": 1}))[0] == 400
        assert (await post("publish", b" " * (PUBLISH_BODY_BYTES_MAX + 1)))[0] == 413
        assert (await post("consume", b" " * (limits.CONTROL_BODY_BYTES_MAX + 1)))[0] == 413

    run(data_dir, work)


# -- what there is


def test_topics_are_listed_and_described(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        await topics.create("app.dead")
        await topics.create(
            "app.full", 2, alias="full", retention_seconds=60, retention_max_bytes=1000, max_attempts=3,
            dead_letter="app.dead",
        )  # fmt: skip
        listed = (await topics.http.get("/v1/topics")).json()["topics"]
        assert [each["name"] for each in listed] == ["app.dead", "app.full", TOPIC]
        full = listed[1]
        assert full == {
            "topic_id": full["topic_id"],
            "name": "app.full",
            "alias": "full",
            "partitions": 2,
            "retention_seconds": 60,
            "retention_max_bytes": 1000,
            "max_attempts": 3,
            "dead_letter": "app.dead",
            "created_at": full["created_at"],
            "created_by": "system",
        }
        assert (await topics.http.get("/v1/topics/full")).json()["name"] == "app.full"
        await topics.publish(b"a", b"bc", b"d")
        await topics.consume(consumer_id="me", limit=2)
        await topics.ok("ack", consumer_id="me", upto_offset=0)
        shown = (await topics.http.get(f"/v1/topics/{TOPIC}")).json()
        (partition,), (group,) = shown["partition_list"], shown["groups"]
        assert partition == {
            "partition_id": 0, "start_offset": 0, "next_offset": 3, "messages": 3, "bytes": partition["bytes"],
        }  # fmt: skip
        assert group == {
            "group_id": GROUP, "partition_id": 0, "last_acked_offset": 0, "next_offset": 2, "lag": 2, "in_flight": 1,
            "pending": 0, "delivered": 2, "redelivered": 0, "lost": 0, "consumers": ["me"],
            "created_at": group["created_at"], "updated_at": group["updated_at"], "oldest_at": group["oldest_at"],
        }  # fmt: skip
        assert shown["routes"] == []

    run(data_dir, work)


def posted(messages: bytes, producer: bytes = b"null") -> Request:
    body = b'{"topic":"t","messages":%b,"producer":%b}' % (messages, producer)
    return Request(b"POST", b"/", b"", {b"content-type": b"application/json"}, body, peer="127.0.0.1")


def test_a_large_publish_of_many_objects_is_decoded_in_parts() -> None:
    values: list[Any] = [{"n": number, "o": [{}] * 30, "t": '"\\,{}[]' * 4} for number in range(1_000)]
    messages = [{"value": value, "key": str(at)} for at, value in enumerate(values)]
    producer = b'{"id":"p","epoch":1,"sequence":2}'
    request = posted(b"  " + msgspec.json.encode(messages) + b" ", producer)
    assert len(request.body) > limits.LOOP_BYTES
    assert request.body.count(b"{") > limits.PUBLISH_MESSAGES_MAX
    command = parse_publish(request)
    assert [msgspec.json.decode(each.payload) for each in command.messages] == values
    assert [each.key for each in command.messages] == [b"%d" % number for number in range(1_000)]
    assert command.claim == ProducerClaim("p", 1, 2)
    assert command.heavy()
    messages[777] = {"value": values[777], "key": 5}
    with pytest.raises(Invalid, match=r"at `\$\.messages\[777\]\.key`"):
        parse_publish(posted(msgspec.json.encode(messages)))
    with pytest.raises(Invalid, match="Expected `array`"):
        parse_publish(posted(b'{"a":' + msgspec.json.encode(messages) + b"}"))


def test_of_a_publish_of_very_many_messages_few_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []

    class Watched:
        def decode(self, part: bytes) -> Any:
            decoded.append(len(part))
            return msgspec.json.decode(part, type=http_topics.PublishBodyPart)

    monkeypatch.setattr(http_topics, "_publish_part", Watched())
    with pytest.raises(Invalid, match="more than 1000 of them"):
        parse_publish(posted(b"[" + b"{}," * 1_300_000 + b"{}]"))
    assert sum(decoded) < 200_000


def test_a_publish_of_many_small_messages_runs_in_a_thread() -> None:
    assert not Publish(TOPIC, (Outgoing(b"x"),)).heavy()
    assert not Publish(TOPIC, (Outgoing(b"x"),) * limits.LOOP_MESSAGES).heavy()
    assert Publish(TOPIC, (Outgoing(b"x"),) * (limits.LOOP_MESSAGES + 1)).heavy()
    assert Publish(TOPIC, (Outgoing(b"x" * (limits.LOOP_BYTES + 1)),)).heavy()


def test_single_offsets_are_acknowledged(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        await topics.publish(*(b"%d" % number for number in range(6)))
        got = await topics.consume(limit=5, consumer_id="c")
        acked = await topics.ok("ack", offsets=[3, 1, 1], consumer_id="c", lease_id=got["lease_id"])
        assert acked == {"success": True, "acknowledged_offset": -1}
        assert (await topics.ok("ack", offsets=[0], consumer_id="c"))["acknowledged_offset"] == 1
        assert (await topics.ok("ack", offsets=[2, 4], consumer_id="other"))["acknowledged_offset"] == 1
        await topics.ok("nack", consumer_id="c")
        left = await topics.consume(consumer_id="d")
        assert offsets_of(left) == [2, 4, 5]
        more = {"offsets": [2, 4], "lease_id": left["lease_id"]}
        assert offsets_of(await topics.consume(consumer_id="d", ack=more)) == []
        assert (await topics.ok("ack", offsets=[5], consumer_id="d"))["acknowledged_offset"] == 5
        for body in ({"offsets": [], "upto_offset": 1}, {"offsets": [1], "upto_offset": 1}, {}, {"offsets": [-1]}):
            assert (await topics.refused("ack", consumer_id="d", **body))[0] == 400
        assert (await topics.refused("ack", consumer_id="d", offsets=[6]))[1] == "NOT_DELIVERED"

    run(data_dir, work)


def test_the_time_to_wait_may_be_a_preference(data_dir: Path) -> None:
    async def work(topics: Topics) -> None:
        async def consume(prefer: str, **body: Any) -> Any:
            body |= {"topic": TOPIC, "group_id": GROUP}
            return await topics.http.post("/v1/api/topics/consume", json=body, headers={"prefer": prefer})

        assert (await consume("respond-async, wait=0")).json()["messages"] == []
        assert (await consume("wait=9999", timeout_seconds=0)).json()["messages"] == []  # the body comes first
        for wrong in ("wait=9999", "wait=soon", "wait"):
            answer = await consume(wrong)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "INVALID_TIMEOUT")

    run(data_dir, work)
