"""No message is lost: consumers die, give back and acknowledge out of order, and each message is still processed.

Consumers that die do so for good: a process gets SIGKILL while it holds messages. How much is done is bounded by the
number of messages; waiting is done with long-polls. Messages that retention or too many attempts remove are reported.
"""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.topics import DEADLINE_S, WAYS, Delivered, Doomed, Refused, Site, Way, fresh, until
from tests.support.server import ServerProcess, check

PARTITIONS = 3
MESSAGES = 900  # in all partitions
THREADS = 5


@pytest.fixture(scope="module")
def site(server: ServerProcess) -> Iterator[Site]:
    found = Site(server.url)
    yield found
    found.close()


@pytest.fixture(params=["/v1/api", "sql"])
def way(site: Site, request: pytest.FixtureRequest) -> Way:
    return Way(site, request.param)


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


# -- an ack by one never acknowledges what another holds


@pytest.mark.parametrize("heir", ["second", "third"])
def test_what_a_killed_consumer_held_is_delivered_again(site: Site, heir: str) -> None:
    """0 to 199 and 200 to 399 are held; the second acknowledges 399; the first is killed; 0 to 199 come again."""
    topic, way = fresh(), Way(site, "/api")
    site.sql(f"CREATE TOPIC {topic}")
    site.publish(topic, list(range(400)))
    first = Doomed(site, topic, "g", "first", limit=200, visibility_s=600)
    assert first.offsets() == list(range(200))
    held = way.drained(topic, "g", 200, consumer="second", visibility_s=600)
    assert [offset for each in held for offset in each.offsets] == list(range(200, 400))
    assert way.ack(topic, "g", 399, consumer="second") == -1
    first.kill()
    first.let_expire()
    again = way.drained(topic, "g", 200, consumer=heir, visibility_s=600)
    assert [value for each in again for value in each.values] == list(range(200))
    assert {attempt for each in again for attempt in each.attempts} == {2}
    assert way.ack(topic, "g", 199, consumer=heir) == 399
    assert way.consume(topic, "g", consumer=heir).messages == []


@pytest.mark.parametrize("kind", WAYS)
def test_an_ack_without_consumer_leaves_what_a_killed_one_held(site: Site, kind: str) -> None:
    topic, way = fresh(), Way(site, kind)
    site.sql(f"CREATE TOPIC {topic}")
    site.publish(topic, list(range(20)))
    first = Doomed(site, topic, "g", "first", limit=10, visibility_s=600)
    assert first.offsets() == list(range(10))
    first.kill()
    assert way.consume(topic, "g", limit=10).offsets == list(range(10, 20))
    assert way.ack(topic, "g", 19) == -1
    first.let_expire()
    assert way.expect(topic, "g").offsets == list(range(10))


def test_what_was_held_is_delivered_again_when_the_server_was_killed(data_dir: Path) -> None:
    """What was acknowledged stays so, what was not comes again, to whoever asks."""
    server = ServerProcess.tailrace(data_dir).start()
    try:
        site = Site(server.url)
        way = Way(site, "/api")
        site.sql("CREATE TOPIC t")
        site.publish("t", list(range(40)))
        way.consume("t", "g", consumer="a", limit=20, visibility_s=600)
        way.consume("t", "g", consumer="b", limit=20, visibility_s=600)
        assert way.ack("t", "g", 39, consumer="b") == -1
        assert way.ack("t", "g", 4, consumer="a") == 4
        way.extend("t", "g", 2, consumer="a")
        site.close()
    finally:
        server.kill()
    with ServerProcess.tailrace(data_dir) as server:
        site = Site(server.url)
        way = Way(site, "/api")
        assert site.last_acked("t", "g") == 4
        again = way.drained("t", "g", 15, consumer="c")
        assert [offset for each in again for offset in each.offsets] == list(range(5, 20))
        assert way.ack("t", "g", 19, consumer="c") == 39
        site.close()
    checked = check(data_dir)
    assert checked.returncode == 0, f"{checked.stdout}{checked.stderr}"


# -- many consumers that behave badly


