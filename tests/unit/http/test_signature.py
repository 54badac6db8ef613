"""The principal of a signed request, through the functions that the server calls."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest
from botocore import auth as botocore_auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

import tailrace
from tailrace import Database, limits
from tailrace.access import EVERYTHING, ROLES, SYSTEM, Access, Permission, Principal
from tailrace.auth.keys import (
    CreateAccessKey,
    DeleteAccessKey,
    DisableAccessKey,
    EnableAccessKey,
    FindAccessKey,
    NewKey,
)
from tailrace.auth.users import AlterUser, CreateUser, DropUser, LoadUser
from tailrace.clock import ManualClock
from tailrace.config import Config
from tailrace.errors import LoginThrottled, Unauthenticated
from tailrace.http.authentication import Authenticator
from tailrace.http.message import Request
from tailrace.http.signature import Claimed, Signatures
from tests.unit.http.dispatching import Dispatching

CLOCK = ManualClock()


@pytest.fixture
def db(data_dir: Path) -> Iterator[Database]:
    with tailrace.open(data_dir, clock=ManualClock(), housekeeping_s=None) as db:
        yield db


@pytest.fixture
def key(db: Database) -> NewKey:
    return db.execute(CreateAccessKey("ann"))


def signed(key_id: str, secret: str, body: bytes = b"{}", *, path: str = "/") -> Request:
    request = AWSRequest("POST", f"http://localhost:4437{path}", {"X-Amz-Target": "DynamoDB_20120810.ListTables"}, body)
    now = datetime.fromtimestamp(CLOCK.now_ms() / 1000, UTC)
    with mock.patch.object(botocore_auth, "get_current_datetime", return_value=now):
        botocore_auth.SigV4Auth(Credentials(key_id, secret), "dynamodb", "us-east-1").add_auth(request)
    headers = {name.lower().encode(): value.encode() for name, value in request.headers.items()}
    return Request(b"POST", path.encode(), b"", {**headers, b"host": b"localhost:4437"}, body)


def bare(**headers: str) -> Request:
    fields = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    return Request(b"POST", b"/", b"", {b"host": b"localhost", **fields}, b"{}")


def signatures_of(db: Database, *, dev: bool = False, token: str | None = None) -> Signatures:
    return Signatures(db, Authenticator(db, Config(dev=dev, token=token)), dev=dev)


def claimed_by(signatures: Signatures, request: Request) -> Claimed:
    """What is claimed, whether it was there at once or had to be waited for."""

    async def wait() -> Claimed:
        claimed = signatures.claimed(request)
        return claimed if isinstance(claimed, tuple) else await claimed

    claimed = signatures.claimed(request)
    if isinstance(claimed, tuple):
        return claimed
    claimed.close()  # type: ignore[attr-defined]
    return asyncio.run(wait())


def who(signatures: Signatures, request: Request) -> Principal:
    principal, verify = claimed_by(signatures, request)
    if verify is not None:
        verify()
    return principal


def refused(signatures: Signatures, request: Request) -> str:
    with pytest.raises((Unauthenticated, LoginThrottled)) as caught:
        who(signatures, request)
    return caught.value.code


def test_a_key_stands_for_its_principal(db: Database, key: NewKey) -> None:
    signatures = signatures_of(db)
    assert who(signatures, signed(key.id, key.secret)) == Principal("ann", ROLES["user"], "user")
    assert refused(signatures, signed(key.id, "x" * 40)) == "INVALID_SIGNATURE"
    assert refused(signatures, signed("TRKOTHER", key.secret)) == "UNRECOGNIZED_CLIENT"
    assert refused(signatures, bare()) == "MISSING_TOKEN"
    assert refused(signatures, bare(authorization="AWS4-x")) == "INCOMPLETE_SIGNATURE"


def test_a_clock_that_jumped_and_came_back_refuses_no_request(db: Database, key: NewKey) -> None:
    """Our own time does not go back, and is wrong from then on; a client's signature bears the right one."""
    assert isinstance(db.clock, ManualClock)
    db.clock.jump_by(10 * 86_400)
    with pytest.raises(Unauthenticated):
        claimed_by(signatures_of(db), signed(key.id, key.secret))
    db.clock.jump_by(-10 * 86_400)
    assert claimed_by(signatures_of(db), signed(key.id, key.secret))[0].name == "ann"


