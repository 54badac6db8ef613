"""Random tables with histories, and a model of a view that is kept by the derivative alone."""

# ruff: noqa: E501 - queries are on one line

from __future__ import annotations

import math
import random
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.types import VariantVal

from tailrace.jobs import view_sql
from tailrace.spark.views.additive import PARTIALS
from tailrace.spark.views.catalyst import WEIGHT
from tailrace.spark.views.partials import added
from tailrace.spark.views.query import ADDITIVE, INTERVAL, REFRESH, SourceRows, ViewQuery, ViewSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS: Final = {
    "orders": ("id", "id string NOT NULL, status string, total decimal(20,4), customer string, region string, qty bigint, at string, sku string, parent string, tags string, note string", 22),
    "customers": ("id", "id string NOT NULL, name string, tier string, country string", 8),
    "products": ("sku", "sku string NOT NULL, category string, price decimal(20,4)", 8),
    "payments": ("id", "id string NOT NULL, order_id string, amount decimal(20,4), ok boolean, at string", 14),
    "messages": ("channel,ts", "channel string NOT NULL, ts bigint NOT NULL, author string, body string", 14),
    "reads": ("channel,usr", "channel string NOT NULL, usr string NOT NULL, ts bigint", 6),
    "readings": ("device,ts", "device string NOT NULL, ts bigint NOT NULL, temp double, hum double", 16),
    "events": ("partition,offset", "partition int NOT NULL, offset bigint NOT NULL, payload string, value variant", 10),
}  # fmt: skip

TOPIC: Final = "events"


