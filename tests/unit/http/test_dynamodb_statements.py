"""PartiQL through the handler: each form of statement, its result or its error, as the service has them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace.access import Permission, Principal
from tailrace.config import Config
from tailrace.http.dynamodb.handler import DynamoHandler
from tests.unit.http.test_dynamodb_items import Client

INVALID = "One or more parameter values were invalid: "
MALFORMED = "Statement wasn't well formed, can't be processed: "
FAILED = ("ConditionalCheckFailedException", "The conditional request failed")
INCOMPLETE = "Where clause does not contain a mandatory equality on all key attributes"
OVERLAPPING = "Overlapping conditions with range keys are not supported in where clause"
TOO_MANY = "Too many decomposed read operations for a given query."
RETURNING = f"{MALFORMED}RETURNING takes one of ALL OLD *, ALL NEW *, MODIFIED OLD * and MODIFIED NEW *, not "


class PartiQL(Client):
    """Two tables: `songs` (pk, sk) with indexes, `flat` (pk)."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        for name, ranged in (("songs", True), ("flat", False)):
            keys = ["pk", "sk"] if ranged else ["pk"]
            indexes: dict[str, Any] = {}
            if ranged:
                indexes = {
                    "GlobalSecondaryIndexes": [
                        index("by_tag", ["tag"], {"ProjectionType": "INCLUDE", "NonKeyAttributes": ["held"]}),
                        index("all_tags", ["tag", "n"], {"ProjectionType": "ALL"}),
                    ],
                    "LocalSecondaryIndexes": [index("by_n", ["pk", "n"], {"ProjectionType": "KEYS_ONLY"})],
                }
            self.do(
                "CreateTable",
                TableName=name,
                KeySchema=key_schema(keys),
                AttributeDefinitions=[
                    {"AttributeName": each, "AttributeType": "N" if each == "n" else "S"}
                    for each in (["pk", "sk", "tag", "n"] if ranged else ["pk"])
                ],
                BillingMode="PAY_PER_REQUEST",
                **indexes,
            )

    def add(self, pk: str, sk: str = "1", table: str = "songs", **attributes: Any) -> None:
        key = {"pk": {"S": pk}} | ({"sk": {"S": sk}} if table == "songs" else {})
        self.do("PutItem", TableName=table, Item=key | attributes)

    def item(self, pk: str, sk: str = "1", table: str = "songs") -> dict[str, Any] | None:
        key = {"pk": {"S": pk}} | ({"sk": {"S": sk}} if table == "songs" else {})
        got: dict[str, Any] | None = self.do("GetItem", TableName=table, Key=key).get("Item")
        return got

    def run(self, statement: str, *parameters: Any, **more: Any) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.execute(statement, *parameters, **more)["Items"]
        return items

    def execute(self, statement: str, *parameters: Any, **more: Any) -> dict[str, Any]:
        return self.do("ExecuteStatement", Statement=statement, **with_parameters(parameters), **more)

    def refused(self, statement: str, *parameters: Any, **more: Any) -> str:
        name, message = self.fail("ExecuteStatement", Statement=statement, **with_parameters(parameters), **more)
        assert name == "ValidationException", (name, message)
        return message

    def selected(self, where: str, *parameters: Any, **more: Any) -> list[str]:
        """pk/sk of the items that a condition selects, in their order."""
        items = self.run(f"SELECT pk, sk FROM songs WHERE {where}", *parameters, **more)
        return [f"{item['pk']['S']}/{item['sk']['S']}" for item in items]

    def transact(self, *statements: str, **more: Any) -> dict[str, Any]:
        return self.do("ExecuteTransaction", TransactStatements=[{"Statement": each} for each in statements], **more)

    def canceled(self, *statements: str, **more: Any) -> list[dict[str, Any]]:
        request = {"TransactStatements": [{"Statement": each} for each in statements], **more}
        status, answer = self.send("ExecuteTransaction", request)
        assert (status, answer["__type"].partition("#")[2]) == (400, "TransactionCanceledException"), answer
        reasons: list[dict[str, Any]] = answer["CancellationReasons"]
        return reasons

    def transaction_refused(self, *statements: str) -> str:
        name, message = self.fail("ExecuteTransaction", TransactStatements=[{"Statement": each} for each in statements])
        assert name == "ValidationException", (name, message)
        return message

    def batch(self, *statements: str, **more: Any) -> list[dict[str, Any]]:
        answer = self.do("BatchExecuteStatement", Statements=[{"Statement": each} for each in statements], **more)
        responses: list[dict[str, Any]] = answer["Responses"]
        return responses


def with_parameters(parameters: tuple[Any, ...]) -> dict[str, Any]:
    return {"Parameters": list(parameters)} if parameters else {}


def key_schema(names: list[str]) -> list[dict[str, str]]:
    return [{"AttributeName": name, "KeyType": kind} for name, kind in zip(names, ("HASH", "RANGE"), strict=False)]


def index(name: str, keys: list[str], projection: dict[str, Any]) -> dict[str, Any]:
    return {"IndexName": name, "KeySchema": key_schema(keys), "Projection": projection}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PartiQL]:
    """One database for all tests here; each uses partitions of its own."""
    client = PartiQL(tmp_path_factory.mktemp("partiql"))
    yield client
    client.close()


# -- INSERT


def test_insert_stores_documents(client: PartiQL) -> None:
    assert (
        client.run(
            "INSERT INTO songs VALUE {'pk': 'doc', 'sk': '1', 'i': 1, 'f': -1.5e-3, 'e': 1E3, 'half': .5, 'z': -0, "
            "'q': 'it''s', 't': true, 'no': FALSE, 'nil': null, 'm': {'a': {'b': [1, 'x', [ ]]}}, 'l': [- 1, {}], "
            "'ns': <<1, 34, 4.5>>, 'ss': <<'b', 'a'>>, 'p': ?}",
            {"B": "AQI="},
        )
        == []
    )
    assert client.item("doc") == {
        "pk": {"S": "doc"}, "sk": {"S": "1"}, "i": {"N": "1"}, "f": {"N": "-0.0015"}, "e": {"N": "1000"},
        "half": {"N": "0.5"}, "z": {"N": "0"}, "q": {"S": "it's"}, "t": {"BOOL": True}, "no": {"BOOL": False},
        "nil": {"NULL": True}, "m": {"M": {"a": {"M": {"b": {"L": [{"N": "1"}, {"S": "x"}, {"L": []}]}}}}},
        "l": {"L": [{"N": "-1"}, {"M": {}}]}, "ns": {"NS": ["1", "34", "4.5"]}, "ss": {"SS": ["a", "b"]},
        "p": {"B": "AQI="},
    }  # fmt: skip


