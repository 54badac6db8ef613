"""Authentication: each kind of credentials, the cache and its eviction, guessing, outside issuers."""

from __future__ import annotations

import asyncio
import base64
import http.server
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

import tailrace
from tailrace import Database, limits
from tailrace.access import EVERYTHING, ROLES, Access, Principal
from tailrace.auth import passwords, tokens
from tailrace.auth.sessions import OpenSession
from tailrace.auth.users import RESERVED, AlterUser, CreateUser, DropUser, LoadUser, alter_user, create_user
from tailrace.clock import ManualClock
from tailrace.config import AuthConfig, Config, IssuerConfig, TopicsConfig
from tailrace.errors import Error, Invalid, LoginThrottled, TooMany, Unauthenticated, Unavailable, WrongToken
from tailrace.http import authentication, issuers
from tailrace.http.authentication import (
    TOKEN,
    Authenticator,
    check_credentials_exist,
    check_data_directory,
    outside_role,
)
from tailrace.http.message import Request
from tests.support.patience import PATIENCE_S

HASH = passwords.hashed("correct horse")
SIGNING = rsa.generate_private_key(65537, 2048)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(int(time.time() * 1000))


@pytest.fixture
def db(data_dir: Path, clock: ManualClock) -> Iterator[Database]:
    with tailrace.open(data_dir, clock=clock, housekeeping_s=None) as db:
        db.execute(CreateUser(name="ann", role="service", password=HASH))
        yield db


def request(authorization: str | None = None, peer: str = "10.0.0.1") -> Request:
    headers = {} if authorization is None else {b"authorization": authorization.encode()}
    return Request(b"GET", b"/v1/stream/a", b"", headers, b"", peer=peer)


def basic(name: str = "ann", password: str = "correct horse", peer: str = "10.0.0.1") -> Request:
    return request("Basic " + base64.b64encode(f"{name}:{password}".encode()).decode(), peer)