def test_the_body_is_what_was_signed(db: Database, key: NewKey) -> None:
    request = signed(key.id, key.secret, b'{"a": 1}')
    request.body = b'{"a": 2}'
    assert refused(signatures_of(db), request) == "INVALID_SIGNATURE"


def test_the_path_is_the_clients_also_where_the_server_is_mounted_below_another(db: Database, key: NewKey) -> None:
    request = signed(key.id, key.secret, path="/below/this/")
    request.path, request.mount = b"/", "/below/this"
    assert who(signatures_of(db), request).name == "ann"


@pytest.mark.parametrize("command", [DisableAccessKey, DeleteAccessKey])
def test_a_key_that_is_taken_away_is_refused_at_once(
    db: Database, key: NewKey, command: Callable[[str], DisableAccessKey | DeleteAccessKey]
) -> None:
    signatures = signatures_of(db)
    request = signed(key.id, key.secret)
    who(signatures, request)
    db.execute(command(key.id))
    assert refused(signatures, request) == "UNRECOGNIZED_CLIENT"
    if command is DisableAccessKey:
        db.execute(EnableAccessKey(key.id))
        assert who(signatures, request).name == "ann"


def test_the_same_with_an_event_loop(db: Database, key: NewKey) -> None:
    async def scenario() -> None:
        signatures = signatures_of(db)
        request = signed(key.id, key.secret)
        who(signatures, request)
        await db.aexecute(DisableAccessKey(key.id))
        await asyncio.sleep(0)  # no request is read sooner
        assert refused(signatures, request) == "UNRECOGNIZED_CLIENT"

    asyncio.run(scenario())


def test_a_key_that_was_looked_up_in_a_thread_is_cached_on_the_loop(db: Database, key: NewKey) -> None:
    """Where its revocation is noticed, too: so that cannot happen between the check for it and the caching."""
    threads: list[int] = []

    class Cache(dict[str, tuple[str, Principal]]):
        def __setitem__(self, key_id: str, found: tuple[str, Principal]) -> None:
            threads.append(threading.get_ident())
            super().__setitem__(key_id, found)

    async def scenario(revoked: bool) -> bool:
        signatures = signatures_of(db)
        signatures._known = Cache()
        execute = db.execute

        def executed(request: Any) -> Any:
            result = execute(request)
            if revoked and isinstance(request, LoadUser):  # the last look-up
                loop.call_soon_threadsafe(signatures._on_changed, [])
            return result

        loop = asyncio.get_running_loop()
        with mock.patch.object(Database, "blocking", True), mock.patch.object(db, "execute", executed):
            claimed = signatures.claimed(signed(key.id, key.secret))
            assert not isinstance(claimed, tuple)
            assert (await claimed)[0].name == "ann"
        return key.id in signatures._known

    assert asyncio.run(scenario(False))
    assert not asyncio.run(scenario(True))
    assert threads == [threading.get_ident()]


def test_a_key_is_looked_up_once(db: Database, key: NewKey) -> None:
    signatures = signatures_of(db)
    with mock.patch.object(db, "execute", wraps=db.execute) as execute:
        for _ in range(3):
            who(signatures, signed(key.id, key.secret))
        assert execute.call_args_list == [mock.call(FindAccessKey(key.id)), mock.call(LoadUser("ann"))]


def test_who_has_no_key_is_refused_before_the_body_is_looked_at(db: Database, key: NewKey) -> None:
    signatures = signatures_of(db)
    with mock.patch("tailrace.auth.signature.verify", side_effect=AssertionError):
        with pytest.raises(Unauthenticated):
            signatures.claimed(signed("AKIDUNKNOWN", key.secret))
        _, verify = claimed_by(signatures, signed(key.id, key.secret))
    principal, verify = claimed_by(signatures, signed(key.id, "wrong" * 8))
    assert (principal.name, verify is not None) == ("ann", True)
    with pytest.raises(Unauthenticated):
        verify()  # type: ignore[misc]


