"""No field of any request costs more than in proportion to its length: CPU at 2n is at most three times CPU at n.

The fields are generated: every member of every DynamoDB operation from the shapes that check requests, every query
parameter, header field, path and body of the other interfaces from the tables below, SQL in many forms. Each is filled
with text that costs much where something is matched or searched again and again. The whole server runs in this process
and is called without a socket, so that the CPU time of one request can be measured; the transport is fed bytes in the
same way.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import count
from typing import Any
from urllib.parse import quote

import pytest

from tailrace.config import Config
from tailrace.http.app import App
from tailrace.http.asgi import application
from tailrace.http.connection import Connection
from tailrace.http.dynamodb import shape
from tailrace.http.dynamodb.operations import OPERATIONS
from tailrace.http.message import Answer, Request, Response
from tailrace.http.serve import open_configured
from tailrace.http.shared import Shared, TransportLimits
from tailrace.http.submitted import settled
from tailrace.metrics import Metrics
from tailrace.sql.arrow import distinct
from tailrace.sql.workers import POOL
from tailrace.streams import json_mode
from tests.fuzz.test_dynamodb_fuzz import CREATE, GOOD, ITEM, keys, target
from tests.support.growth import Work, check_growth, cpu_s

pytestmark = pytest.mark.fuzz

HEAD_LAST = 32_768  # what a head may have is not more
fresh = count(1)


class Server:
    """A whole server without a socket."""

    def __init__(self, data: str, **settings: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self.config = Config(port=0, data=data, **settings)
        self.app: App
        self.run(self._open())

    async def _open(self) -> None:
        db = open_configured(self.config)
        db.attach(asyncio.get_running_loop())
        self.app = App(db, self.config)
        await self.app.start()

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def close(self) -> None:
        self.run(self.app.stop())
        self.run(self.app.db.aclose())
        self.loop.close()

    def ask(self, method: str, path: str, body: bytes = b"", query: str = "", **headers: str) -> Answer:
        fields = {name.replace("_", "-").lower().encode(): text.encode() for name, text in headers.items()}
        fields.setdefault(b"host", b"localhost")
        request = Request(method.encode(), path.encode(), query.encode(), fields, body, peer="127.0.0.1")
        answer: Answer = self.run(self._answer(request))
        # Of a body that cannot be inflated the service says that it failed, and so do we.
        assert answer.status != 500 or b"content-encoding" in fields, f"{method} {path[:99]}?{query[:99]} {body[:99]!r}"
        return answer

    async def _answer(self, request: Request) -> Answer:
        return await settled(self.app(request))  # within the loop, as a transport calls it

    def dynamodb(self, operation: str, body: bytes) -> Response:
        headers = {"X-Amz-Target": target(operation), "Content-Type": "application/x-amz-json-1.0"}
        answer = self.ask("POST", "/", body, **headers)
        assert isinstance(answer, Response)
        return answer

    def known(self, operation: str, request: dict[str, Any]) -> Any:
        answer = self.dynamodb(operation, json.dumps(request).encode())
        assert answer.status == 200, answer.body
        return json.loads(answer.body)

    def sql(self, text: str, params: list[Any] | None = None) -> Answer:
        body = json.dumps({"sql": text, "params": params or []}).encode()
        return self.ask("POST", "/v1/api/sql", body, content_type="application/json")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(str(tmp_path_factory.mktemp("growth") / "data"), dev=True)
    made.known("CreateTable", CREATE)
    made.known("CreateTable", {"TableName": "hashed", "KeySchema": keys("pk"), "BillingMode": "PAY_PER_REQUEST",
                               "AttributeDefinitions": [{"AttributeName": "pk", "AttributeType": "S"}]})  # fmt: skip
    made.known("PutItem", {"TableName": "ranged", "Item": ITEM})
    for path, kind in (("text", "text/plain"), ("json", "application/json")):
        assert made.ask("PUT", f"/v1/stream/{path}", content_type=kind).status == 201
    assert made.sql("CREATE TABLE declared (id TEXT PRIMARY KEY, a BIGINT, b JSON)").status == 200
    assert made.sql("CREATE TOPIC events").status == 200
    yield made
    made.close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(str(tmp_path_factory.mktemp("guarded") / "data"), token="a-token-of-some-length")
    yield made
    made.close()


# -- text that costs much where it is searched again and again

TEXTS: dict[str, Callable[[int], str]] = {
    "letters": lambda n: "a" * n,
    "zeros": lambda n: "0" * n,
    "digits": lambda n: "7" * n,
    "padded digits": lambda n: "0" * 8 + "1" + "9" * n,
    "blanks": lambda n: " " * n + "x",
    "colons": lambda n: "a:" * (n // 2),
    "slashes": lambda n: "a/" * (n // 2),
    "dots": lambda n: "a." * (n // 2),
    "dotdots": lambda n: "../" * (n // 3),
    "commas": lambda n: "a," * (n // 2),
    "equals": lambda n: "a=1;" * (n // 4),
    "brackets": lambda n: "(" * n,
    "indexes": lambda n: "a" + "[0]" * (n // 3),
    "quotes": lambda n: "'" * n,
    "escapes": lambda n: "\\" * n,
    "percents": lambda n: "%61" * (n // 3),
    "hashes": lambda n: "#a " * (n // 3),
    "exponent": lambda n: "1e" + "0" * n + "x",
    "fraction": lambda n: "1." + "0" * n + "x",
    "table arn": lambda n: "arn:aws:dynamodb:us-east-1:000000000000:table/" + "a:" * (n // 2),
    "stream arn": lambda n: "arn:aws:dynamodb:us-east-1:000000000000:table/ranged/stream/" + "a/" * (n // 2),
    "arn region": lambda n: "arn:aws:dynamodb:" + "a-" * (n // 2) + ":1:table/abc",
    "wide": lambda n: "é" * n,
    "far": lambda n: "😀" * n,
    "marks": lambda n: "q=1;" * (n // 4),
    "stars": lambda n: "*/" * (n // 2),
    "opened comments": lambda n: "/*" * (n // 2),
}


@cache
def quoted(form: str, n: int, safe: str) -> str:
    """The text as it is in a URL. Making one takes longer than most requests with it."""
    return quote(TEXTS[form](n), safe=safe)


# -- the DynamoDB API


def paths(found: shape.ApiShape, at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], shape.ApiShape]]:
    """Every place in a request's shape, and the shape there. `*` stands for an element."""
    if at:
        yield at, found
    if isinstance(found, shape.Structure):
        for name, member in found.members.items():
            yield from paths(member, (*at, name))
    elif isinstance(found, shape.ListOf | shape.MapOf):
        yield from paths(found.member, (*at, "*"))