def test_insert_does_not_replace(client: PartiQL) -> None:
    client.run("INSERT INTO flat VALUE {'pk': 'dup', 'v': 1}")
    again = "INSERT INTO flat VALUE {'pk': 'dup', 'v': 2}"
    duplicate = ("DuplicateItemException", "Duplicate primary key exists in table")
    assert client.fail("ExecuteStatement", Statement=again) == duplicate
    assert client.item("dup", table="flat") == {"pk": {"S": "dup"}, "v": {"N": "1"}}
    client.run("DELETE FROM flat WHERE pk = 'dup'")
    assert client.run(again) == []


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("{'pk': 'x'}", f"{INVALID}Missing the key sk in the item"),
        ("{'pk': 1, 'sk': 'x'}", f"{INVALID}Type mismatch for key pk expected: S actual: N"),
        ("{'pk': 'x', 'pk': 'y'}", "A map names the attribute pk twice, under root"),
        ("{'pk': 'x', 's': <<>>}", "Empty bags are not supported"),
        (
            "{'s': <<1, 'a'>>}",
            "Unsupported data type in Bag. DynamoDB only supports either numbers or strings in bags",
        ),
        ("{'s': <<'a', 'a'>>}", f"{INVALID}Input collection [a, a] contains duplicates."),
        ("{'s': <<2, 2.0>>}", f"{INVALID}Input collection [2, 2.0] contains duplicates! under root"),
        ("{'n': 1e126}", "Number overflow. Attempting to store a number with magnitude larger than supported range "
         "under root"),
        ("{'m': {'x': 1e-131}}", "Number underflow. Attempting to store a number with magnitude smaller than "
         "supported range under root.x"),
        ("{'l': [1, 123456789012345678901234567890123456789]}",
         "Attempting to store more than 38 significant digits in a Number under root[1]"),
        ("{'n': 1e99999999999}", MALFORMED),
        ("{'m': {'k': ?}}", "Unsupported data type: Parameter under key root.k at 1:37:1"),
        ("{'s': set_add(<<'a'>>, <<'b'>>)}", "Unsupported data type: set_add under key root at 1:31:7"),
        ("{pk: 'x'}", "A name in a map is a string in single quotes, not pk, under root at 1:26:2"),
        ("{'pk': 'x'} foo", f"{MALFORMED}Unexpected token after expression"),
        ("{'l': [sk]}", "A literal has values, not the attribute sk, under root[0] at 1:32:2"),
        ("?", "INSERT takes an item in braces after VALUE, such as VALUE {'pk': 'a'}, not ?"),
        ("", "INSERT takes an item in braces after VALUE, such as VALUE {'pk': 'a'}, not the end of the statement"),
        ("{'d': " + "[" * 32 + "1" + "]" * 32 + "}",
         "Nesting Levels have exceeded supported limits under root" + "[0]" * 32),
        ("{'pk': 'x', 'sk': ?}", "Number of parameters in request and statement don't match."),
    ],
)  # fmt: skip
def test_insert_refuses(client: PartiQL, values: str, message: str) -> None:
    assert client.refused(f"INSERT INTO songs VALUE {values}") == message


def test_insert_names_a_table_and_one_item(client: PartiQL) -> None:
    several = "INSERT adds one item, such as VALUE {'pk': 'a'}, not %s; use BatchExecuteStatement for several"
    assert client.refused("INSERT INTO songs << {'pk': 'a', 'sk': 'b'} >>") == several % "<<"
    assert client.refused("INSERT INTO songs VALUES ('a', 'b')") == several % "VALUES"
    assert client.refused("INSERT INTO songs t VALUE {'pk': 'x'}") == f"{MALFORMED}Unexpected token after expression"
    assert client.refused('INSERT INTO "songs".by_tag VALUE {}') == (
        "FROM clause may only contain a single table name in data manipulation statements at 1:13:7"
    )
    big = {"S": "x" * 400 * 1024}
    assert "maximum allowed size" in client.refused("INSERT INTO songs VALUE {'pk': 'b', 'sk': 'b', 'v': ?}", big)
    fine = "INSERT INTO songs VALUE {'pk': 'deep', 'sk': '1', 'd': " + "[" * 31 + "1" + "]" * 31 + "}"
    assert client.run(fine) == []


# -- SELECT


def test_a_column_may_be_within_another(client: PartiQL) -> None:
    client.add("within", b={"M": {"c": {"L": [{"N": "1"}, {"N": "2"}]}}})
    for columns in ("b, b.c[0]", "b.c[0], b", "b.c, b.c[1], b.d"):
        response = client.do("ExecuteStatement", Statement=f"SELECT {columns} FROM songs WHERE pk = 'within'")
        assert len(response["Items"]) == 1 and len(response["Items"][0]) == 2, columns


def test_select_returns_items_and_columns(client: PartiQL) -> None:
    client.add("cols", m={"M": {"k": {"L": [{"S": "c"}]}, "x": {"S": "deep"}}}, l={"L": [{"S": "a"}]}, d={"S": "e"})
    whole = client.item("cols")
    key = "WHERE pk = 'cols' AND sk = '1'"
    assert client.run(f'SELECT * FROM "songs" {key}') == [whole]
    assert client.run(f"SELECT d, sk, nothing FROM songs {key}") == [{"d": {"S": "e"}, "sk": {"S": "1"}}]
    assert client.run(f"SELECT m.x, m.k[0], l[-0], m['k'] FROM songs {key}") == [
        {"x": {"S": "deep"}, "k[0]": {"S": "c"}, "l[0]": {"S": "a"}, "k": {"L": [{"S": "c"}]}}
    ]
    assert client.run("SELECT * FROM songs WHERE pk = ? AND sk = ?;", {"S": "cols"}, {"S": "1"}) == [whole]
    assert client.run("SELECT * FROM songs WHERE pk = 'cols' AND sk = 'none'") == []
    assert client.run("select/**/* from songs -- all\nwhere pk/* key */='cols' --") == [whole]
    arn = '"arn:aws:dynamodb:us-east-1:123456789012:table/songs"'
    assert client.run(f"SELECT * FROM {arn} {key}") == [whole]