def run(db: Database, scenario: Callable[[Authenticator], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        authenticator = Authenticator(db, Config(**{"token": "s3cret-s3cret-s3cret", **settings}))
        try:
            await scenario(authenticator)
        finally:
            await authenticator.close()

    asyncio.run(main())


async def refused(authenticator: Authenticator, wanted: Request) -> str:
    with pytest.raises(Error) as caught:
        await authenticator.find(wanted)
    assert isinstance(caught.value, Unauthenticated | TooMany | Unavailable)
    return caught.value.code


# -- the token of the server, and nothing


def test_the_token_is_known_at_once(db: Database) -> None:
    async def scenario(authenticator: Authenticator) -> None:
        assert authenticator.known(request("Bearer s3cret-s3cret-s3cret")) == Principal("token", EVERYTHING)
        for text in ("bearer s3cret-s3cret-s3cret", "BEARER   s3cret-s3cret-s3cret "):
            assert authenticator.known(request(text)) is None
            assert (await authenticator.find(request(text))).name == "token"
        for text in ("Bearer", "Bearer ", "Bearer s3cre", "Bearer s3cret-s3cret-s3cretx", "Bearer a.b.c"):
            assert await refused(authenticator, request(text)) == "WRONG_TOKEN"

    run(db, scenario)


def test_without_a_token_none_is_right(db: Database) -> None:
    async def scenario(authenticator: Authenticator) -> None:
        for text in ("Bearer", "Bearer ", "Bearer None"):
            assert authenticator.known(request(text)) is None
            assert await refused(authenticator, request(text)) == "WRONG_TOKEN"

    run(db, scenario, token=None)
    run(db, scenario, token="")


def test_no_credentials_and_unknown_kinds(db: Database) -> None:
    async def scenario(authenticator: Authenticator) -> None:
        for text in (None, "", "Digest x", "s3cret-s3cret-s3cret", "Negotiate abc"):
            assert authenticator.known(request(text)) is None
            assert await refused(authenticator, request(text)) == "UNAUTHENTICATED"

    run(db, scenario)


def test_in_development_everyone_is_a_dba(db: Database) -> None:
    async def scenario(authenticator: Authenticator) -> None:
        for wanted in (request(), request("Bearer x"), basic(password="wrong")):
            assert authenticator.known(wanted) == Principal("everyone", ROLES["dba"], "dba")

    run(db, scenario, dev=True)


# -- passwords


def test_a_password_is_hashed_once(db: Database) -> None:
    async def scenario(authenticator: Authenticator) -> None:
        with mock.patch.object(passwords, "matches", wraps=passwords.matches) as matches:
            ann = await authenticator.find(basic())
            assert ann == Principal("ann", ROLES["service"], "service")
            for _ in range(3):
                assert authenticator.known(basic()) == ann
                assert await authenticator.find(basic()) == ann
            assert matches.call_count == 1

    run(db, scenario)


def test_what_is_remembered_is_not_the_password(db: Database) -> None:
    async def scenario(authenticator: Authenticator) -> None:
        await authenticator.find(basic())
        kept = repr(vars(authenticator))
        assert "correct horse" not in kept
        assert base64.b64encode(b"ann:correct horse").decode() not in kept

    run(db, scenario)


def test_many_at_once_are_one_check(db: Database) -> None:
    async def scenario(authenticator: Authenticator) -> None:
        with mock.patch.object(passwords, "matches", wraps=passwords.matches) as matches:
            found = await asyncio.gather(*(authenticator.find(basic()) for _ in range(50)))
            assert {principal.name for principal in found} == {"ann"}
            assert matches.call_count == 1

    run(db, scenario)


def test_hashing_is_not_on_the_loop(db: Database) -> None:
    async def scenario(authenticator: Authenticator) -> None:
        threads: list[str] = []

        def noted(password: bytes, kept: str | None) -> bool:
            threads.append(threading.current_thread().name)
            return True

        with mock.patch.object(passwords, "matches", noted):
            await authenticator.find(basic())
        assert threads[0].startswith("tailrace-passwords")

    run(db, scenario)


def test_a_client_that_leaves_does_not_end_what_others_wait_for(db: Database) -> None:
    async def scenario(authenticator: Authenticator) -> None:
        first = asyncio.ensure_future(authenticator.find(basic()))
        second = asyncio.ensure_future(authenticator.find(basic()))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).name == "ann"

    run(db, scenario)


@pytest.mark.parametrize(
    "text", ["Basic", "Basic !", "Basic YQ", "Basic " + base64.b64encode(b"ann").decode(), "Basic Og==", "Basic /zp4"]
)
def test_credentials_that_cannot_be_read(db: Database, text: str) -> None:
    async def scenario(authenticator: Authenticator) -> None:
        assert await refused(authenticator, request(text)) == "UNAUTHENTICATED"

    run(db, scenario)


def test_wrong_passwords_unknown_users_and_those_without(db: Database) -> None:
    db.execute(CreateUser(name="bob"))
    db.execute(create_user("carl", "carls password"))
    db.execute(AlterUser(name="carl", disabled=True))

    async def scenario(authenticator: Authenticator) -> None:
        for wanted in (
            basic(password="wrong"), basic(password=""), basic("nobody here"), basic("bob", ""), basic("bob", "x" * 9),
            basic("carl", "carls password"), basic("x" * 300), basic(password="x" * 2000),
        ):  # fmt: skip
            assert await refused(authenticator, wanted) == "WRONG_PASSWORD"

    run(db, scenario)


def test_a_password_with_a_colon_and_other_letters(db: Database) -> None:
    db.execute(create_user("ä b", "ß:ü:€uro"))

    async def scenario(authenticator: Authenticator) -> None:
        assert (await authenticator.find(basic("ä b", "ß:ü:€uro"))).name == "ä b"

    run(db, scenario)


@pytest.mark.parametrize(
    "command", [alter_user("ann", password="another horse"), AlterUser(name="ann", disabled=True), DropUser(name="ann")]
)
def test_a_change_is_noticed_at_once(db: Database, command: Any) -> None:
    async def scenario(authenticator: Authenticator) -> None:
        await authenticator.find(basic())
        await db.aexecute(command)
        await asyncio.sleep(0)  # no request is read sooner
        assert authenticator.known(basic()) is None
        assert await refused(authenticator, basic()) == "WRONG_PASSWORD"

    run(db, scenario)


def test_another_role_and_other_access_count_at_once(db: Database) -> None:
    async def scenario(authenticator: Authenticator) -> None:
        await authenticator.find(basic())
        await db.aexecute(AlterUser(name="ann", role="user", access=("tables/a",)))
        await asyncio.sleep(0)
        assert await authenticator.find(basic()) == Principal("ann", ROLES["user"], "user", Access(("tables/a",)))

    run(db, scenario)


def test_a_password_that_is_changed_while_it_is_checked(db: Database) -> None:
    """What was right when the hashing began is not remembered if it is wrong by the end."""

    async def scenario(authenticator: Authenticator) -> None:
        started, go_on = threading.Event(), threading.Event()
        right = passwords.matches

        def slow(password: bytes, kept: str | None) -> bool:
            started.set()
            assert go_on.wait(PATIENCE_S)
            return right(password, kept)

        with mock.patch.object(passwords, "matches", slow):
            attempts = asyncio.ensure_future(authenticator.find(basic()))
            await asyncio.to_thread(started.wait, 20)
            await db.aexecute(alter_user("ann", password="another horse"))
            go_on.set()
            with pytest.raises(WrongToken):
                await attempts
        assert authenticator.known(basic()) is None

    run(db, scenario)


def test_a_user_that_is_dropped_while_it_is_loaded(db: Database) -> None:
    """The row may come from another machine: it was read, and the user is gone before the row is here."""

    async def scenario(authenticator: Authenticator) -> None:
        aexecute, loaded = db.aexecute, 0

        async def late(command: Any, *more: Any) -> Any:
            nonlocal loaded
            found = await aexecute(command, *more)
            loaded += isinstance(command, LoadUser)
            if loaded == 2:  # after the hashing
                loaded += 1
                await aexecute(DropUser(name="ann"))
            return found

        with mock.patch.object(db, "aexecute", late), pytest.raises(WrongToken):
            await authenticator.find(basic())
        assert authenticator.known(basic()) is None

    run(db, scenario)


def test_another_users_change_evicts_no_other_user(db: Database) -> None:
    async def scenario(authenticator: Authenticator) -> None:
        await authenticator.find(basic())
        await db.aexecute(CreateUser(name="bob"))
        await asyncio.sleep(0)
        assert authenticator.known(basic()) is not None

    run(db, scenario)


def test_what_is_remembered_is_bounded(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication, "REMEMBERED_MAX", 3)

    async def scenario(authenticator: Authenticator) -> None:
        for blanks in range(1, 8):
            text = "Basic" + " " * blanks + base64.b64encode(b"ann:correct horse").decode()
            await authenticator.find(request(text))
        assert len(authenticator._remembered) == 3

    run(db, scenario)


def test_the_role_user_consumes_where_that_is_set(db: Database) -> None:
    db.execute(AlterUser(name="ann", role="user"))

    async def scenario(authenticator: Authenticator) -> None:
        assert (await authenticator.find(basic())).permissions == ROLES["user"] | {"consume"}

    run(db, scenario, topics=TopicsConfig(allow_user_role_consume=True))


# -- guessing


def test_guessing_is_throttled_and_a_right_password_too_until_the_wait_is_over(
    db: Database, clock: ManualClock
) -> None:
    async def scenario(authenticator: Authenticator) -> None:
        with mock.patch.object(passwords, "matches", lambda password, kept: password == b"correct horse"):
            for number in range(5):
                assert await refused(authenticator, basic(password=f"guess {number}")) == "WRONG_PASSWORD"
            with pytest.raises(LoginThrottled) as throttled:
                await authenticator.find(basic())
            assert throttled.value.retry_after_s == 1
            clock.advance(1)
            assert (await authenticator.find(basic())).name == "ann"
            for number in range(4):
                assert await refused(authenticator, basic(password=f"guess {number}")) == "WRONG_PASSWORD"

    run(db, scenario)


def test_a_guess_from_elsewhere_is_counted_although_the_user_is_known(db: Database) -> None:
    """What is remembered is so for the address that showed it: elsewhere a right guess has to wait like others."""

    async def scenario(authenticator: Authenticator) -> None:
        with mock.patch.object(passwords, "matches", lambda password, kept: password == b"correct horse"):
            assert (await authenticator.find(basic())).name == "ann"
            for number in range(5):
                assert (
                    await refused(authenticator, basic(password=f"guess {number}", peer="10.6.6.6")) == "WRONG_PASSWORD"
                )
            with pytest.raises(LoginThrottled):
                await authenticator.find(basic(peer="10.6.6.6"))
            assert authenticator.known(basic()) is not None, "who has shown it does not wait"

    run(db, scenario)


WRONG_TOKENS = ["Bearer wrong", "Bearer eyJhbGciOiJIUzI1NiJ9.e30.AAAA", "bearer eyJ.x.y", f"Bearer {'x' * 9000}"]


def test_wrong_tokens_are_throttled_and_logged(
    db: Database, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(authenticator: Authenticator) -> None:
        right = request("Bearer s3cret-s3cret-s3cret", "10.0.0.7")
        assert authenticator.known(right) == TOKEN
        with caplog.at_level("INFO", "tailrace.audit"):
            for number in range(limits.LOGIN_PEER_FREE):
                wrong = WRONG_TOKENS[number % len(WRONG_TOKENS)]
                assert (await refused(authenticator, request(wrong, "10.0.0.7"))) not in ("TOO_MANY_ATTEMPTS", "")
            logged = [line for line in caplog.messages if "authenticate" in line]
            assert len(logged) == limits.LOGIN_PEER_FREE and all("peer='10.0.0.7'" in line for line in logged)
            for wrong in WRONG_TOKENS:
                with pytest.raises(LoginThrottled) as throttled:
                    await authenticator.find(request(wrong, "10.0.0.7"))
                assert throttled.value.retry_after_s >= 1
            assert len([line for line in caplog.messages if "authenticate" in line]) == len(logged), "it does not flood"
        for text in ("Bearer s3cret-s3cret-s3cret", "bearer s3cret-s3cret-s3cret"):
            assert (await authenticator.find(request(text, "10.0.0.7"))) == TOKEN, (
                "who has shown the token does not wait"
            )
        for text in ("Bearer s3cret-s3cret-s3cret", "bearer s3cret-s3cret-s3cret"):
            assert (await authenticator.find(request(text, "10.0.0.8"))) == TOKEN, "nor do others elsewhere"
        for _ in range(limits.LOGIN_PEER_FREE):
            await refused(authenticator, request("Bearer wrong", "10.6.6.6"))
        for text in ("Bearer s3cret-s3cret-s3cret", "bearer s3cret-s3cret-s3cret"):
            with pytest.raises(LoginThrottled):  # one more guess, as far as anybody can tell
                await authenticator.find(request(text, "10.6.6.6"))
        clock.advance(limits.LOGIN_WAIT_S_MAX)
        assert (await authenticator.find(request("Bearer s3cret-s3cret-s3cret", "10.6.6.6"))) == TOKEN

    run(db, scenario)


def test_a_good_token_is_taken_where_others_were_wrong(db: Database, clock: ManualClock) -> None:
    """It is signed: nobody finds one by trying, so whoever has one is not kept waiting. An expired one is no guess."""

    async def scenario(authenticator: Authenticator) -> None:
        user = db.execute(LoadUser("ann"))
        assert user is not None
        db.execute(OpenSession("ann", user.generation, "session", b"digest", 10**9))
        key = await authenticator.token_key()
        old = tokens.issue(key, user, "session", clock.now_ms() - 120_000, 60)
        for _ in range(limits.LOGIN_PEER_FREE * 2):
            assert await refused(authenticator, request(f"Bearer {old}")) == "TOKEN_EXPIRED"
        for _ in range(limits.LOGIN_PEER_FREE):
            await refused(authenticator, request("Bearer wrong"))
        with pytest.raises(LoginThrottled):
            await authenticator.find(request("Bearer wrong"))
        good = tokens.issue(key, user, "session", clock.now_ms(), 60)
        assert (await authenticator.find(request(f"Bearer {good}"))).name == "ann"

    run(db, scenario)


def test_addresses_that_are_remembered_are_bounded(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication, "PEERS_MAX", 10)
    monkeypatch.setattr(limits, "LOGIN_TRACKED_MAX", 10)

    async def scenario(authenticator: Authenticator) -> None:
        for number in range(50):
            assert authenticator.known(request("Bearer s3cret-s3cret-s3cret", f"10.1.0.{number}")) == TOKEN
            await refused(authenticator, request("Bearer wrong", f"10.2.0.{number}"))
        assert len(authenticator._token_peers) == 10
        assert len(authenticator.throttle) <= 10

    run(db, scenario)


def test_guesses_by_others_lock_no_user_out(db: Database, clock: ManualClock) -> None:
    async def scenario(authenticator: Authenticator) -> None:
        with mock.patch.object(passwords, "matches", lambda password, kept: password == b"correct horse"):
            for number in range(50):
                await refused(authenticator, basic(password=f"guess {number}", peer="10.6.6.6"))
            assert (await authenticator.find(basic(peer="10.0.0.1"))).name == "ann"
            await db.aexecute(AlterUser(name="ann", role="user"))  # what was remembered is forgotten
            for number in range(200):
                await refused(authenticator, basic(password=f"guess {number}", peer=f"10.6.6.{number}"))
            assert await refused(authenticator, basic(peer="10.9.9.9")) == "TOO_MANY_ATTEMPTS", "a new address waits"
            assert (await authenticator.find(basic(peer="10.0.0.1"))).role == "user", (
                "one that is known to be good does not"
            )

    run(db, scenario)


def test_made_up_names_do_not_make_guesses_forgotten(
    db: Database, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LOGIN_TRACKED_MAX", 30)

    async def scenario(authenticator: Authenticator) -> None:
        with mock.patch.object(passwords, "matches", return_value=False):
            for number in range(5):
                await refused(authenticator, basic(password=f"guess {number}"))
            for number in range(200):
                await refused(authenticator, basic(f"made up {number}", peer=f"10.6.6.{number}"))
            assert await refused(authenticator, basic()) == "TOO_MANY_ATTEMPTS"

    run(db, scenario)


def test_a_known_user_is_not_throttled_by_others_guesses(db: Database) -> None:
    async def scenario(authenticator: Authenticator) -> None:
        await authenticator.find(basic())
        with mock.patch.object(passwords, "matches", return_value=False):
            for number in range(5):
                await refused(authenticator, basic(password=f"guess {number}", peer="10.6.6.6"))
        assert authenticator.known(basic()) is not None

    run(db, scenario)


def test_guesses_at_once_are_counted_before_they_are_checked(db: Database) -> None:
    async def scenario(authenticator: Authenticator) -> None:
        attempts = [authenticator.find(basic(password=f"guess {number}")) for number in range(30)]
        found = await asyncio.gather(*attempts, return_exceptions=True)
        assert sum(isinstance(error, LoginThrottled) for error in found) == 25

    run(db, scenario)


def test_so_many_checks_at_once_and_no_more(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication, "HASHES_MAX", 2)

    async def scenario(authenticator: Authenticator) -> None:
        attempts = [authenticator.find(basic(f"user{number}", "x" * 9)) for number in range(5)]
        found = await asyncio.gather(*attempts, return_exceptions=True)
        assert [getattr(error, "code", None) for error in found].count("TOO_MANY_LOGINS") == 3

    run(db, scenario)


# -- outside issuers


class Published:
    """A real HTTP server that publishes keys, until its behaviour is changed."""

    def __init__(self) -> None:
        self.keys: list[dict[str, Any]] = []
        self.body: bytes | None = None
        self.status = 200
        self.fetches = 0
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.fetches += 1
                body = json.dumps({"keys": outer.keys}).encode() if outer.body is None else outer.body
                self.send_response(outer.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                try:
                    self.wfile.write(body)
                except OSError:
                    pass  # it had enough

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/jwks.json"
        self._thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def publish(self, name: str, key: rsa.RSAPrivateKey = SIGNING) -> None:
        self.keys.append({**jwt.get_algorithm_by_name("RS256").to_jwk(key.public_key(), as_dict=True), "kid": name})

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


@pytest.fixture
def published() -> Iterator[Published]:
    found = Published()
    found.publish("k1")
    yield found
    found.close()


def issuer(published: Published, **more: Any) -> dict[str, Any]:
    facts = {"issuer": "https://issuer", "jwks_url": published.url, "audience": "here", **more}
    return {"auth": AuthConfig(issuers=(IssuerConfig(**facts),))}


def outside(
    clock: ManualClock, key: Any = SIGNING, kid: str | None = "k1", algorithm: str = "RS256", **claims: Any
) -> Request:
    facts = {
        "iss": "https://issuer", "aud": "here", "sub": "olga", "role": "service", "exp": clock.now_ms() // 1000 + 300,
        **claims,
    }  # fmt: skip
    facts = {name: value for name, value in facts.items() if value is not None}
    return request("Bearer " + jwt.encode(facts, key, algorithm=algorithm, headers={} if kid is None else {"kid": kid}))


def test_a_token_of_an_outside_issuer(db: Database, clock: ManualClock, published: Published) -> None:
    async def scenario(authenticator: Authenticator) -> None:
        wanted = outside(clock)
        assert await authenticator.find(wanted) == Principal("olga", ROLES["service"], "service")
        assert authenticator.known(wanted) is not None
        assert (await authenticator.find(outside(clock, kid=None))).name == "olga", "there is one key"
        assert published.fetches == 1
        clock.advance(300 + limits.TOKEN_LEEWAY_S)
        assert authenticator.known(wanted) is None
        assert await refused(authenticator, wanted) == "TOKEN_EXPIRED"

    run(db, scenario, **issuer(published))


def test_a_clock_that_jumped_and_came_back_ends_no_outside_token(
    db: Database, clock: ManualClock, published: Published
) -> None:
    async def scenario(authenticator: Authenticator) -> None:
        wanted = outside(clock)
        clock.jump_by(10 * 86_400)
        assert await refused(authenticator, wanted) == "TOKEN_EXPIRED"
        clock.jump_by(-10 * 86_400)
        assert (await authenticator.find(wanted)).name == "olga"
        assert authenticator.known(wanted) is not None, "else it is verified with each request"
        clock.advance(300 + limits.TOKEN_LEEWAY_S)
        assert await refused(authenticator, wanted) == "TOKEN_EXPIRED"

    run(db, scenario, **issuer(published))


def test_each_fault_of_an_outside_token(db: Database, clock: ManualClock, published: Published) -> None:
    other = rsa.generate_private_key(65537, 2048)
    now_s = clock.now_ms() // 1000

    async def scenario(authenticator: Authenticator) -> None:
        for wanted, code in (
            (outside(clock, key=other), "TOKEN_SIGNATURE"),
            (outside(clock, iss="https://elsewhere"), "TOKEN_ISSUER"),
            (outside(clock, iss=None), "TOKEN_ISSUER"),
            (outside(clock, iss="tailrace"), "TOKEN_ALGORITHM"),
            (outside(clock, aud="there"), "TOKEN_AUDIENCE"),
            (outside(clock, aud=None), "TOKEN_AUDIENCE"),
            (outside(clock, exp=now_s - 100), "TOKEN_EXPIRED"),
            (outside(clock, exp=None), "TOKEN_CLAIMS"),
            (outside(clock, nbf=now_s + 100), "TOKEN_NOT_YET_VALID"),
            (outside(clock, sub=None), "TOKEN_CLAIMS"),
            *((outside(clock, sub=name), "TOKEN_CLAIMS") for name in sorted(RESERVED)),
            (outside(clock, role=None), "TOKEN_ROLE"),
            (outside(clock, role="system"), "TOKEN_ROLE"),
            (outside(clock, role="emperor"), "TOKEN_ROLE"),
            (outside(clock, key=b"x" * 32, algorithm="HS256"), "TOKEN_ALGORITHM"),
            (outside(clock, key=None, algorithm="none"), "TOKEN_ALGORITHM"),
            (outside(clock, kid="k2"), "TOKEN_KEY"),
        ):
            assert await refused(authenticator, wanted) == code, code
            assert authenticator.known(wanted) is None
        assert published.fetches == 1

    run(db, scenario, **issuer(published))


def test_no_issuer_no_outside_tokens(db: Database, clock: ManualClock) -> None:
    async def scenario(authenticator: Authenticator) -> None:
        assert await refused(authenticator, outside(clock)) == "TOKEN_ISSUER"

    run(db, scenario)


def test_a_new_key_is_fetched_but_not_for_everyone_who_makes_one_up(
    db: Database, clock: ManualClock, published: Published
) -> None:
    other = rsa.generate_private_key(65537, 2048)

    async def scenario(authenticator: Authenticator) -> None:
        await authenticator.find(outside(clock))
        published.publish("k2", other)
        assert await refused(authenticator, outside(clock, key=other, kid="k2")) == "TOKEN_KEY", "not so soon"
        clock.advance(issuers.REFETCH_S)
        assert (await authenticator.find(outside(clock, key=other, kid="k2"))).name == "olga"
        assert published.fetches == 2
        for number in range(15):
            assert await refused(authenticator, outside(clock, kid=f"made up {number}")) == "TOKEN_KEY"
        assert published.fetches == 2
        assert await refused(authenticator, outside(clock, kid=None)) == "TOKEN_KEY", "which of the two?"

    run(db, scenario, **issuer(published))


def test_many_at_once_are_one_fetch(db: Database, clock: ManualClock, published: Published) -> None:
    async def scenario(authenticator: Authenticator) -> None:
        found = await asyncio.gather(*(authenticator.find(outside(clock, sub=f"user{number}")) for number in range(20)))
        assert len(found) == 20
        assert published.fetches == 1

    run(db, scenario, **issuer(published))


@pytest.mark.parametrize(
    ("status", "body"),
    [(500, None), (302, b""), (200, b"nonsense"), (200, b"[]"), (200, b'{"keys": 1}'), (200, b"x" * 300_000)],
)
def test_an_unreachable_issuer_is_503_for_unknown_keys_alone(
    db: Database, clock: ManualClock, published: Published, status: int, body: bytes | None
) -> None:
    async def scenario(authenticator: Authenticator) -> None:
        published.status, published.body = status, body
        assert await refused(authenticator, outside(clock)) == "ISSUER_UNREACHABLE"
        assert await refused(authenticator, outside(clock)) == "ISSUER_UNREACHABLE"
        assert published.fetches == 1, "it is not fetched again at once"
        published.status, published.body = 200, None
        clock.advance(issuers.REFETCH_S)
        assert (await authenticator.find(outside(clock))).name == "olga"
        published.status, published.body = status, body
        clock.advance(issuers.REFETCH_S)
        assert (await authenticator.find(outside(clock, sub="other"))).name == "other", "this key is known"
        assert await refused(authenticator, outside(clock, kid="k2")) == "ISSUER_UNREACHABLE"
        clock.advance(issuers.STALE_S_MAX + 1)
        assert await refused(authenticator, outside(clock, sub="third")) == "ISSUER_UNREACHABLE", (
            "for a day, not for ever"
        )

    run(db, scenario, **issuer(published))


def test_an_issuer_that_is_not_there(db: Database, clock: ManualClock) -> None:
    gone = Published()
    gone.close()

    async def scenario(authenticator: Authenticator) -> None:
        assert await refused(authenticator, outside(clock)) == "ISSUER_UNREACHABLE"

    run(db, scenario, **issuer(gone))


class Dripping:
    """An issuer that sends one header line after the other, and never comes to an end."""

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.requested = asyncio.Event()
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/jwks.json"

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        try:
            while True:
                writer.write(b"x-more: 1\r\n")
                await writer.drain()
                self.requested.set()
                await asyncio.sleep(0.02)
        except ConnectionError:
            pass


def test_an_issuer_that_drips_is_given_up(
    db: Database, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(issuers, "FETCH_TIMEOUT_S", 0.3)

    async def main() -> None:
        async with Dripping() as url, asyncio.timeout(20):
            facts = IssuerConfig(issuer="https://issuer", jwks_url=url, audience="here")
            authenticator = Authenticator(db, Config(auth=AuthConfig(issuers=(facts,))))
            assert await refused(authenticator, outside(clock)) == "ISSUER_UNREACHABLE"
            await authenticator.close()

    asyncio.run(main())
    assert "did not answer within 0.3 s" in caplog.text


def test_the_end_does_not_wait_for_an_issuer(db: Database, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(issuers, "FETCH_TIMEOUT_S", 60.0)

    async def main() -> None:
        dripping = Dripping()
        async with dripping as url, asyncio.timeout(20):
            facts = IssuerConfig(issuer="https://issuer", jwks_url=url, audience="here")
            authenticator = Authenticator(db, Config(auth=AuthConfig(issuers=(facts,))))
            pending = asyncio.ensure_future(authenticator.find(outside(clock)))
            await dripping.requested.wait()
            await authenticator.close()
            with pytest.raises(Unavailable):
                await pending

    asyncio.run(main())


def test_keys_are_confirmed_in_the_background(db: Database, clock: ManualClock, published: Published) -> None:
    async def scenario(authenticator: Authenticator) -> None:
        await authenticator.find(outside(clock))
        published.keys.clear()
        clock.advance(issuers.FRESH_S + 1)
        assert (await authenticator.find(outside(clock, sub="other"))).name == "other"
        fetching = authenticator._issuers["https://issuer"]._fetching
        assert fetching is not None
        await fetching
        assert published.fetches == 2
        assert await refused(authenticator, outside(clock, sub="third")) == "TOKEN_KEY", "it was taken back"

    run(db, scenario, **issuer(published))


def test_outside_names_are_not_users_here_unless_linked(db: Database, clock: ManualClock, published: Published) -> None:
    db.execute(AlterUser(name="ann", access=("tables/a",)))

    async def strict(authenticator: Authenticator) -> None:
        assert await refused(authenticator, outside(clock, sub="ann", role="dba")) == "TOKEN_NAME"

    async def linked(authenticator: Authenticator) -> None:
        wanted = outside(clock, sub="ann", role="dba")
        assert await authenticator.find(wanted) == Principal("ann", ROLES["service"], "service", Access(("tables/a",)))
        await db.aexecute(AlterUser(name="ann", disabled=True))
        await asyncio.sleep(0)
        assert await refused(authenticator, wanted) == "TOKEN_NAME"

    run(db, strict, **issuer(published))
    run(db, linked, **issuer(published, link_users=True))


@pytest.mark.parametrize(
    ("settings", "payload", "role"),
    [
        ({}, {"role": "dba"}, "dba"),
        ({}, {"role": ["user", "service"]}, "service"),
        ({"roles": {"admin": "dba", "staff": "user"}}, {"role": "admin"}, "dba"),
        ({"roles": {"admin": "dba"}}, {"role": "dba"}, None),
        ({"roles": {"admin": "dba"}, "default_role": "user"}, {"role": "guest"}, "user"),
        ({"default_role": "user"}, {}, "user"),
        ({"default_role": "user"}, {"role": {"a": 1}}, "user"),
        ({"role_claim": "realm.roles"}, {"realm": {"roles": ["service"]}}, "service"),
        ({"role_claim": "https://x.org/role"}, {"https://x.org/role": "user"}, "user"),
        ({}, {}, None),
        ({}, {"role": "system"}, None),
    ],
)
def test_the_role_of_an_outsider(settings: dict[str, Any], payload: dict[str, Any], role: str | None) -> None:
    facts = IssuerConfig(issuer="i", jwks_url="https://i", audience="a", **settings)
    if role is not None:
        assert outside_role(payload, facts) == role
        return
    with pytest.raises(WrongToken) as caught:
        outside_role(payload, facts)
    assert caught.value.code == "TOKEN_ROLE"


# -- whether anybody could come in


def test_a_server_without_credentials_refuses_to_start(data_dir: Path, clock: ManualClock) -> None:
    with pytest.raises(Invalid, match=r"set a token \(TAILRACE_TOKEN\) or use --dev .* tailrace users create NAME"):
        check_data_directory(Config(data=str(data_dir)))
    assert not data_dir.exists()
    with tailrace.open(data_dir, clock=clock, housekeeping_s=None) as db:
        check_data_directory(Config(data=str(data_dir)))
        for config in (Config(), Config(token="")):
            with pytest.raises(Invalid, match="no credentials would be accepted"):
                check_credentials_exist(db, config)
        for config in (Config(dev=True), Config(token="x")):
            check_credentials_exist(db, config)
        db.execute(CreateUser(name="ann", password=HASH))
        check_credentials_exist(db, Config())
        db.execute(AlterUser(name="ann", disabled=True))
        with pytest.raises(Invalid):
            check_credentials_exist(db, Config())
