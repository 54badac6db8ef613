"""Delivers one wake to its webhook.

The rule: the connection goes to an address that was checked a moment ago, and nowhere else. No redirect is followed, no
proxy of the environment is used, no connection is kept: one made for a host could otherwise serve another host that
shares its address. The answer counts only as far as it is short and came in time.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Final

import httpx
import msgspec

from tailrace import __version__, limits
from tailrace.clock import Clock
from tailrace.errors import Error, Invalid
from tailrace.http.subscriptions import callback_url, stream_infos
from tailrace.subscriptions import signing, webhook
from tailrace.subscriptions.dispatch import WebhookDelivery

Resolve = Callable[[str, int], Awaitable[list[str]]]


class Outcome(msgspec.Struct, frozen=True):
    done: bool = False
    failure: str | None = None  # None: the receiver took the wake


class _Answer(msgspec.Struct):
    done: bool = False


_ANSWER: Final = msgspec.json.Decoder(_Answer)


async def resolve(host: str, port: int) -> list[str]:
    """The addresses of a name."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[4][0]) for address in found]


class Courier:
    """Delivers wakes. `verify` replaces the certificates that are trusted, `resolve` the resolver."""

    def __init__(
        self,
        rules: webhook.WebhookRules,
        clock: Clock,
        *,
        verify: ssl.SSLContext | None = None,
        resolve: Resolve = resolve,
    ) -> None:
        self._rules = rules
        self._clock = clock
        self._verify = verify
        self._resolve = resolve
        self._transport: httpx.AsyncHTTPTransport | None = None

    async def deliver(self, delivery: WebhookDelivery) -> Outcome:
        """Make one attempt. It ends with the lease at the latest: after that the answer would count for nothing."""
        row = delivery.subscription
        assert row.webhook_url is not None
        timeout_s = min(limits.WEBHOOK_TIMEOUT_S, row.lease_ms / 1000)
        try:
            target = webhook.parse(row.webhook_url, self._rules)
        except Error as error:
            return Outcome(failure=str(error))
        try:
            async with asyncio.timeout(timeout_s):
                address = await self._address(target)
                return await self._post(target, address, body_of(delivery), delivery.key)
        except TimeoutError:
            return Outcome(failure=f"{target.origin} did not answer within {timeout_s:g} s")
        except Error as error:
            return Outcome(failure=str(error))
        except (OSError, httpx.HTTPError) as error:
            return Outcome(failure=f"{target.origin} cannot be reached: {type(error).__name__}: {error}")

    async def close(self) -> None:
        if self._transport is not None:
            await self._transport.aclose()
            self._transport = None

    async def _address(self, target: webhook.WebhookTarget) -> webhook.Address:
        """Where to connect. One bad address among several is refused like a single one: no honest name has it."""
        literal = target.literal
        texts = [str(literal)] if literal is not None else await self._resolve(target.host, target.port)
        addresses = [ipaddress.ip_address(text.partition("%")[0]) for text in texts]
        if not addresses:
            raise Invalid(f"webhook.url has host {target.host!r}, which has no address")
        for address in addresses:
            webhook.check_address(target, address, self._rules)
        return addresses[0]

    async def _post(
        self, target: webhook.WebhookTarget, address: webhook.Address, body: bytes, key: signing.SigningKey
    ) -> Outcome:
        literal = f"[{address}]" if address.version == 6 else str(address)
        request = httpx.Request(
            "POST",
            f"{target.scheme}://{literal}:{target.port}{target.target}",
            headers={
                "Host": target.authority,
                "Content-Type": "application/json",
                "Accept": "application/json",
                "Accept-Encoding": "identity",
                "User-Agent": f"tailrace/{__version__}",
                "Webhook-Signature": signing.sign(key, body, self._clock.wall_ms() // 1000),
            },
            content=body,
            extensions={"sni_hostname": target.host},
        )
        response = await self._opened().handle_async_request(request)
        try:
            if not response.is_success:
                return Outcome(failure=f"the receiver answered {response.status_code}")
            return Outcome(done=await _is_done(response))
        finally:
            await response.aclose()

    def _opened(self) -> httpx.AsyncHTTPTransport:
        # Not a client: it would log whole URLs, and keep cookies of one receiver for another at the same address. Nor
        # has a transport redirects or timeouts; `deliver` has the one that counts.
        if self._transport is None:
            self._transport = httpx.AsyncHTTPTransport(
                verify=True if self._verify is None else self._verify,
                trust_env=False,
                limits=httpx.Limits(max_connections=limits.WEBHOOKS_AT_ONCE_MAX, max_keepalive_connections=0),
            )
        return self._transport


def body_of(delivery: WebhookDelivery) -> bytes:
    row = delivery.subscription
    return msgspec.json.encode(
        {
            "subscription_id": row.id,
            "wake_id": row.wake_id,
            "generation": row.generation,
            "streams": stream_infos(delivery.streams),
            "callback_url": callback_url(row),
            "callback_token": delivery.token,
        }
    )


async def _is_done(response: httpx.Response) -> bool:
    """Whether the answer is {"done": true}; one that is too long or something else is not."""
    body = b""
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > limits.WEBHOOK_ANSWER_BYTES_MAX:
            return False
    try:
        return _ANSWER.decode(body).done
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