@pytest.fixture(scope="module")
def filled(client: PartiQL) -> PartiQL:
    client.add("fill", "1", s={"S": "kirk"}, n={"N": "1"}, tags={"SS": ["a", "b"]}, nil={"NULL": True}, m={"M": {}})
    client.add("fill", "2", s={"S": "lake"}, n={"N": "2"}, flag={"BOOL": True}, b={"B": "AQI="})
    client.add("fill", "3", n={"N": "3"}, l={"L": [{"N": "1"}]}, other={"N": "3"})
    return client


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ("s = 'kirk'", "1"),
        ("'kirk' = s", "1"),
        ("s <> 'kirk'", "23"),
        ("s != 'kirk'", "23"),
        ("n > 1", "23"),
        ("n >= 2 AND n < 3", "2"),
        ("1 < n", "23"),
        ("n BETWEEN - 2 AND +2", "12"),
        ("n NOT BETWEEN 0 AND 1", "23"),
        ("n IN [1, 3]", "13"),
        ("n IN (1, 3)", "13"),
        ("n NOT IN [1]", "23"),
        ("n = other", "3"),
        ("s = 'kirk' OR s = 'lake'", "12"),
        ("NOT (s = 'kirk' OR s = 'lake')", "3"),
        ("NOT NOT s = 'kirk'", "1"),
        ("begins_with(s, 'k')", "1"),
        ("NOT begins_with(s, 'k')", "23"),
        ("contains(s, 'ak')", "2"),
        ("contains(tags, 'a')", "1"),
        ("contains(l, 1)", "3"),
        ("attribute_type(n, 'N')", "123"),
        ("attribute_type(tags, 'SS')", "1"),
        ("size(s) = 4", "12"),
        ("size(tags) > size(l)", ""),
        ("attribute_exists(flag)", "2"),
        ("ATTRIBUTE_NOT_EXISTS (flag)", "13"),
        ("attribute_exists(flag) = true", "2"),
        ("false = attribute_exists(flag)", "13"),
        ("(n BETWEEN 0 AND 2) <> false", "12"),
        ("s IS MISSING", "3"),
        ("s IS NOT MISSING", "12"),
        ("nil IS NULL", "1"),
        ("nil IS NOT NULL", "23"),
        ("s IS STRING", "12"),
        ("flag IS BOOL", "2"),
        ("m IS STRUCT", "1"),
        ("b IS BLOB", "2"),
        ("l IS LIST", "3"),
        ("n IS NUMERIC", "123"),
        ("tags = <<'b', 'a'>>", "1"),
        ("l = [1]", "3"),
        ("l[0] = 1", "3"),
        ("m = {}", "1"),
        ("flag = true", "2"),
        ("nil = null", "1"),
        ("sk = '2'", "2"),
        ("sk > '1'", "23"),
        ("sk <= '2' AND s <> 'kirk'", "2"),
        ("sk BETWEEN '2' AND '9'", "23"),
        ("begins_with(sk, '3')", "3"),
        ("sk IN ['1', '3']", "13"),
        ("(sk = '1' OR sk = '2')", "12"),
        ("(sk < '1' OR sk > '1' OR sk = '1')", "123"),
        ("NOT sk = '1'", "23"),
        ("sk > '0' AND sk <> '1'", "23"),
        ("sk = '1' AND sk > '0'", "1"),
        ("sk = '1' AND sk = '2'", ""),
        ("sk > '1' AND sk = '1'", ""),
        ("attribute_exists(pk)", "123"),
        ("pk = 'other'", ""),
        ("(s = 'kirk' OR n = 3) AND sk >= '2'", "3"),
    ],
)
def test_where(filled: PartiQL, where: str, found: str) -> None:
    expected = [f"fill/{each}" for each in found]
    assert sorted(filled.selected(f"pk = 'fill' AND {where}")) == expected
    # The same as a filter of a scan.
    assert sorted(filled.selected(f"begins_with(pk, 'fill') AND ({where})")) == expected


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("", f"{MALFORMED}Unexpected term"),
        (";", f"{MALFORMED}Unexpected term"),
        ("NOT", f"{MALFORMED}Unexpected term"),
        ("(", f"{MALFORMED}Unexpected term"),
        ("pk = 'p1' AND", f"{MALFORMED}Missing right-hand side expression of infix operator"),
        ("pk = 'p1' OR", f"{MALFORMED}Missing right-hand side expression of infix operator"),
        ("ORDER BY pk", f"{MALFORMED}Unexpected keyword"),
        ("IS NULL", f"{MALFORMED}Unexpected operator"),
        ("pk = LIKE", f"{MALFORMED}Unexpected operator"),
        ("pk = 'a' AND x IS FOO", f"{MALFORMED}Expected type name"),
        ("pk", "WHERE takes conditions, such as a = 1, not the attribute pk"),
        ("size(pk)", "WHERE takes conditions, such as a = 1, not the number of size()"),
        ("l[1].m AND sk = '1'", "AND takes conditions, such as a = 1, not the attribute l[1].m"),
        ("pk = 'x' OR 1", "OR takes conditions, such as a = 1, not a value"),
        ("NOT pk", "NOT takes conditions, such as a = 1, not the attribute pk"),
        ("pk = 'x' foo", f"{MALFORMED}Unexpected token after expression"),
        ("pk = 'x')", f"{MALFORMED}Unexpected token after expression"),
        ("(pk = 'x'", f"{MALFORMED}Expected RIGHT_PAREN"),
        ("pk = 1 e5", f"{MALFORMED}Unexpected token after expression"),
        ("pk = 'x' # note", MALFORMED),
        ("pk = 'x' /* note", MALFORMED),
        ("pk = 'x", MALFORMED),
        ("pk = 1e2147483648", MALFORMED),
        ("pk = 1.5e-2147483647", MALFORMED),
        ("pk = `x`", MALFORMED),
        ("m.inner = 1", f"{MALFORMED}Invalid path dot component"),
        ("l[*] = 1", "A path has the number of an element in brackets, such as a[0], not *"),
        ("m.* = 1", "A path has the name of an attribute after a dot, such as a.b, not *"),
        ("l[-1] = 1", "List index is not within the allowable range; index: [-1] at 1:30:1"),
        ("l[2147483648] = 1", "List index is not within the allowable range; index: [2147483648] at 1:29:10"),
        ("n + 1 = 2", "Unsupported operator in Condition Expression. Operator: +"),
        ("s LIKE 'x'", "Unsupported operator in Condition Expression. Operator: LIKE"),
        ("n > -n", "Incorrect number of operands for operator or function; operator or function: -, number of "
         "operands: 1"),
        ("s = MISSING", "MISSING is not a value; test for it with IS, such as a IS MISSING"),
        ("s IS INT4", "IS does not support the type INT4; use one of MISSING, "
         "NULL, BOOL, BOOLEAN, BLOB, STRING, NUMERIC, STRUCT, TUPLE, LIST"),
        ("'s' IS MISSING", "IS takes an attribute on its left, such as a IS MISSING"),
        ("s IN []", "IN takes an attribute on its left and a list of one or more values on its right, such as "
         "a IN [1, 2]"),
        ("EXISTS(ss)", "Unrecognized function: exists at 1:27:6"),
        ("set_add(ss, <<'x'>>) = ss", "Unrecognized function: set_add at 1:27:7"),
        ("attribute_exists('ss')", "Operator or function requires a document path; operator or function: "
         "attribute_exists"),
        ("attribute_exists()", "Incorrect number of operands for operator or function; operator or function: "
         "attribute_exists, number of operands: 0"),
        ("val < true", "Incorrect operand type for operator or function; operator or function: <, operand type: BOOL"),
        ("attribute_exists(n) > false", "Incorrect operand type for operator or function; operator or function: >, "
         "operand type: BOOL"),
        ("attribute_type(l, 1)", "Incorrect operand type for operator or function; operator or function: "
         "attribute_type, operand type: N"),
        ("pk = 'x' AND n IN [" + ", ".join(map(str, range(101))) + "]",
         "The IN operator is provided with too many operands; number of operands: 101"),
        ("pk = 1", "Key attribute's data type should match its data type in table's schema: Key pk"),
        ("pk = 'x' AND sk IN ['1', 2]",
         "Key attribute's data type should match its data type in table's schema: Key sk"),
        ("pk IN ['x', 'x']", OVERLAPPING),
        ("pk = 'x' OR pk = 'x'", OVERLAPPING),
        ("pk = 'x' AND (sk > '0' OR sk < '5')", OVERLAPPING),
        ("pk = 'x' AND (sk = '1' OR flag = 'two')", OVERLAPPING),
        ("(pk = 'x' AND s = '1') OR (pk = 'x' AND s = '2')", OVERLAPPING),
        ("pk IN [" + ", ".join(f"'{i}'" for i in range(51)) + "]", TOO_MANY),
        ("pk IN [" + ", ".join(f"'{i}'" for i in range(26)) + "] AND sk IN ['1', '2']", TOO_MANY),
        ("(" * 65 + "pk = 'x'" + ")" * 65, f"{MALFORMED}parentheses are nested more than 64 deep at 1:91:1"),
        (" AND ".join(["n = 1"] * 151), "The expression contains too many operators; operator count: 301"),
    ],
)  # fmt: skip
def test_where_refuses(client: PartiQL, where: str, message: str) -> None:
    assert client.refused(f"SELECT * FROM songs WHERE {where}") == message


