"""A SELECT finds what its WHERE clause says: random conditions over random items, compared with a model.

The model evaluates the same condition in Python, on every item. The server may read ranges of keys, several of them, or
everything, from the table or from an index, in pages of any size: the items are the same. Two kinds of statements are
refused by design, those whose ranges overlap and those with too many.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.soak import examples
from tests.unit.http.test_dynamodb_items import Client

Plain = dict[str, Any]
Holds = Callable[[Plain], bool]

REFUSED = (
    "Overlapping conditions with range keys are not supported in where clause",
    "Too many decomposed read operations for a given query.",
)
ORDERS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
KINDS = {"pk": str, "sk": int, "g": str}
PKS, SKS, GS = ["a", "b", "c", "ab"], [-1, 0, 1, 2, 10], ["x", "y"]
VALUES: list[Any] = ["a", "ab", "b", "x", 0, 1, 2, True, None]


def typed(value: Any) -> dict[str, Any]:
    if value is None:
        return {"NULL": True}
    if isinstance(value, bool):
        return {"BOOL": value}
    return {"N": str(value)} if isinstance(value, int) else {"S": value}


def spelt(value: Any) -> str:
    if value is None:
        return "NULL"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and one == other


def ordered(op: str, one: Any, other: Any) -> bool:
    return type(one) is type(other) and isinstance(one, str | int) and ORDERS[op](one, other)


class Conditions:
    """Makes conditions, as text and as a model, at random."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.parameters: list[dict[str, Any]] = []

    def _value(self, name: str, *, comparable: bool = False) -> tuple[str, Any]:
        known: dict[str, list[Any]] = {"pk": PKS, "sk": SKS, "g": GS}
        some = known.get(name, VALUES[:-2] if comparable else VALUES)
        value = self._chance.choice(some)
        if self._chance.random() < 0.3:
            self.parameters.append(typed(value))
            return "?", value
        return spelt(value), value

    def where(self, partition: str) -> tuple[str, Holds]:
        """Any condition, or alternatives that each fix the partition key."""
        if self._chance.random() < 0.3:
            return self.condition()
        parts = [self._keyed(partition) for _ in range(self._chance.choice([1, 1, 2, 3]))]
        tests = [test for _, test in parts]
        return " OR ".join(text for text, _ in parts), lambda item: any(test(item) for test in tests)

    def _keyed(self, partition: str) -> tuple[str, Holds]:
        chance = self._chance
        made = [lambda: self._leaf(partition, chance.choice(["=", "=", "IN"]))]
        for _ in range(chance.choice([0, 1, 1, 2])):
            made.append(lambda: self._leaf("sk"))
        if chance.random() < 0.4:
            made.append(self._in_parentheses)
        chance.shuffle(made)  # before they are made: parameters are in the order of the text
        parts = [make() for make in made]
        tests = [test for _, test in parts]
        return " AND ".join(text for text, _ in parts), lambda item: all(test(item) for test in tests)

    def _in_parentheses(self) -> tuple[str, Holds]:
        text, test = self.condition(1)
        return f"({text})", test

    def condition(self, depth: int = 3) -> tuple[str, Holds]:
        chance = self._chance
        kind = chance.random()
        if depth and kind < 0.55:
            joins, both = (" AND ", all) if chance.random() < 0.6 else (" OR ", any)
            parts = [self.condition(depth - 1) for _ in range(chance.randint(2, 3))]
            text = joins.join(text if " AND " not in text and " OR " not in text else f"({text})" for text, _ in parts)
            tests = [test for _, test in parts]
            return text, lambda item: both(test(item) for test in tests)
        if depth and kind < 0.62:
            text, test = self.condition(depth - 1)
            return f"NOT ({text})", lambda item: not test(item)
        return self._leaf()

    def _leaf(self, name: str = "", kind: str = "") -> tuple[str, Holds]:
        chance = self._chance
        name = name or chance.choice(["pk", "pk", "sk", "sk", "g", "v", "w"])
        kind = kind or chance.choice(["=", "=", "=", "<>", *ORDERS, "BETWEEN", "IN", "MISSING", "begins", "type"])
        if kind in ORDERS:
            text, value = self._value(name, comparable=True)
            return f"{name} {kind} {text}", lambda item: name in item and ordered(kind, item[name], value)
        if kind == "BETWEEN":
            low, high = sorted(chance.sample(SKS if name == "sk" else PKS, 2))
            return (
                f"{name} BETWEEN {spelt(low)} AND {spelt(high)}",
                lambda item: name in item and ordered(">=", item[name], low) and ordered("<=", item[name], high),
            )
        if kind == "IN":
            some = [self._value(name) for _ in range(chance.randint(1, 3))]
            values = [value for _, value in some]
            return (
                f"{name} IN [{', '.join(text for text, _ in some)}]",
                lambda item: name in item and any(same(item[name], value) for value in values),
            )
        if kind == "MISSING":
            return f"{name} IS MISSING", lambda item: name not in item
        if kind == "type":
            return f"attribute_type({name}, 'S')", lambda item: isinstance(item.get(name), str)
        if kind == "begins" and name != "sk":
            return (
                f"begins_with({name}, 'a')",
                lambda item: isinstance(item.get(name), str) and item[name].startswith("a"),
            )
        text, value = self._value(name)
        equal: Holds = lambda item: name in item and same(item[name], value)  # noqa: E731
        if kind == "<>":
            return f"{name} <> {text}", lambda item: not equal(item)
        return f"{name} = {text}", equal


