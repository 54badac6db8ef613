"""What the specification of topics left open, and how it is resolved: each case by name, against a real server.

`way` is how a client consumes: over HTTP or with SQL. SQL answers at once, so who waits does it over HTTP. What is
about losing messages (retention, too many attempts) is in `test_topics_loss`.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace import limits
from tailrace.config import TopicsConfig
from tests.integration.topics import AT_ONCE_S, DEADLINE_S, HTTP_WAYS, Delivered, Refused, Site, Way, fresh, until
from tests.support.server import ServerProcess

SHORT_S = 0.3  # a lease that runs out within the test


@pytest.fixture(scope="module")
def site(server: ServerProcess) -> Iterator[Site]:
    found = Site(server.url)
    yield found
    found.close()


@pytest.fixture(params=["/v1/api", "sql"])
def way(site: Site, request: pytest.FixtureRequest) -> Way:
    return Way(site, request.param)


@pytest.fixture
def http(site: Site) -> Way:
    return Way(site, "/v1/api")


@pytest.fixture
def topic(site: Site) -> str:
    """A topic with the messages 0 to 9."""
    name = fresh()
    site.sql(f"CREATE TOPIC {name}")
    site.publish(name, list(range(10)))
    return name


@pytest.fixture
def empty(site: Site) -> str:
    name = fresh()
    site.sql(f"CREATE TOPIC {name}")
    return name


# -- `start` when the group already has a position


@pytest.mark.parametrize("start", ["Earliest", "Latest", {"Offset": 2}])
def test_start_counts_only_for_the_first_consume_of_a_group(way: Way, topic: str, start: Any) -> None:
    assert way.consume(topic, "g", start={"Offset": 5}, limit=2).offsets == [5, 6]
    assert way.consume(topic, "g", start=start, limit=2).offsets == [7, 8]
    assert way.ack(topic, "g", 8) == 8
    assert way.consume(topic, "g", start=start).offsets == [9]


def test_start_is_persisted_by_a_first_consume_that_found_nothing(way: Way, topic: str) -> None:
    """Else what is published between two polls from the end would be lost."""
    assert way.consume(topic, "g", start="Latest").messages == []
    way.site.publish(topic, [10, 11])
    assert way.consume(topic, "g", start="Latest").offsets == [10, 11]


def test_start_of_each_partition_is_its_own(way: Way) -> None:
    name = fresh()
    way.site.sql(f"CREATE TOPIC {name} PARTITIONS 2")
    for partition in (0, 1):
        way.site.publish(name, [0, 1, 2], partition=partition)
    assert way.consume(name, "g", start="Earliest", partition=0, limit=1).offsets == [0]
    assert way.consume(name, "g", start={"Offset": 2}, partition=1).offsets == [2]
    assert way.consume(name, "g", start={"Offset": 2}, partition=0, limit=1).offsets == [1]


@pytest.mark.parametrize(
    ("to", "offsets"), [("EARLIEST", list(range(10))), ("LATEST", [10]), ("OFFSET 4", list(range(4, 10)))]
)
def test_only_a_reset_moves_a_group(way: Way, topic: str, to: str, offsets: list[int]) -> None:
    way.consume(topic, "g", start={"Offset": 5}, limit=2)
    way.ack(topic, "g", 6)
    way.site.sql(f"RESET CONSUMER GROUP 'g' ON {topic} TO {to}")
    if to == "LATEST":
        way.site.publish(topic, [10])
    assert way.consume(topic, "g", start={"Offset": 1}).offsets == offsets


def test_a_reset_to_a_time_goes_to_the_first_message_not_older(way: Way, topic: str) -> None:
    """Messages of another millisecond are made; what a clock says is in each message."""
    newest = way.consume(topic).messages[-1]["ts"]
    until(lambda: way.site.publish(topic, ["later"]) and way.consume(topic).messages[-1]["ts"] > newest, "a later one")
    later = [message["offset"] for message in way.consume(topic).messages if message["ts"] > newest]
    way.consume(topic, "g", start="Latest")
    way.site.sql(f"RESET CONSUMER GROUP 'g' ON {topic} TO TIMESTAMP {newest + 1}")
    assert way.consume(topic, "g").offsets == later


def test_without_a_group_start_is_honoured_each_time(way: Way, topic: str) -> None:
    for _ in range(2):
        found = way.consume(topic, start={"Offset": 7})
        assert (found.offsets, found.next_offset, found.lease) == ([7, 8, 9], 10, None)
        assert way.consume(topic, start="Earliest", limit=3).offsets == [0, 1, 2]
        assert way.consume(topic, start="Latest").messages == []
    assert way.site.topic(topic)["groups"] == [], "nothing is remembered"


def test_a_start_that_is_not_there_yet_means_what_comes_next(way: Way, topic: str) -> None:
    """So nothing is passed over; and for a group that has a position, it does not count."""
    for group in (None, "g"):
        found = way.consume(topic, group, start={"Offset": 12345})
        assert (found.messages, found.next_offset) == ([], 10)
    way.site.publish(topic, [10])
    assert way.consume(topic, "g", start={"Offset": 3}).offsets == [10]


# -- two consumers, one group


def test_two_consumers_of_a_group_get_disjoint_ranges(way: Way, topic: str) -> None:
    first = way.consume(topic, "g", consumer="a", limit=4)
    second = way.consume(topic, "g", consumer="b", limit=4)
    assert (first.offsets, second.offsets) == ([0, 1, 2, 3], [4, 5, 6, 7])
    assert first.lease != second.lease
    assert first.attempts == [1, 1, 1, 1]
    assert way.site.group(topic, "g")["in_flight"] == 8


def test_another_group_gets_everything_too(way: Way, topic: str) -> None:
    assert way.consume(topic, "g", consumer="a").offsets == way.consume(topic, "h", consumer="a").offsets


def test_a_lease_that_runs_out_is_delivered_again_to_another(way: Way, topic: str) -> None:
    way.consume(topic, "g", consumer="a", visibility_s=SHORT_S)
    again = way.expect(topic, "g", consumer="b")
    assert again.offsets == list(range(10))
    assert again.attempts == [2] * 10
    assert way.site.group(topic, "g")["redelivered"] == 10


def test_a_lease_lasts_sixty_seconds_by_default(http: Way, topic: str) -> None:
    """Extending without saying how long gives as much as consuming without saying it."""
    before_ms = time.time() * 1000
    held = http.consume(topic, "g", consumer="a")
    until_ms = http.extend(topic, "g", None, consumer="a", lease=held.lease)
    assert before_ms + 60_000 - 100 <= until_ms <= time.time() * 1000 + 60_000 + 100
    assert http.consume(topic, "g", consumer="b").messages == []


def test_extend_keeps_what_is_held(way: Way, topic: str) -> None:
    """The lease of the second consumer, as short as the first, marks when the first would have run out."""
    held = way.consume(topic, "g", consumer="a", limit=5, visibility_s=600)
    beside = way.consume(topic, "g", consumer="b", limit=5, visibility_s=600)
    way.extend(topic, "g", SHORT_S, consumer="a", lease=held.lease)
    way.extend(topic, "g", SHORT_S, consumer="b", lease=beside.lease)
    before_ms = time.time() * 1000
    until_ms = way.extend(topic, "g", 600, consumer="a", lease=held.lease)
    assert until_ms > before_ms + 599_000
    again = way.expect(topic, "g", consumer="c")
    assert again.offsets == [5, 6, 7, 8, 9]
    assert way.consume(topic, "g", consumer="c").messages == []
    assert way.ack(topic, "g", 4, consumer="a") == 4


def test_extend_of_what_another_has_by_now_is_refused(way: Way, topic: str) -> None:
    held = way.consume(topic, "g", consumer="a", visibility_s=SHORT_S)
    way.expect(topic, "g", consumer="b")
    with pytest.raises(Refused) as refused:
        way.extend(topic, "g", 60, consumer="a", lease=held.lease)
    assert (refused.value.status, refused.value.code) == (409, "LEASE_LOST")


def test_nack_gives_back_at_once_and_counts_the_attempt(way: Way, topic: str) -> None:
    held = way.consume(topic, "g", consumer="a", limit=5)
    way.nack(topic, "g", consumer="a", lease=held.lease)
    again = way.consume(topic, "g", consumer="b", limit=5)
    assert (again.offsets, again.attempts) == ([0, 1, 2, 3, 4], [2] * 5)


def test_nack_of_some_leaves_the_others_held(way: Way, topic: str) -> None:
    way.consume(topic, "g", consumer="a")
    way.nack(topic, "g", consumer="a", offset=3)
    way.nack(topic, "g", consumer="a", offset=6, upto=7)
    again = way.drained(topic, "g", 3, consumer="b")
    assert [offset for each in again for offset in each.offsets] == [3, 6, 7]
    assert way.consume(topic, "g", consumer="b").messages == []


def test_nack_gives_back_nothing_of_another(way: Way, topic: str) -> None:
    way.consume(topic, "g", consumer="a", limit=5)
    way.consume(topic, "g", consumer="b", limit=5)
    way.nack(topic, "g", consumer="a")
    assert way.consume(topic, "g", consumer="c").offsets == [0, 1, 2, 3, 4]


def test_nack_with_a_delay_keeps_messages_back(way: Way, topic: str) -> None:
    way.consume(topic, "g", consumer="a")
    way.nack(topic, "g", consumer="a", delay_s=60)
    assert way.consume(topic, "g", consumer="b").messages == []
    assert way.consume(topic, "g", consumer="a").messages == []


# -- ack UPTO with several consumers


def test_ack_covers_only_what_its_consumer_holds(way: Way, topic: str) -> None:
    way.consume(topic, "g", consumer="a", limit=4)
    way.consume(topic, "g", consumer="b", limit=4)
    assert way.ack(topic, "g", 7, consumer="b") == -1, "the floor is before what a holds"
    assert way.site.last_acked(topic, "g") == -1
    assert way.site.group(topic, "g")["in_flight"] == 4
    assert way.ack(topic, "g", 1, consumer="a") == 1
    assert way.ack(topic, "g", 3, consumer="a") == 7, "what b acknowledged long ago counts now"
    assert way.site.last_acked(topic, "g") == 7


def test_ack_of_one_who_holds_nothing_acknowledges_nothing(way: Way, topic: str) -> None:
    way.consume(topic, "g", consumer="a")
    assert way.ack(topic, "g", 9, consumer="stranger") == -1
    assert way.ack(topic, "g", 9) == -1, "nor of one without a name, which is another consumer"
    assert way.site.group(topic, "g")["in_flight"] == 10


def test_ack_without_consumer_is_by_all_callers_as_one(way: Way, topic: str) -> None:
    way.consume(topic, "g", limit=4)
    way.consume(topic, "g", limit=4)
    assert way.ack(topic, "g", 7) == 7


def test_ack_without_consumer_leaves_what_a_named_one_holds(way: Way, topic: str) -> None:
    way.consume(topic, "g", consumer="a", limit=4)
    way.consume(topic, "g", limit=4)
    assert way.ack(topic, "g", 7) == -1
    way.nack(topic, "g", consumer="a")
    assert way.consume(topic, "g", consumer="b", limit=10).offsets[:4] == [0, 1, 2, 3]


def test_ack_of_a_lease_covers_that_delivery_only(way: Way, topic: str) -> None:
    first = way.consume(topic, "g", consumer="a", limit=4)
    second = way.consume(topic, "g", consumer="a", limit=4)
    assert way.ack(topic, "g", 7, consumer="a", lease=second.lease) == -1
    assert way.ack(topic, "g", 3, consumer="a", lease=first.lease) == 7


def test_ack_of_what_another_has_by_now_leaves_it_to_that_one(way: Way, topic: str) -> None:
    held = way.consume(topic, "g", consumer="a", visibility_s=SHORT_S)
    assert way.expect(topic, "g", consumer="b").offsets == list(range(10))
    try:
        assert way.ack(topic, "g", 9, consumer="a", lease=held.lease) == -1
    except Refused as refused:
        assert (refused.status, refused.code) == (409, "LEASE_LOST")
    assert way.site.last_acked(topic, "g") == -1
    assert way.ack(topic, "g", 9, consumer="b") == 9


def test_ack_of_what_was_delivered_before_a_reset_acknowledges_nothing(way: Way, topic: str) -> None:
    held = way.consume(topic, "g", consumer="a")
    way.site.sql(f"RESET CONSUMER GROUP 'g' ON {topic} TO EARLIEST")
    with pytest.raises(Refused) as refused:
        way.ack(topic, "g", 9, consumer="a", lease=held.lease)
    assert refused.value.status == 400
    assert way.consume(topic, "g", consumer="b").offsets == list(range(10))
    assert way.ack(topic, "g", 9, consumer="a", lease=held.lease) == -1


def test_ack_leaves_what_was_given_back(way: Way, topic: str) -> None:
    way.consume(topic, "g", consumer="a")
    way.nack(topic, "g", consumer="a", offset=3)
    assert way.ack(topic, "g", 9, consumer="a") == 2
    assert way.consume(topic, "g", consumer="a").offsets == [3]
    assert way.ack(topic, "g", 3, consumer="a") == 9


# -- ack below the floor, beyond what was delivered


def test_ack_below_the_floor_does_nothing_and_tells_the_floor(way: Way, topic: str) -> None:
    way.consume(topic, "g", limit=6)
    assert way.ack(topic, "g", 5) == 5
    assert way.ack(topic, "g", 2) == 5
    assert way.ack(topic, "g", 5) == 5
    assert way.site.last_acked(topic, "g") == 5
    assert way.consume(topic, "g").offsets == [6, 7, 8, 9]


@pytest.mark.parametrize("upto", [4, 9, 10, 2**40])
def test_ack_beyond_what_was_delivered_is_refused_and_changes_nothing(way: Way, topic: str, upto: int) -> None:
    way.consume(topic, "g", limit=4)
    with pytest.raises(Refused) as refused:
        way.ack(topic, "g", upto)
    assert refused.value.status == 400
    assert str(upto) in refused.value.error["message"]
    assert way.site.last_acked(topic, "g") == -1
    assert way.site.group(topic, "g")["in_flight"] == 4
    assert way.ack(topic, "g", 3) == 3


def test_ack_of_a_group_that_never_consumed_is_refused(way: Way, topic: str) -> None:
    with pytest.raises(Refused) as refused:
        way.ack(topic, "nobody", 0)
    assert refused.value.status in (400, 404)
    assert way.site.topic(topic)["groups"] == []


# -- `next_offset`, `has_more` on an empty answer


def test_an_empty_answer_has_the_cursor_of_the_group(way: Way, topic: str) -> None:
    way.consume(topic, "g", limit=10)
    for upto in (3, 9):
        way.ack(topic, "g", upto)
        nothing = way.consume(topic, "g")
        assert (nothing.messages, nothing.next_offset, nothing.has_more) == ([], 10, False)


def test_an_empty_answer_while_others_hold_everything_has_no_more(way: Way, topic: str) -> None:
    way.consume(topic, "g", consumer="a")
    nothing = way.consume(topic, "g", consumer="b")
    assert (nothing.messages, nothing.next_offset, nothing.has_more) == ([], 10, False)


def test_an_empty_answer_of_an_empty_topic(way: Way, empty: str) -> None:
    for start in ("Earliest", "Latest"):
        nothing = way.consume(empty, f"g-{start}", start=start)
        assert (nothing.messages, nothing.next_offset, nothing.has_more, nothing.skipped) == ([], 0, False, 0)


def test_has_more_tells_what_can_be_delivered_now(way: Way, topic: str) -> None:
    first = way.consume(topic, "g", consumer="a", limit=4)
    assert (first.next_offset, first.has_more) == (4, True)
    rest = way.consume(topic, "g", consumer="b", limit=6)
    assert (rest.next_offset, rest.has_more) == (10, False)
    way.nack(topic, "g", consumer="a")
    again = way.consume(topic, "g", consumer="c", limit=1)
    assert (again.offsets, again.next_offset, again.has_more) == ([0], 1, True), "1 to 3 were given back"
    again = way.consume(topic, "g", consumer="c", limit=3)
    assert (again.offsets, again.has_more) == ([1, 2, 3], False)


# -- long-poll


def test_long_poll_is_woken_by_a_commit(http: Way, empty: str) -> None:
    with http.site.meanwhile(lambda: http.consume(empty, "g", timeout_s=DEADLINE_S)) as waiting:
        http.site.publish(empty, ["here"])
    assert waiting.result().values == ["here"]


def test_long_poll_is_woken_by_the_commit_of_a_table_write(http: Way, empty: str) -> None:
    table = fresh("chat")
    http.site.sql(f"CREATE TABLE {table} (id TEXT PRIMARY KEY); ALTER TOPIC {empty} ADD SOURCE {table} ON INSERT")
    with http.site.meanwhile(lambda: http.consume(empty, "g", timeout_s=DEADLINE_S)) as waiting:
        http.site.sql(f"INSERT INTO {table} VALUES ('m-1')")
    assert waiting.result().values == [{"id": "m-1"}]


def test_long_poll_without_a_group_is_woken_by_a_commit(http: Way, topic: str) -> None:
    with http.site.meanwhile(lambda: http.consume(topic, start="Latest", timeout_s=DEADLINE_S)) as waiting:
        http.site.publish(topic, ["here"])
    assert waiting.result().values == ["here"]


def test_long_poll_is_woken_by_the_end_of_a_lease(http: Way, topic: str) -> None:
    http.consume(topic, "g", consumer="a", visibility_s=1.5)
    with http.site.meanwhile(lambda: http.consume(topic, "g", consumer="b", timeout_s=DEADLINE_S)) as waiting:
        pass
    assert waiting.result().offsets == list(range(10))


def test_long_poll_is_woken_by_a_nack(http: Way, topic: str) -> None:
    http.consume(topic, "g", consumer="a")
    with http.site.meanwhile(lambda: http.consume(topic, "g", consumer="b", timeout_s=DEADLINE_S)) as waiting:
        http.nack(topic, "g", consumer="a", offset=4)
    assert (waiting.result().offsets, waiting.result().attempts) == ([4], [2])


def test_long_poll_is_woken_by_the_end_of_a_delay(http: Way, topic: str) -> None:
    http.consume(topic, "g", consumer="a")
    http.nack(topic, "g", consumer="a", delay_s=0.5)
    began_s = time.monotonic()
    assert http.consume(topic, "g", consumer="b", timeout_s=DEADLINE_S).offsets == list(range(10))
    assert time.monotonic() - began_s < AT_ONCE_S


def test_long_poll_is_woken_by_a_lease_shortened(http: Way, topic: str) -> None:
    """Who waits set an alarm for the end that a lease had; extending it to an earlier one must move the alarm."""
    held = http.consume(topic, "g", consumer="a", visibility_s=600)
    with http.site.meanwhile(lambda: http.consume(topic, "g", consumer="b", timeout_s=DEADLINE_S)) as waiting:
        http.extend(topic, "g", SHORT_S, consumer="a", lease=held.lease)
    assert waiting.result().offsets == list(range(10))


def test_long_poll_is_woken_by_a_reset(http: Way, topic: str) -> None:
    http.consume(topic, "g")
    http.ack(topic, "g", 9)
    with http.site.meanwhile(lambda: http.consume(topic, "g", timeout_s=DEADLINE_S)) as waiting:
        http.site.sql(f"RESET CONSUMER GROUP 'g' ON {topic} TO OFFSET 8")
    assert waiting.result().offsets == [8, 9]


def test_one_message_goes_to_one_of_those_who_wait(http: Way, empty: str) -> None:
    site = http.site
    with (
        site.meanwhile(lambda: http.consume(empty, "g", consumer="a", timeout_s=DEADLINE_S)) as first,
        site.meanwhile(lambda: http.consume(empty, "g", consumer="b", timeout_s=DEADLINE_S)) as second,
    ):
        site.publish(empty, ["one"])
        until(lambda: first.done() or second.done(), "one of them has it")
        assert site.group(empty, "g")["in_flight"] == 1
        site.publish(empty, ["two"])
    assert sorted(first.result().values + second.result().values) == ["one", "two"]


def test_long_poll_is_woken_by_what_sql_does(http: Way, topic: str) -> None:
    sql = Way(http.site, "sql")
    http.consume(topic, "g", consumer="a")
    with http.site.meanwhile(lambda: http.consume(topic, "g", consumer="b", timeout_s=DEADLINE_S)) as waiting:
        sql.nack(topic, "g", consumer="a", offset=4)
    assert waiting.result().offsets == [4]
    with http.site.meanwhile(lambda: http.consume(topic, "g", consumer="b", timeout_s=DEADLINE_S)) as waiting:
        http.site.sql(f"PUBLISH TO {topic} VALUES ('10')")
    assert waiting.result().offsets == [10]


def test_long_poll_is_woken_by_a_dead_letter(http: Way, topic: str, empty: str) -> None:
    http.site.sql(f"ALTER TOPIC {topic} SET (max_attempts = 1, dead_letter = '{empty}')")
    http.consume(topic, "g", limit=1)
    http.nack(topic, "g")
    with http.site.meanwhile(lambda: http.consume(empty, "undertaker", timeout_s=DEADLINE_S)) as waiting:
        assert http.consume(topic, "g", limit=1).offsets == [1]
    assert waiting.result().values == [0]


def test_long_poll_for_any_partition(http: Way) -> None:
    """Woken by a commit, a nack, and the drop of the topic, whichever partition it is."""
    site, name = http.site, fresh()
    site.sql(f"CREATE TOPIC {name} PARTITIONS 3")

    def consume(consumer: str) -> Delivered:
        return http.consume(name, "g", partition="any", consumer=consumer, timeout_s=DEADLINE_S)

    with site.meanwhile(lambda: consume("a")) as waiting:
        site.publish(name, ["here"], partition=2)
    assert (waiting.result().values, waiting.result().partition) == (["here"], 2)
    with site.meanwhile(lambda: consume("b")) as waiting:
        http.nack(name, "g", consumer="a", partition=2)
    assert (waiting.result().values, waiting.result().attempts) == (["here"], [2])
    with site.meanwhile(lambda: consume("c")) as waiting:
        site.sql(f"DROP TOPIC {name}")
    with pytest.raises(Refused) as refused:
        waiting.result()
    assert refused.value.status == 404


@pytest.mark.parametrize("prefix", HTTP_WAYS)
def test_a_client_that_left_never_claims(site: Site, empty: str, prefix: str) -> None:
    body = b'{"topic":"%b","group_id":"g","consumer_id":"gone","timeout_seconds":30}' % empty.encode()
    before = site.waiting()
    host, port = site.http.base_url.host, site.http.base_url.port
    assert port is not None
    for _ in range(3):
        with socket.create_connection((host, port)) as client:
            head = f"POST {prefix}/topics/consume HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            client.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            until(lambda: site.waiting() > before, "it waits")
        until(lambda: site.waiting() == before, "the server has seen it leave")
    site.publish(empty, ["kept"])
    delivered = Way(site, prefix).consume(empty, "g", consumer="b")
    assert (delivered.values, delivered.attempts) == (["kept"], [1])


def test_long_poll_times_out_with_an_empty_answer(http: Way, topic: str) -> None:
    http.consume(topic, "g")
    began_s = time.monotonic()
    nothing = http.consume(topic, "g", timeout_s=0.4)
    assert (nothing.messages, nothing.next_offset, nothing.has_more) == ([], 10, False)
    assert time.monotonic() - began_s >= 0.4


def test_long_poll_of_at_most_300_seconds(http: Way, empty: str) -> None:
    with http.site.meanwhile(lambda: http.consume(empty, "g", timeout_s=300)) as waiting:
        http.site.publish(empty, ["here"])
    assert waiting.result().values == ["here"]
    for timeout_s in (300.1, 1e9, -1):
        with pytest.raises(Refused) as refused:
            http.consume(empty, "g", timeout_s=timeout_s)
        assert refused.value.status == 400
        assert "timeout_seconds" in refused.value.error["message"]


def test_long_poll_waits_30_seconds_by_default(http: Way, empty: str) -> None:
    """The default is in the settings; that a request without a time-out waits is seen, not how long."""
    assert (TopicsConfig().default_consume_timeout, TopicsConfig().max_consume_timeout) == (30, 300)
    with http.site.meanwhile(lambda: http.consume(empty, "g", timeout_s=None)) as waiting:
        http.site.publish(empty, ["here"])
    assert waiting.result().values == ["here"]


def test_the_time_outs_come_from_the_settings(data_dir: Path, tmp_path: Path) -> None:
    settings = tmp_path / "tailrace.toml"
    settings.write_text("[topics]\ndefault_consume_timeout = 0.5\nmax_consume_timeout = 2\n")
    with ServerProcess.tailrace(data_dir, "--config", str(settings)) as server:
        site = Site(server.url)
        site.sql("CREATE TOPIC t")
        http = Way(site, "/api")
        began_s = time.monotonic()
        assert http.consume("t", "g", timeout_s=None).messages == []
        assert 0.5 <= time.monotonic() - began_s < limits.CONSUME_TIMEOUT_S, "as long as without the setting"
        with pytest.raises(Refused) as refused:
            http.consume("t", "g", timeout_s=3)
        assert refused.value.status == 400
        site.close()


# -- drop with waiters


@pytest.mark.parametrize("group", ["g", None])
def test_drop_answers_those_who_wait_with_404_at_once(http: Way, empty: str, group: str | None) -> None:
    with http.site.meanwhile(lambda: http.consume(empty, group, timeout_s=DEADLINE_S)) as waiting:
        http.site.sql(f"DROP TOPIC {empty}")
    with pytest.raises(Refused) as refused:
        waiting.result()
    assert (refused.value.status, refused.value.code) == (404, "TOPIC_NOT_FOUND")


def test_drop_answers_those_who_wait_though_the_name_is_taken_again(http: Way, empty: str) -> None:
    """Dropped and recreated in one request: the waiter was at the old one."""
    with http.site.meanwhile(lambda: http.consume(empty, "g", timeout_s=DEADLINE_S)) as waiting:
        http.site.sql(f"DROP TOPIC {empty}; CREATE TOPIC {empty}; PUBLISH TO {empty} VALUES ('1')")
    with pytest.raises(Refused) as refused:
        waiting.result()
    assert refused.value.status == 404


@pytest.mark.parametrize("how", ["topic", "group"])
def test_a_lease_of_what_was_dropped_is_none_of_what_came_after(way: Way, topic: str, how: str) -> None:
    """A slow consumer acknowledges what it had before; a consumer of its name has since got other messages."""
    held = way.consume(topic, "g", consumer="a")
    if how == "topic":
        way.site.sql(f"DROP TOPIC {topic}; CREATE TOPIC {topic}")
        way.site.publish(topic, list(range(10)))
    else:
        way.site.sql(f"DROP CONSUMER GROUP 'g' ON {topic}")
    assert way.consume(topic, "g", consumer="a").attempts == [1] * 10
    assert way.ack(topic, "g", 9, consumer="a", lease=held.lease) == -1
    assert way.site.group(topic, "g")["in_flight"] == 10


def test_a_topic_of_the_same_name_inherits_nothing(way: Way, topic: str) -> None:
    site, table, alias = way.site, fresh("chat"), fresh("alias")
    site.sql(f"CREATE TABLE {table} (id TEXT PRIMARY KEY); ALTER TOPIC {topic} ADD SOURCE {table} ON INSERT")
    site.sql(f"ALTER TOPIC {topic} SET (alias = '{alias}', retention_seconds = 3600)")
    way.consume(topic, "g", start={"Offset": 5}, limit=2)
    way.ack(topic, "g", 6)
    old = site.topic(topic)
    site.sql(f"DROP TOPIC {topic}")
    assert site.rows("SELECT * FROM system.topic_offsets WHERE topic = ?", topic) == []
    assert site.rows("SELECT * FROM system.topic_routes WHERE topic = ?", topic) == []
    for gone in (topic, alias):
        with pytest.raises(Refused) as refused:
            way.consume(gone, "g")
        assert refused.value.status == 404
    site.sql(f"CREATE TOPIC {topic}")
    new = site.topic(topic)
    assert new["topic_id"] != old["topic_id"]
    assert (new["alias"], new["retention_seconds"], new["groups"], new["routes"]) == (None, None, [], [])
    site.sql(f"INSERT INTO {table} VALUES ('m-1')")
    assert way.consume(topic, "g").messages == [], "no messages, no routes"
    assert site.publish(topic, ["first"]) == [0]
    delivered = way.consume(topic, "g")
    assert (delivered.offsets, delivered.attempts) == ([0], [1])


# -- names and aliases


def test_names_and_aliases_are_one_namespace_both_ways(site: Site) -> None:
    name, alias, other = fresh(), fresh("alias"), fresh()
    site.sql(f"CREATE TOPIC {name} WITH (alias = '{alias}'); CREATE TOPIC {other}")
    refusals = [
        f"CREATE TOPIC {alias}",
        f"CREATE TOPIC {fresh()} WITH (alias = '{name}')",
        f"CREATE TOPIC {fresh()} WITH (alias = '{alias}')",
        f"ALTER TOPIC {other} SET (alias = '{name}')",
        f"ALTER TOPIC {other} SET (alias = '{alias}')",
        f"ALTER TOPIC {alias} SET (alias = '{other}')",
    ]
    for statement in refusals:
        with pytest.raises(Refused) as refused:
            site.sql(statement)
        assert refused.value.status == 409, statement
    assert site.topic(other)["alias"] is None
    assert site.topic(alias)["name"] == name


def test_an_alias_that_is_given_up_is_free(site: Site) -> None:
    name, alias, second = fresh(), fresh("alias"), fresh("alias")
    site.sql(f"CREATE TOPIC {name} WITH (alias = '{alias}'); ALTER TOPIC {name} SET (alias = '{second}')")
    site.sql(f"CREATE TOPIC {alias}")
    assert site.topic(alias)["name"] == alias
    assert site.topic(second)["name"] == name
    site.sql(f"DROP TOPIC {second}; CREATE TOPIC {second}; CREATE TOPIC {name}")
    assert site.topic(second)["name"] == second


def test_if_not_exists_does_not_mistake_an_alias_for_the_topic(site: Site) -> None:
    """It may answer that the topic is there under this name, or that the name is taken; it must not make a second."""
    name, alias = fresh(), fresh("alias")
    site.sql(f"CREATE TOPIC {name} WITH (alias = '{alias}')")
    try:
        site.sql(f"CREATE TOPIC IF NOT EXISTS {alias}")
    except Refused as refused:
        assert refused.status == 409
    assert site.topic(alias)["name"] == name