def test_operands_are_checked_before_the_table_is_looked_up(client: PartiQL) -> None:
    assert "Incorrect operand type" in client.refused("SELECT * FROM absent WHERE pk = 'x' AND v < true")
    missing = ("ResourceNotFoundException", "Requested resource not found")
    for statement in (
        "SELECT * FROM absent WHERE pk = 'x'",
        "INSERT INTO absent VALUE {'pk': 'x'}",
        "UPDATE absent SET a = 1 WHERE pk = 'x'",
        "DELETE FROM absent WHERE pk = 'x'",
    ):
        assert client.fail("ExecuteStatement", Statement=statement) == missing
    twice = [{"SS": ["a", "a"]}]
    name, message = client.fail("ExecuteStatement", Statement="UPDATE songs SET WHERE", Parameters=twice)
    assert (name, "contains duplicates" in message) == ("ValidationException", True)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("SELECTT * FROM songs", f"{MALFORMED}Expected data manipulation"),
        ("SELECT * FROM songs t WHERE pk = 'x'", "Aliasing is not supported"),
        ("SELECT * FROM songs AS t", "Aliasing is not supported"),
        ("SELECT pk AS p FROM songs", "Aliasing is not supported"),
        ('SELECT * FROM ""', "Path component cannot be an empty string"),
        ('SELECT * FROM songs."" WHERE pk = 1', "Path component cannot be an empty string"),
        ("SELECT * FROM songs.a.b", "A path may contain at most 2 components in the FROM clause"),
        ("SELECT * FROM songs, flat",
         "SELECT reads one table or index; remove , and what it joins, or use several statements"),
        ("SELECT * FROM songs JOIN flat",
         "SELECT reads one table or index; remove JOIN and what it joins, or use several statements"),
        ("SELECT VALUE pk FROM songs", "SELECT takes * or the names of attributes, not VALUE"),
        ("SELECT DISTINCT pk FROM songs", "SELECT does not support DISTINCT at 1:8:8"),
        ("SELECT * FROM songs LIMIT 5", "SELECT does not support LIMIT (use Limit of the request) at 1:21:5"),
        ("SELECT * FROM songs GROUP BY pk", "SELECT does not support GROUP BY at 1:21:5"),
        ("SELECT *, pk, m.a FROM songs", "SELECT takes * or attributes, not both; remove * or pk, a"),
        ("SELECT a, m.a FROM songs", "SELECT has two columns named a; remove one"),
        ("SELECT * FROM songs WHERE pk = 'x' ORDER BY m.a[0]",
         "ORDER BY takes attributes of the primary key, not the path m.a[0]"),
        ("SELECT COUNT(*) FROM songs", "Unexpected path component at 1:8:5"),
        ("SELECT * FROM songs ORDER BY sk",
         "Must have WHERE clause in the statement when using ORDER BY clause."),
        ("SELECT * FROM songs WHERE pk = 'x' ORDER BY n",
         "Attribute n in ORDER BY clause must be part of the primary key"),
        ("SELECT * FROM songs WHERE pk > 'x' ORDER BY sk",
         "Must have at least one non-optional hash key condition in WHERE clause when using ORDER BY clause."),
        ("SELECT * FROM songs WHERE pk IN ['x', 'y'] ORDER BY sk",
         "Must have hash key in ORDER BY clause when more than one hash key condition specified in WHERE clause."),
        ("SELECT * FROM songs ORDER BY pk WHERE pk = 'x'", f"{MALFORMED}Unexpected token after expression"),
        ("SELECT * FROM ab WHERE pk = 'x'",
         "ab is no table name; a name has 3 to 255 of the characters a-z, A-Z, 0-9, '_', '-' and '.'"),
        ("SELECT * FROM songs.none WHERE pk = 'x'", "The table does not have the specified index"),
        ("SELECT held, other FROM songs.by_tag WHERE tag = 'x'",
         f"{INVALID}Global secondary index by_tag does not project [other]"),
        ("SELECT pk FROM songs.by_tag WHERE tag = 'x' AND other = 1 AND (a = 1 OR held = 2)",
         f"{INVALID}Secondary index by_tag does not project one or more filter attributes: [other, a]"),
        ("SELECT pk FROM songs.by_n WHERE pk = 'x' AND other IS MISSING",
         f"{INVALID}Secondary index by_n does not project one or more filter attributes: [other]"),
        ("EXISTS(SELECT * FROM songs WHERE pk = 'x' AND sk = '1' AND a = 1)",
         "EXISTS can only be used in ExecuteTransaction write requests."),
    ],
)  # fmt: skip
def test_select_refuses(client: PartiQL, statement: str, message: str) -> None:
    assert client.refused(statement) == message


def test_select_in_order(client: PartiQL) -> None:
    for pk in ("ord-a", "ord-b"):
        for sk in "123":
            client.add(pk, sk)
    assert client.selected("pk = 'ord-a' ORDER BY sk DESC") == ["ord-a/3", "ord-a/2", "ord-a/1"]
    assert client.selected("pk = 'ord-a' ORDER BY sk") == ["ord-a/1", "ord-a/2", "ord-a/3"]
    assert client.selected("pk = 'ord-a' ORDER BY pk ASC") == ["ord-a/3", "ord-a/2", "ord-a/1"]
    both = [f"{pk}/{sk}" for pk in ("ord-b", "ord-a") for sk in "123"]
    assert client.selected("pk IN ['ord-a', 'ord-b'] ORDER BY pk DESC, sk ASC") == both
    assert client.selected("pk = 'ord-a' AND sk IN ['1', '3'] ORDER BY sk DESC") == ["ord-a/3", "ord-a/1"]
    # Several partitions in pages.
    paged: list[str] = []
    token: dict[str, Any] = {}
    while True:
        answer = client.execute(
            "SELECT pk, sk FROM songs WHERE pk IN ['ord-a', 'ord-b'] ORDER BY pk DESC, sk", Limit=2, **token
        )
        paged += [f"{item['pk']['S']}/{item['sk']['S']}" for item in answer["Items"]]
        assert len(answer["Items"]) <= 2
        if "NextToken" not in answer:
            break
        token = {"NextToken": answer["NextToken"]}
    assert paged == both


def test_alternatives_that_exclude_sort_keys_are_united(client: PartiQL) -> None:
    for sk in "123":
        client.add("not", sk)
    for left, found in (
        ("NOT sk = '1'", "23"),
        ("sk <> '1'", "23"),
        ("NOT begins_with(sk, 'x')", "123"),
        ("NOT sk IN ['1', '3']", "2"),
        ("NOT sk > '5'", "123"),
    ):
        where = f"pk = 'not' AND {left} OR pk = 'not' AND sk = '2'"
        assert sorted(client.selected(where)) == [f"not/{each}" for each in found]
    assert len(client.selected("pk = 'not' OR pk = 'not' AND NOT sk = '1'")) == 3


