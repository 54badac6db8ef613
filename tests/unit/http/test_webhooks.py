"""The dispatcher with real sockets: wakes reach their webhooks, once they must, however the receiver behaves.

The clock is real, for retries and leases run by it; nothing waits for a fixed time, only for what must come.
"""

from __future__ import annotations

import asyncio
import base64
import datetime
import json
import math
import random
import re
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

import tailrace
from tailrace import Database, failpoints, limits
from tailrace.config import Config
from tailrace.http import webhooks
from tailrace.http.webhooks import Dispatcher
from tailrace.log.position import offset
from tailrace.streams.commands import Append, CreateStream, DeleteStream
from tailrace.streams.queries import DescribeStream, ListStreams, ReadStream
from tailrace.subscriptions import subscription as rules
from tailrace.subscriptions import webhook
from tailrace.subscriptions.commands import (
    AddStreams,
    ClaimWake,
    DeleteSubscription,
    GetSubscription,
    PutSubscription,
    RemoveStream,
    StreamAck,
    SubscriptionAck,
    SubscriptionDescription,
)
from tailrace.subscriptions.dispatch import SubscriptionStatus
from tailrace.subscriptions.signing import GetSigningKeys, RotateSigningKey, jwks
from tailrace.subscriptions.subscription import EXPIRE, DueStep, SubscriptionSettings
from tests.support.patience import PATIENCE_S

BASE = "http://127.0.0.1:4437/v1/stream"
DEV = Config(dev=True)

Answer = tuple[int, bytes] | tuple[int, bytes, str]


class Call:
    """A request that a receiver got."""

    def __init__(self, target: str, headers: dict[str, str], raw: bytes) -> None:
        self.target = target
        self.headers = headers
        self.raw = raw
        self.body: dict[str, Any] = json.loads(raw)


