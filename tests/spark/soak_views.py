"""Random queries over random histories: after every batch each view equals its SELECT run from scratch.

    python -m tests.spark.soak_views --minutes 60
    python -m tests.spark.soak_views --seed N --worlds M     a run again, or a part of it

A difference is printed with the seed that shows it again. The seeds of each run are kept in `view_seeds.txt`; a test
takes the last ones.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Final, NamedTuple

from tests.spark.view_worlds import World
from tests.support.jvm import SHORT_LIVED

KEPT: Final = Path(__file__).with_name("view_seeds.txt")
QUERIES_PER_WORLD: Final = 12
BATCHES: Final = 5
# The columns of each table: for groups, numbers that are exact, and the key.
GROUPS: Final = {
    "orders": ["status", "customer", "region", "sku"],
    "customers": ["name", "tier", "country"],
    "products": ["category"],
    "payments": ["order_id", "ok"],
}
NUMBERS: Final = {"orders": ["total", "qty"], "products": ["price"], "payments": ["amount"], "customers": []}
KEYS: Final = {"orders": "id", "customers": "id", "products": "sku", "payments": "id"}
JOINS: Final = [
    ("orders", "customers", "{a}.customer = {b}.id"),
    ("orders", "products", "{a}.sku = {b}.sku"),
    ("orders", "payments", "{b}.order_id = {a}.id"),
    ("orders", "orders", "{a}.parent = {b}.id"),
    ("payments", "orders", "{a}.order_id = {b}.id"),
    ("customers", "orders", "{b}.customer = {a}.id"),
]
PEERS: Final = ["rank()", "dense_rank()", "percent_rank()", "sum(total)", "count(*)", "max(qty)"]
KINDS: Final = ["JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"]
SETS: Final = ["UNION", "UNION ALL", "INTERSECT", "EXCEPT", "INTERSECT ALL", "EXCEPT ALL"]
# Tables without a history, with the columns of orders that they are joined with.
CONSTANTS: Final = [
    ("(VALUES ('new'), ('paid'), ('lost'), (NULL)) AS v(k)", "status"),
    ("(VALUES ('c1'), ('c2'), ('nobody')) AS v(k)", "customer"),
    ("(SELECT id AS k FROM range(1, 12)) AS v", "qty"),
]


class KeptSeeds(NamedTuple):
    """A run: its first and last seed, and what came of it."""

    first: int
    last: int
    queries: int
    wrong: int
    pyspark: str


def kept_seeds() -> list[KeptSeeds]:
    """The runs that were kept, the earliest first."""
    lines = [line.split() for line in KEPT.read_text().splitlines() if not line.startswith("#")]
    return [KeptSeeds(*map(int, numbers), pyspark) for *numbers, pyspark in lines]


class QueryGenerator:
    """Makes SELECTs up."""

    def __init__(self, rng: random.Random) -> None:
        self._random = rng

    def query(self) -> str:
        """A SELECT; sometimes of two, or of a SELECT."""
        rng = self._random
        choice = rng.random()
        if choice < 0.08:
            return f"{self._one_column()} {rng.choice(SETS)} {self._one_column()}"
        if choice < 0.13:
            constant = rng.choice(["SELECT 'c1'", "SELECT CAST(NULL AS STRING)"])
            inner = f"{self._one_column()} {rng.choice(SETS)} {rng.choice([constant, self._one_column()])}"
            return f"({inner}) {rng.choice(SETS)} {self._one_column()}"
        if choice < 0.2:
            return self._constants()
        if choice < 0.3:
            inner = self._groups()
            return f"SELECT n, count(*) AS groups FROM ({inner}) GROUP BY n"
        return rng.choice([self._groups, self._groups, self._rows, self._window, self._window, self._lateral])()

    def _one_column(self) -> str:
        rng = self._random
        table = rng.choice(["orders", "customers"])
        column = "customer" if table == "orders" else "id"
        return f"SELECT {column} AS who FROM {table}{self._where([(table, table)])}"

    def _from(self) -> tuple[str, list[tuple[str, str]]]:
        """A FROM clause, and its tables with their aliases."""
        rng = self._random
        left, right, test = rng.choice(JOINS)
        tables = [(left, "a")]
        text = f"FROM {left} a"
        if rng.random() < 0.7:
            tables.append((right, "b"))
            text += f" {rng.choice(KINDS)} {right} b ON {test.format(a='a', b='b')}"
            if right == "orders" and rng.random() < 0.5:
                tables.append(("customers", "c"))
                text += f" {rng.choice(KINDS)} customers c ON b.customer = c.id"
        return text, tables

    def _where(self, tables: list[tuple[str, str]]) -> str:
        rng = self._random
        table, alias = rng.choice(tables)
        tests = [f"{alias}.{column} IS NOT NULL" for column in GROUPS[table]]
        tests += [f"{alias}.{column} > {rng.randint(1, 30)}" for column in NUMBERS[table]]
        key = f"{alias}.{KEYS[table]}"
        tests.append(f"{key} IN (SELECT customer FROM orders WHERE qty > {rng.randint(1, 8)})")
        tests.append(f"EXISTS (SELECT 1 FROM payments p WHERE p.order_id = {key})")
        tests.append(f"NOT EXISTS (SELECT 1 FROM orders q WHERE q.parent = {key})")
        if NUMBERS[table]:
            number = NUMBERS[table][0]
            tests.append(f"{alias}.{number} >= (SELECT min({number}) FROM {table})")
        return f" WHERE {rng.choice(tests)}" if rng.random() < 0.5 else ""

    def _column(self, tables: list[tuple[str, str]], of: dict[str, list[str]]) -> str | None:
        found = [f"{alias}.{column}" for table, alias in tables for column in of[table]]
        return self._random.choice(found) if found else None

    def _groups(self) -> str:
        rng = self._random
        text, tables = self._from()
        group = self._column(tables, GROUPS)
        number = self._column(tables, NUMBERS) or "1"
        made = ["count(*) AS n"]
        for index in range(rng.randint(0, 2)):
            function = rng.choice(["sum", "avg", "min", "max", "count", "count(DISTINCT", "sum(DISTINCT"])
            made.append(f"{function}{'(' if '(' not in function else ' '}{number}) AS x{index}")
        by = rng.choice(["GROUP BY {g}", "GROUP BY {g}", "GROUP BY ROLLUP ({g})"]).format(g=group)
        having = f" HAVING count(*) > {rng.randint(1, 3)}" if rng.random() < 0.3 else ""
        return f"SELECT {group} AS g, {', '.join(made)} {text}{self._where(tables)} {by}{having}"

    def _rows(self) -> str:
        text, tables = self._from()
        keys = [f"{alias}.{KEYS[table]} AS k{index}" for index, (table, alias) in enumerate(tables)]
        distinct = "DISTINCT " if self._random.random() < 0.2 else ""
        chosen = (
            [f"{self._column(tables, GROUPS)} AS v"] if distinct else [*keys, f"{self._column(tables, GROUPS)} AS v"]
        )
        return f"SELECT {distinct}{', '.join(chosen)} {text}{self._where(tables)}"

    def _window(self) -> str:
        rng = self._random
        by = rng.choice(GROUPS["orders"])
        order = rng.choice(["at", "at DESC"])
        function = rng.choice(["row_number()", "lag(total)", *PEERS])
        if function in PEERS:  # the same for rows that tie
            order = rng.choice([order, "qty", "status DESC", "sku, qty DESC"])
        made = f"SELECT id, {function} OVER (PARTITION BY {by} ORDER BY {order}) AS w FROM orders"
        return made if rng.random() < 0.5 else f"SELECT id, w FROM ({made}) WHERE w IS NOT NULL AND w < 3"

    def _constants(self) -> str:
        """What there is of some constants."""
        rng = self._random
        table, column = rng.choice(CONSTANTS)
        equal = rng.choice(["=", "<=>"])
        text = f"FROM {table} {rng.choice(KINDS)} orders o ON o.{column} {equal} v.k"
        if rng.random() < 0.4:
            return f"SELECT v.k, o.id AS id {text}"
        made = rng.choice(["count(o.id)", "sum(o.total)", "max(o.qty)", "count(DISTINCT o.customer)"])
        return f"SELECT v.k AS g, count(*) AS n, {made} AS x {text} GROUP BY v.k"

    def _lateral(self) -> str:
        """The first orders of each customer."""
        rng = self._random
        order = rng.choice(["total DESC NULLS LAST", "qty", "at"])
        first = f"SELECT o.id FROM orders o WHERE o.customer = c.id ORDER BY o.{order}, o.id LIMIT {rng.randint(1, 3)}"
        if rng.random() < 0.5:
            return f"SELECT c.id AS k, t.id AS v FROM customers c, LATERAL ({first}) t"
        return f"SELECT c.tier AS g, count(t.id) AS n FROM customers c LEFT JOIN LATERAL ({first}) t GROUP BY c.tier"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--worlds", type=int, default=None, help="so many seeds at most")
    args = parser.parse_args()
    from tailrace.spark import session

    spark = session(
        "soak", "local[2]",
        **{
            "spark.sql.shuffle.partitions": "1", "spark.driver.memory": "1g", "spark.sql.adaptive.enabled": "false",
            "spark.driver.extraJavaOptions": SHORT_LIVED, "spark.sql.codegen.wholeStage": "false",
        },
    )  # fmt: skip
    end = time.monotonic() + args.minutes * 60
    first = seed = random.SystemRandom().randrange(10**6) if args.seed is None else args.seed
    checked = wrong = 0
    while time.monotonic() < end and (args.worlds is None or seed < first + args.worlds):
        rng = random.Random(seed)
        world = World(spark, seed, BATCHES)
        for _ in range(QUERIES_PER_WORLD):
            sql = QueryGenerator(rng).query()
            try:
                strategy = world.check(sql).strategy
                print(f"seed {seed}: {strategy}: {sql}", flush=True)
            except Exception as error:
                wrong += 1
                print(f"WRONG, seed {seed}: {sql}\n{str(error)[:2000]}", flush=True)
            checked += 1
            if time.monotonic() > end:
                break
        seed += 1
    print(f"{checked} queries, {wrong} wrong; the seeds were {first} to {seed - 1}")
    if args.seed is None:
        with KEPT.open("a") as kept:
            print(first, seed - 1, checked, wrong, version("pyspark"), file=kept)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
