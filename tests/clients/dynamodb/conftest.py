"""boto3, unmodified, against a real server: clients, and tables for a single test."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.support.patience import PATIENCE_S
from tests.support.server import ServerProcess

REGION = "eu-central-1"
KINDS = {"pk": "S", "sk": "S", "n": "N", "b": "B"}


def _connect(url: str, service: str = "dynamodb", **options: Any) -> Any:
    """A client as its users make it: standard retries, and timeouts that a test can wait for."""
    config = Config(
        retries={"mode": "standard", "total_max_attempts": 3},
        connect_timeout=PATIENCE_S,
        read_timeout=PATIENCE_S,
        max_pool_connections=32,
        **options,
    )
    return boto3.session.Session().client(
        service,
        endpoint_url=url,
        region_name=REGION,
        aws_access_key_id="AKIAIOSFODNN7EXAMPLE",
        aws_secret_access_key="not-a-secret",
        config=config,
    )


@pytest.fixture(scope="session")
def connect() -> Callable[..., Any]:
    """Makes a client for the server at a URL."""
    return _connect


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Any]:
    made = _connect(server.url)
    yield made
    made.close()


@pytest.fixture(scope="module")
def lenient(server: ServerProcess) -> Iterator[Any]:
    """A client that sends what the server must refuse."""
    made = _connect(server.url, parameter_validation=False)
    yield made
    made.close()


@pytest.fixture(scope="module")
def streams(server: ServerProcess) -> Iterator[Any]:
    made = _connect(server.url, "dynamodbstreams")
    yield made
    made.close()


@pytest.fixture(scope="module")
def resource(server: ServerProcess) -> Any:
    return boto3.session.Session().resource(
        "dynamodb",
        endpoint_url=server.url,
        region_name=REGION,
        aws_access_key_id="AKIAIOSFODNN7EXAMPLE",
        aws_secret_access_key="not-a-secret",
        config=Config(
            retries={"mode": "standard", "total_max_attempts": 3}, connect_timeout=PATIENCE_S, read_timeout=PATIENCE_S
        ),
    )


def _keys(*parts: str) -> list[dict[str, str]]:
    return [{"AttributeName": name, "KeyType": kind} for name, kind in zip(parts, ("HASH", "RANGE"), strict=False)]


def _create(client: Any, *keys: str, kinds: dict[str, str] | None = None, **more: Any) -> str:
    """A new table with these keys, billed by request unless it says otherwise; ready. Its name."""
    name = f"boto3.{uuid.uuid4().hex}"
    indexes = [*more.get("GlobalSecondaryIndexes", ()), *more.get("LocalSecondaryIndexes", ())]
    used = dict.fromkeys([*keys, *(element["AttributeName"] for index in indexes for element in index["KeySchema"])])
    known = {**KINDS, **(kinds or {})}
    if "ProvisionedThroughput" not in more:
        more.setdefault("BillingMode", "PAY_PER_REQUEST")
    client.create_table(
        TableName=name,
        KeySchema=_keys(*keys),
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": known.get(key, "S")} for key in used],
        **more,
    )
    client.get_waiter("table_exists").wait(TableName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 20})
    return name


@pytest.fixture(scope="session")
def create() -> Callable[..., str]:
    """Makes a table: `create(client, "pk", "sk", **parameters of CreateTable)`."""
    return _create


@pytest.fixture(scope="session")
def key_schema() -> Callable[..., list[dict[str, str]]]:
    """A KeySchema of the names of a hash and perhaps a range key."""
    return _keys


@pytest.fixture
def hashed(client: Any) -> str:
    """An empty table with the key `pk`."""
    return _create(client, "pk")


@pytest.fixture
def ranged(client: Any) -> str:
    """An empty table with the keys `pk` and `sk`."""
    return _create(client, "pk", "sk")


@pytest.fixture
def wide(client: Any) -> str:
    """An empty table with the keys `pk` and `sk` (S), the global index `by-n` (n, sk) and the local `by-b` (pk, b)."""
    return _create(
        client,
        "pk",
        "sk",
        GlobalSecondaryIndexes=[
            {"IndexName": "by-n", "KeySchema": _keys("n", "sk"), "Projection": {"ProjectionType": "ALL"}}
        ],
        LocalSecondaryIndexes=[
            {"IndexName": "by-b", "KeySchema": _keys("pk", "b"), "Projection": {"ProjectionType": "KEYS_ONLY"}}
        ],
    )


class Refusal:
    """The error of a refused call."""

    def __init__(self) -> None:
        self.code = ""
        self.message = ""
        self.status = 0
        self.response: dict[str, Any] = {}

    def record(self, error: ClientError) -> None:
        self.response = error.response
        self.code = error.response["Error"]["Code"]
        self.message = error.response["Error"].get("Message", "")
        self.status = error.response["ResponseMetadata"]["HTTPStatusCode"]


class refuses:  # noqa: N801 (reads as the words of a test)
    """`with refuses("ValidationException", "part of the message") as refusal:`"""

    def __init__(self, code: str, part: str = "") -> None:
        self.code = code
        self.part = part
        self.refusal = Refusal()

    def __enter__(self) -> Refusal:
        return self.refusal

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        assert error is not None, f"it was taken; {self.code} was expected"
        if not isinstance(error, ClientError):
            return False
        self.refusal.record(error)
        shown = f"{self.refusal.code}: {self.refusal.message}"
        assert self.refusal.code == self.code, shown
        assert self.part in self.refusal.message, shown
        return True


@pytest.fixture(scope="session", name="refuses")
def _refuses() -> type[refuses]:
    """A context that expects an error of the server."""
    return refuses


def _eventually(question: Callable[[], Any], timeout_s: float = PATIENCE_S) -> Any:
    deadline = time.monotonic() + timeout_s
    while True:
        answer = question()
        if answer:
            return answer
        assert time.monotonic() < deadline, "it did not come about in time"


@pytest.fixture(scope="session")
def eventually() -> Callable[..., Any]:
    """Asks again and again until the answer is true, and returns it."""
    return _eventually
