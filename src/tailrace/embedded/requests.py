"""Requests to publish to topics and to consume from them: the same structs for databases and for servers."""

from __future__ import annotations

import msgspec

from tailrace.embedded.messages import Partition, Start
from tailrace.streams.producer import ProducerClaim
from tailrace.topics.commands import Outgoing


class PublishRequest(msgspec.Struct, frozen=True):
    """Add messages to a topic: all or none; with the claim of a producer, once."""

    topic: str
    messages: tuple[Outgoing, ...]
    claim: ProducerClaim | None = None


class ConsumeRequest(msgspec.Struct, frozen=True):
    """Lease messages to a consumer of a group; without a group (None), read them."""

    topic: str
    group: str | None
    limit: int = 100
    consumer: str = ""
    start: Start = "earliest"
    partition: Partition = 0
    visibility_s: float = 60.0
    timeout_s: float = 0.0


class LeaseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Names messages that a consumer holds: those of one lease, or all of a partition."""

    topic: str
    group: str
    partition: int = 0
    consumer: str = ""
    lease: str | None = None


class AckRequest(LeaseRequest, frozen=True, kw_only=True):
    """Acknowledge messages up to and including an offset; where `offsets` has any, those at these offsets alone."""

    upto: int
    offsets: tuple[int, ...] = ()


class ExtendRequest(LeaseRequest, frozen=True, kw_only=True):
    """Hold messages for `visibility_s` from now on."""

    visibility_s: float = 60.0


class NackRequest(LeaseRequest, frozen=True, kw_only=True):
    """Give messages back, or those from `first` to `upto`, to be delivered again after a delay."""

    first: int | None = None
    upto: int | None = None
    delay_s: float = 0.0