class Record:
    """What was processed, by partition and offset; filled before anything is acknowledged."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.processed: dict[int, set[int]] = defaultdict(set)
        self.acts: dict[str, int] = defaultdict(int)
        self.over = threading.Event()
        self.lock = threading.Lock()

    def process(self, delivered: Delivered, count: int) -> None:
        with self.lock:
            self.processed[delivered.partition].update(delivered.offsets[:count])

    def count(self, act: str) -> None:
        with self.lock:
            self.acts[act] += 1


class Careless:
    """A consumer that crashes, gives back, acknowledges some, and what it took last first."""

    def __init__(self, url: str, record: Record, seed: int) -> None:
        self._random = random.Random(seed)
        self._site = Site(url)
        self._record = record
        self._way = Way(self._site, self._random.choice(WAYS))
        self._lives = 0
        self._seed = seed
        self._held: list[Delivered] = []

    def run(self) -> None:
        while not self._record.over.is_set():
            for partition in self._random.sample(range(PARTITIONS), PARTITIONS):
                self._take(partition)
                while self._held and (len(self._held) > 2 or self._random.random() < 0.6):
                    self._settle()
        self._site.close()

    @property
    def _name(self) -> str:
        return f"careless-{self._seed}-{self._lives}"

    def _take(self, partition: int) -> None:
        found = self._way.consume(
            self._record.topic, "g", partition=partition, consumer=self._name, limit=self._random.randint(1, 30),
            visibility_s=self._random.choice([0.1, 0.3, 0.5]), timeout_s=0.1,
        )  # fmt: skip
        assert found.offsets == sorted(found.offsets)
        if found.messages:
            self._held.append(found)

    def _settle(self) -> None:
        """Do something with one of the deliveries that it has, often not the oldest."""
        one = self._held.pop(self._random.randrange(len(self._held)))
        topic, place = self._record.topic, {"partition": one.partition, "consumer": self._name, "lease": one.lease}
        act = self._random.choice(["ack", "ack", "ack", "ack some", "ack some", "nack", "nack some", "crash"])
        self._record.count(act)
        if act == "crash":  # its state is gone, and it comes back as another consumer
            self._lives += 1
            self._held.clear()
        elif act == "nack":
            self._way.nack(topic, "g", **place)  # type: ignore[arg-type]
        else:
            count = len(one.messages) if act == "ack" else self._random.randint(1, len(one.messages))
            self._record.process(one, count)
            self._ack(one.offsets[count - 1], place)
            if act == "nack some":
                self._way.nack(topic, "g", **place)  # type: ignore[arg-type]

    def _ack(self, upto: int, place: dict[str, object]) -> None:
        try:
            self._way.ack(self._record.topic, "g", upto, **place)  # type: ignore[arg-type]
        except Refused as refused:
            assert refused.code == "LEASE_LOST"


@pytest.mark.parametrize("seed", [1, 2])
def test_careless_consumers_lose_nothing(site: Site, seed: int) -> None:
    """Publishing goes on meanwhile, and some consumers are processes that are killed with what they hold."""
    topic = fresh()
    site.sql(f"CREATE TOPIC {topic} PARTITIONS {PARTITIONS}")
    for partition in range(PARTITIONS):
        site.publish(topic, list(range(50)), partition=partition)
    first, second = (Doomed(site, topic, "g", name, limit=25, visibility_s=0.5) for name in ("first", "second"))
    assert first.offsets()
    assert second.offsets()
    record = Record(topic)
    careless = [Careless(site.url, record, seed * 1000 + number) for number in range(THREADS)]
    failed: list[BaseException] = []

    def run(one: Careless) -> None:
        try:
            one.run()
        except BaseException as error:
            failed.append(error)
            record.over.set()

    threads = [threading.Thread(target=run, args=(one,)) for one in careless]
    for thread in threads:
        thread.start()
    first.kill()
    try:
        every = MESSAGES // PARTITIONS
        for at in range(50, every, 25):
            for partition in range(PARTITIONS):
                site.publish(topic, list(range(at, at + 25)), partition=partition)
        third = Doomed(site, topic, "g", "third", limit=25, visibility_s=0.5)
        second.kill()
        third.offsets()  # whatever it got hold of
        third.kill()
        until(lambda: failed or settled(site, topic, every), "the group has acknowledged everything")
    finally:
        record.over.set()
        for thread in threads:
            thread.join(DEADLINE_S)
    assert not failed, failed
    for partition in range(PARTITIONS):
        missing = set(range(every)) - record.processed[partition]
        assert not missing, f"acknowledged by nobody who processed it: partition {partition}, {sorted(missing)[:20]}"
        assert Way(site, "/api").consume(topic, "g", partition=partition).messages == []
        assert site.group(topic, "g", partition)["lost"] == 0
    assert record.acts.keys() >= {"crash", "nack", "ack", "ack some"}, record.acts


def settled(site: Site, topic: str, every: int) -> bool:
    """Whether the group has acknowledged so many messages of each partition."""
    rows = site.rows("SELECT last_acked_offset AS upto FROM system.topic_offsets WHERE topic = ?", topic)
    return len(rows) == PARTITIONS and all(row["upto"] == every - 1 for row in rows)


@pytest.mark.parametrize("kind", WAYS)
def test_one_consumer_of_a_partition_sees_its_messages_in_order(site: Site, kind: str) -> None:
    """It processes some of what it gets, gives the rest back, and goes on with exactly that; publishing goes on."""
    topic, way, chance = fresh(), Way(site, kind), random.Random(4)
    site.sql(f"CREATE TOPIC {topic}")
    count, published = 300, 0
    processed: list[int] = []
    while len(processed) < count:
        if published < count:
            site.publish(topic, list(range(published, published + 20)))
            published += 20
        found = way.expect(topic, "g", consumer="only", limit=chance.randint(1, 40))
        assert found.offsets == list(range(found.offsets[0], found.offsets[0] + len(found.offsets)))
        done = chance.randint(0, len(found.messages))
        processed += found.values[:done]
        if done:
            assert (
                way.ack(topic, "g", found.offsets[done - 1], consumer="only", lease=found.lease) == len(processed) - 1
            )
        if done < len(found.messages):
            way.nack(topic, "g", consumer="only", lease=found.lease)
    assert processed == list(range(count)), "each once, in order"


# -- retention overtakes a group


def overtake(site: Site, topic: str) -> int:
    """Publish much more than the topic keeps, and wait until it was pruned; the first offset that is left."""
    site.publish(topic, ["x" * 1000] * 30)
    site.sql(f"ALTER TOPIC {topic} SET (retention_max_bytes=10000)")
    until(lambda: site.partition(topic)["bytes"] <= 10000, "what is too much is pruned")
    start: int = site.partition(topic)["start_offset"]
    assert start > 10
    return start


def test_retention_that_overtakes_a_group_is_reported_and_counted(way: Way, topic: str) -> None:
    way.consume(topic, "g", limit=3)
    way.ack(topic, "g", 2)
    start = overtake(way.site, topic)
    delivered = way.consume(topic, "g", limit=2)
    assert delivered.offsets == [start, start + 1], "the group jumps to the start of the log"
    assert delivered.skipped == start - 3
    assert way.site.group(topic, "g")["lost"] == start - 3
    following = way.consume(topic, "g", limit=2)
    assert (following.offsets, following.skipped) == ([start + 2, start + 3], 0), "it is reported once"
    assert way.ack(topic, "g", start + 3) == start + 3


def test_retention_that_takes_what_was_held_neither_hangs_nor_hides_it(way: Way, topic: str) -> None:
    """Messages that were delivered, given back and pruned cannot come again: they are lost, and counted."""
    way.consume(topic, "g", consumer="a", limit=3)
    way.nack(topic, "g", consumer="a")
    way.site.sql(f"CLEAR TOPIC {topic}")
    way.site.publish(topic, ["after"])
    delivered = way.consume(topic, "g", consumer="b")
    assert (delivered.offsets, delivered.skipped) == ([10], 10)
    assert way.site.group(topic, "g")["lost"] == 10


def test_retention_that_takes_what_was_held_counts_it_when_its_lease_is_over(way: Way, topic: str) -> None:
    """While the lease lasts its holder may still acknowledge. Then nobody can have the messages any more."""
    way.consume(topic, "g", consumer="a", limit=3, visibility_s=0.3)
    way.site.sql(f"CLEAR TOPIC {topic}")
    way.site.publish(topic, ["after"])
    way.consume(topic, "g", consumer="b", visibility_s=600)
    until(lambda: way.site.group(topic, "g")["lost"] == 10, "all ten are lost")
    assert way.consume(topic, "g", consumer="c").messages == []
    assert way.ack(topic, "g", 10, consumer="b") == 10


def test_retention_leaves_it_to_the_holder_to_acknowledge(way: Way, topic: str) -> None:
    way.consume(topic, "g", consumer="a", limit=3)
    way.site.sql(f"CLEAR TOPIC {topic}")
    assert way.consume(topic, "g", consumer="b").skipped == 7
    assert way.ack(topic, "g", 2, consumer="a") == 9
    assert way.site.group(topic, "g")["lost"] == 7


def test_retention_that_overtakes_no_one_loses_nothing(way: Way, topic: str) -> None:
    way.consume(topic, "g")
    way.ack(topic, "g", 9)
    site = way.site
    site.sql(f"CLEAR TOPIC {topic}")
    site.publish(topic, ["after"])
    delivered = way.consume(topic, "g")
    assert (delivered.offsets, delivered.skipped, site.group(topic, "g")["lost"]) == ([10], 0, 0)


def test_a_topic_that_is_cleared_skips_what_a_group_had_not_seen(way: Way, topic: str) -> None:
    way.consume(topic, "g", limit=4)
    way.ack(topic, "g", 3)
    way.site.sql(f"CLEAR TOPIC {topic}")
    delivered = way.consume(topic, "g")
    assert (delivered.messages, delivered.next_offset, delivered.skipped) == ([], 10, 6)
    assert way.site.publish(topic, ["next"]) == [10], "offsets never go back"


# -- too many attempts


def exhaust(way: Way, topic: str, attempts: int) -> None:
    """Take the first message so often and give it back."""
    for attempt in range(1, attempts + 1):
        delivered = way.consume(topic, "g", consumer="a", limit=1)
        assert (delivered.offsets, delivered.attempts) == ([0], [attempt])
        way.nack(topic, "g", consumer="a")


def test_too_many_attempts_make_a_dead_letter(way: Way, topic: str, empty: str) -> None:
    way.site.sql(f"ALTER TOPIC {topic} SET (max_attempts = 3, dead_letter = '{empty}')")
    exhaust(way, topic, 3)
    assert way.consume(topic, "g", consumer="a").offsets == list(range(1, 10))
    assert way.ack(topic, "g", 9, consumer="a") == 9, "the dead letter holds nothing up"
    dead = way.consume(empty, "undertaker")
    assert dead.values == [0]
    if way.kind != "sql":
        origin = dead.messages[0]["origin"]
        assert origin == {"topic": topic, "partition_id": 0, "offset": 0, "group_id": "g", "attempts": 3}


def test_too_many_attempts_by_leases_that_run_out(way: Way, empty: str) -> None:
    name = fresh()
    way.site.sql(f"CREATE TOPIC {name} WITH (max_attempts = 2, dead_letter = '{empty}')")
    way.site.publish(name, ["a", "b"])
    for attempt in (1, 2):
        assert way.expect(name, "g", consumer="a", visibility_s=0.1).attempts == [attempt] * 2
    until(lambda: not way.consume(name, "g", consumer="a").messages and way.consume(empty).messages, "dead letters")
    assert way.consume(empty).values == ["a", "b"]
    assert (way.site.last_acked(name, "g"), way.site.group(name, "g")["lag"]) == (1, 0)


def test_too_many_attempts_of_very_many_messages(site: Site, empty: str) -> None:
    """However many there are, none is delivered once too often."""
    name, way = fresh(), Way(site, "/v1/api")
    site.sql(f"CREATE TOPIC {name} WITH (max_attempts = 1, dead_letter = '{empty}')")
    site.publish(name, [0] * 2500)
    assert len(way.drained(name, "g", 2500, consumer="a")[-1].messages) > 0
    way.nack(name, "g", consumer="a")
    way.site.publish(name, ["last"])
    attempts: list[int] = []
    found = way.consume(name, "g", consumer="b")
    while "last" not in found.values:
        attempts += found.attempts
        found = way.expect(name, "g", consumer="b")
    assert (attempts, found.attempts) == ([], [1])
    assert site.partition(empty)["next_offset"] == 2500


def test_attempts_are_not_counted_against_a_message_by_default(way: Way, topic: str) -> None:
    exhaust(way, topic, 12)
    assert way.consume(topic, "g", consumer="a", limit=1).attempts == [13]


def test_max_attempts_and_dead_letter_come_together(way: Way, topic: str, empty: str) -> None:
    for setting in ("max_attempts = 3", f"dead_letter = '{empty}'", f"max_attempts = 3, dead_letter = '{fresh()}'"):
        with pytest.raises(Refused) as refused:
            way.site.sql(f"ALTER TOPIC {topic} SET ({setting})")
        assert refused.value.status in (400, 404)
    with pytest.raises(Refused) as refused:
        way.site.sql(f"ALTER TOPIC {topic} SET (max_attempts = 3, dead_letter = '{topic}')")
    assert refused.value.status in (400, 409)