def test_select_from_an_index(client: PartiQL) -> None:
    client.add("idx", "1", tag={"S": "t"}, n={"N": "1"}, held={"S": "h1"}, other={"S": "o1"})
    client.add("idx", "2", tag={"S": "t"}, n={"N": "2"}, held={"S": "h2"}, other={"S": "o2"})
    client.add("idx", "3", tag={"S": "u"}, n={"N": "3"}, held={"S": "h3"}, other={"S": "o3"})
    client.add("idx", "4")

    def found(index: str, where: str, **more: Any) -> list[str]:
        items = client.run(f"SELECT sk FROM songs.{index} WHERE {where}", **more)
        return sorted(item["sk"]["S"] for item in items)

    assert found("by_tag", "tag = 't'") == ["1", "2"]
    assert found("by_tag", "tag = 't' AND held = 'h2'") == ["2"]
    assert found("by_tag", "pk = 'idx'") == ["1", "2", "3"]
    assert found("all_tags", "tag = 't' AND n > 1") == ["2"]
    assert found("all_tags", "tag IN ['t', 'u'] AND other <> 'o1'") == ["2", "3"]
    assert found("by_n", "pk = 'idx' AND n BETWEEN 2 AND 3", ConsistentRead=True) == ["2", "3"]
    assert client.run("SELECT * FROM songs.by_n WHERE pk = 'idx' AND n = 1") == [
        {"pk": {"S": "idx"}, "sk": {"S": "1"}, "n": {"N": "1"}}
    ]
    assert client.run("SELECT other FROM songs.by_n WHERE pk = 'idx' AND n = 1") == [{"other": {"S": "o1"}}]
    # A scan sees an item as the index holds it.
    assert found("by_tag", "pk = 'idx' AND other = 'o1'") == []
    assert found("by_tag", "begins_with(pk, 'idx') AND NOT other = 'o1'") == ["1", "2", "3"]
    assert found("by_n", "begins_with(pk, 'idx') AND other = 'o1'") == []
    assert found("by_tag", "(tag = 't' AND other = 'o1') OR tag = 'u'") == ["3"]
    message = "Strongly consistent read is not supported on Global Secondary Indexes"
    assert client.refused("SELECT * FROM songs.by_tag WHERE tag = 't'", ConsistentRead=True) == message
    answer = client.execute("SELECT pk FROM songs.by_tag WHERE tag = 't'", ReturnConsumedCapacity="INDEXES")
    assert answer["ConsumedCapacity"] == {
        "TableName": "songs",
        "CapacityUnits": 0.5,
        "Table": {"CapacityUnits": 0.0},
        "GlobalSecondaryIndexes": {"by_tag": {"CapacityUnits": 0.5}},
    }


def test_an_index_with_several_key_attributes_is_refused(data_dir: Path) -> None:
    client = Client(data_dir)
    keys = [{"AttributeName": name, "KeyType": "HASH"} for name in ("a", "b")]
    client.do(
        "CreateTable",
        TableName="several",
        KeySchema=key_schema(["pk"]),
        AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in ("pk", "a", "b")],
        BillingMode="PAY_PER_REQUEST",
        GlobalSecondaryIndexes=[{"IndexName": "two", "KeySchema": keys, "Projection": {"ProjectionType": "ALL"}}],
    )
    name, message = client.fail("ExecuteStatement", Statement="SELECT * FROM several.two WHERE a = 'x'")
    client.close()
    assert name == "ValidationException"
    assert message.startswith("PartiQL statements cannot be executed on tables with multi-attribute HASH keys")


def test_pages(client: PartiQL) -> None:
    for at in range(5):
        client.add("page", str(at), n={"N": str(at)})
    statement = "SELECT sk FROM songs WHERE pk = ?"
    first = client.execute(statement, {"S": "page"}, Limit=2)
    assert [item["sk"]["S"] for item in first["Items"]] == ["0", "1"]
    assert first["LastEvaluatedKey"] == {"pk": {"S": "page"}, "sk": {"S": "1"}}
    rest = client.execute(statement, {"S": "page"}, NextToken=first["NextToken"])
    assert [item["sk"]["S"] for item in rest["Items"]] == ["2", "3", "4"]
    assert "NextToken" not in rest
    token = first["NextToken"]
    mismatch = "NextToken does not match request"
    assert client.refused(statement, {"S": "other"}, NextToken=token) == mismatch
    assert client.refused("SELECT * FROM songs WHERE pk = ?", {"S": "page"}, NextToken=token) == mismatch
    for bad in ("garbage", "!", token[:-3], token[:8], "AAAA" * 20):
        assert client.refused(statement, {"S": "page"}, NextToken=bad) in ("Invalid NextToken", mismatch)
    # The limit is of examined items.
    filtered = client.execute("SELECT sk FROM songs WHERE pk = 'page' AND n > 2", Limit=2)
    assert filtered["Items"] == []
    assert "NextToken" in filtered


def test_capacity(client: PartiQL) -> None:
    client.add("cap", table="flat", v={"S": "x" * 5000})

    def units(statement: str, **more: Any) -> float:
        answer = client.execute(statement, ReturnConsumedCapacity="TOTAL", **more)
        assert answer["ConsumedCapacity"].keys() == {"TableName", "CapacityUnits"}
        found: float = answer["ConsumedCapacity"]["CapacityUnits"]
        return found

    assert units("SELECT * FROM flat WHERE pk = 'cap'") == 1
    assert units("SELECT * FROM flat WHERE pk = 'cap'", ConsistentRead=True) == 2
    assert units("SELECT * FROM flat WHERE pk IN ['cap', 'none']") == 1.5
    assert units("UPDATE flat SET a = 1 WHERE pk = 'cap'") == 5
    assert "ConsumedCapacity" not in client.execute("SELECT * FROM flat WHERE pk = 'cap'")


# -- UPDATE and DELETE


def test_update_changes_attributes(client: PartiQL) -> None:
    client.add(
        "upd",
        n={"N": "1"}, m={"M": {"sub": {"S": "old"}, "sib": {"S": "keep"}}}, l={"L": [{"S": "a"}, {"S": "b"}]},
        ss={"SS": ["a", "b"]}, ns={"NS": ["1"]}, gone={"S": "x"},
    )  # fmt: skip
    where = "WHERE pk = 'upd' AND sk = '1'"
    assert (
        client.run(
            "UPDATE songs SET n = n + 100 SET m.sub = [2020, 'x'] SET l = list_append(l, [4, <<'s'>>]), "
            "ss = SET_ADD(ss, <<'z'>>) SET ns = set_delete(ns, <<1>>) SET fresh = set_add(fresh, ?) "
            f"REMOVE gone {where}",
            {"NS": ["7"]},
        )
        == []
    )
    assert client.item("upd") == {
        "pk": {"S": "upd"}, "sk": {"S": "1"}, "n": {"N": "101"},
        "m": {"M": {"sub": {"L": [{"N": "2020"}, {"S": "x"}]}, "sib": {"S": "keep"}}},
        "l": {"L": [{"S": "a"}, {"S": "b"}, {"N": "4"}, {"SS": ["s"]}]}, "ss": {"SS": ["a", "b", "z"]},
        "fresh": {"NS": ["7"]},
    }  # fmt: skip
    client.run(f"UPDATE songs SET n=n-1, copy = m.sib, l[9] = 'end' REMOVE l[0] {where}")
    client.run(f"UPDATE songs SET n = n - - 2 {where} AND n = 100")
    client.run(f"FROM songs {where} SET l = list_append([0], l)")
    item = client.item("upd")
    assert item is not None
    assert (item["n"], item["copy"]) == ({"N": "102"}, {"S": "keep"})
    assert item["l"] == {"L": [{"N": "0"}, {"S": "b"}, {"N": "4"}, {"SS": ["s"]}, {"S": "end"}]}