def test_a_key_has_a_role(db: Database) -> None:
    key = db.execute(CreateAccessKey("reader", "user"))
    assert who(signatures_of(db), signed(key.id, key.secret)) == Principal("reader", ROLES["user"], "user")


def test_a_users_key_has_the_users_role_restrictions_and_state(db: Database) -> None:
    signatures, key = signatures_of(db), db.execute(CreateAccessKey("ann", "dba"))
    request = signed(key.id, key.secret)
    assert who(signatures, request).role == "dba"
    db.execute(CreateUser(name="ann", role="service", access=("tables/orders",)))
    ann = Principal("ann", ROLES["service"], "service", Access(("tables/orders",)))
    assert who(signatures, request) == ann
    db.execute(AlterUser(name="ann", disabled=True))
    assert refused(signatures, request) == "UNRECOGNIZED_CLIENT"
    db.execute(AlterUser(name="ann", disabled=False))
    assert who(signatures, request) == ann
    db.execute(DropUser(name="ann"))
    assert refused(signatures, request) == "UNRECOGNIZED_CLIENT", "its keys went with it"
    db.execute(CreateUser(name="ann", role="dba"))
    assert refused(signatures, request) == "UNRECOGNIZED_CLIENT", "this is another ann"


def test_the_token_of_the_server(db: Database) -> None:
    signatures = signatures_of(db, token="secret")
    assert who(signatures, bare(authorization="Bearer secret")) == Principal("token", EVERYTHING)
    assert refused(signatures, bare(authorization="Bearer secre")) == "WRONG_TOKEN"
    assert refused(signatures, bare(authorization="Bearer ")) == "WRONG_TOKEN"
    for without in (signatures_of(db), signatures_of(db, token="")):
        assert refused(without, bare(authorization="Bearer ")) == "WRONG_TOKEN"


def test_dev_mode_accepts_every_request(db: Database) -> None:
    signatures = signatures_of(db, dev=True)
    everyone = Principal("everyone", ROLES["dba"], "dba")
    assert who(signatures, bare()) == everyone
    assert who(signatures, bare(authorization="Bearer any")) == everyone
    assert who(signatures, signed("any", "thing")) == everyone
    assert who(signatures, bare(authorization="Basic abc")) == everyone
    assert refused(signatures, bare(authorization="AWS4-x")) == "INCOMPLETE_SIGNATURE"
    old = bare(
        authorization="AWS4-HMAC-SHA256 Credential=a/2/3/4/aws4_request SignedHeaders=x-amz-date;host Signature=123",
        x_amz_date="20170101T010101Z",
    )
    assert refused(signatures, old) == "INVALID_SIGNATURE"


# -- access keys over HTTP


JSON = {b"content-type": b"application/json"}


def request_keys(
    db: Database, method: bytes, rest: bytes = b"", body: bytes = b"", principal: Principal = SYSTEM
) -> tuple[int, dict[str, object]]:
    async def main() -> tuple[int, dict[str, object]]:
        dispatching = Dispatching(db)
        answer = await dispatching.ask(Request(method, b"/v1/admin/keys" + rest, b"", JSON, body), principal)
        await dispatching.close()
        return answer.status, msgspec.json.decode(answer.body) if answer.body else {}

    return asyncio.run(main())


def test_keys_over_http(db: Database) -> None:
    status, made = request_keys(db, b"POST", body=b'{"principal": "ann"}')
    assert status == 201
    name, secret = str(made["id"]), made.pop("secret")
    assert made["role"] == "user"
    assert (made["principal"], made["created_at"]) == ("ann", "2023-11-14T22:13:20.000Z")
    assert isinstance(secret, str)
    assert len(secret) == 40
    assert request_keys(db, b"GET") == (200, {"keys": [{**made, "disabled": False}]})
    one = b"/" + name.encode()
    assert request_keys(db, b"PATCH", one, b'{"disabled": true}') == (200, {**made, "disabled": True})
    assert request_keys(db, b"PATCH", one, b'{"disabled": false}') == (200, {**made, "disabled": False})
    assert request_keys(db, b"DELETE", one) == (204, {})
    assert request_keys(db, b"DELETE", one)[0] == 404
    assert request_keys(db, b"GET") == (200, {"keys": []})


