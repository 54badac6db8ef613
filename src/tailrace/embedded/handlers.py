"""The parts of consumers that do not depend on how they wait: options, handlers, signals, pauses."""

from __future__ import annotations

import contextlib
import inspect
import logging
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from types import FrameType
from typing import Any, Final, Literal, TypeAlias, TypedDict

from tailrace import limits
from tailrace.embedded.messages import ANY, Message, Partition, Start, check_numbers, partition_number
from tailrace.errors import Invalid

BACK_OFF_S_MIN: Final = 0.1
BACK_OFF_S_MAX: Final = 5.0
JOIN_S: Final = 1.0  # for a worker that should end; it holds nothing up
RETRY_S_MAX: Final = 300.0  # between two attempts at a message whose handler fails
Partitions: TypeAlias = Literal["any"] | int | Iterable[int]
logger = logging.getLogger("tailrace.consumer")


class ConsumerOptions(TypedDict, total=False):
    """The options of a consumer; their defaults are in `Deliveries`."""

    concurrency: int  # how many handlers run at once
    consumer_id: str | None  # the name of the consumer; by default a unique one
    partitions: Partitions  # "any", a number, or several
    batch: int  # how many messages are fetched at a time, and held at most for each of `partitions`
    visibility_s: float  # how long others wait for the messages of a consumer that crashed
    start: Start  # where a new group starts
    timeout_s: float  # how long one request waits for messages
    ack_every_s: float  # how long an acknowledgement may wait for others
    stop_timeout_s: float  # how long closing may take while the source is unavailable


class BackOff:
    """Pauses between attempts, each longer than the one before."""

    def __init__(self) -> None:
        self._next_s = BACK_OFF_S_MIN

    def next_s(self) -> float:
        pause_s, self._next_s = self._next_s, min(self._next_s * 2, BACK_OFF_S_MAX)
        return pause_s


def check_concurrency(concurrency: int) -> None:
    """Refuse a number of handlers that cannot run at once."""
    check_numbers(concurrency=concurrency)
    if not 1 <= concurrency <= limits.CONSUMER_CONCURRENCY_MAX:
        raise Invalid(
            f"concurrency={concurrency} is out of range; use 1 to {limits.CONSUMER_CONCURRENCY_MAX}, and more "
            "consumers for more"
        )


def check_source(source: Any, *, asynchronous: bool) -> None:
    """Refuse a source of the other API."""
    if inspect.iscoroutinefunction(getattr(source, "send_ack", None)) is not asynchronous:
        wanted = "db.aio, an AsyncClient or a URL" if asynchronous else "a database, a Client or a URL"
        raise Invalid(f"this consumer cannot consume from {type(source).__name__!r}; give it {wanted}")


def chosen_partitions(partitions: Partitions) -> list[Partition]:
    """The partitions to fetch from, each on its own."""
    if isinstance(partitions, str | int):
        number = partition_number(partitions)
        return [ANY] if number is None else [number]
    chosen = sorted({number for each in partitions if (number := partition_number(each)) is not None})
    if not chosen:
        raise Invalid("partitions=[] leaves nothing to consume; give numbers, or 'any'", code="NO_SUCH_PARTITION")
    return list(chosen)


def retry_after_s(message: Message, retry_s: float) -> float:
    """The pause before a message whose handler failed is delivered again: `retry_s`, and twice that after each further
    attempt. The exception is logged, so call this where it is handled."""
    pause_s = min(retry_s * 2.0 ** min(message.attempt - 1, 32), RETRY_S_MAX)
    logger.exception(
        "the handler failed at offset %d of partition %d, attempt %d; trying again in %.1f s",
        message.offset, message.partition, message.attempt, pause_s,
    )  # fmt: skip
    return pause_s


@contextlib.contextmanager
def stopped_by_signals(stop: Callable[[], None], *numbers: signal.Signals) -> Iterator[None]:
    """Within this, SIGTERM and SIGINT (or those given) call `stop`; a second one has its former effect. On a thread
    other than the main one, which alone may handle signals, this does nothing."""
    before: dict[int, Any] = {}

    def handle(number: int, frame: FrameType | None) -> None:
        signal.signal(number, before[number])
        stop()

    if threading.current_thread() is threading.main_thread():
        for number in numbers or (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


# -- handlers


def check_handler(handler: Callable[..., object], *, deferred: bool) -> None:
    """Refuse a handler that cannot be called; unless `deferred`, also one of which a call runs nothing: its messages
    would be acknowledged, and nothing done."""
    if not callable(handler):
        raise Invalid(f"the handler {handler!r} cannot be called; give a function that takes a message")
    called = getattr(type(handler), "__call__", None)  # noqa: B004 - of an object that is called like a function
    tests = (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction)
    if not deferred and any(test(each) for test in tests for each in (handler, called)):
        raise _never_run(handler)


def check_returned(handler: object, returned: object) -> None:
    """Refuse a handler that has returned work that is still to be done, or is done elsewhere: by a pool of threads."""
    tests = (inspect.isawaitable, inspect.isasyncgen, inspect.isgenerator)
    if isinstance(returned, Future) or any(test(returned) for test in tests):
        if inspect.iscoroutine(returned):
            returned.close()  # else Python warns of it, too
        raise _never_run(handler, returned)


def _never_run(handler: object, returned: object = None) -> Invalid:
    what = (
        "is a coroutine or generator function" if returned is None else f"returned {type(returned).__name__!r} object"
    )
    return Invalid(
        f"the handler {handler!r} {what}, which run() does not wait for; its message was not acknowledged. Give a "
        "function that does the work, or a coroutine function that awaits it to AsyncConsumer (tailrace.client) or "
        "db.aio.consumer(...)",
        code="HANDLER_NOT_RUN",
    )