def test_update_and_delete_return_values(client: PartiQL) -> None:
    client.add("ret", d={"S": "old"}, m={"M": {"a": {"S": "1"}, "b": {"S": "2"}}})
    key = {"pk": {"S": "ret"}, "sk": {"S": "1"}}
    where = "WHERE pk = 'ret' AND sk = '1' RETURNING"
    m = {"M": {"a": {"S": "1"}, "b": {"S": "2"}}}
    assert client.run(f"UPDATE songs SET d = 'new' {where} ALL OLD *") == [key | {"d": {"S": "old"}, "m": m}]
    assert client.run(f"UPDATE songs SET d = 'newer' {where} ALL NEW *") == [key | {"d": {"S": "newer"}, "m": m}]
    assert client.run(f"UPDATE songs SET m.a = 'x' {where} MODIFIED OLD *") == [{"m": {"M": {"a": {"S": "1"}}}}]
    assert client.run(f"UPDATE songs SET m.a = 'y' {where} MODIFIED NEW *") == [{"m": {"M": {"a": {"S": "y"}}}}]
    assert client.run(f"UPDATE songs REMOVE d {where} MODIFIED NEW *") == []
    assert client.run(f"UPDATE songs SET fresh = 1 {where} MODIFIED OLD *") == []
    for variant in ("MODIFIED OLD", "ALL NEW", "MODIFIED NEW"):
        assert client.refused(f"DELETE FROM songs {where} {variant} *") == (
            f"Invalid returning clause: RETURNING {variant} *. Only RETURNING ALL OLD * is allowed in DELETE "
            "statements."
        )
    assert client.run(f"DELETE FROM songs {where} ALL OLD *")[0]["fresh"] == {"N": "1"}
    assert client.run(f"DELETE FROM songs {where} ALL OLD *") == []


def test_conditions_of_writes(client: PartiQL) -> None:
    client.add("cond", d={"S": "old"})
    where = "WHERE pk = 'cond' AND sk = '1'"
    for statement in (f"UPDATE songs SET d = 'new' {where} AND d = 'x'", f"DELETE FROM songs {where} AND d = 'x'"):
        assert client.fail("ExecuteStatement", Statement=statement) == FAILED
        request = {"Statement": statement, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
        assert client.send("ExecuteStatement", request)[1]["Item"] == client.item("cond")
    client.run(f"UPDATE songs SET d = 'new' {where} AND d = 'old' AND attribute_not_exists(e)")
    client.run("UPDATE songs SET e = 1 WHERE (pk = 'cond' AND sk = '1') AND d = 'new' AND pk = 'cond'")
    assert client.item("cond") == {"pk": {"S": "cond"}, "sk": {"S": "1"}, "d": {"S": "new"}, "e": {"N": "1"}}
    # UPDATE creates no item; DELETE of none does nothing.
    for more in ("", " AND attribute_not_exists(pk)"):
        statement = f"UPDATE songs SET d = 1 WHERE pk = 'ghost' AND sk = '1'{more}"
        assert client.fail("ExecuteStatement", Statement=statement) == FAILED
    assert client.item("ghost") is None
    assert client.run("DELETE FROM songs WHERE pk = 'ghost' AND sk = '1' AND d = 'x'") == []
    client.run(f"DELETE FROM songs {where} AND d = 'new'")
    assert client.item("cond") is None


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE songs SET a = 1", INCOMPLETE),
        ("UPDATE songs SET a = 1 WHERE pk = 'x'", INCOMPLETE),
        ("UPDATE songs SET a = 1 WHERE pk = 'x' AND sk > '1'", INCOMPLETE),
        ("UPDATE songs SET a = 1 WHERE pk = 'x' OR sk = '1'", INCOMPLETE),
        ("DELETE FROM songs WHERE pk IN ['x'] AND sk = '1'", INCOMPLETE),
        ("DELETE FROM songs", INCOMPLETE),
        ("DELETE FROM songs WHERE pk = 'x' AND sk = '1' AND pk = 'y'",
         "Multiple conditions on same key pk. Only single item Update/Insert/Delete are supported"),
        ("DELETE FROM songs WHERE pk = 1 AND sk = '1'", "The provided key element does not match the schema"),
        ("UPDATE songs.by_tag SET a = 1 WHERE pk = 'x' AND sk = '1'", "This operation is not supported on an index"),
        ("DELETE FROM songs.by_tag WHERE pk = 'x' AND sk = '1'", "This operation is not supported on an index"),
        ("UPDATE songs t SET a = 1", "Aliasing is not supported"),
        ("DELETE FROM songs WHERE pk = 'x' ORDER BY pk", f"{MALFORMED}Unexpected token after expression"),
        ("DELETE FROM", f"{MALFORMED}Expected identifier for simple path"),
        ("DELETE FROM   ;", f"{MALFORMED}Expected identifier for simple path"),
        ("DELETE FROM WHERE pk = 'a'", f"{MALFORMED}Expected identifier for simple path"),
        ("UPDATE songs WHERE pk = 'x'", f"{MALFORMED}Expected SET or REMOVE at 1:14:5"),
        ("UPDATE songs SET a = f(1) WHERE pk = 'x'", "Unrecognized function: f at 1:22:1"),
        ("UPDATE songs SET a = set_add(a) WHERE pk = 'x'", "SET_ADD must have exactly two arguments at 1:22:7"),
        ("UPDATE songs SET t = set_add(a, <<1>>) WHERE pk = 'x'",
         "The first argument to SET_ADD must equal the assignment value at 1:22:7"),
        ("UPDATE songs\nSET a = set_delete(a, 'x') WHERE pk = 'x'",
         "The second argument to SET_DELETE must be a value with type SET at 2:20:1"),
        ("UPDATE songs SET a = 'x' + 1 WHERE pk = 'x' AND sk = '1'",
         "Incorrect operand type for operator or function; operator or function: +, operand type: S"),
        ("UPDATE songs SET a = 1, a.b = 2 WHERE pk = 'x' AND sk = '1'",
         "Two document paths overlap with each other; must remove or rewrite one of these paths; path one: [a], "
         "path two: [a, b]"),
        ("UPDATE songs SET a = [?] WHERE pk = 'x'", "Unsupported data type: Parameter under key root[0] at 1:23:1"),
        ("UPDATE songs SET a = 1 WHERE pk = 'x' RETURNING ALL *", f"{RETURNING}* at 1:53:1"),
        ("UPDATE songs SET a = 1 WHERE pk = 'x' RETURNING", f"{RETURNING}the end of the statement at 1:48:0"),
        ("UPDATE songs SET a = 1 WHERE pk = 'x' RETURNING ALL NEW", f"{RETURNING}the end of the statement at 1:56:0"),
        ("UPDATE songs SET a = 1 WHERE pk = 'x' RETURNING ALL NEW *, a", f"{RETURNING}, at 1:58:1"),
        ("UPDATE songs SET n=n--1 WHERE pk = 'x' AND sk = '1'", INCOMPLETE),
    ],
)  # fmt: skip
def test_writes_refuse(client: PartiQL, statement: str, message: str) -> None:
    assert client.refused(statement) == message