class World:
    """Tables, and what they were after each batch."""

    def __init__(self, spark: SparkSession, seed: int, batches: int) -> None:
        from pyspark.sql.types import _parse_datatype_string

        self.spark, self._random, self._serial = spark, random.Random(seed), 0
        self._messages, self._ends = random.Random(seed), [0, 0]  # of the topic
        self.sources = {
            table: ViewSource(tuple(key.split(",")), _parse_datatype_string(ddl))
            for table, (key, ddl, _) in COLUMNS.items()
        }
        rows: dict[str, dict[Any, dict[str, Any]]] = {table: {} for table in COLUMNS}
        for table, (_, _, size) in COLUMNS.items():
            while len(rows[table]) < size * 0.7:
                row = self._row(table)
                rows[table][self._key(table, row)] = row
        self.states = [{table: self._frame(table, list(rows[table].values())) for table in COLUMNS}]
        self.deltas: list[dict[str, DataFrame | None]] = [{}]
        for _ in range(batches):
            self.deltas.append({table: self._change(table, rows[table]) for table in COLUMNS})
            before = self.states[-1]
            self.states.append(
                {
                    table: self._frame(table, list(rows[table].values())) if delta is not None else before[table]
                    for table, delta in self.deltas[-1].items()
                }
            )

    def _key(self, table: str, row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] for name in self.sources[table].key)

    def _change(self, table: str, rows: dict[Any, dict[str, Any]]) -> DataFrame | None:
        """Random inserts, updates and deletes: rows with weights, several for a key where a batch changes it twice."""
        rng, size, weighted = self._random, COLUMNS[table][2], []
        if table == TOPIC:
            fresh = [self._message() for _ in range(self._messages.randint(0, 4))]
            rows |= {self._key(table, row): row for row in fresh}
            return self._frame(table, [{**row, WEIGHT: 1} for row in fresh], f", {WEIGHT} int") if fresh else None
        if rng.random() < 0.3:
            return None
        for _ in range(rng.randint(1, 5)):
            row, choice = self._row(table), rng.random()
            key = self._key(table, row)
            if choice < 0.35 and len(rows) > size * 0.45:
                key = rng.choice(list(rows))
                weighted.append({**rows.pop(key), WEIGHT: -1})
                continue
            if choice < 0.7 and rows:
                key = rng.choice(list(rows))
                changed = {name: row[name] for name in row if name not in self.sources[table].key}
                row = rows[key] | {name: value for name, value in changed.items() if rng.random() < 0.4}
            if key in rows:
                weighted.append({**rows[key], WEIGHT: -1})
            weighted.append({**row, WEIGHT: 1})
            rows[key] = row
        return self._frame(table, weighted, f", {WEIGHT} int")

    def _frame(self, table: str, rows: list[dict[str, Any]], more: str = "") -> DataFrame:
        """A local relation: a small one that Spark knows the size of."""
        from pyspark.sql.pandas.types import to_arrow_schema
        from pyspark.sql.types import _parse_datatype_string

        if table == TOPIC:
            stored = _parse_datatype_string(COLUMNS[table][1].replace(", value variant", "") + more)
            frame = self.spark.createDataFrame(pa.Table.from_pylist(rows, to_arrow_schema(stored)), stored)
            weight = [WEIGHT] if more else []
            return frame.selectExpr("partition", "offset", "payload", "try_parse_json(payload) AS value", *weight)
        schema = _parse_datatype_string(COLUMNS[table][1] + more)
        return self.spark.createDataFrame(pa.Table.from_pylist(rows, to_arrow_schema(schema)), schema)

    def _pick(self, values: Any, null: float = 0.08) -> Any:
        return None if self._random.random() < null else self._random.choice(values)

    def _time(self) -> str:
        self._serial += 1
        rng = self._random
        return f"2026-11-{rng.randint(10, 12)}T{rng.randint(0, 23):02}:{rng.randint(0, 59):02}:00.{self._serial:06}"

    def _message(self) -> dict[str, Any]:
        """The next message of the topic, in one of its partitions."""
        rng = self._messages
        partition = rng.randrange(2)
        self._ends[partition] += 1
        kind, customer, qty = rng.choice(["seen", "sold", "lost"]), f"c{rng.randrange(9)}", rng.randint(1, 9)
        payload = rng.choice(
            [f'{{"kind": "{kind}", "customer": "{customer}", "qty": {qty}}}', f'{{"kind": "{kind}"}}', "no JSON"]
        )
        return {"partition": partition, "offset": self._ends[partition] - 1, "payload": payload}

    def _row(self, table: str) -> dict[str, Any]:
        if table == TOPIC:
            return self._message()
        rng, pick = self._random, self._pick
        orders, customers = [f"o{i}" for i in range(30)], [f"c{i}" for i in range(9)]
        skus = [f"k{i}" for i in range(9)]
        match table:
            case "orders":
                return {
                    "id": rng.choice(orders), "status": pick(["new", "paid", "returned"]),
                    "total": pick([Decimal(rng.randint(1, 6_000_000)) / 10_000]), "customer": pick(customers),
                    "region": pick(["eu", "us"]), "qty": pick([rng.randint(1, 9)]), "at": self._time(),
                    "sku": pick(skus), "parent": pick(orders, 0.4),
                    "tags": pick(['["a","b"]', '["b"]', "[]", '["a","a"]']), "note": str(rng.random()),
                }  # fmt: skip
            case "customers":
                named = pick(["n1", "n2"])
                return {
                    "id": rng.choice(customers),
                    "name": named,
                    "tier": pick(["gold", "tin"]),
                    "country": pick("df"),
                }
            case "products":
                price = Decimal(rng.randint(1, 400_000)) / 10_000
                return {"sku": rng.choice(skus), "category": pick(["x", "y"]), "price": price}
            case "payments":
                amount = Decimal(rng.randint(1, 9000)) / 100
                ident = f"p{rng.randint(0, 20)}"
                good = pick([True, False])
                return {"id": ident, "order_id": pick(orders), "amount": amount, "ok": good, "at": self._time()}
            case "messages":
                body = pick(["hi @bob all", "hi hi", "@eve"])
                return {"channel": rng.choice("abc"), "ts": rng.randint(0, 20), "author": pick("xy"), "body": body}
            case "reads":
                return {"channel": rng.choice("abcd"), "usr": rng.choice("uvwx"), "ts": rng.randint(0, 20)}
            case _:
                temp = pick([rng.random() * 40, 0.1, 0.2, 0.3])
                return {
                    "device": rng.choice("def"),
                    "ts": rng.randint(0, 15) * 20_000,
                    "temp": temp,
                    "hum": rng.random(),
                }

    def read_by(self, sql: str) -> dict[str, ViewSource]:
        """The tables of a query: each costs time, also those that are not read."""
        return {table: self.sources[table] for table in view_sql.tables(sql)}

    def scratch(self, number: int, sql: str) -> list[tuple[Any, ...]]:
        """The result of the query over the tables as they are after a batch."""
        for table in self.read_by(sql):
            self.states[number][table].createOrReplaceTempView(table)
        return [tuple(row) for row in self.spark.sql(sql).collect()]

    def check(self, sql: str) -> ViewQuery:
        """Keep a view through all batches; after each it equals the query from scratch."""
        query = ViewQuery(self.spark, sql, self.read_by(sql))
        states = [{table: state[table] for table in query.sources} for state in self.states]
        try:
            kept = KeptView(query)
            kept.fill(states[0])
            for number in range(len(states)):
                if number:
                    kept.apply(states[number - 1], states[number], self.deltas[number])
                got, wanted = kept.shown(), sorted(map(comparable, self.scratch(number, sql)), key=repr)
                assert got == wanted, (
                    f"batch {number}, {query.strategy}: only in the view {[x for x in got if x not in wanted][:3]}, "
                    f"only in the query {[x for x in wanted if x not in got][:3]}, {len(got)} and {len(wanted)} rows\n"
                    + "\n".join(query.explained)
                )
        finally:
            query.drop()
        return query


