"""``python -m tests.crash.transfer_worker URL CONSUMERS``: move money between accounts, as the messages of a topic say,
until killed. Each message is applied by one transaction: it reads both accounts, writes them, counts the message,
publishes a receipt, appends to a stream, and acknowledges the message."""

from __future__ import annotations

import sys
import threading
from typing import Any

from tailrace.client import Client, Consumer

ACCOUNTS, APPLIED, TRANSFERS, RECEIPTS, AUDIT = "accounts", "applied", "transfers", "receipts", "audit"
GROUP = "movers"
VISIBILITY_S = 2.0


def apply(message: Any, tx: Any) -> None:
    transfer = message.json()
    source = tx.get(ACCOUNTS, transfer["from"])
    target = tx.get(ACCOUNTS, transfer["to"])
    tx.put(ACCOUNTS, {**source, "balance": source["balance"] - transfer["amount"]})
    tx.put(ACCOUNTS, {**target, "balance": target["balance"] + transfer["amount"]})
    tx.update(APPLIED, transfer["id"], "ADD times :one", values={"one": 1})
    tx.publish(RECEIPTS, message.payload)
    tx.append(AUDIT, f"{transfer['id']}\n")


def work(url: str) -> None:
    with Client(url) as client:
        consumer = Consumer(client, TRANSFERS, GROUP, batch=5, visibility_s=VISIBILITY_S, timeout_s=5)
        consumer.run(apply, transactional=True, retry_s=0.05, signals=False)


def main(url: str, consumers: int) -> None:
    threads = [threading.Thread(target=work, args=(url,), daemon=True) for _ in range(consumers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
