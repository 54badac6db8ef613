"""The back-off of failed deliveries: exponential, bounded, with jitter. Pure."""

from __future__ import annotations

from tailrace import limits


def backoff_ms(retries: int, random: float) -> int:
    """The wait after the `retries`-th failure in a row; `random` is in [0, 1)."""
    delay_s = min(limits.WEBHOOK_RETRY_S_MIN * 2.0 ** min(retries - 1, 32), limits.WEBHOOK_RETRY_S_MAX)
    return round(delay_s * 1000 * (1 + limits.WEBHOOK_RETRY_JITTER * (2 * random - 1)))
