"""Who is asking: each kind of credentials, what is remembered and when it is forgotten, guessing, outside issuers."""

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
from tailrace import Database
from tailrace.access import EVERYTHING, ROLES, Access, Principal
from tailrace.auth import passwords, slowing, tokens
from tailrace.auth.sessions import OpenSession
from tailrace.auth.users import RESERVED, AlterUser, CreateUser, DropUser, LoadUser, alter_user, create_user
from tailrace.clock import ManualClock
from tailrace.config import Auth, Config, Issuer, Topics
from tailrace.errors import Error, Invalid, Slowed, TooMany, Unauthenticated, Unavailable, WrongToken
from tailrace.http import issuers, who
from tailrace.http.message import Request
from tailrace.http.who import TOKEN, Who, check_place, check_somebody, outside_role

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


def run(db: Database, scenario: Callable[[Who], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        asked = Who(db, Config(**{"token": "s3cret-s3cret-s3cret", **settings}))
        try:
            await scenario(asked)
        finally:
            await asked.close()

    asyncio.run(main())


async def refused(asked: Who, wanted: Request) -> str:
    with pytest.raises(Error) as caught:
        await asked.find(wanted)
    assert isinstance(caught.value, Unauthenticated | TooMany | Unavailable)
    return caught.value.code


# -- the token of the server, and nothing


def test_the_token_is_known_at_once(db: Database) -> None:
    async def scenario(asked: Who) -> None:
        assert asked.known(request("Bearer s3cret-s3cret-s3cret")) == Principal("token", EVERYTHING)
        for text in ("bearer s3cret-s3cret-s3cret", "BEARER   s3cret-s3cret-s3cret "):
            assert asked.known(request(text)) is None
            assert (await asked.find(request(text))).name == "token"
        for text in ("Bearer", "Bearer ", "Bearer s3cre", "Bearer s3cret-s3cret-s3cretx", "Bearer a.b.c"):
            assert await refused(asked, request(text)) == "WRONG_TOKEN"

    run(db, scenario)


def test_without_a_token_none_is_right(db: Database) -> None:
    async def scenario(asked: Who) -> None:
        for text in ("Bearer", "Bearer ", "Bearer None"):
            assert asked.known(request(text)) is None
            assert await refused(asked, request(text)) == "WRONG_TOKEN"

    run(db, scenario, token=None)
    run(db, scenario, token="")


def test_no_credentials_and_unknown_kinds(db: Database) -> None:
    async def scenario(asked: Who) -> None:
        for text in (None, "", "Digest x", "s3cret-s3cret-s3cret", "Negotiate abc"):
            assert asked.known(request(text)) is None
            assert await refused(asked, request(text)) == "UNAUTHENTICATED"

    run(db, scenario)


def test_in_development_everyone_is_a_dba(db: Database) -> None:
    async def scenario(asked: Who) -> None:
        for wanted in (request(), request("Bearer x"), basic(password="wrong")):
            assert asked.known(wanted) == Principal("everyone", ROLES["dba"], "dba")

    run(db, scenario, dev=True)


# -- passwords


def test_a_password_is_hashed_once(db: Database) -> None:
    async def scenario(asked: Who) -> None:
        with mock.patch.object(passwords, "matches", wraps=passwords.matches) as matches:
            ann = await asked.find(basic())
            assert ann == Principal("ann", ROLES["service"], "service")
            for _ in range(3):
                assert asked.known(basic()) == ann
                assert await asked.find(basic()) == ann
            assert matches.call_count == 1

    run(db, scenario)


def test_what_is_remembered_is_not_the_password(db: Database) -> None:
    async def scenario(asked: Who) -> None:
        await asked.find(basic())
        kept = repr(vars(asked))
        assert "correct horse" not in kept
        assert base64.b64encode(b"ann:correct horse").decode() not in kept

    run(db, scenario)


def test_many_at_once_are_one_check(db: Database) -> None:
    async def scenario(asked: Who) -> None:
        with mock.patch.object(passwords, "matches", wraps=passwords.matches) as matches:
            found = await asyncio.gather(*(asked.find(basic()) for _ in range(50)))
            assert {principal.name for principal in found} == {"ann"}
            assert matches.call_count == 1

    run(db, scenario)


def test_hashing_is_not_on_the_loop(db: Database) -> None:
    async def scenario(asked: Who) -> None:
        threads: list[str] = []

        def noted(password: bytes, kept: str | None) -> bool:
            threads.append(threading.current_thread().name)
            return True

        with mock.patch.object(passwords, "matches", noted):
            await asked.find(basic())
        assert threads[0].startswith("tailrace-passwords")

    run(db, scenario)


def test_a_client_that_leaves_does_not_end_what_others_wait_for(db: Database) -> None:
    async def scenario(asked: Who) -> None:
        first = asyncio.ensure_future(asked.find(basic()))
        second = asyncio.ensure_future(asked.find(basic()))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).name == "ann"

    run(db, scenario)


@pytest.mark.parametrize(
    "text", ["Basic", "Basic !", "Basic YQ", "Basic " + base64.b64encode(b"ann").decode(), "Basic Og==", "Basic /zp4"]
)
def test_credentials_that_cannot_be_read(db: Database, text: str) -> None:
    async def scenario(asked: Who) -> None:
        assert await refused(asked, request(text)) == "UNAUTHENTICATED"

    run(db, scenario)


def test_wrong_passwords_unknown_users_and_those_without(db: Database) -> None:
    db.execute(CreateUser(name="bob"))
    db.execute(create_user("carl", "carls password"))
    db.execute(AlterUser(name="carl", disabled=True))

    async def scenario(asked: Who) -> None:
        for wanted in (
            basic(password="wrong"), basic(password=""), basic("nobody here"), basic("bob", ""), basic("bob", "x" * 9),
            basic("carl", "carls password"), basic("x" * 300), basic(password="x" * 2000),
        ):  # fmt: skip
            assert await refused(asked, wanted) == "WRONG_PASSWORD"

    run(db, scenario)


def test_a_password_with_a_colon_and_other_letters(db: Database) -> None:
    db.execute(create_user("ä b", "ß:ü:€uro"))

    async def scenario(asked: Who) -> None:
        assert (await asked.find(basic("ä b", "ß:ü:€uro"))).name == "ä b"

    run(db, scenario)


@pytest.mark.parametrize(
    "command", [alter_user("ann", password="another horse"), AlterUser(name="ann", disabled=True), DropUser(name="ann")]
)
def test_a_change_is_noticed_at_once(db: Database, command: Any) -> None:
    async def scenario(asked: Who) -> None:
        await asked.find(basic())
        await db.aexecute(command)
        await asyncio.sleep(0)  # no request is read sooner
        assert asked.known(basic()) is None
        assert await refused(asked, basic()) == "WRONG_PASSWORD"

    run(db, scenario)


def test_another_role_and_other_access_count_at_once(db: Database) -> None:
    async def scenario(asked: Who) -> None:
        await asked.find(basic())
        await db.aexecute(AlterUser(name="ann", role="user", access=("tables/a",)))
        await asyncio.sleep(0)
        assert await asked.find(basic()) == Principal("ann", ROLES["user"], "user", Access(("tables/a",)))

    run(db, scenario)


def test_a_password_that_is_changed_while_it_is_checked(db: Database) -> None:
    """What was right when the hashing began is not remembered if it is wrong by the end."""

    async def scenario(asked: Who) -> None:
        started, go_on = threading.Event(), threading.Event()
        right = passwords.matches

        def slow(password: bytes, kept: str | None) -> bool:
            started.set()
            assert go_on.wait(20)
            return right(password, kept)

        with mock.patch.object(passwords, "matches", slow):
            asking = asyncio.ensure_future(asked.find(basic()))
            await asyncio.to_thread(started.wait, 20)
            await db.aexecute(alter_user("ann", password="another horse"))
            go_on.set()
            with pytest.raises(WrongToken):
                await asking
        assert asked.known(basic()) is None

    run(db, scenario)


def test_another_users_change_forgets_nobody_else(db: Database) -> None:
    async def scenario(asked: Who) -> None:
        await asked.find(basic())
        await db.aexecute(CreateUser(name="bob"))
        await asyncio.sleep(0)
        assert asked.known(basic()) is not None

    run(db, scenario)


def test_what_is_remembered_is_bounded(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(who, "REMEMBERED_MAX", 3)

    async def scenario(asked: Who) -> None:
        for blanks in range(1, 8):
            text = "Basic" + " " * blanks + base64.b64encode(b"ann:correct horse").decode()
            await asked.find(request(text))
        assert len(asked._remembered) == 3

    run(db, scenario)


def test_the_role_user_consumes_where_that_is_set(db: Database) -> None:
    db.execute(AlterUser(name="ann", role="user"))

    async def scenario(asked: Who) -> None:
        assert (await asked.find(basic())).permissions == ROLES["user"] | {"consume"}

    run(db, scenario, topics=Topics(allow_user_role_consume=True))


# -- guessing


def test_guessing_is_slowed_and_a_right_password_too_until_it_was_waited_for(db: Database, clock: ManualClock) -> None:
    async def scenario(asked: Who) -> None:
        with mock.patch.object(passwords, "matches", lambda password, kept: password == b"correct horse"):
            for number in range(5):
                assert await refused(asked, basic(password=f"guess {number}")) == "WRONG_PASSWORD"
            with pytest.raises(Slowed) as slowed:
                await asked.find(basic())
            assert slowed.value.retry_after_s == 1
            clock.advance(1)
            assert (await asked.find(basic())).name == "ann"
            for number in range(4):
                assert await refused(asked, basic(password=f"guess {number}")) == "WRONG_PASSWORD"

    run(db, scenario)


def test_a_guess_from_elsewhere_is_counted_although_the_user_is_known(db: Database) -> None:
    """What is remembered is so for the address that showed it: elsewhere a right guess has to wait like others."""

    async def scenario(asked: Who) -> None:
        with mock.patch.object(passwords, "matches", lambda password, kept: password == b"correct horse"):
            assert (await asked.find(basic())).name == "ann"
            for number in range(5):
                assert await refused(asked, basic(password=f"guess {number}", peer="10.6.6.6")) == "WRONG_PASSWORD"
            with pytest.raises(Slowed):
                await asked.find(basic(peer="10.6.6.6"))
            assert asked.known(basic()) is not None, "who has shown it does not wait"

    run(db, scenario)


WRONG_TOKENS = ["Bearer wrong", "Bearer eyJhbGciOiJIUzI1NiJ9.e30.AAAA", "bearer eyJ.x.y", f"Bearer {'x' * 9000}"]


def test_wrong_tokens_are_slowed_and_told_in_the_log(
    db: Database, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(asked: Who) -> None:
        right = request("Bearer s3cret-s3cret-s3cret", "10.0.0.7")
        assert asked.known(right) == TOKEN
        with caplog.at_level("INFO", "tailrace.audit"):
            for number in range(slowing.PEER_FREE):
                wrong = WRONG_TOKENS[number % len(WRONG_TOKENS)]
                assert (await refused(asked, request(wrong, "10.0.0.7"))) not in ("TOO_MANY_ATTEMPTS", "")
            told = [line for line in caplog.messages if "authenticate" in line]
            assert len(told) == slowing.PEER_FREE and all("peer='10.0.0.7'" in line for line in told)
            for wrong in WRONG_TOKENS:
                with pytest.raises(Slowed) as slowed:
                    await asked.find(request(wrong, "10.0.0.7"))
                assert slowed.value.retry_after_s >= 1
            assert len([line for line in caplog.messages if "authenticate" in line]) == len(told), "it does not flood"
        for text in ("Bearer s3cret-s3cret-s3cret", "bearer s3cret-s3cret-s3cret"):
            assert (await asked.find(request(text, "10.0.0.7"))) == TOKEN, "who has shown the token does not wait"
        for text in ("Bearer s3cret-s3cret-s3cret", "bearer s3cret-s3cret-s3cret"):
            assert (await asked.find(request(text, "10.0.0.8"))) == TOKEN, "nor do others elsewhere"
        for _ in range(slowing.PEER_FREE):
            await refused(asked, request("Bearer wrong", "10.6.6.6"))
        for text in ("Bearer s3cret-s3cret-s3cret", "bearer s3cret-s3cret-s3cret"):
            with pytest.raises(Slowed):  # one more guess, as far as anybody can tell
                await asked.find(request(text, "10.6.6.6"))
        clock.advance(slowing.WAIT_S_MAX)
        assert (await asked.find(request("Bearer s3cret-s3cret-s3cret", "10.6.6.6"))) == TOKEN

    run(db, scenario)


def test_a_good_token_is_taken_where_others_were_wrong(db: Database, clock: ManualClock) -> None:
    """It is signed: nobody finds one by trying, so whoever has one is not kept waiting. An expired one is no guess."""

    async def scenario(asked: Who) -> None:
        user = db.execute(LoadUser("ann"))
        assert user is not None
        db.execute(OpenSession("ann", user.generation, "session", b"digest", 10**9))
        key = await asked.token_key()
        old = tokens.issue(key, user, "session", clock.now_ms() - 120_000, 60)
        for _ in range(slowing.PEER_FREE * 2):
            assert await refused(asked, request(f"Bearer {old}")) == "TOKEN_EXPIRED"
        for _ in range(slowing.PEER_FREE):
            await refused(asked, request("Bearer wrong"))
        with pytest.raises(Slowed):
            await asked.find(request("Bearer wrong"))
        good = tokens.issue(key, user, "session", clock.now_ms(), 60)
        assert (await asked.find(request(f"Bearer {good}"))).name == "ann"

    run(db, scenario)


def test_addresses_that_are_remembered_are_bounded(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(who, "PEERS_MAX", 10)
    monkeypatch.setattr(slowing, "TRACKED_MAX", 10)

    async def scenario(asked: Who) -> None:
        for number in range(50):
            assert asked.known(request("Bearer s3cret-s3cret-s3cret", f"10.1.0.{number}")) == TOKEN
            await refused(asked, request("Bearer wrong", f"10.2.0.{number}"))
        assert len(asked._token_peers) == 10
        assert len(asked.slowing) <= 10

    run(db, scenario)


def test_others_guesses_keep_nobody_out(db: Database, clock: ManualClock) -> None:
    async def scenario(asked: Who) -> None:
        with mock.patch.object(passwords, "matches", lambda password, kept: password == b"correct horse"):
            for number in range(50):
                await refused(asked, basic(password=f"guess {number}", peer="10.6.6.6"))
            assert (await asked.find(basic(peer="10.0.0.1"))).name == "ann"
            await db.aexecute(AlterUser(name="ann", role="user"))  # what was remembered is forgotten
            for number in range(200):
                await refused(asked, basic(password=f"guess {number}", peer=f"10.6.6.{number}"))
            assert await refused(asked, basic(peer="10.9.9.9")) == "TOO_MANY_ATTEMPTS", "a new address waits"
            assert (await asked.find(basic(peer="10.0.0.1"))).role == "user", "one that is known to be good does not"

    run(db, scenario)


def test_made_up_names_do_not_make_guesses_forgotten(
    db: Database, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slowing, "TRACKED_MAX", 30)

    async def scenario(asked: Who) -> None:
        with mock.patch.object(passwords, "matches", return_value=False):
            for number in range(5):
                await refused(asked, basic(password=f"guess {number}"))
            for number in range(200):
                await refused(asked, basic(f"made up {number}", peer=f"10.6.6.{number}"))
            assert await refused(asked, basic()) == "TOO_MANY_ATTEMPTS"

    run(db, scenario)


def test_who_is_known_is_not_slowed_by_others_guesses(db: Database) -> None:
    async def scenario(asked: Who) -> None:
        await asked.find(basic())
        with mock.patch.object(passwords, "matches", return_value=False):
            for number in range(5):
                await refused(asked, basic(password=f"guess {number}", peer="10.6.6.6"))
        assert asked.known(basic()) is not None

    run(db, scenario)


def test_guesses_at_once_are_counted_before_they_are_checked(db: Database) -> None:
    async def scenario(asked: Who) -> None:
        asking = [asked.find(basic(password=f"guess {number}")) for number in range(30)]
        found = await asyncio.gather(*asking, return_exceptions=True)
        assert sum(isinstance(error, Slowed) for error in found) == 25

    run(db, scenario)


def test_so_many_checks_at_once_and_no_more(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(who, "HASHES_MAX", 2)

    async def scenario(asked: Who) -> None:
        asking = [asked.find(basic(f"user{number}", "x" * 9)) for number in range(5)]
        found = await asyncio.gather(*asking, return_exceptions=True)
        assert [getattr(error, "code", None) for error in found].count("TOO_MANY_LOGINS") == 3

    run(db, scenario)


# -- outside issuers


class Published:
    """A real HTTP server that publishes keys, until told to do something else."""

    def __init__(self) -> None:
        self.keys: list[dict[str, Any]] = []
        self.body: bytes | None = None
        self.status = 200
        self.asked = 0
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked += 1
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
    return {"auth": Auth(issuers=(Issuer(**facts),))}


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
    async def scenario(asked: Who) -> None:
        wanted = outside(clock)
        assert await asked.find(wanted) == Principal("olga", ROLES["service"], "service")
        assert asked.known(wanted) is not None
        assert (await asked.find(outside(clock, kid=None))).name == "olga", "there is one key"
        assert published.asked == 1
        clock.advance(300 + tokens.LEEWAY_S)
        assert asked.known(wanted) is None
        assert await refused(asked, wanted) == "TOKEN_EXPIRED"

    run(db, scenario, **issuer(published))


def test_a_clock_that_jumped_and_came_back_ends_no_outside_token(
    db: Database, clock: ManualClock, published: Published
) -> None:
    async def scenario(asked: Who) -> None:
        wanted = outside(clock)
        clock.jump_by(10 * 86_400)
        assert await refused(asked, wanted) == "TOKEN_EXPIRED"
        clock.jump_by(-10 * 86_400)
        assert (await asked.find(wanted)).name == "olga"
        assert asked.known(wanted) is not None, "else it is verified with each request"
        clock.advance(300 + tokens.LEEWAY_S)
        assert await refused(asked, wanted) == "TOKEN_EXPIRED"

    run(db, scenario, **issuer(published))


def test_each_fault_of_an_outside_token(db: Database, clock: ManualClock, published: Published) -> None:
    other = rsa.generate_private_key(65537, 2048)
    now_s = clock.now_ms() // 1000

    async def scenario(asked: Who) -> None:
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
            assert await refused(asked, wanted) == code, code
            assert asked.known(wanted) is None
        assert published.asked == 1

    run(db, scenario, **issuer(published))


def test_no_issuer_no_outside_tokens(db: Database, clock: ManualClock) -> None:
    async def scenario(asked: Who) -> None:
        assert await refused(asked, outside(clock)) == "TOKEN_ISSUER"

    run(db, scenario)


def test_a_new_key_is_fetched_but_not_for_everyone_who_makes_one_up(
    db: Database, clock: ManualClock, published: Published
) -> None:
    other = rsa.generate_private_key(65537, 2048)

    async def scenario(asked: Who) -> None:
        await asked.find(outside(clock))
        published.publish("k2", other)
        assert await refused(asked, outside(clock, key=other, kid="k2")) == "TOKEN_KEY", "not so soon"
        clock.advance(issuers.REFETCH_S)
        assert (await asked.find(outside(clock, key=other, kid="k2"))).name == "olga"
        assert published.asked == 2
        for number in range(15):
            assert await refused(asked, outside(clock, kid=f"made up {number}")) == "TOKEN_KEY"
        assert published.asked == 2
        assert await refused(asked, outside(clock, kid=None)) == "TOKEN_KEY", "which of the two?"

    run(db, scenario, **issuer(published))


def test_many_at_once_are_one_fetch(db: Database, clock: ManualClock, published: Published) -> None:
    async def scenario(asked: Who) -> None:
        found = await asyncio.gather(*(asked.find(outside(clock, sub=f"user{number}")) for number in range(20)))
        assert len(found) == 20
        assert published.asked == 1

    run(db, scenario, **issuer(published))


@pytest.mark.parametrize(
    ("status", "body"),
    [(500, None), (302, b""), (200, b"nonsense"), (200, b"[]"), (200, b'{"keys": 1}'), (200, b"x" * 300_000)],
)
def test_an_issuer_that_cannot_be_asked_is_503_for_unknown_keys_alone(
    db: Database, clock: ManualClock, published: Published, status: int, body: bytes | None
) -> None:
    async def scenario(asked: Who) -> None:
        published.status, published.body = status, body
        assert await refused(asked, outside(clock)) == "ISSUER_UNREACHABLE"
        assert await refused(asked, outside(clock)) == "ISSUER_UNREACHABLE"
        assert published.asked == 1, "it is not asked again at once"
        published.status, published.body = 200, None
        clock.advance(issuers.REFETCH_S)
        assert (await asked.find(outside(clock))).name == "olga"
        published.status, published.body = status, body
        clock.advance(issuers.REFETCH_S)
        assert (await asked.find(outside(clock, sub="other"))).name == "other", "this key is known"
        assert await refused(asked, outside(clock, kid="k2")) == "ISSUER_UNREACHABLE"
        clock.advance(issuers.STALE_S_MAX + 1)
        assert await refused(asked, outside(clock, sub="third")) == "ISSUER_UNREACHABLE", "for a day, not for ever"

    run(db, scenario, **issuer(published))


def test_an_issuer_that_is_not_there(db: Database, clock: ManualClock) -> None:
    gone = Published()
    gone.close()

    async def scenario(asked: Who) -> None:
        assert await refused(asked, outside(clock)) == "ISSUER_UNREACHABLE"

    run(db, scenario, **issuer(gone))


class Dripping:
    """An issuer that sends one header line after the other, and never comes to an end."""

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.asked = asyncio.Event()
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/jwks.json"

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        try:
            while True:
                writer.write(b"x-more: 1\r\n")
                await writer.drain()
                self.asked.set()
                await asyncio.sleep(0.02)
        except ConnectionError:
            pass


def test_an_issuer_that_drips_is_given_up(
    db: Database, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(issuers, "FETCH_TIMEOUT_S", 0.3)

    async def main() -> None:
        async with Dripping() as url, asyncio.timeout(20):
            facts = Issuer(issuer="https://issuer", jwks_url=url, audience="here")
            asked = Who(db, Config(auth=Auth(issuers=(facts,))))
            assert await refused(asked, outside(clock)) == "ISSUER_UNREACHABLE"
            await asked.close()

    asyncio.run(main())
    assert "did not answer within 0.3 s" in caplog.text


def test_the_end_does_not_wait_for_an_issuer(db: Database, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(issuers, "FETCH_TIMEOUT_S", 60.0)

    async def main() -> None:
        dripping = Dripping()
        async with dripping as url, asyncio.timeout(20):
            facts = Issuer(issuer="https://issuer", jwks_url=url, audience="here")
            asked = Who(db, Config(auth=Auth(issuers=(facts,))))
            asking = asyncio.ensure_future(asked.find(outside(clock)))
            await dripping.asked.wait()
            await asked.close()
            with pytest.raises(Unavailable):
                await asking

    asyncio.run(main())


def test_keys_are_confirmed_in_the_background(db: Database, clock: ManualClock, published: Published) -> None:
    async def scenario(asked: Who) -> None:
        await asked.find(outside(clock))
        published.keys.clear()
        clock.advance(issuers.FRESH_S + 1)
        assert (await asked.find(outside(clock, sub="other"))).name == "other"
        fetching = asked._issuers["https://issuer"]._fetching
        assert fetching is not None
        await fetching
        assert published.asked == 2
        assert await refused(asked, outside(clock, sub="third")) == "TOKEN_KEY", "it was taken back"

    run(db, scenario, **issuer(published))


def test_outside_names_are_not_users_here_unless_linked(db: Database, clock: ManualClock, published: Published) -> None:
    db.execute(AlterUser(name="ann", access=("tables/a",)))

    async def strict(asked: Who) -> None:
        assert await refused(asked, outside(clock, sub="ann", role="dba")) == "TOKEN_NAME"

    async def linked(asked: Who) -> None:
        wanted = outside(clock, sub="ann", role="dba")
        assert await asked.find(wanted) == Principal("ann", ROLES["service"], "service", Access(("tables/a",)))
        await db.aexecute(AlterUser(name="ann", disabled=True))
        await asyncio.sleep(0)
        assert await refused(asked, wanted) == "TOKEN_NAME"

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
    facts = Issuer(issuer="i", jwks_url="https://i", audience="a", **settings)
    if role is not None:
        assert outside_role(payload, facts) == role
        return
    with pytest.raises(WrongToken) as caught:
        outside_role(payload, facts)
    assert caught.value.code == "TOKEN_ROLE"


# -- whether anybody could come in


def test_a_server_that_nobody_could_enter_has_no_business_to_run(data_dir: Path, clock: ManualClock) -> None:
    with pytest.raises(Invalid, match=r"set a token \(TAILRACE_TOKEN\) or use --dev .* tailrace users add NAME"):
        check_place(Config(data=str(data_dir)))
    assert not data_dir.exists()
    with tailrace.open(data_dir, clock=clock, housekeeping_s=None) as db:
        check_place(Config(data=str(data_dir)))
        for config in (Config(), Config(token="")):
            with pytest.raises(Invalid, match="nobody could be let in"):
                check_somebody(db, config)
        for config in (Config(dev=True), Config(token="x")):
            check_somebody(db, config)
        db.execute(CreateUser(name="ann", password=HASH))
        check_somebody(db, Config())
        db.execute(AlterUser(name="ann", disabled=True))
        with pytest.raises(Invalid):
            check_somebody(db, Config())