def made(chance: random.Random) -> list[Plain]:
    items = []
    for pk in PKS:
        for sk in chance.sample(SKS, chance.randint(0, len(SKS))):
            item: Plain = {"pk": pk, "sk": sk}
            for name, known in (("g", GS), ("v", VALUES), ("w", VALUES)):
                if chance.random() < 0.6:
                    item[name] = chance.choice(known)
            items.append(item)
    return items


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, list[Plain]]]:
    client = Client(Path(tmp_path_factory.mktemp("where")))
    keys = [{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}]
    client.do(
        "CreateTable",
        TableName="table",
        KeySchema=keys,
        AttributeDefinitions=[
            {"AttributeName": name, "AttributeType": "N" if kind is int else "S"} for name, kind in KINDS.items()
        ],
        BillingMode="PAY_PER_REQUEST",
        GlobalSecondaryIndexes=[
            {
                "IndexName": "by_g",
                "KeySchema": [{"AttributeName": "g", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
                "Projection": {"ProjectionType": "ALL"},
            }
        ],
    )
    items = made(random.Random(7))
    for item in items:
        client.do("PutItem", TableName="table", Item={name: typed(value) for name, value in item.items()})
    yield client, items
    client.close()


@settings(max_examples=examples(300), deadline=None)
@given(st.integers(0, 2**64), st.booleans(), st.sampled_from([None, 1, 2, 7]))
def test_a_select_finds_what_its_condition_says(
    filled: tuple[Client, list[Plain]], seed: int, indexed: bool, limit: int | None
) -> None:
    client, items = filled
    conditions = Conditions(random.Random(seed))
    text, holds = conditions.where("g" if indexed else "pk")
    source = '"table".by_g' if indexed else '"table"'
    request: dict[str, Any] = {"Statement": f"SELECT pk, sk FROM {source} WHERE {text}"}
    if conditions.parameters:
        request["Parameters"] = conditions.parameters
    if limit is not None:
        request["Limit"] = limit
    found: list[tuple[str, str]] = []
    while True:
        status, answer = client.send("ExecuteStatement", request)
        if status == 400 and answer["message"] in REFUSED:
            return
        assert status == 200, (text, answer)
        assert limit is None or len(answer["Items"]) <= limit
        found += [(item["pk"]["S"], item["sk"]["N"]) for item in answer["Items"]]
        if "NextToken" not in answer:
            break
        request["NextToken"] = answer["NextToken"]
    expected = [(each["pk"], str(each["sk"])) for each in items if holds(each) and (not indexed or "g" in each)]
    assert sorted(found) == sorted(expected), text