def test_updates_of_what_is_there(client: PartiQL) -> None:
    client.add("typed", s={"S": "x"}, ss={"SS": ["a"]})
    where = "WHERE pk = 'typed' AND sk = '1'"
    wrong = "An operand in the update expression has an incorrect data type"
    assert client.refused(f"UPDATE songs SET ss = set_add(ss, <<1>>) {where}") == wrong
    assert client.refused(f"UPDATE songs SET s = set_add(s, <<'x'>>) {where}") == wrong
    assert client.refused(f"UPDATE songs SET none[0] = 'x' {where}") == (
        "The document path provided in the update expression is invalid for update"
    )
    assert client.refused(f"UPDATE songs SET none = list_append(none, [1]) {where}") == (
        "The provided expression refers to an attribute that does not exist in the item"
    )
    assert "Cannot update attribute sk" in client.refused(f"UPDATE songs SET sk = '2' {where}")
    second = "The second argument to SET_ADD must be a value with type SET at 1:31:2"
    assert client.refused(f"UPDATE songs SET ss = set_add(ss, ?) {where}", {"S": "x"}) == second


# -- batches


def test_batch_of_reads(client: PartiQL) -> None:
    client.add("bat", "1", d={"S": "one"})
    client.add("bat", "2", d={"S": "two"})
    needs_key = "Select statements within BatchExecuteStatement must specify the primary key in the where clause."
    read = "SELECT d FROM songs WHERE pk = 'bat' AND sk = "
    answers = client.batch(
        f"{read}'1'",
        f"{read}'none'",
        "SELECT * FROM songs WHERE pk IN ['bat'] AND sk = '2'",
        "SLECT * FROM songs",
        "SELECT * FROM absent WHERE pk = 'x'",
        "SELECT * FROM songs WHERE pk = 'bat'",
        f"{read}'1' AND d = 'one'",
        "SELECT * FROM songs.by_tag WHERE pk = 'bat' AND sk = '1'",
        f"{read}'1' AND pk = 'other'",
        f"SELECT * FROM songs WHERE pk IN [{', '.join(map(repr, map(str, range(51))))}] AND sk = '1'",
    )
    assert answers[:3] == [
        {"TableName": "songs", "Item": {"d": {"S": "one"}}},
        {"TableName": "songs"},
        {"TableName": "songs", "Item": client.item("bat", "2")},
    ]
    errors = [answer["Error"] for answer in answers[3:]]
    assert errors[0] == {"Code": "ValidationError", "Message": f"{MALFORMED}Expected data manipulation"}
    assert errors[1] == {"Code": "ResourceNotFound", "Message": "Requested resource not found"}
    assert [error["Message"] for error in errors[2:]] == [needs_key] * 4 + [TOO_MANY]
    assert not any("TableName" in answer for answer in answers[3:])


def test_batch_of_writes(client: PartiQL) -> None:
    client.add("bw", "1", d={"S": "old"})
    client.add("bw", "2", d={"S": "old"})
    where = "WHERE pk = 'bw' AND sk ="
    answers = client.batch(
        "INSERT INTO songs VALUE {'pk': 'bw', 'sk': '3'}",
        "INSERT INTO songs VALUE {'pk': 'bw', 'sk': '1'}",
        f"UPDATE songs SET d = 'new' {where} '1' RETURNING ALL NEW *",
        f"UPDATE songs REMOVE d {where} '2' RETURNING MODIFIED NEW *",
        f"UPDATE songs SET d = 'new' {where} '1' AND d = 'wrong'",
        f"DELETE FROM songs {where} '3' RETURNING MODIFIED OLD *",
        "EXISTS(SELECT * FROM songs WHERE pk = 'x' AND sk = '1' AND a = 1)",
    )
    assert answers[0] == {"TableName": "songs"}
    assert answers[1] == {
        "TableName": "songs",
        "Error": {"Code": "DuplicateItem", "Message": "Duplicate primary key exists in table"},
    }
    assert answers[2]["Item"]["d"] == {"S": "new"}
    assert answers[3] == {"TableName": "songs"}
    assert answers[4] == {
        "TableName": "songs",
        "Error": {"Code": "ConditionalCheckFailed", "Message": "The conditional request failed"},
    }
    assert [answer["Error"]["Code"] for answer in answers[5:]] == ["ValidationError"] * 2
    assert client.item("bw", "3") is not None
    assert client.item("bw", "2") == {"pk": {"S": "bw"}, "sk": {"S": "2"}}


def test_batch_limits_and_capacity(client: PartiQL) -> None:
    client.add("bc", table="flat")
    read = {"Statement": "SELECT * FROM flat WHERE pk = 'bc'"}
    request: dict[str, Any] = {"Statements": [read, read | {"ConsistentRead": True}], "ReturnConsumedCapacity": "TOTAL"}
    assert client.do("BatchExecuteStatement", **request)["ConsumedCapacity"] == [
        {"TableName": "flat", "CapacityUnits": 1.5}
    ]
    assert len(client.do("BatchExecuteStatement", Statements=[read] * 25)["Responses"]) == 25
    for statements in ([], [read] * 26):
        name, message = client.fail("BatchExecuteStatement", Statements=statements)
        assert (name, "at 'statements' failed" in message) == ("ValidationException", True)
    write = {"Statement": "DELETE FROM flat WHERE pk = 'bc'"}
    mixed = "Read and write requests together in the same batch is not supported."
    assert client.fail("BatchExecuteStatement", Statements=[read, write]) == ("ValidationException", mixed)
    failing = {
        "Statement": "DELETE FROM flat WHERE pk = 'bc' AND v = 1",
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }
    assert "Item" not in client.do("BatchExecuteStatement", Statements=[failing])["Responses"][0]


def test_the_length_of_a_statement(client: PartiQL) -> None:
    statement = "SELECT * FROM flat WHERE pk = 'x'"
    assert client.run(statement + " " * (8192 - len(statement))) == []
    assert "less than or equal to 8192" in client.refused(statement + " " * (8193 - len(statement)))
    assert "greater than or equal to 1" in client.refused("")
    assert "greater than or equal to 1" in client.fail("ExecuteStatement", Statement=statement, Parameters=[])[1]


def test_each_statement_needs_its_permission(client: PartiQL) -> None:
    """A reader reads and a writer writes, in each of the operations."""
    client.add("perm", table="flat")
    read = "SELECT * FROM flat WHERE pk = 'perm'"
    write = "UPDATE flat SET a = 1 WHERE pk = 'perm'"
    everyone = client._handler
    try:
        for allowed, permission, refused in ((read, Permission.READ, write), (write, Permission.WRITE, read)):
            principal = Principal("someone", frozenset((permission,)))
            client._handler = DynamoHandler(client.db, Config(dev=True), lambda request, one=principal: (one, None))
            client.run(allowed)
            client.transact(allowed)
            assert "Error" not in client.batch(allowed)[0]
            assert client.fail("ExecuteStatement", Statement=refused)[0] == "AccessDeniedException"
            statements = [{"Statement": refused}]
            assert client.fail("ExecuteTransaction", TransactStatements=statements)[0] == "AccessDeniedException"
            assert client.batch(refused)[0]["Error"]["Code"] == "AccessDenied"
            client._handler.close()
    finally:
        client._handler = everyone


