"""The keys of outside issuers: fetched from where they publish them, and kept.

A token names its key. One that is not known may be new, so the keys are fetched again, but not more often than every
`REFETCH_S`: invented key names cost the issuer nothing. Known keys are still accepted while the issuer
cannot be reached, for a day; a token with an unknown key is answered 503 then, since it cannot be verified.
One fetch at a time, bounded in size and, from connecting to the last byte, in time; the end of the server ends it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

import httpx
import msgspec

from tailrace.auth import tokens
from tailrace.auth.tokens import PublicKey
from tailrace.config import IssuerConfig
from tailrace.errors import Unavailable, WrongToken

REFETCH_S: Final = 10.0  # the shortest time between two fetches
FRESH_S: Final = 600.0  # after which keys are fetched again, while the known ones are used
STALE_S_MAX: Final = 24 * 3_600.0  # how long known keys are taken without having been confirmed
FETCH_TIMEOUT_S: Final = 5.0
JWKS_BYTES_MAX: Final = 256 * 1024
KEYS_MAX: Final = 100  # of one issuer

logger = logging.getLogger("tailrace.http")


class Keyring:
    """The keys of one issuer. For the event loop's thread."""

    def __init__(self, issuer: IssuerConfig, monotonic_s: Callable[[], float]) -> None:
        self.issuer = issuer
        self._monotonic_s = monotonic_s
        self._keys: dict[str | None, PublicKey] = {}
        self._tried_s: float | None = None
        self._fetched_s: float | None = None
        self._fetching: asyncio.Task[None] | None = None

    async def key(self, name: str | None) -> PublicKey:
        """The key of this name; a token without one is taken where there is just one key."""
        now_s = self._monotonic_s()
        age_s = None if self._fetched_s is None else now_s - self._fetched_s
        if age_s is not None and age_s > STALE_S_MAX:
            self._keys = {}
        found = self._known(name)
        if found is not None:
            if age_s is None or age_s > FRESH_S:
                self._fetch(now_s)
            return found
        fetching = self._fetch(now_s)
        if fetching is not None:
            await asyncio.wait((fetching,))  # a request that is cancelled does not cancel the fetch
        found = self._known(name)
        if found is not None:
            return found
        if self._fetched_s is None or self._tried_s is None or self._fetched_s < self._tried_s:
            raise Unavailable(
                f"the keys of {self.issuer.issuer!r} cannot be fetched now, so the token cannot be verified; try again",
                code="ISSUER_UNREACHABLE",
            )
        raise WrongToken(
            f"{self.issuer.issuer!r} has no key {(name or '')[:80]!r}; ask it for a new token", code=tokens.UNKNOWN_KEY
        )

    async def close(self) -> None:
        """End what is under way."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait((self._fetching,))

    def _known(self, name: str | None) -> PublicKey | None:
        if name is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(name)

    def _fetch(self, now_s: float) -> asyncio.Task[None] | None:
        """A fetch that is under way, or a new one; None: the last is too short a time ago."""
        if self._fetching is None:
            if self._tried_s is not None and now_s - self._tried_s < REFETCH_S:
                return None
            self._tried_s = now_s
            self._fetching = asyncio.get_running_loop().create_task(self._refresh())
        return self._fetching

    async def _refresh(self) -> None:
        try:
            self._keys = await fetched(self.issuer.jwks_url)
            self._fetched_s = self._tried_s
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, msgspec.DecodeError) as error:
            why = str(error) or type(error).__name__
            logger.warning("the keys of %s cannot be fetched: %s", self.issuer.issuer, why)
        finally:
            self._fetching = None


async def fetched(url: str) -> dict[str | None, PublicKey]:
    """The keys that are published at `url`, by their names; ValueError if what is there is not a JWKS."""
    try:
        async with asyncio.timeout(FETCH_TIMEOUT_S):
            body = await _body(url)
    except TimeoutError:
        raise ValueError(f"{url} did not answer within {FETCH_TIMEOUT_S:g} s") from None
    return await asyncio.to_thread(_read, url, body)


async def _body(url: str) -> bytes:
    trusted = await asyncio.to_thread(httpx.create_ssl_context)  # it reads a large file
    body = b""
    async with (
        httpx.AsyncClient(verify=trusted, timeout=FETCH_TIMEOUT_S) as client,
        client.stream("GET", url, headers={"accept": "application/json"}) as answer,
    ):
        if answer.status_code != 200:
            raise ValueError(f"{url} answered {answer.status_code}")
        async for piece in answer.aiter_bytes():
            body += piece
            if len(body) > JWKS_BYTES_MAX:
                raise ValueError(f"{url} answered more than {JWKS_BYTES_MAX} bytes")
    return body


def _read(url: str, body: bytes) -> dict[str | None, PublicKey]:
    whole: Any = msgspec.json.decode(body)
    listed = whole.get("keys") if isinstance(whole, dict) else None
    if not isinstance(listed, list):
        raise ValueError(f"{url} is not a JWKS: an object with a list of keys is expected")
    keys: dict[str | None, PublicKey] = {}
    for facts in listed[:KEYS_MAX]:
        found = tokens.public_key(facts) if isinstance(facts, dict) else None
        if found is not None:
            keys[found[0]] = found[1]
    return keys
