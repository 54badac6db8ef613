"""A run: clients at work, one fault after the other, and then the judgement."""

from __future__ import annotations

import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from tests.faults import work
from tests.faults.databases import wait_until
from tests.faults.faults import FAULTS, Fault
from tests.faults.history import (
    DONE,
    REFUSED,
    UNKNOWN,
    Outcome,
    Read,
    counter_violations,
    group_violations,
    log_violations,
    reader_violations,
    register_violations,
    route_violations,
    swap_violations,
    transfer_violations,
)
from tests.faults.servers import Cluster
from tests.support.patience import PATIENCE_S
from tests.support.server import check

KILL: Final = "leader killed"
PROGRESS: Final = 3  # acknowledgements of each client between two faults
BEFORE_S: Final = 0.5  # before a fault, from where a gap is looked for


class Run:
    """Servers, clients, and what was done."""

    def __init__(self, directory: Path, seed: int, say: Callable[[str], None] = print) -> None:
        self._say = say
        self._directory = directory
        self.chance = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.gaps_s: dict[str, list[float]] = defaultdict(list)
        self.problems: list[str] = []
        self.cluster = Cluster(directory, standby=True)
        self._balancer = work.Balancer(self.cluster.urls)
        self.operator = work.Operator("operator", self._balancer)
        self.operator.prepare()
        self.clients = self._made()
        followed = (self.appenders[0], self.appenders[-1])
        self.readers = [work.LiveReader(f"reader of {each.name}", self._balancer, each.stream) for each in followed]

    def _made(self) -> list[work.Client]:
        balancer = self._balancer
        self.appenders = [work.Appender(f"appender{n}", balancer, claims=False) for n in range(2)]
        self.appenders.append(work.Appender("producer", balancer, claims=True))
        for appender in self.appenders:
            self.operator.create(appender.stream)
        self.registers = [work.Registers(f"register{n}", balancer) for n in range(3)]
        self.swappers = [work.Swapper(f"swapper{n}", balancer) for n in range(2)]
        self.adders = [work.Adder("adder", balancer)]
        self.publisher = work.Publisher("publisher", balancer)
        self.members = [work.GroupMember(f"member{n}", balancer) for n in range(2)]
        self.transferers = [work.Transferer(f"transferer{n}", balancer) for n in range(2)]
        return [
            *self.appenders,
            *self.registers,
            *self.swappers,
            *self.adders,
            self.publisher,
            *self.members,
            *self.transferers,
        ]

    # -- faults

    def possible(self) -> list[Fault]:
        databases = self.cluster.databases
        having = {"": True, "standby": databases.standby is not None, "disk": databases.can_fill}
        missing = [fault.name for fault in FAULTS if not having[fault.needs]]
        for name in missing:
            self._say(f"Not tested: {name}; it needs root, to mount a file system")
        return [fault for fault in FAULTS if having[fault.needs]]

    def start(self) -> None:
        for client in (*self.clients, *self.readers):
            client.start()
        self.progress()

    def inflict(self, fault: Fault) -> None:
        began_s = time.monotonic()
        fault.do(self.cluster)
        self.done[fault.name] += 1
        self.progress()
        self.cluster.until_ready()
        gap_s = self._gap(began_s)
        self.gaps_s[fault.name].append(gap_s)
        self._say(
            f"{sum(self.done.values()):4}  {fault.name:38} gap {gap_s:6.2f} s  {time.monotonic() - began_s:6.2f} s"
        )

    def progress(self) -> None:
        """Wait until every client has been acknowledged a few more times."""
        before = [len(client.acknowledged_s) for client in self.clients]

        def moved() -> bool:
            for client in self.clients:
                if client.failure is not None:
                    raise client.failure
            return all(
                len(client.acknowledged_s) >= was + PROGRESS for client, was in zip(self.clients, before, strict=True)
            )

        wait_until(moved, "the clients get no further", PATIENCE_S)

    def _gap(self, began_s: float) -> float:
        """The longest time without any acknowledgement since a fault."""
        times: list[float] = []
        for client in self.clients:
            for at_s in reversed(client.acknowledged_s):
                if at_s < began_s - BEFORE_S:
                    break
                times.append(at_s)
        times.sort()
        return max((after - before for before, after in pairwise(times)), default=0.0)

    # -- the end

    def finish(self) -> list[str]:
        """Let the clients end, and say what is wrong."""
        members = set(self.members)
        for client in self.clients:
            if client not in members:
                client.ending.set()
        for client in self.clients:
            if client not in members:
                client.join(PATIENCE_S)
        self.cluster.until_ready()
        self._drain()
        for client in self.clients:
            client.ending.set()
            client.join(PATIENCE_S)
            if client.failure is not None:
                self.problems.append(f"{client.name}: {client.failure!r}")
        self.problems += self._judged()
        self.problems += self._delivered()
        leader = self.cluster.leader()
        url = leader.database
        for server in self.cluster.servers:
            server.kill()
        key = {"TAILRACE_SECRET_KEY": self.cluster.key}
        checked = check(self._directory / "server0", "--database", url, env=key)
        if checked.returncode != 0:
            self.problems.append(f"tailrace check: {checked.stdout}{checked.stderr}")
        return self.problems

    def _drain(self) -> None:
        """Let the group consume all there is."""

        def idle() -> bool:
            for member in self.members:
                if member.failure is not None:
                    raise member.failure
            groups = self.operator.get(f"/v1/topics/{work.JOBS}").json["groups"]
            return all(group["lag"] == group["in_flight"] == group["pending"] == 0 for group in groups)

        wait_until(idle, "the group is not done", PATIENCE_S)

    def _judged(self) -> list[str]:
        operator = self.operator
        wrong: list[str] = []
        for appender in self.appenders:
            wrong += log_violations(appender.stream, appender.writes, operator.lines(appender.stream))
        for key in work.KEYS:
            last = [self._last(key)]
            writes = [each for client in self.registers for each in client.writes[key]]
            reads = [each for client in self.registers for each in client.reads[key]]
            wrong += register_violations(key, writes, reads + last)
        last_swap = self._last(work.Swapper.KEY)
        swaps = [each for client in self.swappers for each in client.swaps]
        swap_reads = [each for client in self.swappers for each in client.reads]
        wrong += swap_violations(work.Swapper.KEY, swaps, [*swap_reads, last_swap], last_swap.value)
        wrong += self._counted()
        wrong += route_violations("route", *self._routed())
        found = {partition: operator.messages(work.JOBS, partition) for partition in range(work.JOBS_PARTITIONS)}
        for partition, messages in found.items():
            values = [work.payload(each) for each in messages]
            wrong += log_violations(f"{work.JOBS} {partition}", self.publisher.writes[partition], values)
        wrong += group_violations(
            work.GROUP,
            [work.payload(each) for messages in found.values() for each in messages],
            [each for client in self.members for each in client.deliveries],
            [each for client in self.members for each in client.acknowledgements],
        )
        return wrong + self._transferred()

    def _delivered(self) -> list[str]:
        """Let the live readers get all there is, and compare."""
        wrong: list[str] = []
        for reader in self.readers:
            stored = self.operator.lines(reader.stream)
            wait_until(
                lambda reader=reader, count=len(stored): len(reader.lines) >= count or reader.failure is not None,
                f"the {reader.name} does not get all",
                PATIENCE_S,
            )
            reader.ending.set()
            reader.join(PATIENCE_S)
            if reader.failure is not None:
                wrong.append(f"{reader.name}: {reader.failure!r}")
            wrong += reader_violations(reader.name, reader.lines, stored)
        return wrong

    def _last(self, key: str) -> Read:
        while (found := work.read(self.operator, work.TABLE, key)) is None:
            time.sleep(work.PAUSE_S)
        return found

    def _counted(self) -> list[str]:
        rows = self.operator.sql(f"SELECT n FROM {work.COUNTERS} WHERE id = '{work.Adder.KEY}'")
        number = int(_rows(rows)[0]["n"])
        return counter_violations("counter", [each for client in self.adders for each in client.added], number)

    def _routed(self) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
        changes: dict[str, list[str]] = defaultdict(list)
        for each in self.operator.changes(work.TABLE):
            changes[each["new"]["id"]].append(each["new"]["v"])
        messages: dict[str, list[str]] = defaultdict(list)
        for each in self.operator.messages(work.CHANGES):
            row = json.loads(work.payload(each))
            messages[row["id"]].append(row["v"])
        return changes, messages

    def _transferred(self) -> list[str]:
        operator = self.operator
        writes = [each for client in self.transferers for each in client.writes]
        places = {
            "topic": [work.payload(each) for each in operator.messages(work.RECEIPTS)],
            "stream": operator.lines(work.AUDIT),
        }
        total = sum(int(row["balance"]) for row in _rows(operator.sql(f"SELECT balance FROM {work.ACCOUNTS}")))
        return transfer_violations("transfers", writes, places, total, work.BALANCE * len(work.NAMES))

    def report(self) -> str:
        outcomes: Counter[Outcome] = Counter()
        codes: Counter[str] = Counter()
        for client in self.clients:
            outcomes += client.outcomes
            codes += client.codes
        reads = sum(len(each) for client in self.registers for each in client.reads.values())
        lines = [f"faults: {sum(self.done.values())}"]
        lines += [
            f"  {count:4}  {name:38} gap p50 {_percentile(self.gaps_s[name], 50):6.2f} s, "
            f"p99 {_percentile(self.gaps_s[name], 99):6.2f} s"
            for name, count in sorted(self.done.items())
        ]
        lines.append(
            f"writes: {outcomes[DONE]} acknowledged, {outcomes[REFUSED]} refused, {outcomes[UNKNOWN]} unknown; "
            f"reads of registers: {reads}; "
            f"entries delivered to live readers: {sum(len(reader.lines) for reader in self.readers)}"
        )
        lines += [f"  {count:6}  {code}" for code, count in codes.most_common(12)]
        kills = self.gaps_s[KILL]
        if kills:
            lines.append(
                f"gap without an acknowledgement after a kill of the leader: p50 {_percentile(kills, 50):.2f} s, "
                f"p99 {_percentile(kills, 99):.2f} s"
            )
        lines.append(f"violations: {len(self.problems)}")
        lines += [f"  {line}" for line in self.problems[:20]]
        return "\n".join(lines)

    def close(self) -> None:
        for client in (*self.clients, *self.readers):
            client.ending.set()
        self.cluster.close()


def _percentile(values: Sequence[float], percent: int) -> float:
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)] if values else 0.0


def _rows(answer: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = answer["results"][-1]["rows"]
    return found