# -- transactions


def test_transaction_of_writes(client: PartiQL) -> None:
    client.add("tx", "1", n={"N": "1"})
    client.add("tx", "2", n={"N": "1"})
    answer = client.transact(
        "UPDATE songs SET n = n + 1 WHERE pk = 'tx' AND sk = '1'",
        "INSERT INTO songs VALUE {'pk': 'tx', 'sk': '3'}",
        "DELETE FROM songs WHERE pk = 'tx' AND sk = '2'",
        "EXISTS(SELECT * FROM songs WHERE pk = 'tx' AND sk = '4' AND n IS MISSING)",
        ReturnConsumedCapacity="TOTAL",
    )
    assert answer["Responses"] == []
    assert answer["ConsumedCapacity"][0]["TableName"] == "songs"
    assert client.selected("pk = 'tx'") == ["tx/1", "tx/3"]
    insert = "INSERT INTO songs VALUE {'pk': 'tx', 'sk': '1'}"
    update = "UPDATE songs SET n = 9 WHERE pk = 'tx' AND sk = '3'"
    duplicate = {"Code": "DuplicateItem", "Message": "Duplicate primary key exists in table"}
    assert client.canceled(insert, update) == [duplicate, {"Code": "None"}]
    failed = {"Code": "ConditionalCheckFailed", "Message": "The conditional request failed"}
    exists = "EXISTS(SELECT * FROM songs WHERE pk = 'tx' AND sk = '1' AND n IS MISSING)"
    assert client.canceled(exists, update) == [failed, {"Code": "None"}]
    assert client.item("tx", "3") == {"pk": {"S": "tx"}, "sk": {"S": "3"}}
    given = {"Statement": f"{update} AND n = 5", "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
    _, answer = client.send("ExecuteTransaction", {"TransactStatements": [given]})
    assert answer["CancellationReasons"] == [failed | {"Item": client.item("tx", "3")}]


def test_transaction_refuses(client: PartiQL) -> None:
    client.add("txr")
    read, update = "SELECT * FROM songs WHERE ", "UPDATE songs SET a = 1 WHERE "
    key = "pk = 'txr' AND sk = '1'"
    first = "Validation failed in TransactStatements[0]: "
    assert client.transaction_refused(read + key, update + key) == (
        "ExecuteTransaction API does not support both read and write operations in the same request."
    )
    assert client.transaction_refused(f"{update}{key} RETURNING ALL NEW *") == (
        f"{first}RETURNING clause is not supported in ExecuteTransaction."
    )
    no_condition = f"{first}EXISTS() must contain a single item read with additional condition"
    other = "UPDATE songs SET a = 1 WHERE pk = 'none' AND sk = '1'"
    assert client.transaction_refused(f"EXISTS({read}{key})", other) == no_condition
    assert client.transaction_refused(f"EXISTS({read}pk IN ['txr'] AND sk = '1' AND a = 1)", other) == no_condition
    assert client.transaction_refused(f"EXISTS(SELECT * FROM songs.by_tag WHERE {key} AND a = 1)", other) == (
        f"{first}EXISTS reads a table, not its index by_tag; use FROM songs"
    )
    needs_key = "Select statements within ExecuteTransaction must specify the primary key in the where clause."
    for where in ("pk = 'txr'", f"{key} AND a = 1", f"{key} AND pk = 'x'", "pk IN ['x'] AND pk = 'txr' AND sk = '1'"):
        assert client.transaction_refused(read + where) == first + needs_key
    assert client.transaction_refused(f"{read}pk IN ['x', 'x'] AND sk = '1'") == first + OVERLAPPING
    assert client.transaction_refused("SELECT * FROM songs.by_tag WHERE tag = 'x'") == (
        f"{first}Reads on indices are not supported within transactions."
    )
    assert client.transaction_refused(read + key, f"{read}sk = '1' AND pk = 'txr'") == (
        "Transaction request cannot include multiple operations on one item"
    )
    assert client.transaction_refused(update + key, f"DELETE FROM songs WHERE {key}") == (
        "Transaction request cannot include multiple operations on one item"
    )
    assert client.transaction_refused("SELECTT", update + key) == f"{first}{MALFORMED}Expected data manipulation"
    mismatch = {"Code": "ValidationError", "Message": "The provided key element does not match the schema"}
    assert client.canceled(f"{update}pk = 'txr'", f"{update}pk = 'x' AND sk = 1", update + key) == [
        mismatch, mismatch, {"Code": "None"}
    ]  # fmt: skip
    assert client.canceled(f"{read}pk = 'txr' AND sk = 1") == [mismatch]
    missing = {"Code": "ResourceNotFound", "Message": "Requested resource not found"}
    assert client.canceled("DELETE FROM absent WHERE pk = 'x'", update + key) == [missing, {"Code": "None"}]
    assert client.canceled(read + key, "SELECT * FROM absent WHERE pk = 'x'") == [{"Code": "None"}, missing]
    assert client.item("txr") == {"pk": {"S": "txr"}, "sk": {"S": "1"}}


def test_transaction_of_reads(client: PartiQL) -> None:
    client.add("txg", d={"S": "x"}, m={"M": {"a": {"N": "1"}}})
    answer = client.transact(
        "SELECT m.a FROM songs WHERE (sk = '1') AND pk = 'txg' AND pk = 'txg'",
        "SELECT * FROM songs WHERE pk IN ['txg'] AND sk IN ['none']",
        ReturnConsumedCapacity="TOTAL",
    )
    assert answer["Responses"] == [{"Item": {"a": {"N": "1"}}}, {}]
    assert answer["ConsumedCapacity"][0]["ReadCapacityUnits"] == 4


def test_transaction_tokens(client: PartiQL) -> None:
    client.add("tok", n={"N": "0"})
    request: dict[str, Any] = {
        "TransactStatements": [
            {"Statement": "UPDATE songs SET n = n + ? WHERE pk = 'tok' AND sk = '1'", "Parameters": [{"N": "1"}]}
        ],
        "ClientRequestToken": "token-1",
        "ReturnConsumedCapacity": "TOTAL",
    }
    (first,) = client.do("ExecuteTransaction", **request)["ConsumedCapacity"]
    (again,) = client.do("ExecuteTransaction", **request)["ConsumedCapacity"]
    assert ("WriteCapacityUnits" in first, "ReadCapacityUnits" in first) == (True, False)
    assert (again.get("ReadCapacityUnits"), "WriteCapacityUnits" in again) == (2, False)
    item = client.item("tok")
    assert item is not None
    assert item["n"] == {"N": "1"}
    other = request | {"TransactStatements": [{"Statement": "DELETE FROM songs WHERE pk = 'tok' AND sk = '1'"}]}
    assert client.fail("ExecuteTransaction", **other)[0] == "IdempotentParameterMismatchException"
    for count in (0, 101):
        statements = [{"Statement": "DELETE FROM flat WHERE pk = 'x'"}] * count
        name, message = client.fail("ExecuteTransaction", TransactStatements=statements)
        assert (name, "at 'transactStatements' failed" in message) == ("ValidationException", True)
