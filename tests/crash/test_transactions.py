"""Money that workers move between accounts, while they and their server are killed: totals are exact, and each message
is applied once."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tailrace.client import Client
from tailrace.errors import TooMany, Unavailable
from tests.crash.transfer_worker import ACCOUNTS, APPLIED, AUDIT, RECEIPTS, TRANSFERS
from tests.support.killing import chance
from tests.support.patience import PATIENCE_S
from tests.support.server import ROOT, ServerProcess, check
from tests.support.soak import rounds

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300 if rounds(1) == 1 else 3_600)]
BALANCE = 1_000


class Bank:
    """A server, a process of workers, and the transfers that were ordered."""

    def __init__(self, data: Path, chosen: random.Random, accounts: int, consumers: int) -> None:
        self._data = data
        self._chosen = chosen
        self._consumers = consumers
        self.server = ServerProcess.tailrace(data).start()
        self.client = Client(self.server.url)
        self.names = [f"a{number}" for number in range(accounts)]
        self.ordered: list[dict[str, Any]] = []
        self.client.sql(
            f"CREATE TABLE {ACCOUNTS} (id TEXT PRIMARY KEY, balance BIGINT) WITH (stream = NEW_AND_OLD_IMAGES);"
            f"CREATE TABLE {APPLIED} (id TEXT PRIMARY KEY, times BIGINT);"
            f"CREATE TOPIC {TRANSFERS} PARTITIONS 4; CREATE TOPIC {RECEIPTS}"
        )
        self.client.create(AUDIT)
        for name in self.names:
            self.client.sql(f"INSERT INTO {ACCOUNTS} VALUES (?, ?)", [name, BALANCE])
        self.workers = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.crash.transfer_worker", self.server.url, str(self._consumers)]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def order(self, count: int) -> None:
        for _ in range(count):
            source, target = self._chosen.sample(self.names, 2)
            transfer = {"id": str(len(self.ordered)), "from": source, "to": target}
            self.ordered.append({**transfer, "amount": self._chosen.randint(1, 50)})
            self.client.publish(TRANSFERS, self.ordered[-1], partition=self._chosen.randrange(4))

    def applied(self) -> int:
        """How many transfers have a receipt."""
        found = self.client.describe_topic(RECEIPTS)
        return int(found["partition_list"][0]["next_offset"])

    def until(self, count: int) -> None:
        """Wait for so many receipts."""
        self._until(lambda: self.applied() >= count)

    @staticmethod
    def _until(true: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(Unavailable, TooMany):
                if true():
                    return
            assert time.monotonic() < deadline_s, "the workers got no further"
            time.sleep(0.01)

    def kill_workers(self) -> None:
        self.workers.kill()
        self.workers.wait()
        self.workers = self._started()

    def kill_server(self) -> None:
        port = self.server.port
        self.server.kill()
        self.server = ServerProcess.tailrace(self._data, port=port).start()

    def close(self) -> None:
        self.workers.kill()
        self.workers.wait()
        self.client.close()
        self.server.terminate()

    def verify(self) -> None:
        """Every transfer was applied once, in every respect."""
        expected = dict.fromkeys(self.names, BALANCE)
        for transfer in self.ordered:
            expected[transfer["from"]] -= transfer["amount"]
            expected[transfer["to"]] += transfer["amount"]
        rows = self.client.sql(f"SELECT id, balance FROM {ACCOUNTS}")[0].rows
        assert {row["id"]: row["balance"] for row in rows} == expected
        assert sum(row["balance"] for row in rows) == BALANCE * len(self.names)
        rows = self.client.sql(f"SELECT id, times FROM {APPLIED}")[0].rows
        assert {row["id"]: row["times"] for row in rows} == {transfer["id"]: 1 for transfer in self.ordered}
        receipts = [message.json()["id"] for message in self.client.consume(RECEIPTS, None, limit=10_000)]
        assert Counter(receipts) == Counter(transfer["id"] for transfer in self.ordered)
        audit, offset = b"", "-1"
        while not (page := self.client.read(AUDIT, offset)).empty:
            audit, offset = audit + page.body, page.next
        assert audit.decode().split() == receipts, "streams and topics have the order of the commits"


@pytest.mark.parametrize(("accounts", "consumers"), [(20, 1), (3, 8)])
def test_money_is_neither_made_nor_lost(tmp_path: Path, accounts: int, consumers: int) -> None:
    seed, chosen = chance()
    bank = Bank(tmp_path / "data", chosen, accounts, consumers)
    try:
        for number in range(rounds(20)):
            bank.order(chosen.randint(4, 10))
            bank.until(min(bank.applied() + chosen.randint(1, 4), len(bank.ordered)))
            time.sleep(chosen.random() * 0.05)  # somewhere in the next ones
            (bank.kill_workers, bank.kill_server)[number % 2]()
        bank.until(len(bank.ordered))
        bank.verify()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    finally:
        bank.close()
    checked = check(tmp_path / "data")
    assert checked.returncode == 0, checked.stdout + checked.stderr