class KeptView:
    """A view's rows by key, as the server has them."""

    def __init__(self, query: ViewQuery) -> None:
        self._query = query
        self.rows: dict[Any, tuple[Any, ...]] = {}
        self._texts: dict[Any, str] = {}  # the partials of groups, as the server has them

    def fill(self, now: dict[str, DataFrame]) -> None:
        self._write(self._query.filled(now))

    def _put_all(self, rows: list[Any]) -> None:
        self.rows = {}
        for row in rows:
            key = self._key(row)
            assert key not in self.rows, f"two rows have the key {key}"
            self.rows[key] = tuple(row)

    def _key(self, row: Any) -> Any:
        return comparable(tuple(row[index] for index in self._query.key))

    def apply(self, old: dict[str, DataFrame], new: dict[str, DataFrame], deltas: dict[str, DataFrame | None]) -> None:
        query = self._query
        if query.strategy in (REFRESH, INTERVAL):
            self._put_all(query.result(new).collect())
            return
        made = query.batch({table: SourceRows(old[table], new[table], deltas[table]) for table in old})
        if made is None:
            return
        if query.strategy == ADDITIVE:
            made = query.finished(self._added(made))
        self._write(made)

    def _added(self, partials: DataFrame) -> DataFrame:
        """Partials with those that are there, as the tasks of a job add them."""
        additive, rows, spark = self._query.additive, partials.collect(), partials.sparkSession
        assert additive is not None
        table = spark.createDataFrame(rows, partials.schema).toArrow().combine_chunks()
        keys = [comparable(tuple(row[name] for name in additive.groups)) for row in rows]
        names = additive.names(partials)
        made = [added(each, names, [self._texts.get(key) for key in keys]) for each in table.to_batches()]
        return spark.createDataFrame(pa.Table.from_batches(made, table.schema), partials.schema)

    def _write(self, made: DataFrame) -> None:
        seen = set()
        for row in made.collect():
            key = self._key(row)
            assert key not in seen, f"two changes of the key {key}"
            seen.add(key)
            if PARTIALS in row:
                self._texts.pop(key, None)
                if row[PARTIALS] is not None:
                    self._texts[key] = row[PARTIALS]
            if row[WEIGHT] > 0:
                self.rows[key] = tuple(row)[: len(self._query.names)]
            else:
                self.rows.pop(key, None)

    def shown(self) -> list[Any]:
        """The rows of the SELECT."""
        query, rows = self._query, []
        width = len(query.columns)
        for row in self.rows.values():
            count = row[width] if query.hidden == ["__count"] else 1
            rows += [comparable(row[:width])] * count
        return sorted(rows, key=repr)


def comparable(value: Any) -> Any:
    """Values of which equal ones are equal in Python too."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else float(f"{value:.9g}")
    if isinstance(value, dict):
        return tuple(sorted((key, comparable(inner)) for key, inner in value.items()))
    if isinstance(value, list | tuple):
        return tuple(map(comparable, value))
    return value.toJson() if isinstance(value, VariantVal) else value