class Receiver:
    """A web server that records its requests and sends prepared responses."""

    def __init__(
        self, answer: Callable[[Call], Awaitable[Answer]] | Answer = (200, b'{"done": true}'),
        context: ssl.SSLContext | None = None,
    ) -> None:  # fmt: skip
        self.answer = answer
        self.calls: list[Call] = []
        self.connections = 0
        self.at_once = self.at_once_max = 0
        self._context = context
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Receiver:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/hook?x=1"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.at_once += 1
        self.at_once_max = max(self.at_once_max, self.at_once)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.strip().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            call = Call(first.split(" ")[1], headers, await reader.readexactly(int(headers["content-length"])))
            self.calls.append(call)
            status, body, *more = self.answer if isinstance(self.answer, tuple) else await self.answer(call)
            extra = "".join(more)
            writer.write(f"HTTP/1.1 {status} X\r\n{extra}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            pass
        finally:
            self.at_once -= 1
            writer.close()


class World:
    """A database with a dispatcher."""

    def __init__(self, path: Path, config: Config = DEV, **options: Any) -> None:
        self.path = path
        self.config = config
        self.options = options

    async def __aenter__(self) -> World:
        self.db: Database = tailrace.open(self.path, housekeeping_s=None)
        self.dispatcher = Dispatcher(self.db, self.config, **self.options)
        await self.dispatcher.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.dispatcher.stop(grace_s=0)
        await self.db.aclose()

    async def webhook(self, url: str, name: str = "s", **more: Any) -> SubscriptionDescription:
        settings = SubscriptionSettings(**{"kind": "webhook", "pattern": "events/*", "webhook_url": url, **more})
        allowed = webhook.WebhookRules(allow_loopback=True)
        return await self.db.aexecute(PutSubscription(name, settings, BASE, allowed))

    async def pull(self, name: str = "s", **more: Any) -> None:
        settings = SubscriptionSettings(
            **{"kind": "pull-wake", "pattern": "events/*", "wake_stream": "wake/pool", **more}
        )
        await self.db.aexecute(PutSubscription(name, settings, BASE))

    async def create(self, path: str, body: bytes = b"{}") -> int:
        created = await self.db.aexecute(CreateStream(path, "application/json", body))
        return created.tail

    async def append(self, path: str) -> int:
        appended = await self.db.aexecute(Append(path, b"{}", "application/json"))
        return appended.tail

    async def get(self, name: str = "s") -> SubscriptionDescription:
        return await self.db.aexecute(GetSubscription(name))

    async def acked(self, name: str = "s") -> dict[str, str]:
        found = await self.get(name)
        return {state.link.path: offset(state.acked) for state in found.streams}

    async def idle(self, name: str = "s") -> None:
        """Wait until all that it should follow is acked and no wake is in flight."""

        async def settled() -> bool:
            found = await self.get(name)
            states = {state.link.path: state for state in found.streams}
            for stream in await self.db.aexecute(ListStreams()):
                if rules.follows(found.subscription, stream.path) and stream.path not in states:
                    log = (await self.db.aexecute(DescribeStream(stream.path))).log
                    if log.next:
                        return False
            return found.subscription.wake_id is None and not any(state.pending for state in states.values())

        await until(settled)


async def until(condition: Callable[[], bool] | Callable[[], Coroutine[Any, Any, bool]]) -> None:
    """Wait for what must come."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            met = condition()
            if met if isinstance(met, bool) else await met:
                return
            await asyncio.sleep(0.005)


def verify(call: Call, keys: list[dict[str, str]]) -> None:
    """What the receiver of a webhook should do."""
    match = re.fullmatch(r"t=(\d+),kid=([^,]+),ed25519=([A-Za-z0-9_-]+)", call.headers["webhook-signature"])
    assert match is not None
    (jwk,) = (key for key in keys if key["kid"] == match[2])
    public = Ed25519PublicKey.from_public_bytes(base64.urlsafe_b64decode(jwk["x"] + "="))
    public.verify(base64.urlsafe_b64decode(match[3] + "=="), match[1].encode() + b"." + call.raw)


# -- deliveries


def test_an_append_is_delivered_signed_and_acked(data_dir: Path) -> None:
    async def scene() -> None:
        async with Receiver() as receiver, World(data_dir) as world:
            await world.create("events/old")
            await world.webhook(receiver.url, "s/1")
            tail = await world.create("events/a")
            await until(lambda: bool(receiver.calls))
            await world.idle("s/1")
            (call,) = receiver.calls
            assert call.target == "/hook?x=1"
            assert call.headers["host"] == f"127.0.0.1:{receiver.port}"
            assert call.headers["content-type"] == "application/json"
            keys = await world.db.aexecute(GetSigningKeys())
            verify(call, jwks(keys, world.db.clock.now_ms())["keys"])
            wake_id, token = call.body.pop("wake_id"), call.body.pop("callback_token")
            assert wake_id.startswith("w_")
            assert len(token.split(".")) == 3
            assert call.body == {
                "subscription_id": "s/1",
                "generation": 1,
                "streams": [
                    {"path": "events/a", "link_type": "glob", "acked_offset": offset(0), "tail_offset": offset(tail),
                     "has_pending": True},
                    {"path": "events/old", "link_type": "glob", "acked_offset": offset(2), "tail_offset": offset(2),
                     "has_pending": False},
                ],
                "callback_url": f"{BASE}/__ds/subscriptions/s%2F1/callback",
            }  # fmt: skip
            assert await world.acked("s/1") == {"events/a": offset(tail), "events/old": offset(2)}
            assert (world.db.metrics.wakes, world.db.metrics.webhooks, world.db.metrics.webhooks_failed) == (1, 1, 0)

    asyncio.run(scene())


def test_a_callback_ends_the_wake_and_the_next_is_delivered(data_dir: Path) -> None:
    async def scene() -> None:
        async with Receiver((200, b"{}")) as receiver, World(data_dir) as world:
            await world.webhook(receiver.url)
            tail = await world.create("events/a")
            await until(lambda: len(receiver.calls) == 1)
            last = await world.append("events/a")
            body = receiver.calls[0].body
            acks = (StreamAck("events/a", offset(tail)),)
            acked = await world.db.aexecute(
                SubscriptionAck("s", "webhook", body["callback_token"], body["wake_id"], body["generation"], acks, True)
            )
            assert acked.next_wake
            await until(lambda: len(receiver.calls) == 2)
            body = receiver.calls[1].body
            assert (body["generation"], body["streams"][0]["acked_offset"]) == (2, offset(tail))
            assert body["streams"][0]["tail_offset"] == offset(last)

    asyncio.run(scene())


def test_the_worker_may_call_back_before_it_answers(data_dir: Path) -> None:
    async def scene() -> None:
        async def answer(call: Call) -> Answer:
            acks = tuple(StreamAck(item["path"], item["tail_offset"]) for item in call.body["streams"])
            await world.append("events/a") if len(receiver.calls) < 3 else None
            await world.db.aexecute(
                SubscriptionAck("s", "webhook", call.body["callback_token"], call.body["wake_id"],
                    call.body["generation"], acks, True)
            )  # fmt: skip
            return 200, b"{}"

        async with Receiver(answer) as receiver, World(data_dir) as world:
            await world.webhook(receiver.url)
            await world.create("events/a")
            await until(lambda: len(receiver.calls) == 3)
            await world.idle()
            assert [call.body["generation"] for call in receiver.calls] == [1, 2, 3]
            assert receiver.at_once_max == 1

    asyncio.run(scene())


def test_failures_are_retried_until_the_receiver_recovers(data_dir: Path) -> None:
    async def scene() -> None:
        async with Receiver((500, b"")) as receiver, World(data_dir) as world:
            await world.webhook(receiver.url)
            await world.create("events/a")
            await until(lambda: world.db.metrics.webhooks_failed == 1)

            async def failed() -> bool:
                return rules.status((await world.get()).subscription) == "failed"

            await until(failed)
            receiver.answer = (200, b'{"done": true}')
            await world.idle()
            assert [call.body["wake_id"] for call in receiver.calls] == [receiver.calls[0].body["wake_id"]] * 2
            assert rules.status((await world.get()).subscription) == "active"
            assert world.db.metrics.webhooks == 2

    asyncio.run(scene())


def test_a_retry_survives_a_restart(data_dir: Path) -> None:
    async def scene() -> None:
        async with Receiver((500, b"")) as receiver:
            async with World(data_dir) as world:
                await world.webhook(receiver.url)
                await world.create("events/a")

                async def scheduled() -> bool:
                    return (await world.get()).subscription.retries == 1

                await until(scheduled)
                due_ms = (await world.get()).subscription.next_attempt_ms
                assert due_ms is not None
            receiver.answer = (200, b'{"done": true}')
            async with World(data_dir) as world:
                await world.idle()
                assert world.db.clock.now_ms() >= due_ms
                assert len(receiver.calls) == 2

    asyncio.run(scene())


@pytest.mark.parametrize(
    "answer",
    [(302, b"", "Location: /elsewhere\r\n"), (307, b"", "Location: /elsewhere\r\n"), (404, b'{"done": true}')],
)
def test_only_2xx_is_success_and_redirects_are_not_followed(data_dir: Path, answer: Answer) -> None:
    async def scene() -> None:
        async with Receiver(answer) as receiver, World(data_dir) as world:
            await world.webhook(receiver.url)
            await world.create("events/a")
            await until(lambda: world.db.metrics.webhooks_failed == 1)
            assert [call.target for call in receiver.calls] == ["/hook?x=1"]
            assert await world.acked() == {"events/a": offset(0)}

    asyncio.run(scene())


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'{"done": false}', b'{"done": "true"}', b'{"done": true, "x": "' + b"y" * 70_000 + b'"}'],
)
def test_an_answer_that_does_not_say_done_leaves_the_wake_to_callbacks(data_dir: Path, body: bytes) -> None:
    async def scene() -> None:
        async with Receiver((200, body)) as receiver, World(data_dir) as world:
            await world.webhook(receiver.url)
            await world.create("events/a")

            async def delivered() -> bool:
                row = (await world.get()).subscription
                return row.wake_id is not None and row.next_attempt_ms is None

            await until(delivered)
            assert await world.acked() == {"events/a": offset(0)}
            assert world.db.metrics.webhooks_failed == 0

    asyncio.run(scene())


def test_a_receiver_that_never_answers_is_given_up_with_the_lease(data_dir: Path) -> None:
    async def scene() -> None:
        forever = asyncio.Event()

        async def answer(call: Call) -> Answer:
            if len(receiver.calls) == 1:
                await forever.wait()
            return 200, b'{"done": true}'

        async with Receiver(answer) as receiver, World(data_dir) as world:
            await world.webhook(receiver.url, lease_ms=1000)
            await world.create("events/a")
            await world.idle()
            assert [call.body["generation"] for call in receiver.calls] == [1, 2]
            assert world.db.metrics.webhooks_failed == 1
            forever.set()

    asyncio.run(scene())


def test_a_worker_that_falls_silent_is_woken_again(data_dir: Path) -> None:
    async def scene() -> None:
        async with Receiver((200, b"{}")) as receiver, World(data_dir) as world:
            await world.webhook(receiver.url, lease_ms=1000)
            await world.create("events/a")
            await until(lambda: len(receiver.calls) == 2)
            assert [call.body["generation"] for call in receiver.calls] == [1, 2]

    asyncio.run(scene())


def test_a_closed_port_is_a_failure(data_dir: Path) -> None:
    async def scene() -> None:
        async with Receiver() as receiver:
            pass
        async with World(data_dir) as world:
            await world.webhook(receiver.url)
            await world.create("events/a")
            await until(lambda: world.db.metrics.webhooks_failed == 1)

    asyncio.run(scene())


@pytest.mark.parametrize("how", ["refused", "silent", "taken"])
def test_what_a_url_may_keep_secret_is_not_logged(data_dir: Path, caplog: pytest.LogCaptureFixture, how: str) -> None:
    caplog.set_level("DEBUG")

    async def scene() -> None:
        forever = asyncio.Event()

        async def silent(call: Call) -> Answer:
            await forever.wait()
            return 200, b""

        async with Receiver(silent if how == "silent" else (200, b'{"done": true}')) as receiver:
            if how == "refused":
                await receiver.__aexit__()
            async with World(data_dir) as world:
                await world.webhook(f"http://127.0.0.1:{receiver.port}/s3cret?key=s3cret", lease_ms=1000)
                await world.create("events/a")
                if how == "taken":
                    await world.idle()
                else:
                    await until(lambda: f"http://127.0.0.1:{receiver.port} " in caplog.text)
            forever.set()

    asyncio.run(scene())
    assert "s3cret" not in caplog.text


def test_cookies_of_one_receiver_are_not_sent_to_another(data_dir: Path) -> None:
    async def scene() -> None:
        answer = (200, b'{"done": true}', "Set-Cookie: session=1; Path=/\r\n")
        async with Receiver(answer) as receiver, World(data_dir) as world:
            await world.webhook(receiver.url)
            await world.create("events/a")
            await world.idle()
            await world.append("events/a")
            await world.idle()
            assert [call.headers.get("cookie") for call in receiver.calls] == [None, None]

    asyncio.run(scene())


def test_heartbeats_leave_nothing_behind_in_the_schedule(data_dir: Path) -> None:
    async def scene() -> None:
        async with World(data_dir) as world:
            plan, lease_until_ms = world.dispatcher._plan, 0
            for name in ("a", "b"):
                plan(name, SubscriptionStatus(name, True, DueStep(5, EXPIRE)))
            for lease_until_ms in range(2**50, 2**50 + 1000):
                plan("a", SubscriptionStatus("a", True, DueStep(lease_until_ms, EXPIRE)))
            schedule = world.dispatcher._schedule
            assert len(schedule) <= 2 * 2 + webhooks.SCHEDULE_VOID_MAX
            assert schedule[0] == (5, "b")
            assert (lease_until_ms, "a") in schedule
            plan("b", None)

    asyncio.run(scene())


def test_deliveries_are_signed_with_the_newest_key(data_dir: Path) -> None:
    async def scene() -> None:
        async with Receiver() as receiver, World(data_dir) as world:
            await world.webhook(receiver.url)
            await world.create("events/a")
            await world.idle()
            key = await world.db.aexecute(RotateSigningKey())
            await world.append("events/a")
            await world.idle()
            keys = jwks(await world.db.aexecute(GetSigningKeys()), world.db.clock.now_ms())["keys"]
            for call in receiver.calls:
                verify(call, keys)
            assert f"kid={key.kid}," in receiver.calls[-1].headers["webhook-signature"]

    asyncio.run(scene())


# -- nothing is missed


def test_what_happened_while_the_server_was_down_is_found(data_dir: Path) -> None:
    async def scene() -> None:
        async with Receiver() as receiver:
            async with World(data_dir) as world:
                await world.webhook(receiver.url)
                await world.webhook(receiver.url, "named", pattern=None, streams=("later",))
                await world.create("events/a")
                await world.idle()
            receiver.calls.clear()
            with tailrace.open(data_dir, housekeeping_s=None) as db:
                db.execute(Append("events/a", b"{}", "application/json"))
                db.execute(CreateStream("events/b", "application/json", b"{}"))
                db.execute(CreateStream("later", "application/json", b"{}"))
            async with World(data_dir) as world:
                await until(lambda: len(receiver.calls) >= 2)
                await world.idle()
                await world.idle("named")
                assert set(await world.acked()) == {"events/a", "events/b"}

    asyncio.run(scene())


def test_a_delivery_cut_off_by_a_stop_is_repeated(data_dir: Path) -> None:
    async def scene() -> None:
        forever = asyncio.Event()

        async def answer(call: Call) -> Answer:
            if len(receiver.calls) == 1:
                await forever.wait()
            return 200, b'{"done": true}'

        async with Receiver(answer) as receiver:
            async with World(data_dir) as world:
                await world.webhook(receiver.url)
                await world.create("events/a")
                await until(lambda: len(receiver.calls) == 1)
            async with World(data_dir) as world:
                await world.idle()
            first, second = receiver.calls
            assert first.body["wake_id"] == second.body["wake_id"]
            forever.set()

    asyncio.run(scene())


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_command_that_is_refused_is_tried_again(data_dir: Path, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "PAUSE_S", 0.05)

    async def scene() -> None:
        async with Receiver() as receiver, World(data_dir) as world:
            await world.create("events/a")
            await world.webhook(receiver.url)
            # The append is the first to pass; Notify, BeginDelivery and RecordDelivery follow.
            failpoints.arm("command.ran", "raise", at=at + 1)
            try:
                await world.append("events/a")
                await world.idle()
            finally:
                failpoints.disarm()
            assert len(receiver.calls) == (2 if at == 3 else 1)

    asyncio.run(scene())


def test_the_end_of_a_lease_that_is_refused_is_tried_again(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "PAUSE_S", 0.05)

    async def scene() -> None:
        async with World(data_dir) as world:
            await world.create("wake/pool", b"")
            await world.create("events/a")
            await world.pull(lease_ms=1000)
            await world.append("events/a")

            async def generation(number: int) -> bool:
                return (await world.get()).subscription.generation == number

            await until(lambda: generation(1))
            await world.db.aexecute(ClaimWake("s", "worker"))
            failpoints.arm("command.ran", "raise")  # the next command is ExpireLease
            try:
                await until(lambda: generation(2))
                assert world.db.metrics.commands_failed == 1
            finally:
                failpoints.disarm()

    asyncio.run(scene())


def test_an_append_in_the_same_commit_as_the_first_subscription_is_seen(data_dir: Path) -> None:
    async def scene() -> None:
        async with Receiver() as receiver, World(data_dir) as world:
            await until(lambda: not world.dispatcher._in_turn)
            commits = world.db.metrics.commits
            await asyncio.gather(world.webhook(receiver.url), world.create("events/a"))
            assert world.db.metrics.commits == commits + 1
            await world.idle()
            assert len(receiver.calls) == 1

    asyncio.run(scene())


def test_many_streams_and_subscriptions_lose_nothing(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WEBHOOKS_AT_ONCE_MAX", 3)
    chance = random.Random(7)

    async def scene() -> None:
        async def answer(call: Call) -> Answer:
            await asyncio.sleep(chance.random() * 0.01)
            return 200, b'{"done": true}'

        async with Receiver(answer) as receiver, World(data_dir) as world:
            patterns = ("events/*", "**", "*/1", "events/**", "x/*")
            for number, pattern in enumerate(patterns * 2):
                await world.webhook(receiver.url, f"s{number}", pattern=pattern, streams=("named",))
            paths = [f"{root}/{number}" for root in ("events", "x") for number in range(5)] + ["named", "events/1/2"]
            for path in paths:
                await world.create(path, b"")
            for _ in range(20):
                await asyncio.gather(*(world.append(path) for path in chance.sample(paths, 5)))
                if chance.random() < 0.2:
                    path = chance.choice(paths)
                    await world.db.aexecute(DeleteStream(path))
                    await world.create(path)
            for number in range(len(patterns) * 2):
                await world.idle(f"s{number}")
            tails = {}
            for path in paths:
                found = await world.db.aexecute(ReadStream(path))
                tails[path] = found.log.next
            for number, pattern in enumerate(patterns * 2):
                expected = {path for path in paths if rules.compiled(pattern).matches(path) and tails[path]} | {"named"}
                acked = await world.acked(f"s{number}")
                assert {path: acked[path] for path in expected} == {path: offset(tails[path]) for path in expected}
            assert 1 < receiver.at_once_max <= 3

    asyncio.run(scene())


def test_what_a_subscription_follows_may_change(data_dir: Path) -> None:
    async def scene() -> None:
        async with Receiver() as receiver, World(data_dir) as world:
            await world.webhook(receiver.url, pattern=None, streams=("a",))
            await world.create("b")
            await world.db.aexecute(AddStreams("s", ("b",)))
            await world.append("b")
            await until(lambda: len(receiver.calls) == 1)
            await world.idle()
            await world.db.aexecute(DeleteSubscription("s"))
            await world.webhook(receiver.url, "t", pattern="other")
            await world.append("b")
            await world.create("other")
            await until(lambda: len(receiver.calls) == 2)
            assert receiver.calls[1].body["subscription_id"] == "t"

    asyncio.run(scene())


def test_a_stream_left_out_for_want_of_room_is_followed_when_there_is_some(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limits, "SUBSCRIPTION_LINKS_MAX", 1)

    async def scene() -> None:
        async with World(data_dir) as world:
            await world.create("wake/pool", b"")
            await world.pull(streams=("x",))
            await world.create("x")

            async def woken() -> bool:
                return (await world.get()).subscription.wake_id is not None

            await until(woken)
            await world.create("events/a")
            await until(lambda: "'events/a' is left out" in caplog.text)
            await world.db.aexecute(RemoveStream("s", "x"))
            await world.append("events/a")

            async def followed() -> bool:
                return await world.acked() == {"events/a": offset(0)}

            await until(followed)

    asyncio.run(scene())


def test_deleting_a_stream_removes_its_link(data_dir: Path) -> None:
    async def scene() -> None:
        async with Receiver() as receiver, World(data_dir) as world:
            await world.webhook(receiver.url)
            await world.create("events/a")
            await world.idle()
            await world.db.aexecute(DeleteStream("events/a"))

            async def gone() -> bool:
                return (await world.get()).subscription.links == 0

            await until(gone)

    asyncio.run(scene())


def test_a_server_without_subscriptions_does_nothing(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLOCK_NOTE_S", math.inf)  # else housekeeping may write meanwhile

    async def scene() -> None:
        async with World(data_dir) as world:
            dispatcher = world.dispatcher
            await until(lambda: not dispatcher._in_turn)
            queries = world.db.metrics.queries
            commands = world.db.metrics.commands
            await world.create("events/a")
            for _ in range(10):
                await world.append("events/a")
            assert dispatcher._advanced == set()
            assert not dispatcher._event.is_set()
            assert world.db.metrics.queries == queries
            assert world.db.metrics.commands == commands + 11

    asyncio.run(scene())


def test_a_stopped_dispatcher_keeps_quiet(data_dir: Path) -> None:
    async def scene() -> None:
        async with Receiver() as receiver, World(data_dir) as world:
            await world.webhook(receiver.url)
            await world.dispatcher.stop()
            advanced = set(world.dispatcher._advanced)
            await world.create("events/a")
            assert world.dispatcher._advanced == advanced
            assert receiver.calls == []

    asyncio.run(scene())


# -- pull-wake


def test_an_append_writes_a_wake_event_and_a_lost_lease_another(data_dir: Path) -> None:
    async def scene() -> None:
        async with World(data_dir) as world:
            await world.create("wake/pool", b"")
            await world.pull(lease_ms=1000)
            await world.create("events/a")

            async def generations() -> list[int]:
                found = await world.db.aexecute(ReadStream("wake/pool"))
                return [json.loads(entry.body)["generation"] for entry in found.page.entries]

            async def events(count: int) -> bool:
                return len(await generations()) == count

            await until(lambda: events(1))
            claimed = await world.db.aexecute(ClaimWake("s", "worker"))
            assert claimed is not None
            await until(lambda: events(2))
            assert await generations() == [1, 2]
            await until(lambda: world.db.metrics.wakes == 2)

    asyncio.run(scene())


def test_a_wake_stream_made_later_gets_the_event(data_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        async with World(data_dir) as world:
            await world.pull()
            await world.create("events/a")

            async def retried() -> bool:
                return (await world.get()).subscription.retries == 1

            await until(retried)
            await until(lambda: "wake/pool" in caplog.text)
            await world.create("wake/pool", b"")

            async def written() -> bool:
                found = await world.db.aexecute(ReadStream("wake/pool"))
                return bool(found.page.entries)

            await until(written)

    asyncio.run(scene())


# -- where deliveries go


def certificate(directory: Path, *names: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's context with a certificate for `names`, and a client's that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    alternatives = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(alternatives, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = directory / "cert.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    pem.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(pem)
    return server, ssl.create_default_context(cafile=str(pem))


class Resolver:
    """Names as the test has them."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.lookups: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.lookups.append((host, port))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["8.8.8.8", "127.0.0.1"], ["::1"], ["169.254.169.254"], []])
def test_a_name_that_leads_inside_is_not_called(data_dir: Path, addresses: list[str]) -> None:
    async def scene() -> None:
        async with Receiver() as receiver, World(data_dir, resolve=Resolver(addresses)) as world:
            await world.webhook(f"https://hooks.example:{receiver.port}/")
            await world.create("events/a")
            await until(lambda: world.db.metrics.webhooks_failed == 1)
            assert receiver.connections == 0

    asyncio.run(scene())


def test_localhost_is_called_only_where_it_is_this_machine(data_dir: Path) -> None:
    async def scene() -> None:
        resolver = Resolver(["192.168.0.1"], ["127.0.0.1"])
        async with Receiver() as receiver, World(data_dir, resolve=resolver) as world:
            await world.webhook(f"http://localhost:{receiver.port}/")
            await world.create("events/a")
            await until(lambda: world.db.metrics.webhooks_failed == 1)
            assert receiver.connections == 0
            await world.idle()
            assert receiver.calls[0].headers["host"] == f"localhost:{receiver.port}"

    asyncio.run(scene())


def test_a_subscription_made_in_dev_is_not_served_in_production(data_dir: Path) -> None:
    async def scene() -> None:
        async with Receiver() as receiver:
            async with World(data_dir) as world:
                await world.webhook(receiver.url)
            async with World(data_dir, Config(token="t")) as world:
                await world.create("events/a")
                await until(lambda: world.db.metrics.webhooks_failed == 1)
            assert receiver.connections == 0

    asyncio.run(scene())


@pytest.mark.parametrize("right_name", [True, False])
def test_tls_is_verified_for_the_name_though_the_address_is_pinned(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, right_name: bool
) -> None:
    server, client = certificate(tmp_path, "hooks.example" if right_name else "other.example")
    monkeypatch.setattr(webhook, "check_address", lambda *_: None)  # the receiver can only be on this machine

    async def scene() -> None:
        resolver = Resolver(["127.0.0.1"])
        async with Receiver(context=server) as receiver, World(data_dir, resolve=resolver, verify=client) as world:
            await world.webhook(f"https://hooks.example:{receiver.port}/x")
            await world.create("events/a")
            if right_name:
                await world.idle()
                assert receiver.calls[0].headers["host"] == f"hooks.example:{receiver.port}"
                assert resolver.lookups == [("hooks.example", receiver.port)]
            else:
                await until(lambda: world.db.metrics.webhooks_failed == 1)
                assert receiver.calls == []

    asyncio.run(scene())


def test_the_environments_proxy_is_not_used(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")

    async def scene() -> None:
        async with Receiver() as receiver, World(data_dir) as world:
            await world.webhook(receiver.url)
            await world.create("events/a")
            await world.idle()

    asyncio.run(scene())
