"""Heavy legal requests of every API, fired at a server one by one while its event loop is watched.

What counts is how long one turn of the loop keeps the processor (`time.thread_time`): other clients wait that long.
A case is a generator function: what comes before its `yield` prepares, what comes after is the request. Clients run on
other threads, so that nothing of theirs is counted. `python -m tests.support.stalls` prints the worst turn of each
request, and the worst that a ping every 10 ms on a connection of its own has seen.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from tailrace.auth import passwords
from tailrace.auth.users import CreateUser
from tailrace.config import Config
from tailrace.database import Database
from tailrace.http.serve import start
from tailrace.jobs.commands import RegisterJob
from tailrace.streams.commands import Append, CreateStream
from tailrace.tables.plain import Put
from tailrace.topics.commands import CreateTopic
from tests.support.patience import PATIENCE_S

TEXT: Final = {"content-type": "text/plain"}
JSON: Final = {"content-type": "application/json"}
MSGPACK: Final = {"content-type": "application/vnd.msgpack"}
DS: Final = "/v1/stream/__ds/subscriptions"
PING_S: Final = 0.01
Case = Callable[["Site"], Iterator[None]]
CASES: dict[str, Case] = {}  # in the order in which they build on each other


def case(made: Case) -> Case:
    CASES[made.__name__] = made
    return made


class Site:
    """A server and how to ask it, from a thread that is not the loop's."""

    def __init__(self, url: str, db: Database, scale: float) -> None:
        self.url = url
        self.db = db
        self._scale = scale
        self.slowest: list[str] = []

    def count(self, full: int) -> int:
        """A number of things, or its share in a smaller run."""
        return max(1, int(full * self._scale))

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, status: int = 0
    ) -> Any:
        """The content of the answer, which must have this status; 0: one below 400."""
        place = urlsplit(self.url)
        connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=PATIENCE_S)
        fields = dict(headers or {})
        if body is not None and not isinstance(body, bytes):
            body, fields = json.dumps(body).encode(), {**JSON, **fields}
        try:
            connection.request(method, path, body, fields)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        good = answer.status == status if status else answer.status < 400
        assert good, f"{method} {path[:80]}: {answer.status} {content[:300]!r}"
        return content

    def dynamodb(self, operation: str, **parameters: Any) -> Any:
        headers = {"x-amz-target": f"DynamoDB_20120810.{operation}", "content-type": "application/x-amz-json-1.0"}
        return json.loads(self.ask("POST", "/", json.dumps(parameters).encode(), headers))

    def sql(self, text: str) -> Any:
        return json.loads(self.ask("POST", "/v1/api/sql", {"sql": text}))

    def many(self, commands: Iterator[Any]) -> None:
        """Run many commands on some threads, so that they share commits."""
        lock = threading.Lock()

        def work() -> None:
            while True:
                with lock:
                    command = next(commands, None)
                if command is None:
                    return
                self.db.execute(command)

        threads = [threading.Thread(target=work) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def streams(self, prefix: str, count: int) -> list[str]:
        names = [f"{prefix}/{number}" for number in range(count)]
        self.many(iter([CreateStream(name, "text/plain", b"x") for name in names]))
        return names


# -- subscriptions


def pull(**more: Any) -> dict[str, Any]:
    return {"type": "pull-wake", "wake_stream": "wakes", **more}


@case
def subscription_to_many_streams(site: Site) -> Iterator[None]:
    names = site.streams("linked", site.count(10_000))
    yield
    site.ask("PUT", f"{DS}/linked", pull(streams=names))


@case
def subscription_with_many_streams_is_read(site: Site) -> Iterator[None]:
    yield
    site.ask("GET", f"{DS}/linked")


@case
def subscription_with_many_streams_is_confirmed(site: Site) -> Iterator[None]:
    names = [f"linked/{number}" for number in range(site.count(10_000))]
    yield
    site.ask("PUT", f"{DS}/linked", pull(streams=names))


@case
def subscription_with_much_pending_is_claimed_and_acked(site: Site) -> Iterator[None]:
    names = [f"linked/{number}" for number in range(site.count(10_000))]
    site.many(iter([Append(name, b"y", "text/plain") for name in names]))
    yield
    claimed = json.loads(site.ask("POST", f"{DS}/linked/claim", {"worker": "w"}))
    acks = [{"stream": each["path"], "offset": each["tail_offset"]} for each in claimed["streams"]]
    wake = {"wake_id": claimed["wake_id"], "generation": claimed["generation"]}
    token = {"authorization": f"Bearer {claimed['token']}"}
    site.ask("POST", f"{DS}/linked/ack", {**wake, "acks": acks, "done": True}, token)


@case
def many_streams_are_added_to_a_subscription(site: Site) -> Iterator[None]:
    site.ask("PUT", f"{DS}/added", pull(streams=["linked/0"]))
    names = [f"linked/{number}" for number in range(1, site.count(9_999))]
    yield
    site.ask("POST", f"{DS}/added/streams", {"streams": names})


@case
def subscription_with_many_streams_is_deleted(site: Site) -> Iterator[None]:
    yield
    site.ask("DELETE", f"{DS}/linked")


@case
def subscription_to_a_pattern_over_all_streams(site: Site) -> Iterator[None]:
    site.streams("others", site.count(10_000))
    yield
    site.ask("PUT", f"{DS}/pattern", pull(pattern="linked/**"))


@case
def many_subscriptions_are_listed(site: Site) -> Iterator[None]:
    for number in range(site.count(300)):
        site.ask("PUT", f"{DS}/s-{number}", pull(streams=[f"linked/{number}"]))
    yield
    site.ask("GET", f"{DS}?limit=1000")


# -- streams


@case
def an_array_of_very_many_messages_is_appended(site: Site) -> Iterator[None]:
    site.ask("PUT", "/v1/stream/json", b"", JSON)
    body = b"[" + b",".join([b"1"] * site.count(4_000_000)) + b"]"
    yield
    site.ask("POST", "/v1/stream/json", body, JSON)


@case
def an_array_of_very_many_messages_is_read(site: Site) -> Iterator[None]:
    yield
    site.ask("GET", "/v1/stream/json?offset=-1")


@case
def a_fork_inside_an_array_of_very_many_messages(site: Site) -> Iterator[None]:
    yield
    fork = {"stream-forked-from": "/v1/stream/json", "stream-fork-offset": "0" * 16 + "_" + "0" * 16}
    sub = {"stream-fork-sub-offset": str(site.count(4_000_000) // 2)}
    site.ask("PUT", "/v1/stream/json-fork", None, {**JSON, **fork, **sub})


@case
def a_fork_inside_an_array_of_very_many_texts(site: Site) -> Iterator[None]:
    site.ask("PUT", "/v1/stream/texts", b"", JSON)
    site.ask("POST", "/v1/stream/texts", b"[" + b",".join([b'""'] * site.count(5_000_000)) + b"]", JSON)
    yield
    fork = {"stream-forked-from": "/v1/stream/texts", "stream-fork-offset": "0" * 16 + "_" + "0" * 16}
    sub = {"stream-fork-sub-offset": str(site.count(5_000_000) // 2)}
    site.ask("PUT", "/v1/stream/texts-fork", None, {**JSON, **fork, **sub})


@case
def deeply_nested_json_is_appended_and_read(site: Site) -> Iterator[None]:
    site.ask("PUT", "/v1/stream/deep", b"", JSON)
    nested = b"[" * 90 + b"]" * 90
    body = b"[" + b",".join([nested] * site.count(85_000)) + b"]"
    yield
    site.ask("POST", "/v1/stream/deep", body, JSON)
    site.ask("GET", "/v1/stream/deep?offset=-1")


@case
def a_large_text_is_appended_and_read(site: Site) -> Iterator[None]:
    site.ask("PUT", "/v1/stream/text", b"", TEXT)
    body = b"x" * site.count(15_000_000)
    yield
    site.ask("POST", "/v1/stream/text", body, TEXT)
    site.ask("GET", "/v1/stream/text?offset=-1")


@case
def a_deep_chain_of_forks_is_made_and_read(site: Site) -> Iterator[None]:
    site.ask("PUT", "/v1/stream/f0", b"abc", TEXT)
    for number in range(1, 60):
        fork = {"stream-forked-from": f"/v1/stream/f{number - 1}", **TEXT}
        site.ask("PUT", f"/v1/stream/f{number}", None, fork)
        site.ask("POST", f"/v1/stream/f{number}", b"def", TEXT)
    yield
    site.ask("PUT", "/v1/stream/f60", None, {"stream-forked-from": "/v1/stream/f59", **TEXT})
    site.ask("GET", "/v1/stream/f60?offset=-1")


@case
def a_stream_of_very_many_small_entries_is_read(site: Site) -> Iterator[None]:
    site.db.execute(CreateStream("small", "text/plain"))
    site.many(iter([Append("small", b"%d;" % number, "text/plain") for number in range(site.count(60_000))]))
    yield
    site.ask("GET", "/v1/stream/small?offset=-1")


@case
def very_many_streams_are_listed(site: Site) -> Iterator[None]:
    yield
    site.ask("GET", "/v1/streams?limit=1000")
    site.ask("GET", "/v1/streams?search=nowhere")


# -- tables


@case
def a_transaction_of_a_hundred_large_items(site: Site) -> Iterator[None]:
    site.db.create_table("large", partition_key="id", stream="NEW_AND_OLD_IMAGES")
    items = [{"id": {"S": f"l-{number}"}, "b": {"S": "x" * site.count(38_000)}} for number in range(100)]
    yield
    puts = [{"Put": {"TableName": "large", "Item": item}} for item in items]
    site.dynamodb("TransactWriteItems", TransactItems=puts)


@case
def a_batch_of_large_items(site: Site) -> Iterator[None]:
    items = [{"id": {"S": f"b-{number}"}, "b": {"S": "x" * site.count(390_000)}} for number in range(25)]
    yield
    site.dynamodb("BatchWriteItem", RequestItems={"large": [{"PutRequest": {"Item": item}} for item in items]})
    keys = [{"id": {"S": f"b-{number}"}} for number in range(25)]
    site.dynamodb("BatchGetItem", RequestItems={"large": {"Keys": keys}})


@case
def an_item_of_very_many_values(site: Site) -> Iterator[None]:
    item = {"id": {"S": "many"}, "l": {"L": [{"N": "1"}] * site.count(100_000)}}
    yield
    site.dynamodb("PutItem", TableName="large", Item=item)
    site.dynamodb("GetItem", TableName="large", Key={"id": {"S": "many"}})


@case
def a_scan_with_a_costly_filter(site: Site) -> Iterator[None]:
    site.db.create_table("rows", partition_key="id", stream="NEW_IMAGE")
    rows = [Put("rows", {"id": f"r-{number}", "text": "ab" * 20, "n": number}) for number in range(site.count(20_000))]
    for at in range(0, len(rows), 1_000):
        site.db.batch_write(rows[at : at + 1_000])
    terms = " OR ".join(f"contains(#t, :v{number})" for number in range(100))
    values = {f":v{number}": {"S": f"zz{number}"} for number in range(100)}
    yield
    site.dynamodb(
        "Scan", TableName="rows", FilterExpression=terms, ExpressionAttributeNames={"#t": "text"},
        ExpressionAttributeValues=values,
    )  # fmt: skip


@case
def a_scan_of_everything(site: Site) -> Iterator[None]:
    yield
    site.dynamodb("Scan", TableName="rows")
    site.dynamodb("Scan", TableName="rows", Select="COUNT")


@case
def changes_of_a_large_transaction_are_read(site: Site) -> Iterator[None]:
    yield
    site.ask("GET", "/v1/tables/large/stream?offset=-1")
    site.ask("GET", "/v1/tables/large/stream/info")


@case
def the_past_of_a_table_with_many_changes_is_read(site: Site) -> Iterator[None]:
    site.db.create_table("past", partition_key="id", stream="NEW_AND_OLD_IMAGES")
    rows = [Put("past", {"id": f"p-{number}", "text": "ab" * 20}) for number in range(site.count(20_000))]
    first = site.db.table("large").changes(limit=1)[0].sequence
    for at in range(0, len(rows), 1_000):
        site.db.batch_write(rows[at : at + 1_000])
    last = site.db.table("past").stream_info().latest
    yield
    site.ask("GET", "/v1/tables/past/items/history?key=%7B%22id%22:%22none%22%7D")
    site.ask("GET", f"/v1/tables/past/at?sequence={last - 1}&limit=1000")
    site.ask("GET", f"/v1/tables/past/writes/{last}")
    site.ask("GET", f"/v1/tables/large/writes/{first}")


@case
def a_stream_with_many_cursors_is_described(site: Site) -> Iterator[None]:
    first = site.db.table("rows").changes(limit=1)[0].sequence
    for number in range(site.count(100)):
        site.ask("PUT", f"/v1/tables/rows/cursors/c-{number}", {"sequence": first})
    yield
    site.ask("GET", "/v1/tables/rows/cursors")
    site.ask("GET", "/v1/tables/rows/stream/info")


@case
def items_of_a_table_are_exported(site: Site) -> Iterator[None]:
    yield
    site.ask("GET", "/v1/tables/rows/items", None, {"accept": "application/vnd.apache.arrow.stream"})


@case
def an_expression_of_maximal_length(site: Site) -> Iterator[None]:
    condition = "attribute_not_exists(a)" + " AND attribute_exists(id)" * 150
    yield
    key = {"id": {"S": "r-0"}}
    site.dynamodb("PutItem", TableName="rows", Item=key, ConditionExpression=condition)


@case
def very_many_tables_are_listed(site: Site) -> Iterator[None]:
    for number in range(site.count(200)):
        site.db.create_table(f"many-{number}", partition_key="id", stream="KEYS_ONLY")
    yield
    site.ask("GET", "/v1/tables?limit=1000")
    site.dynamodb("ListTables")
    site.sql("SHOW TABLES")


@case
def a_select_of_everything(site: Site) -> Iterator[None]:
    site.sql("SELECT 1 AS one")  # a worker is there
    yield
    site.sql("SELECT * FROM rows")


@case
def a_table_with_many_items_is_dropped(site: Site) -> Iterator[None]:
    yield
    site.dynamodb("DeleteTable", TableName="rows")


# -- topics


@case
def a_topic_of_many_partitions_is_made_and_described(site: Site) -> Iterator[None]:
    yield
    site.sql(f"CREATE TOPIC wide PARTITIONS {site.count(1_000)}")
    site.ask("GET", "/v1/topics/wide")
    site.ask("GET", "/v1/logs?topic=wide")
    site.ask("GET", "/v1/logs/at?topic=wide&timestamp=0")


@case
def many_messages_are_published_and_consumed(site: Site) -> Iterator[None]:
    site.db.execute(CreateTopic("busy"))
    messages = [{"value": {"n": number}} for number in range(site.count(1_000))]
    yield
    for _ in range(10):
        site.ask("POST", "/v1/api/topics/publish", {"topic": "busy", "messages": messages})
    group = {"topic": "busy", "group_id": "g"}
    got = json.loads(site.ask("POST", "/v1/api/topics/consume", {**group, "limit": 10_000, "timeout_seconds": 0}))
    assert got["messages"]
    site.ask("POST", "/v1/api/topics/ack", {**group, "upto_offset": got["messages"][-1]["offset"]})


@case
def a_publish_of_far_too_many_messages(site: Site) -> Iterator[None]:
    few = b",".join([b'{"value":{"n":[{},{}]}}'] * 1_000)
    body = b'{"topic":"busy","messages":[' + b",".join([b"{}"] * site.count(1_390_000)) + b"]}"
    nested = b'{"topic":"busy","messages":[' + few + b',{"value":[' + b"{}," * site.count(1_000_000) + b"1]}]}"
    yield
    for wrong in (body, nested):
        assert b"1000" in site.ask("POST", "/v1/api/topics/publish", wrong, JSON, 400)


@case
def a_large_transaction(site: Site) -> Iterator[None]:
    site.db.create_table("moved", "id", ("n", "N"))
    operations = [
        {"op": "put", "table": "moved", "item": {"id": "x", "n": number, "text": "y" * 1_000}}
        for number in range(site.count(1_000))
    ]
    yield
    site.ask("POST", "/v1/api/transaction", {"operations": operations})
    read: dict[str, Any] = {"query": {"table": "moved", "partition": "x"}}
    reads = json.loads(site.ask("POST", "/v1/api/transaction/read", read))["reads"]
    read["operations"] = operations
    reads += json.loads(site.ask("POST", "/v1/api/transaction/read", read))["reads"]
    site.ask("POST", "/v1/api/transaction", {"operations": operations, "reads": reads})
    site.ask("POST", "/v1/api/transaction", b'{"operations":[' + b"{}," * site.count(1_000_000) + b"{}]}", JSON, 413)


@case
def a_group_is_reset_and_a_topic_cleared(site: Site) -> Iterator[None]:
    yield
    site.sql("RESET CONSUMER GROUP 'g' ON busy TO EARLIEST")
    site.sql("CLEAR TOPIC busy")


@case
def a_wide_topic_is_attached_and_detached(site: Site) -> Iterator[None]:
    yield
    site.ask("POST", "/v1/cold/attach", {"topic": "wide"})
    site.ask("GET", "/v1/cold")
    site.ask("POST", "/v1/cold/detach", {"topic": "wide"})


@case
def marks_of_very_many_logs_move(site: Site) -> Iterator[None]:
    site.ask("POST", "/v1/cold/attach", {"topic": "wide"})
    (place,) = json.loads(site.ask("GET", "/v1/cold"))["places"]
    logs = [str(log["log"]) for log in place["logs"]]
    assert len(logs) == site.count(1_000)
    yield
    ranges = {log: [0, 0] for log in logs}
    moved = {"place": place["name"], "generation": place["generation"] + 1, "ranges": ranges}
    site.ask("POST", "/v1/cold/tiered", moved)
    site.ask("POST", "/v1/cold/forget", {"place": place["name"], "starts": dict.fromkeys(logs, 0)})
    site.ask("POST", "/v1/cold/detach", {"topic": "wide"})


@case
def a_wide_topic_is_consumed_from(site: Site) -> Iterator[None]:
    yield
    site.ask("POST", "/v1/api/topics/consume", {"topic": "wide", "group_id": "g", "timeout_seconds": 0})


@case
def very_many_topics_are_listed(site: Site) -> Iterator[None]:
    site.many(iter([CreateTopic(f"t-{number}") for number in range(site.count(9_000))]))
    yield
    site.ask("GET", "/v1/topics")
    site.sql("SHOW TOPICS")
    site.sql("SELECT count(*) FROM system.topics")


@case
def metrics_of_many_things(site: Site) -> Iterator[None]:
    yield
    site.ask("GET", "/metrics")
    site.ask("GET", "/v1/cluster")
    site.ask("GET", "/v1/status")
    site.ask("GET", "/v1/status/samples")


@case
def a_wide_topic_is_dropped(site: Site) -> Iterator[None]:
    yield
    site.sql("DROP TOPIC wide")


# -- jobs


@case
def positions_in_very_many_logs_are_pinned(site: Site) -> Iterator[None]:
    site.db.execute(RegisterJob("pinned", "tail", "streams/*", ""))
    yield
    positions = {str(number): 0 for number in range(1, site.count(10_000))}
    site.ask("POST", "/v1/jobs/pinned/pin", {"positions": positions})
    site.ask("GET", "/v1/jobs/pinned")
    site.ask("GET", "/v1/jobs")


@case
def rows_are_staged_and_committed(site: Site) -> Iterator[None]:
    site.db.create_table("sunk", partition_key="id", stream="NEW_AND_OLD_IMAGES")
    rows = [["PUT", {"id": {"S": f"s-{number}"}, "n": {"N": "1"}}] for number in range(site.count(20_000))]
    body = msgspec.msgpack.encode(rows)
    yield
    staged = json.loads(site.ask("POST", "/v1/stages?table=sunk", body, MSGPACK))
    commit = {"query": "q", "batch": 0, "target": {"table": "sunk"}, "stages": [staged["stage"]]}
    site.ask("POST", "/v1/stages/commit", commit)


@case
def a_stage_of_maximal_size_is_committed(site: Site) -> Iterator[None]:
    text = "x" * 15_000
    rows = [["PUT", {"id": {"S": f"l-{number}"}, "t": {"S": text}}] for number in range(4 * site.count(900))]
    bodies = [msgspec.msgpack.encode(rows[at::4]) for at in range(4)]
    yield
    stage = ""
    for at, body in enumerate(bodies):
        more = f"&stage={stage}&chunk={at}" if stage else ""
        stage = json.loads(site.ask("POST", f"/v1/stages?table=sunk{more}", body, MSGPACK))["stage"]
    commit = {"query": "large", "batch": 0, "target": {"table": "sunk"}, "stages": [stage]}
    site.ask("POST", "/v1/stages/commit", commit)


@case
def a_view_is_made(site: Site) -> Iterator[None]:
    yield
    terms = ", ".join(f"sum(n + {number}) AS s{number}" for number in range(50))
    site.sql("CREATE MATERIALIZED VIEW totals AS SELECT id, " + terms + " FROM sunk GROUP BY id")


# -- SQL and access


@case
def a_statement_of_maximal_text(site: Site) -> Iterator[None]:
    rows = ", ".join(f"('i-{number}', {number})" for number in range(site.count(9_500)))
    yield
    site.sql(f"INSERT INTO sunk (id, n) VALUES {rows}")


@case
def a_login(site: Site) -> Iterator[None]:
    site.db.execute(CreateUser(name="ann", role="dba", password=passwords.hashed("correct horse")))
    yield
    site.ask("POST", "/v1/api/auth/login", {"username": "ann", "password": "correct horse"})


# -- measuring


class Stall(NamedTuple):
    """What a request did to the loop."""

    name: str
    turn_s: float  # processor time of the longest turn
    ping_s: float  # the longest that a ping took


class Turns:
    """How much processor time the longest turn of a loop has taken."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.worst_s = 0.0
        run_once = loop._run_once  # type: ignore[attr-defined]

        def measured() -> None:
            began = time.thread_time()
            run_once()
            self.worst_s = max(self.worst_s, time.thread_time() - began)

        loop._run_once = measured  # type: ignore[attr-defined]


class Pings:
    """A request every 10 ms, on a thread and a connection of its own."""

    def __init__(self, url: str) -> None:
        place = urlsplit(url)
        self._connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=PATIENCE_S)
        self._stop = threading.Event()
        self.worst_s = 0.0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(PING_S):
            began = time.monotonic()
            self._connection.request("GET", "/healthz")
            self._connection.getresponse().read()
            self.worst_s = max(self.worst_s, time.monotonic() - began)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._connection.close()


def measure(directory: Path, scale: float, report: Callable[[Stall], None], ping: bool = True) -> list[Stall]:
    """Fire every case, in order; what each did."""

    async def main() -> list[Stall]:
        running = await start(Config(port=0, data=str(directory), dev=True))
        site = Site(running.url, running.db, scale)
        turns = Turns(asyncio.get_running_loop())
        found = []
        try:
            for name, made in CASES.items():
                steps = made(site)
                await asyncio.to_thread(next, steps)
                pings = Pings(running.url) if ping else None
                await asyncio.sleep(0.05)
                turns.worst_s = 0.0
                if pings is not None:
                    pings.worst_s = 0.0
                await asyncio.to_thread(next, steps, None)
                await asyncio.sleep(0.1)  # what the request has set off
                worst_s = turns.worst_s
                if pings is not None:
                    await asyncio.to_thread(pings.stop)
                found.append(Stall(name, worst_s, 0.0 if pings is None else pings.worst_s))
                report(found[-1])
        finally:
            await running.stop()
        return found

    return asyncio.run(main())


def show(stall: Stall) -> None:
    print(f"{stall.turn_s * 1000:9.1f} ms  {stall.ping_s * 1000:9.1f} ms  {stall.name.replace('_', ' ')}", flush=True)


if __name__ == "__main__":
    print("longest turn    longest ping  request")
    with tempfile.TemporaryDirectory() as made:
        measure(Path(made) / "data", float(sys.argv[1]) if len(sys.argv) > 1 else 1.0, show)
