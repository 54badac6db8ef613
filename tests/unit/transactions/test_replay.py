"""SQL transactions of several threads have the results of the same transactions one after the other, in the order of
their commits: every row that a statement returned, and all that is stored in the end."""

from __future__ import annotations

import json
import random
import threading
from pathlib import Path
from typing import Any

import tailrace
from tailrace.database import Database
from tailrace.errors import TransactionConflict
from tailrace.sql.session import Session
from tests.support.soak import rounds

IDS, KINDS = ("a", "b", "\u00e9\u2028", "d"), ("x", "y")
SCHEMA = """
    CREATE TABLE items (id TEXT PRIMARY KEY, kind TEXT, n BIGINT) WITH (stream = NEW_AND_OLD_IMAGES);
    CREATE TABLE totals (kind TEXT, n BIGINT, c BIGINT, PRIMARY KEY (kind, n));
    CREATE TABLE marks (id TEXT PRIMARY KEY) WITH (stream = KEYS_ONLY);
    CREATE TABLE committed (id TEXT PRIMARY KEY) WITH (stream = KEYS_ONLY);
    CREATE INDEX by_kind ON items (kind, n);
    CREATE TOPIC done
"""
STATEMENTS = (
    "SELECT id, n FROM items WHERE kind = {kind} AND n >= {n}",
    "SELECT kind, count(*) AS c, sum(n) AS s FROM items GROUP BY kind",
    "SELECT count(*) AS c FROM items",
    "SELECT items.id, totals.c FROM items JOIN totals ON totals.kind = items.kind WHERE items.id = {id}",
    "SELECT max(n) AS m FROM totals WHERE kind = {kind}",
    "SELECT * FROM totals WHERE kind = {kind} AND n < {n} ORDER BY n DESC LIMIT 1",
    "SELECT count(*) AS c FROM changes('marks')",
    "SELECT count(*) AS c FROM topic('done')",
    "INSERT INTO items VALUES ({id}, {kind}, {n}) ON CONFLICT (id) DO NOTHING RETURNING *",
    "INSERT INTO items VALUES ({id}, {kind}, {n}) ON CONFLICT (id) DO UPDATE SET n = n + 1 RETURNING *",
    "INSERT INTO items VALUES ({id}, {kind}, {n}) ON CONFLICT (id) DO UPDATE SET kind = EXCLUDED.kind WHERE n < 3",
    "INSERT OR REPLACE INTO items VALUES ({id}, {kind}, {n})",
    "INSERT OR REPLACE INTO totals SELECT kind, n, count(*) FROM items GROUP BY kind, n",
    "DELETE FROM items WHERE id = {id} RETURNING *",
    "DELETE FROM items WHERE n > 3 RETURNING id",
    "DELETE FROM items WHERE id = {id}; INSERT INTO items VALUES ({id}, {kind}, {n}) ON CONFLICT (id) DO NOTHING",
    "UPDATE items SET n = n + 1 WHERE kind = {kind} RETURNING id, n",
    "UPDATE totals SET c = c + 1 WHERE kind = {kind} AND n >= {n} RETURNING *",
    "INSERT OR REPLACE INTO marks VALUES ({id})",
    "PUBLISH TO done VALUES ({id})",
)


def statements(chosen: random.Random) -> list[str]:
    """The statements of a random transaction."""
    texts = chosen.choices(STATEMENTS, k=chosen.randint(1, 5))
    return [
        text.format(id=f"'{chosen.choice(IDS)}'", kind=f"'{chosen.choice(KINDS)}'", n=chosen.randint(0, 4))
        for text in texts
    ]


def run(db: Database, name: str, texts: list[str]) -> tuple[int, Any]:
    """The sequence of a transaction, and the results of its statements."""
    session, results = Session(db.execute), []
    session.run(f"BEGIN; INSERT INTO committed (id) VALUES ('{name}')")
    for text in texts:
        for result in session.run(text):
            rows = [] if result.statement == "PUBLISH" else result.rows
            results.append((result.statement, sorted(json.dumps(row, sort_keys=True) for row in rows)))
    (ended,) = session.run("COMMIT")
    return ended.facts["sequence"], results


def stored(db: Database) -> Any:
    tables = {name: sorted(map(str, db.table(name).scan())) for name in ("items", "totals", "marks", "committed")}
    return tables, [message.payload for message in db.consume("done", None, limit=10_000)]


def test_concurrent_sql_transactions_equal_their_replay(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1_000_000)
    done: list[tuple[int, str, list[str], Any]] = []
    conflicts = 0
    lock = threading.Lock()

    def work(worker: int) -> None:
        nonlocal conflicts
        chosen = random.Random(seed * 100 + worker)
        for step in range(rounds(25)):
            name, texts = f"{worker}-{step}", statements(chosen)
            try:
                sequence, results = run(db, name, texts)
            except TransactionConflict:
                with lock:
                    conflicts += 1
            else:
                with lock:
                    done.append((sequence, name, texts, results))

    with tailrace.open(tmp_path / "concurrent") as db, tailrace.open(tmp_path / "serial") as serial:
        for each in (db, serial):
            each.sql(SCHEMA)
        threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(done) + conflicts == 4 * rounds(25), "a transaction failed otherwise"
        for _, name, texts, results in sorted(done):
            assert run(serial, name, texts)[1] == results, f"seed {seed}: {texts}"
        assert stored(serial) == stored(db), f"seed {seed}"
        assert len(done) > 10
        assert conflicts > 0, "there was no contention, so nothing was shown"