@pytest.mark.parametrize(
    ("method", "rest", "body", "status"),
    [
        (b"PUT", b"", b"", 405),
        (b"GET", b"/a", b"", 405),
        (b"GET", b"/a/b", b"", 404),
        (b"GET", b"x", b"", 404),
        (b"POST", b"", b"", 400),
        (b"POST", b"", b"[]", 400),
        (b"POST", b"", b'{"principal": ""}', 400),
        (b"POST", b"", b'{"principal": 1}', 400),
        (b"POST", b"", b'{"principal": "token"}', 400),
        (b"POST", b"", b'{"principal": "ttl"}', 400),
        (b"POST", b"", b'{"principal": "ann", "role": "emperor"}', 400),
        (b"POST", b"", b" " * 3_000_000, 413),
        (b"PATCH", b"/a", b'{"disabled": true}', 404),
        (b"PATCH", b"/%ff", b'{"disabled": 1}', 400),
    ],
)
def test_bad_requests_for_keys(db: Database, method: bytes, rest: bytes, body: bytes, status: int) -> None:
    answered, document = request_keys(db, method, rest, body)
    assert answered == status
    assert document["error"]
    assert request_keys(db, b"GET") == (200, {"keys": []})


def test_keys_are_for_administrators(db: Database) -> None:
    writer = Principal("writer", frozenset((Permission.READ, Permission.WRITE)))
    assert request_keys(db, b"GET", principal=writer)[0] == 403
    assert request_keys(db, b"POST", body=b'{"principal": "ann"}', principal=writer)[0] == 403


def test_a_dba_makes_no_key_that_may_more_than_its_user(db: Database) -> None:
    dba = Principal("boss", ROLES["dba"], "dba")
    db.execute(CreateUser(name="ann", role="user"))
    assert request_keys(db, b"POST", body=b'{"principal": "ann", "role": "system"}', principal=dba)[0] == 403
    assert request_keys(db, b"POST", body=b'{"principal": "ann", "role": "dba"}', principal=dba)[0] == 400
    status, made = request_keys(db, b"POST", body=b'{"principal": "ann"}', principal=dba)
    assert (status, made["role"]) == (201, "user")
    assert who(signatures_of(db), signed(str(made["id"]), str(made["secret"]))).role == "user"


def test_a_dba_switches_off_no_key_of_a_system_user(db: Database) -> None:
    dba = Principal("boss", ROLES["dba"], "dba")
    db.execute(CreateUser(name="root", role="system"))
    one = b"/" + db.execute(CreateAccessKey("root")).id.encode()
    assert request_keys(db, b"PATCH", one, b'{"disabled": true}', principal=dba)[0] == 403
    assert request_keys(db, b"DELETE", one, principal=dba)[0] == 403
    assert request_keys(db, b"DELETE", one)[0] == 204


def test_wrong_signatures_are_throttled_and_logged(db: Database, key: NewKey, caplog: pytest.LogCaptureFixture) -> None:
    signatures = signatures_of(db)
    wrong = [signed(key.id, "x" * 40), signed("TRKUNKNOWN", "x" * 40)]
    with caplog.at_level("INFO", "tailrace.audit"):
        for number in range(limits.LOGIN_PEER_FREE):
            assert refused(signatures, wrong[number % 2]) in ("INVALID_SIGNATURE", "UNRECOGNIZED_CLIENT")
        logged = [line for line in caplog.messages if "authenticate" in line]
        assert len(logged) == limits.LOGIN_PEER_FREE and key.id in logged[0]
        for request in wrong:
            assert refused(signatures, request) == "TOO_MANY_ATTEMPTS"
        assert len([line for line in caplog.messages if "authenticate" in line]) == len(logged)
    assert who(signatures, signed(key.id, key.secret)).name == "ann", "a right one is not kept waiting by others"
