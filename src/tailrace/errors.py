"""What can go wrong in the world, as opposed to our bugs (those are assertions).

Error
├── Invalid 400              the request is wrong in itself
├── Unauthenticated 401      who are you
│   └── WrongToken           not who you say
├── Forbidden 403            you may not
│   └── StaleEpoch           a newer session of this producer exists
├── NotFound 404
├── NotAllowed 405           this resource does not take that method
├── Conflict 409             right in itself, but not now
│   ├── Closed               the stream takes no more
│   ├── SequenceGap          an earlier request of this producer is missing
│   ├── Fenced               another holder took over
│   └── AlreadyClaimed       another worker holds the lease
├── Gone 410
│   └── Trimmed              the position is below what is retained
├── TooLarge 413
├── TooMany 429
├── Unavailable 503          try again; nothing was written, or the outcome is unknown and a retry is safe
└── Corrupt 500              stops the writer

Each says what was wrong with which value and how to put it right. The status sits on the class; what a
protocol adds (headers, body shape) lives in `http/errors.py` alone.
"""

from __future__ import annotations

from typing import ClassVar


class Error(Exception):
    """The root. `code` is stable and machine-readable; the message is for people."""

    status: ClassVar[int] = 500
    code: str = "INTERNAL"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code


class Invalid(Error):
    status = 400
    code = "INVALID_REQUEST"


class Unauthenticated(Error):
    status = 401
    code = "UNAUTHENTICATED"


class WrongToken(Unauthenticated):
    """Credentials were sent, but not the right ones."""

    code = "WRONG_TOKEN"


class Forbidden(Error):
    status = 403
    code = "FORBIDDEN"


class StaleEpoch(Forbidden):
    code = "STALE_EPOCH"

    def __init__(self, *, current: int, received: int) -> None:
        super().__init__(
            f"producer epoch {received} is stale, the current one is {current}; restart with epoch {current + 1}"
        )
        self.current = current


class NotFound(Error):
    status = 404
    code = "NOT_FOUND"


class NotAllowed(Error):
    status = 405
    code = "METHOD_NOT_ALLOWED"

    def __init__(self, message: str, *, allow: str) -> None:
        super().__init__(message)
        self.allow = allow


class Conflict(Error):
    status = 409
    code = "CONFLICT"


class Closed(Conflict):
    code = "STREAM_CLOSED"

    def __init__(self, *, path: str, tail: int) -> None:
        super().__init__(f"stream {path!r} is closed and takes no more appends; create a new stream")
        self.tail = tail


class SequenceGap(Conflict):
    code = "SEQUENCE_GAP"

    def __init__(self, *, expected: int, received: int) -> None:
        super().__init__(
            f"producer sequence {received} leaves a gap, {expected} is expected; send what is missing first"
        )
        self.expected = expected
        self.received = received


class Fenced(Conflict):
    code = "FENCED"


class AlreadyClaimed(Conflict):
    code = "ALREADY_CLAIMED"

    def __init__(self, *, holder: str, generation: int) -> None:
        super().__init__(f"worker {holder!r} holds the lease; wait for the next wake event")
        self.holder = holder
        self.generation = generation


class Gone(Error):
    status = 410
    code = "GONE"


class Trimmed(Gone):
    code = "OFFSET_TRIMMED"

    def __init__(self, *, requested: int, earliest: int, offset: str) -> None:
        super().__init__(f"position {requested} is no longer retained; the earliest offset is {offset}")
        self.earliest = earliest
        self.offset = offset


class TooLarge(Error):
    status = 413
    code = "TOO_LARGE"


class TooMany(Error):
    status = 429
    code = "TOO_MANY"


class Unavailable(Error):
    status = 503
    code = "UNAVAILABLE"


class Corrupt(Error):
    status = 500
    code = "CORRUPT"
