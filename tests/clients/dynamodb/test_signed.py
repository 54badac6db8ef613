"""Signed requests against a server that requires them: valid and invalid keys, and tampering with every part.

The server runs as in production, without --dev; keys come from `tailrace keys`, requests from the unmodified SDKs.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import botocore.auth
import httpx
import pytest
from botocore import UNSIGNED
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials

from tests.support.node import node
from tests.support.patience import PATIENCE_S
from tests.support.server import ROOT, ServerProcess, check

pytestmark = pytest.mark.clients

REGION = "eu-west-1"
TOKEN = "the-token-of-the-tests"
CLIENTS = Path(__file__).resolve().parents[1]

Key = tuple[str, str]


def tailrace(*arguments: str) -> str:
    """What `tailrace` prints; it must succeed."""
    done = subprocess.run(
        [sys.executable, "-m", "tailrace.cli", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={name: value for name, value in os.environ.items() if not name.startswith("TAILRACE_")},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def read_key(printed: str) -> Key:
    """A key from what `tailrace keys create` prints: environment variables."""
    variables = dict(line.split("=", 1) for line in printed.splitlines())
    return variables["AWS_ACCESS_KEY_ID"], variables["AWS_SECRET_ACCESS_KEY"]


class Locked:
    """A server with a token, and an authorized key."""

    def __init__(self, server: ServerProcess, key: Key) -> None:
        self.url = server.url
        self.key = key

    def client(self, key: Key | None = None, service: str = "dynamodb", **options: Any) -> Any:
        access, secret = key or self.key
        return boto3.session.Session().client(
            service,
            endpoint_url=self.url,
            region_name=REGION,
            aws_access_key_id=access,
            aws_secret_access_key=secret,
            config=Config(
                retries={"total_max_attempts": 1}, connect_timeout=PATIENCE_S, read_timeout=PATIENCE_S, **options
            ),
        )

    def keys(self, *arguments: str) -> str:
        """`tailrace keys` asks this server."""
        return tailrace("keys", *arguments, "--url", self.url, "--token", TOKEN)

    def request(self, operation: str, body: bytes, key: Key | None = None, **headers: str) -> AWSRequest:
        """A signed request, made by hand."""
        fields = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"DynamoDB_20120810.{operation}"}
        request = AWSRequest("POST", f"{self.url}/", headers={**fields, **headers}, data=body)
        SigV4Auth(Credentials(*(key or self.key)), "dynamodb", REGION).add_auth(request)
        return request


def sent(request: AWSRequest, **changed: str | bytes) -> tuple[int, str, str]:
    """Send a request, its body or some of its fields changed after it was signed: status, error and message."""
    body = changed.pop("body", request.data)
    fields = dict(request.headers.items()) | {name.replace("_", "-"): value for name, value in changed.items()}
    answer = httpx.post(request.url, headers=fields, content=body, timeout=PATIENCE_S)
    body = answer.json()
    return answer.status_code, body.get("__type", "").rpartition("#")[2], body.get("message", "")


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Locked]:
    data = tmp_path_factory.mktemp("locked") / "data"
    # Before there is a server.
    key = read_key(tailrace("keys", "create", "alice", "--role", "dba", "--data", str(data)))
    command = [sys.executable, "-m", "tailrace.cli", "serve", "--host", "127.0.0.1", "--port", "0"]
    server = ServerProcess([*command, "--data", str(data)], env={"TAILRACE_TOKEN": TOKEN}).start()
    try:
        yield Locked(server, key)
    finally:
        status = server.terminate()
    assert status == 0, server.output
    assert key[1] not in server.output
    checked = check(data)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.fixture(scope="module")
def alice(locked: Locked) -> Iterator[Any]:
    made = locked.client()
    yield made
    made.close()


@pytest.fixture(scope="module")
def table(alice: Any) -> str:
    name = f"signed-{uuid.uuid4()}"
    alice.create_table(
        TableName=name,
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
        StreamSpecification={"StreamEnabled": True, "StreamViewType": "KEYS_ONLY"},
    )
    alice.get_waiter("table_exists").wait(TableName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 20})
    return name


@pytest.fixture
def signing_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[timedelta], None]:
    """Shifts the clock of the signer in this process."""

    def set_clock(shift: timedelta) -> None:
        def now(remove_tzinfo: bool = True) -> datetime:
            at = datetime.now(UTC) + shift
            return at.replace(tzinfo=None) if remove_tzinfo else at

        monkeypatch.setattr(botocore.auth, "get_current_datetime", now)

    return set_clock


def item(pk: str) -> dict[str, Any]:
    return {"pk": {"S": pk}}


def put(table: str, pk: str) -> bytes:
    return json.dumps({"TableName": table, "Item": item(pk)}).encode()


def there(client: Any, table: str, pk: str) -> bool:
    return "Item" in client.get_item(TableName=table, Key=item(pk), ConsistentRead=True)


# -- accepted and refused signatures


def test_the_right_key_is_accepted(locked: Locked, alice: Any, table: str) -> None:
    awkward = "ü ☃/?&=+%20"
    alice.put_item(TableName=table, Item=item(awkward))
    assert there(alice, table, awkward)
    streams = locked.client(service="dynamodbstreams")
    (stream,) = streams.list_streams(TableName=table)["Streams"]
    assert stream["StreamArn"].startswith(f"arn:aws:dynamodb:{REGION}:")


def test_the_command_line_and_the_javascript_sdk_are_accepted(locked: Locked, table: str, tmp_path: Path) -> None:
    access, secret = locked.key
    environment = {
        "AWS_ACCESS_KEY_ID": access,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_REGION": REGION,
        "AWS_ENDPOINT_URL": locked.url,
        "AWS_EC2_METADATA_DISABLED": "true",
        "HOME": str(tmp_path),
    }
    listed = subprocess.run(
        [sys.executable, "-m", "awscli", "dynamodb", "list-tables", "--output=text"],
        env={"PATH": os.environ.get("PATH", ""), **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert listed.returncode == 0, listed.stderr
    assert table in listed.stdout
    script = """
        import { DynamoDBClient, ListTablesCommand } from "@aws-sdk/client-dynamodb"
        console.log((await new DynamoDBClient({}).send(new ListTablesCommand({}))).TableNames.join("\\n"))
    """
    done = node(CLIENTS, ["--input-type=module", "--eval", script], env=environment, timeout_s=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert table in done.stdout.splitlines()


def test_a_wrong_secret_is_refused(locked: Locked, table: str, refuses: Any) -> None:
    wrong = locked.client((locked.key[0], locked.key[1][::-1]))
    with refuses("InvalidSignatureException", "signature we calculated does not match") as refusal:
        wrong.put_item(TableName=table, Item=item("wrong"))
    assert refusal.status == 400


def test_an_unknown_key_is_refused(locked: Locked, refuses: Any) -> None:
    unknown = locked.client(("AKIAIOSFODNN7EXAMPLE", locked.key[1]))
    with refuses("UnrecognizedClientException", "The security token included in the request is invalid."):
        unknown.list_tables()


def test_unsigned_requests_are_refused(locked: Locked, refuses: Any) -> None:
    unsigned = locked.client(signature_version=UNSIGNED)
    with refuses("MissingAuthenticationTokenException", "Request is missing Authentication Token") as refusal:
        unsigned.list_tables()
    assert refusal.status == 400


def test_a_key_is_not_accepted_by_other_apis(locked: Locked, table: str) -> None:
    for path in (f"/v1/tables/{table}/stream", "/v1/admin/keys", "/metrics"):
        assert httpx.get(locked.url + path, timeout=PATIENCE_S).status_code == 401
        signed = dict(locked.request("ListTables", b"{}").headers.items())
        assert httpx.get(locked.url + path, headers=signed, timeout=PATIENCE_S).status_code == 401


# -- what is signed is what counts


@pytest.mark.parametrize(
    ("minutes", "words"), [(-16, "Signature expired: "), (16, "Signature not yet current: ")], ids=["late", "early"]
)
def test_a_clock_that_is_far_off_is_reported(
    locked: Locked, signing_at: Callable[[timedelta], None], refuses: Any, minutes: int, words: str
) -> None:
    client = locked.client()
    signing_at(timedelta(minutes=minutes))
    with refuses("InvalidSignatureException", words):
        client.list_tables()


def test_a_clock_that_is_a_little_off_is_forgiven(locked: Locked, signing_at: Callable[[timedelta], None]) -> None:
    client = locked.client()
    for minutes in (-14, 14):
        signing_at(timedelta(minutes=minutes))
        client.list_tables()


def test_what_was_signed_cannot_be_changed(locked: Locked, alice: Any, table: str) -> None:
    request = locked.request("PutItem", put(table, "mine"))
    as_signed = dict(request.headers.items())
    authorization = as_signed["Authorization"]
    for changed in (
        {"body": put(table, "evil")},
        {"X_Amz_Target": "DynamoDB_20120810.DeleteItem", "body": json.dumps({"TableName": table, "Key": item("x")})},
        {"X_Amz_Date": (datetime.now(UTC) + timedelta(seconds=1)).strftime("%Y%m%dT%H%M%SZ")},
        {"Host": "elsewhere.example"},
        {"Authorization": authorization.replace(REGION, "us-east-1")},
        {"Authorization": authorization[:-1] + ("0" if authorization[-1] != "0" else "1")},
    ):
        status, error, _ = sent(request, **changed)
        assert (status, error) == (400, "InvalidSignatureException"), changed
    assert not there(alice, table, "mine")
    assert not there(alice, table, "evil")
    assert sent(request) == (200, "", "")
    assert there(alice, table, "mine")


def test_a_claim_that_the_body_needs_no_signature_is_not_believed(locked: Locked, alice: Any, table: str) -> None:
    request = locked.request("PutItem", put(table, "claimed"), **{"X-Amz-Content-SHA256": "UNSIGNED-PAYLOAD"})
    assert sent(request, body=put(table, "other"))[1] == "InvalidSignatureException"
    assert not there(alice, table, "other")


# -- keys that come and go


def test_a_key_stops_working_at_once(locked: Locked, refuses: Any) -> None:
    key = read_key(locked.keys("create", "mallory", "--role", "dba"))
    client = locked.client(key)
    client.list_tables()
    locked.keys("disable", key[0])
    with refuses("UnrecognizedClientException"):
        client.list_tables()
    locked.keys("enable", key[0])
    client.list_tables()
    locked.keys("delete", key[0])
    with refuses("UnrecognizedClientException"):
        client.list_tables()
    listed = locked.keys("list")
    assert locked.key[0] in listed
    assert key[0] not in listed


def test_change_records_say_who_made_them(locked: Locked, alice: Any, table: str) -> None:
    bob = locked.client(read_key(locked.keys("create", "bob of accounts", "--role", "dba")))
    names = [uuid.uuid4().hex for _ in range(4)]
    bob.put_item(TableName=table, Item=item(names[0]))
    alice.put_item(TableName=table, Item=item(names[1]))
    bob.transact_write_items(TransactItems=[{"Put": {"TableName": table, "Item": item(names[2])}}])
    alice.batch_write_item(RequestItems={table: [{"PutRequest": {"Item": item(names[3])}}]})
    bob.delete_item(TableName=table, Key=item(names[1]))
    answer = httpx.get(
        f"{locked.url}/v1/tables/{table}/stream",
        params={"offset": "-1"},
        headers={"Authorization": f"Bearer {TOKEN}"},
    )
    found = [(each["event"], each["keys"]["pk"], each["by"]) for each in answer.json() if each["keys"]["pk"] in names]
    assert found == [
        ("INSERT", names[0], "bob of accounts"),
        ("INSERT", names[1], "alice"),
        ("INSERT", names[2], "bob of accounts"),
        ("INSERT", names[3], "alice"),
        ("REMOVE", names[1], "bob of accounts"),
    ]


# -- compressed requests


def test_a_compressed_request_is_signed_as_it_is_sent(locked: Locked, alice: Any, table: str) -> None:
    """botocore compresses no request of this service by itself, so the body is compressed before it is signed."""
    client = locked.client()

    def compress(params: dict[str, Any], **_: Any) -> None:
        params["body"] = gzip.compress(params["body"].encode() if isinstance(params["body"], str) else params["body"])
        params["headers"]["Content-Encoding"] = "gzip"

    client.meta.events.register("before-call.dynamodb.PutItem", compress)
    client.put_item(TableName=table, Item={**item("compressed"), "text": {"S": "x" * 100_000}})
    got = alice.get_item(TableName=table, Key=item("compressed"))["Item"]
    assert got["text"] == {"S": "x" * 100_000}


def test_a_compressed_request_cannot_be_changed_either(locked: Locked, alice: Any, table: str) -> None:
    request = locked.request("PutItem", gzip.compress(put(table, "packed")), **{"Content-Encoding": "gzip"})
    assert sent(request, body=gzip.compress(put(table, "repacked")))[1] == "InvalidSignatureException"
    plain = put(table, "packed")
    assert sent(request, body=plain, Content_Encoding="identity")[1] == "InvalidSignatureException"
    assert not there(alice, table, "packed")
    assert sent(request) == (200, "", "")
    assert there(alice, table, "packed")