def put_in(request: Any, at: tuple[str, ...], found: shape.ApiShape, value: Any) -> Any:
    """The request with the value at a place, made where it is not there."""
    if not at:
        return value
    if isinstance(found, shape.Structure):
        held = request if isinstance(request, dict) else {}
        return {**held, at[0]: put_in(held.get(at[0]), at[1:], found.members[at[0]], value)}
    assert isinstance(found, shape.ListOf | shape.MapOf)
    if isinstance(found, shape.ListOf):
        each = request[0] if isinstance(request, list) and request else None
        return [put_in(each, at[1:], found.member, value)]
    name = next(iter(request)) if isinstance(request, dict) and request else "ranged"
    return {name: put_in((request or {}).get(name) if isinstance(request, dict) else None, at[1:], found.member, value)}


def values_of(found: shape.ApiShape) -> dict[str, Callable[[int], Any]]:
    """Values of a shape, by what they are, that grow with n."""
    if isinstance(found, shape.Number):
        return {"digits": lambda n: Digits("1" * n), "fraction": lambda n: Digits("1." + "1" * n)}
    if isinstance(found, shape.ListOf):
        made = sample(found.member)
        return {
            "equal elements": lambda n: [made] * (n // 16),
            "nulls": lambda n: [None] * (n // 8),
            "different texts": lambda n: [f"a{number}" for number in range(n // 8)],
        }
    if isinstance(found, shape.MapOf):
        made = sample(found.member)
        return {
            "names": lambda n: {f"a{number}": made for number in range(n // 16)},
            "placeholders": lambda n: {f"#a{number}": made for number in range(n // 16)},
            "names that differ in case": lambda n: dict.fromkeys(cased(n // 32), made),
        }
    if isinstance(found, shape.Item):
        return ITEMS
    if isinstance(found, shape.AttributeValue):
        return {name: lambda n, make=make: {"M": make(n)} for name, make in ITEMS.items()}
    return dict(TEXTS)


@cache
def cased(number: int) -> list[str]:
    """Names that differ in nothing but case."""
    return [
        "".join(c.upper() if at >> bit & 1 else c for bit, c in enumerate("abcdefghijklmnop")) for at in range(number)
    ]


ITEMS: dict[str, Callable[[int], Any]] = {
    "a long text": lambda n: {"pk": {"S": "a" * n}, "sk": {"N": "1"}},
    "a number of zeros": lambda n: {"pk": {"S": "a"}, "sk": {"N": "0" * n}},
    "a number with an exponent": lambda n: {"pk": {"S": "a"}, "sk": {"N": "1e" + "0" * n + "x"}},
    "a negative exponent": lambda n: {"pk": {"S": "a"}, "sk": {"N": "-1.1e-" + "0" * n + "1"}},
    "a number with a fraction": lambda n: {"pk": {"S": "a"}, "sk": {"N": "." + "0" * n}},
    "a number of digits": lambda n: {"pk": {"S": "a"}, "sk": {"N": "7" * n}},
    "attributes": lambda n: {**KEY, **{f"a{number}": {"S": ""} for number in range(n // 16)}},
    "placeholders": lambda n: {f":a{number}": {"S": ""} for number in range(n // 16)},
    "attributes that differ in case": lambda n: {**KEY, **{name: {"S": ""} for name in cased(n // 32)}},
    "a set of texts": lambda n: {**KEY, "a": {"SS": [f"{number}" for number in range(n // 8)]}},
    "a set of equal texts": lambda n: {**KEY, "a": {"SS": ["a"] * (n // 8)}},
    "a set of numbers": lambda n: {**KEY, "a": {"NS": [f"{number}" for number in range(n // 8)]}},
    "a set of long numbers": lambda n: {**KEY, "a": {"NS": ["1e" + "0" * 4_000 + "x"] * (n // 4_000)}},
    "a set of bytes": lambda n: {**KEY, "a": {"BS": [f"{number:08d}" for number in range(n // 16)]}},
    "a list": lambda n: {**KEY, "a": {"L": [{"NULL": True}] * (n // 16)}},
    "a map": lambda n: {**KEY, "a": {"M": {f"{number}": {"N": "1"} for number in range(n // 16)}}},
    "bytes": lambda n: {**KEY, "a": {"B": "AAAA" * (n // 4)}},
    "nesting": lambda n: {**KEY, "a": nested(min(n // 64, 400))},
    "types": lambda n: {**KEY, "a": {f"S{number}": "a" for number in range(n // 16)}},
    "half surrogates": lambda n: {**KEY, "a": {"S": "\ud83d" * (n // 6)}},
}
KEY: dict[str, Any] = {"pk": {"S": "a"}, "sk": {"N": "1"}}


def nested(depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {"S": "a"}
    for _ in range(depth):
        made = {"L": [made]}
    return made


class Digits:
    """A number in JSON, as it is written."""

    def __init__(self, text: str) -> None:
        self.text = text


def encoded(value: Any) -> bytes:
    """JSON, with numbers that Python would not write."""
    marks: dict[str, str] = {}

    def marked(each: Any) -> str:
        assert isinstance(each, Digits)
        mark = f"@{len(marks)}@"
        marks[f'"{mark}"'] = each.text
        return mark

    text = json.dumps(value, default=marked)
    for mark, digits in marks.items():
        text = text.replace(mark, digits)
    return text.encode()


def sample(found: shape.ApiShape) -> Any:
    """The least that a shape takes."""
    if isinstance(found, shape.Structure):
        return {name: sample(found.members[name]) for name in found.required}
    if isinstance(found, shape.ListOf):
        return [sample(found.member)] * max(found.least, 1)
    if isinstance(found, shape.MapOf):
        return {"ranged": sample(found.member)}
    if isinstance(found, shape.Item):
        return dict(KEY)
    if isinstance(found, shape.AttributeValue):
        return {"S": "a"}
    if isinstance(found, shape.Number):
        return 1
    if isinstance(found, shape.Boolean):
        return True
    return found.enum[0] if isinstance(found, shape.String) and found.enum else "ranged"


def learned(server: Server, value: Any) -> Any:
    """A good request with what only the server can tell."""
    if isinstance(value, dict):
        return {name: learned(server, each) for name, each in value.items()}
    if isinstance(value, list):
        return [learned(server, each) for each in value]
    if value in ("*table", "*stream"):
        table = server.known("DescribeTable", {"TableName": "ranged"})["Table"]
        return table["TableArn" if value == "*table" else "LatestStreamArn"]
    return f"t{next(fresh)}" if value == "*token" else value


@pytest.mark.parametrize("operation", sorted(name.partition(".")[2] for name in OPERATIONS))
def test_members_of_dynamodb_requests(server: Server, operation: str) -> None:
    form = OPERATIONS[target(operation)].shape
    good = [learned(server, request) for name, request in GOOD if name == operation]
    for at, found in paths(form):
        for what, value in values_of(found).items():
            for request in good[:1] if at[0] not in good[-1] else good:
                if operation in ("DeleteTable", "CreateTable", "UpdateTable") and "TableName" not in at:
                    request = {**request, "TableName": "no-such-table"}
                make = partial(member, server, operation, request, at, value)
                check_growth(f"{operation} {'.'.join(at)}: {what}", make, first=8_192, last=131_072)


def member(
    server: Server, operation: str, request: dict[str, Any], at: tuple[str, ...], value: Callable[[int], Any], n: int
) -> Work:
    body = encoded(put_in(request, at, OPERATIONS[target(operation)].shape, value(n)))
    return lambda: server.dynamodb(operation, body)


EXPRESSIONS: dict[str, Callable[[int], str]] = {
    "names": lambda n: " , ".join(f"a{number}" for number in range(n // 8)),
    "one path": lambda n: ".".join(["a"] * (n // 2)),
    "paths that share a beginning": lambda n: ",".join(f"a.b.c.d{number}" for number in range(n // 16)),
    "indexes": lambda n: ",".join(f"a[{number}]" for number in range(n // 8)),
    "one long index": lambda n: f"a[{'9' * n}]",
    "comparisons": lambda n: " AND ".join(["a = :v"] * (n // 16)),
    "brackets": lambda n: "(" * (n // 2) + "a = :v" + ")" * (n // 2),
    "negations": lambda n: "NOT " * (n // 8) + "a = :v",
    "calls": lambda n: "size(" * (n // 8) + "a" + ")" * (n // 8),
    "defaults": lambda n: "SET a = " + "if_not_exists(a," * (n // 32) + ":v" + ")" * (n // 32),
    "removals": lambda n: "REMOVE " + ",".join(f"a{number}" for number in range(n // 8)),
    "settings": lambda n: "SET " + ",".join(f"a{number} = :v" for number in range(n // 16)),
    "sections": lambda n: "SET a = :v " * (n // 16),
    "a list": lambda n: "a IN (" + ",".join([":v"] * (n // 4)) + ")",
    "sums": lambda n: "SET a = a" + " + :v" * (n // 8),
}
CARRIERS = (
    ("UpdateItem", "UpdateExpression", {"Key": KEY}),
    ("UpdateItem", "ConditionExpression", {"Key": KEY, "UpdateExpression": "SET zz = :v"}),
    ("PutItem", "ConditionExpression", {"Item": ITEM}),
    ("GetItem", "ProjectionExpression", {"Key": KEY}),
    ("Query", "KeyConditionExpression", {}),
    ("Scan", "FilterExpression", {}),
)


@pytest.mark.parametrize("form", [*EXPRESSIONS, *TEXTS])
def test_expressions(server: Server, form: str) -> None:
    for operation, name, more in CARRIERS:
        for named in (False, True):
            make = partial(expression, server, form, operation, name, more, named)
            check_growth(f"{operation} {name}: {form}", make, first=512, last=16_384)


def expression(server: Server, form: str, operation: str, name: str, more: dict[str, Any], named: bool, n: int) -> Work:
    text = {**EXPRESSIONS, **TEXTS}[form](n)
    request: dict[str, Any] = {"TableName": "ranged", **more, name: f"{text}{' ' * (next(fresh) % 50)}"}
    if named:
        request["ExpressionAttributeNames"] = {f"#{number}": "a" for number in range(n // 16)}
    if name != "ProjectionExpression":
        request["ExpressionAttributeValues"] = {":v": {"N": "1"}}
    body = encoded(request)
    return lambda: server.dynamodb(operation, body)


# -- paths, query strings and header fields of the other interfaces

PLACES: list[tuple[str, str]] = [  # methods, and a path below which something is named
    ("GET HEAD PUT POST DELETE PATCH", "/v1/stream/"),
    ("GET", "/v1/stream/__ds/"),
    ("GET PUT DELETE", "/v1/stream/__ds/subscriptions/"),
    ("POST", "/v1/stream/__ds/subscriptions/none/"),
    ("GET", "/v1/tables/"),
    ("GET PATCH", "/v1/tables/ranged/"),
    ("GET PUT DELETE", "/v1/tables/ranged/cursors/"),
    ("GET POST", "/v1/topics/"),
    ("GET", "/v1/topics/events/"),
    ("POST", "/v1/api/topics/"),
    ("GET", "/v1/logs/"),
    ("DELETE", "/v1/stages/"),
    ("GET PUT DELETE", "/v1/jobs/"),
    ("GET POST", "/v1/cold/"),
    ("GET POST", "/v1/views/"),
    ("GET DELETE PATCH", "/v1/admin/keys/"),
    ("GET DELETE PATCH", "/v1/admin/users/"),
    ("GET POST", "/v1/api/auth/"),
    ("GET POST", "/"),
]
PARAMETERS: list[tuple[str, str, str]] = [  # method, path, the parameters it knows
    ("GET", "/v1/stream/text", "offset live cursor"),
    ("GET", "/v1/stream/__ds/subscriptions", "limit after"),
    ("GET", "/v1/tables/ranged/stream", "offset live cursor label values after_sequence limit"),
    ("GET", "/v1/tables/ranged/items", "segment segments after limit columns"),
    ("GET", "/v1/topics/events/0/stream", "offset live cursor"),
    ("POST", "/v1/topics/events", "key partition"),
    ("GET", "/v1/logs", "table topic stream label"),
    ("GET", "/v1/logs/plan", "table topic stream label from until after limit tasks"),
    ("GET", "/v1/logs/read", "table topic stream label from until after limit partition"),
    ("POST", "/v1/stages", "table topic stream stage chunk"),
    ("GET", "/v1/cold", "table topic stream label"),
    ("GET", "/v1/jobs", "name kind"),
    ("GET", "/v1/views", "name"),
    ("GET", "/metrics", "name"),
    ("POST", "/", "X-Amz-Algorithm X-Amz-Credential X-Amz-Date X-Amz-Expires X-Amz-SignedHeaders X-Amz-Signature"),
]
FIELDS: list[tuple[str, str, str]] = [  # method, path, the header fields that are read there
    ("PUT", "/v1/stream/new", "content-type stream-ttl stream-expires-at stream-closed stream-forked-from "
     "stream-fork-offset stream-fork-sub-offset stream-max-age stream-max-bytes host"),
    ("POST", "/v1/stream/text", "content-type stream-seq stream-closed producer-id producer-epoch producer-seq"),
    ("GET", "/v1/stream/text", "accept if-none-match authorization cookie"),
    ("POST", "/v1/topics/events", "content-type topic-key topic-partition"),
    ("POST", "/v1/api/sql", "content-type origin authorization"),
    ("POST", "/v1/stages", "content-type"),
    ("GET", "/v1/tables/ranged/items", "accept"),
    ("POST", "/v1/api/auth/login", "content-type cookie authorization origin x-forwarded-for"),
    ("POST", "/v1/api/auth/refresh", "content-type cookie authorization origin"),
    ("POST", "/", "x-amz-target x-amz-date date authorization x-amz-content-sha256 x-amz-security-token "
     "content-type content-encoding accept-encoding host"),
    ("GET", "/", "accept host"),
    ("OPTIONS", "/", "origin access-control-request-headers access-control-request-method"),
]  # fmt: skip
FIELD_FORMS: dict[str, Callable[[int], str]] = {
    **{name: text for name, text in TEXTS.items() if name not in ("wide", "far")},
    "bearer": lambda n: "Bearer " + "a." * (n // 2),
    "basic": lambda n: "Basic " + "YTph" * (n // 4),
    "signed": lambda n: "AWS4-HMAC-SHA256 Credential=" + "a/" * (n // 4) + ", SignedHeaders=" + "a;" * (n // 4)
    + ", Signature=0",
    "signed, with blanks": lambda n: "AWS4-HMAC-SHA256 Credential=a," + " " * n + "x=,SignedHeaders=a",
    "a date": lambda n: "Mon, " + "01 " * (n // 3) + "2026",
    "encodings": lambda n: "gzip;q=" + "0" * n + ", deflate;q=1",
    "arrow": lambda n: "application/vnd.apache.arrow.stream;q=0.1," * (n // 42),
    "entity tags": lambda n: '"a", ' * (n // 5),
    "cookies": lambda n: "a=b; " * (n // 5),
    "multipart": lambda n: 'application/json; a="' + '\\"' * (n // 2),
    "a stream": lambda n: "/v1/stream/" + "a/" * (n // 2),
}  # fmt: skip


@pytest.mark.parametrize("form", list(TEXTS))
def test_paths(server: Server, form: str) -> None:
    def make(method: str, path: str, n: int) -> Work:
        text = quoted(form, n, "%/:.,=;()'*")
        return lambda: server.ask(method, path + text, content_type="text/plain")

    for methods, path in PLACES:
        for method in methods.split():
            check_growth(f"{method} {path}: {form}", partial(make, method, path), last=HEAD_LAST)


@pytest.mark.parametrize("form", [*TEXTS, "parameters"])
def test_query_strings(server: Server, form: str) -> None:
    def make(method: str, path: str, name: str, n: int) -> Work:
        query = f"{name}=1&" * (n // 8) if form == "parameters" else f"{name}={quoted(form, n, '%')}"
        return lambda: server.ask(method, path, query=query)

    for method, path, names in PARAMETERS:
        for name in (*names.split(), "unknown"):
            check_growth(f"{method} {path}?{name}: {form}", partial(make, method, path, name), last=HEAD_LAST)


@pytest.mark.parametrize("form", list(FIELD_FORMS))
@pytest.mark.parametrize("dev", [True, False], ids=["dev", "with authentication"])
def test_header_fields(server: Server, guarded: Server, form: str, dev: bool) -> None:
    def make(method: str, path: str, name: str, n: int) -> Work:
        fields = {"x-amz-target": "DynamoDB_20120810.ListTables", "content-type": "application/json"}
        fields[name] = FIELD_FORMS[form](n)
        return lambda: (server if dev else guarded).ask(method, path, b"{}", **fields)

    for method, path, names in FIELDS:
        for name in names.split():
            check_growth(f"{method} {path} {name}: {form}", partial(make, method, path, name), last=HEAD_LAST)


# -- bodies

BODIES: dict[str, Callable[[int], bytes]] = {
    "a text": lambda n: b'{"a":"' + b"a" * n + b'"}',
    "blanks": lambda n: b" " * n + b"{}",
    "nested lists": lambda n: b"[" * n + b"]" * n,
    "nested maps": lambda n: b'{"a":' * (n // 5) + b"1" + b"}" * (n // 5),
    "open lists": lambda n: b"[" * n,
    "numbers": lambda n: b"[" + b"1," * (n // 2) + b"1]",
    "a long number": lambda n: b'{"a":' + b"7" * n + b"}",
    "a long fraction": lambda n: b'{"a":0.' + b"7" * n + b"}",
    "a long exponent": lambda n: b'{"a":1e' + b"0" * n + b"1}",
    "escapes": lambda n: b'{"a":"' + b"\\n" * (n // 2) + b'"}',
    "half surrogates": lambda n: b'["' + b"\\ud83d" * (n // 6) + b'"]',
    "messages with half surrogates": lambda n: b"[" + b'"\\ud83d",' * (n // 9) + b"1]",
    "a half surrogate at the end": lambda n: b"[" + b"1," * (n // 2) + b'"\\ud83d"]',
    "escaped backslashes": lambda n: b'["' + b"\\\\" * (n // 2) + b'\\ud83d"]',
    "names": lambda n: json.dumps({f"a{number}": 1 for number in range(n // 16)}).encode(),
    "the same name": lambda n: b"{" + b'"a":1,' * (n // 6) + b'"a":1}',
    "names that differ in case": lambda n: json.dumps(dict.fromkeys(cased(n // 32), 1)).encode(),
    "not UTF-8": lambda n: b'{"a":"' + b"\xc3" * n + b'"}',
    "no JSON": lambda n: b"a" * n,
}
TAKERS: list[tuple[str, str, str]] = [
    ("PUT", "/v1/stream/{fresh}", "application/json"),
    ("POST", "/v1/stream/json", "application/json"),
    ("POST", "/v1/stream/text", "text/plain"),
    ("POST", "/v1/topics/events", "application/json"),
    *(
        ("POST", f"/v1/api/topics/{name}", "application/json")
        for name in ("publish", "consume", "ack", "nack", "extend")
    ),
    ("POST", "/v1/api/sql", "application/json"),
    ("PUT", "/v1/stream/__ds/subscriptions/one", "application/json"),
    *(
        ("POST", f"/v1/stream/__ds/subscriptions/one/{name}", "application/json")
        for name in ("streams", "claim", "ack")
    ),
    ("PATCH", "/v1/tables/ranged/stream", "application/json"),
    ("POST", "/v1/tables/ranged/stream/prune", "application/json"),
    ("PUT", "/v1/tables/ranged/cursors/one", "application/json"),
    ("POST", "/v1/stages", "application/vnd.apache.arrow.stream"),
    ("POST", "/v1/stages/commit", "application/json"),
    ("PUT", "/v1/jobs/one", "application/json"),
    ("POST", "/v1/cold/attach", "application/json"),
    ("POST", "/v1/admin/keys", "application/json"),
    ("POST", "/v1/admin/users", "application/json"),
    ("POST", "/v1/api/auth/login", "application/json"),
    ("POST", "/", "application/x-amz-json-1.0"),
]


@pytest.mark.parametrize("form", list(BODIES))
def test_bodies(server: Server, form: str) -> None:
    def make(method: str, path: str, kind: str, n: int) -> Work:
        body, place = BODIES[form](n), path.format(fresh=f"made{next(fresh)}")
        headers = {"content_type": kind, "x_amz_target": "DynamoDB_20120810.PutItem"}
        return lambda: server.ask(method, place, body, **headers)

    for method, path, kind in TAKERS:
        check_growth(f"{method} {path}: {form}", partial(make, method, path, kind), first=8_192, last=524_288)


def test_half_of_a_surrogate_costs_a_few_times_what_other_text_does() -> None:
    n = 1_048_576
    for what, good, bad in (
        ("escapes", b'["' + b"\\u0061" * (n // 6) + b'"]', b'["' + b"\\ud83d" * (n // 6) + b'"]'),
        ("numbers", b"[" + b"1," * (n // 2) + b"1]", b"[" + b"1," * (n // 2) + b'"\\ud83d"]'),
        ("messages", b"[" + b'"\\u0061",' * (n // 9) + b"1]", b"[" + b'"\\ud83d",' * (n // 9) + b"1]"),
    ):
        for work in (json_mode.entry, lambda body: json_mode.messages(json_mode.entry(body))):
            quick = min(cpu_s(partial(work, good)) for _ in range(5))
            slow = min(cpu_s(partial(work, bad)) for _ in range(5))
            assert slow < 12 * quick + 0.005, f"{what}: {slow * 1000:.1f} ms, and {quick * 1000:.1f} ms without"


def test_names_of_attributes_that_differ_in_case_become_columns(server: Server) -> None:
    def make(n: int) -> Work:
        name = f"cased{next(fresh)}"
        assert server.sql(f"CREATE TABLE {name} (pk TEXT PRIMARY KEY)").status == 200
        names = cased(n // 32)
        for at in range(0, len(names), 2_000):
            item = {"pk": {"S": str(at)}, **{each: {"N": "1"} for each in names[at : at + 2_000]}}
            server.known("PutItem", {"TableName": name, "Item": item})
        return lambda: server.sql(f"SELECT * FROM {name}")

    check_growth("names that differ in case", make, first=8_192, last=131_072)
    names = [f"{'a' if at % 2 else 'A'}{at // 2}" for at in range(40)]
    assert len({each.lower() for each in distinct([*names, "a1_1", "a1"])}) == 42
    check_growth("distinct", lambda n: lambda: distinct(cased(n)), first=4_096, last=65_536)


# -- bytes, as the transport gets them


class Socket(asyncio.Transport):
    """A transport that takes all and keeps nothing."""

    def write(self, data: Any) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def can_write_eof(self) -> bool:
        return False

    def write_eof(self) -> None:
        pass

    def abort(self) -> None:
        pass

    def close(self) -> None:
        pass


POST = b"POST /x HTTP/1.1\r\nHost: a\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
WIRES: dict[str, Callable[[int], bytes]] = {
    "a target": lambda n: b"GET /" + b"a" * n + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    "an absolute target": lambda n: b"GET http://" + b"a/" * (n // 2) + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    "a method": lambda n: b"G" * n,
    "a host": lambda n: b"GET / HTTP/1.1\r\nHost: " + b"a:" * (n // 2) + b"\r\n\r\n",
    "a field": lambda n: POST + b"A: " + b"a" * n + b"\r\n\r\n",
    "blanks": lambda n: POST + b"A:" + b" " * n + b"a\r\n\r\n",
    "a name": lambda n: POST + b"a" * n + b": a\r\n\r\n",
    "fields": lambda n: POST + b"".join(b"a%d: a\r\n" % at for at in range(n // 8)) + b"\r\n",
    "the same field": lambda n: POST + b"A: a\r\n" * (n // 6) + b"\r\n",
    "fields that differ in case": lambda n: (
        POST + b"".join(b"%b: a\r\n" % a.encode() for a in cased(n // 32)) + b"\r\n"
    ),
    "line ends": lambda n: b"\r\n" * (n // 2) + POST + b"\r\n",
    "requests": lambda n: (b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n") * (n // 28),
    "a body": lambda n: POST + b"Content-Length: %d\r\n\r\n" % n + b"a" * n,
    "a long length": lambda n: POST + b"Content-Length: " + b"1" * n + b"\r\n\r\n",
    "chunks": lambda n: CHUNKED + b"1\r\na\r\n" * (n // 6) + b"0\r\n\r\n",
    "a chunk": lambda n: CHUNKED + b"%x\r\n" % n + b"a" * n + b"\r\n0\r\n\r\n",
    "a chunk's size": lambda n: CHUNKED + b"0" * n + b"1\r\na\r\n0\r\n\r\n",
    "an extension": lambda n: CHUNKED + b"1;" + b"a" * n + b"\r\na\r\n0\r\n\r\n",
    "extensions": lambda n: CHUNKED + b"1;a=b\r\na\r\n" * (n // 10) + b"0\r\n\r\n",
    "trailers": lambda n: CHUNKED + b"0\r\n" + b"A: a\r\n" * (n // 6) + b"\r\n",
    "expectations": lambda n: POST + b"Expect: " + b"1" * n + b"\r\n\r\n",
    "upgrades": lambda n: POST + b"Connection: upgrade\r\nUpgrade: " + b"a," * (n // 2) + b"\r\n\r\n",
}


@pytest.mark.parametrize("piece", [1, 1_400, 65_536])
@pytest.mark.parametrize("form", list(WIRES))
def test_bytes_on_the_wire(form: str, piece: int) -> None:
    loop = asyncio.new_event_loop()

    async def answer(request: Request) -> Answer:
        return Response(200, [])

    def make(n: int) -> Work:
        data = WIRES[form](n)
        pieces = [data[at : at + piece] for at in range(0, len(data), piece)]

        async def feed() -> None:
            connection = Connection(Shared(answer, TransportLimits(), Metrics()))
            connection.connection_made(Socket())
            for each in pieces:
                connection.data_received(each)

        return lambda: loop.run_until_complete(feed())

    try:
        check_growth(f"{form} in pieces of {piece}", make, first=4_096, last=1_048_576 if piece > 1 else 65_536)
    finally:
        loop.close()


@pytest.mark.parametrize("form", ["different fields", "the same field", "a long field", "a path", "a query"])
def test_requests_by_asgi(form: str) -> None:
    loop = asyncio.new_event_loop()

    async def answer(request: Request) -> Answer:
        return Response(200, [])

    adapter = application(answer)

    def make(n: int) -> Work:
        names = {"different fields": [b"a%d" % at for at in range(n // 8)], "the same field": [b"a"] * (n // 8)}
        fields = [(name, b"a") for name in names.get(form, [])]
        fields += [(b"a", b"a" * n)] if form == "a long field" else []
        scope = {"type": "http", "method": "GET", "path": "/", "headers": fields, "query_string": b""}
        scope["raw_path"] = b"/" + b"a" * n if form == "a path" else b"/"
        scope["query_string"] = b"a" * n if form == "a query" else b""

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(event: Any) -> None:
            pass

        return lambda: loop.run_until_complete(adapter(scope, receive, send))

    try:
        check_growth(f"ASGI: {form}", make, first=65_536, last=1_048_576)
    finally:
        loop.close()


# -- SQL


def times(text: str, n: int, joined: str = " ") -> str:
    """The text as often as it fits into n characters."""
    return joined.join([text] * max(1, n // (len(text) + len(joined))))


def numbered(text: str, n: int, joined: str = ", ") -> str:
    """The text, with a number where it has {}, as often as it fits into n characters."""
    return joined.join(text.replace("{}", str(number)) for number in range(max(1, n // (len(text) + len(joined) + 3))))


STATEMENTS: dict[str, Callable[[int], str]] = {
    "statements": lambda n: times("SHOW TABLES;", n),
    "semicolons": lambda n: ";" * n,
    "wrong statements": lambda n: times("FOO;", n),
    "comments": lambda n: times("/* a */", n) + " SHOW TABLES",
    "a comment that does not end": lambda n: "/* " + "*" * n,
    "comments that do not end": lambda n: "/*" * (n // 2),
    "statements before comments that do not end": lambda n: ";/*" * (n // 3) + "user",
    "statements inside comments": lambda n: "/*;/**/" * (n // 7) + "'user",
    "statements inside one line comment": lambda n: ";--" * (n // 3) + "user\n'",
    "line comments": lambda n: "--a\n" * (n // 4) + "SHOW TABLES",
    "lines": lambda n: "\n" * n + "FOO",
    "a text that does not end": lambda n: "SELECT '" + "''" * (n // 2),
    "a name that does not end": lambda n: 'SELECT "' + '""' * (n // 2),
    "a dollar text": lambda n: "SELECT $$" + "$a" * (n // 2),
    "bytes": lambda n: "SELECT X'" + "00" * (n // 2) + "'",
    "a long number": lambda n: "SELECT " + "7" * n,
    "a long exponent": lambda n: "SELECT 1e" + "0" * n,
    "long fractions": lambda n: "SELECT " + times("1." + "0" * 150, n, ", "),
    "a long parameter": lambda n: "SELECT $" + "1" * n,
    "parameters": lambda n: "SELECT " + times("?", n, ", "),
    "words": lambda n: times("user", n),
    "passwords": lambda n: times("pasw", n, ""),
    "create": lambda n: "CREATE TABLE t{} (id TEXT PRIMARY KEY, " + numbered("c{} TEXT", n) + ")",
    "create with names that differ in case": lambda n: "CREATE TABLE tt (id TEXT PRIMARY KEY, "
    + ", ".join(f"{name} TEXT" for name in cased(n // 32)) + ")",
    "insert": lambda n: "INSERT INTO declared (id, a) VALUES " + numbered("('{}', 1)", n),
    "insert of expressions": lambda n: "INSERT INTO declared (id, a) VALUES " + numbered("('{}', 1 + 1)", n),
    "insert into columns": lambda n: "INSERT INTO ranged (" + numbered("c{}", n) + ") VALUES (1)",
    "update": lambda n: "UPDATE declared SET " + times("a = 1", n, ", ") + " WHERE id = 'a'",
    "update of columns": lambda n: "UPDATE ranged SET " + numbered("c{} = 1", n) + " WHERE pk = 'a' AND sk = 1",
    "delete": lambda n: "DELETE FROM declared WHERE " + times("id = 'a'", n, " AND "),
    "alter": lambda n: "ALTER TABLE declared " + numbered("ADD COLUMN c{} TEXT", n),
    "route": lambda n: f"ALTER TOPIC events ADD SOURCE declared ON INSERT WHERE a <> {next(fresh)} AND "
    + times("a = 1", n, " OR "),
    "grant": lambda n: "CREATE USER a WITH PASSWORD '" + "p" * n + "' ROLE " + "a" * n,
    "publish": lambda n: "PUBLISH INTO events VALUES " + times("('a')", n, ", "),
    "consume": lambda n: "CONSUME FROM events GROUP '" + "a" * n + "'",
}  # fmt: skip
CONDITIONS: dict[str, Callable[[int], str]] = {
    "and": lambda n: times("a = 1", n, " AND "),
    "or": lambda n: times("a = 1", n, " OR "),
    "in": lambda n: "a IN (" + times("1", n, ", ") + ")",
    "in, of different numbers": lambda n: "a IN (" + numbered("{}", n) + ")",
    "in, of names": lambda n: "id IN (" + numbered("b.c{}", n) + ")",
    "sums": lambda n: "a = " + times("1", n, " + "),
    "products": lambda n: "a = " + times("a", n, " * "),
    "joined texts": lambda n: "id = " + times("'a'", n, " || "),
    "not": lambda n: "NOT " * (n // 4) + "a = 1",
    "minus": lambda n: "a = " + "- " * (n // 2) + "1",
    "brackets": lambda n: "(" * (n // 2) + "a" + ")" * (n // 2) + " = 1",
    "open brackets": lambda n: "(" * n,
    "square brackets": lambda n: "b" + "[1]" * (n // 3) + " = 1",
    "nested square brackets": lambda n: "b" + "[" * (n // 2) + "1" + "]" * (n // 2),
    "a path": lambda n: "b" + ".c" * (n // 2) + " = 1",
    "arrows": lambda n: "b" + " -> 'c'" * (n // 7) + " = 1",
    "double arrows": lambda n: "b" + " ->> '$.c'" * (n // 9) + " = 1",
    "an arrow path": lambda n: "b -> '$" + ".c" * (n // 2) + "' = 1",
    "a bad arrow path": lambda n: "b -> '" + ".." * (n // 2) + "' = 1",
    "casts": lambda n: "a" + "::BIGINT" * (n // 8) + " = 1",
    "nested casts": lambda n: "CAST(" * (n // 16) + "a" + " AS BIGINT)" * (n // 16) + " = 1",
    "cases": lambda n: "CASE " + times("WHEN a = 1 THEN 1", n) + " END = 1",
    "nested cases": lambda n: "CASE WHEN a = 1 THEN " * (n // 25) + "1" + " END" * (n // 25) + " = 1",
    "calls": lambda n: "coalesce(" * (n // 10) + "a" + ")" * (n // 10) + " = 1",
    "arguments": lambda n: "coalesce(" + times("a", n, ", ") + ") = 1",
    "lambdas": lambda n: "f(" + "(x) -> " * (n // 7) + "x) = 1",
    "nested lambdas": lambda n: "f(x -> " * (n // 8) + "x" + ")" * (n // 8) + " = 1",
    "structs": lambda n: "{'a': " * (n // 8) + "1" + "}" * (n // 8) + " = 1",
    "lists": lambda n: "[" * (n // 2) + "]" * (n // 2) + " = 1",
    "like": lambda n: "id LIKE '" + "%a" * (n // 2) + "'",
    "like with underscores": lambda n: "id LIKE '" + "_%" * (n // 2) + "b'",
    "between": lambda n: times("a BETWEEN 1 AND 2", n, " AND "),
    "is": lambda n: times("a IS NOT NULL", n, " AND "),
    "comparisons in a row": lambda n: times("a", n, " = "),
    "intervals": lambda n: "a = " + "INTERVAL " * (n // 9) + "1",
    "types": lambda n: "a::" + "STRUCT(a " * (n // 9) + "INT" + ")" * (n // 9) + " = 1",
    "dates": lambda n: times("DATE '2020-01-01' = a", n, " AND "),
    "collations": lambda n: "id" + " COLLATE a" * (n // 10) + " = '1'",
    "zones": lambda n: "a" + " AT TIME ZONE 'UTC'" * (n // 19) + " = 1",
    "a long name": lambda n: "a" * n + " = 1",
    "names": lambda n: numbered("c{} = 1", n, " AND "),
    "names that differ in case": lambda n: " AND ".join(f"{name} = 1" for name in cased(n // 32)),
    "texts": lambda n: "id = '" + "''" * (n // 2) + "'",
    "exponents": lambda n: "a = 1e" + "1" * n,
    "hexadecimal": lambda n: "a = 0x" + "f" * n,
    "underscores": lambda n: "a = 1" + "_1" * (n // 2),
    "subqueries": lambda n: "a IN (SELECT " * (n // 14) + "1" + ")" * (n // 14),
    "comments": lambda n: "a /**/ " * (n // 7) + "= 1",
    "escapes": lambda n: "id = e'" + "\\" * (n // 2) + "\\'",
}
QUERIES: dict[str, Callable[[int], str]] = {
    "columns": lambda n: "SELECT " + times("a", n, ", ") + " FROM declared",
    "numbered columns": lambda n: "SELECT " + numbered("c{}", n) + " FROM ranged",
    "qualified columns": lambda n: "SELECT " + numbered("ranged.c{}", n) + " FROM ranged",
    "aliases": lambda n: "SELECT " + numbered("a AS x{}", n) + " FROM declared",
    "the same alias": lambda n: "SELECT " + times("a AS x", n, ", ") + " FROM declared",
    "aliases that differ in case": lambda n: "SELECT " + ", ".join(f"a AS {name}" for name in cased(n // 32))
    + " FROM declared",
    "stars": lambda n: "SELECT " + times("*", n, ", ") + " FROM declared",
    "wide rows": lambda n: "SELECT " + times("*", n, ", ")
    + " FROM (VALUES " + times("(1, 2, 3, 4)", 2_000, ", ") + ") AS v",
    "sources": lambda n: "SELECT 1 FROM " + times("declared", n, ", "),
    "sources with aliases": lambda n: "SELECT 1 FROM " + numbered("declared d{}", n),
    "changes": lambda n: "SELECT 1 FROM " + times("changes('ranged')", n, ", "),
    "changes of a parameter": lambda n: "SELECT 1 FROM " + times("changes(?)", n, ", "),
    "joins": lambda n: "SELECT 1 FROM declared " + numbered("JOIN declared d{} USING (id)", n, " "),
    "with queries": lambda n: "WITH " + numbered("w{} AS (SELECT 1 a)", n) + " SELECT 1",
    "with queries that build on one another": lambda n: "WITH w0 AS (SELECT 1 a), "
    + ", ".join(f"w{at + 1} AS (SELECT a FROM w{at})" for at in range(n // 28)) + " SELECT 1",
    "subqueries": lambda n: "SELECT * FROM (" * (n // 16) + "SELECT 1" + ")" * (n // 16),
    "unions": lambda n: times("SELECT 1", n, " UNION ALL "),
    "brackets": lambda n: "(" * (n // 2) + "SELECT 1" + ")" * (n // 2),
    "values": lambda n: "VALUES " + times("(1)", n, ", "),
    "order": lambda n: "SELECT a FROM declared ORDER BY " + times("a", n, ", "),
    "group": lambda n: "SELECT count(*) FROM declared GROUP BY " + times("a", n, ", "),
    "windows": lambda n: "SELECT " + times("sum(a) OVER (ORDER BY a)", n, ", ") + " FROM declared",
    "limits": lambda n: "SELECT a FROM declared LIMIT " + "1" * n,
    "a view": lambda n: "CREATE MATERIALIZED VIEW v AS SELECT " + times("sum(a)", n, ", ")
    + " FROM declared GROUP BY id",
    "a view with aliases": lambda n: "CREATE MATERIALIZED VIEW v AS SELECT id, " + numbered("sum(a) AS s{}", n)
    + " FROM declared GROUP BY id",
    "a view with a condition": lambda n: "CREATE MATERIALIZED VIEW v AS SELECT id, count(*) FROM declared WHERE "
    + times("a = 1", n, " AND ") + " GROUP BY id",
}  # fmt: skip


@pytest.mark.parametrize("form", [*STATEMENTS, *TEXTS])
def test_statements(server: Server, form: str) -> None:
    check_growth(form, lambda n: sql(server, {**STATEMENTS, **TEXTS}[form](n)), last=524_288)


@pytest.mark.parametrize("form", list(QUERIES))
def test_queries(server: Server, form: str) -> None:
    check_growth(form, lambda n: sql(server, QUERIES[form](n)), first=512)


@pytest.mark.parametrize("form", list(CONDITIONS))
@pytest.mark.parametrize(
    "before",
    [
        "SELECT * FROM declared WHERE ",
        "UPDATE declared SET a = 1 WHERE id = 'a' AND ",
        "ALTER TOPIC events ADD SOURCE declared ON INSERT WHERE ",
        "CREATE MATERIALIZED VIEW v AS SELECT id, count(*) FROM declared WHERE ",
    ],
)
def test_conditions(server: Server, before: str, form: str) -> None:
    check_growth(
        f"{before}: {form}",
        lambda n: sql(server, f"{before}a <> {next(fresh)} AND {CONDITIONS[form](n)}"),
        first=64,
        last=131_072,
    )


def sql(server: Server, text: str) -> Work:
    server.sql("SELECT 1")  # a worker process is there: the start of one is not what the text costs
    while not POOL.idle:  # it had grown, and has been replaced by none yet
        server.sql("SELECT 1")
    server.sql("ALTER TOPIC events DROP SOURCE declared")  # a route that exists is refused before its filter is read
    text = f"{text} /* {next(fresh)} */" if "/*" not in text else text
    return lambda: server.sql(text)
