"""The errors that callers see. Bugs of Tailrace itself are assertions.

Error
├── Invalid 400              the request is invalid
├── Unauthenticated 401      credentials are missing
│   └── WrongToken           credentials are wrong
├── Forbidden 403            the principal lacks a permission or a grant
│   └── StaleEpoch           a newer session of this producer exists
├── NotFound 404
│   └── TableNotFound
├── NotAllowed 405           the resource does not support the method
├── Conflict 409             a valid request, but not in the present state
│   ├── Closed               the stream is closed
│   ├── SequenceGap          an earlier request of this producer is missing
│   ├── Fenced               another holder took over
│   ├── AlreadyClaimed       another worker holds the lease
│   ├── InUse                the name is taken, or the object is busy
│   ├── ConditionFailed      the condition on the item is false
│   │   └── DuplicateItem    an INSERT found an item with its key
│   ├── TransactionCanceled  one of a transaction's conditions failed; carries a reason per action
│   ├── TransactionConflict  data that a transaction had read was changed before its commit; try again
│   └── TokenMismatch        a client request token was used for something else
├── Gone 410
│   ├── Trimmed              the position is no longer retained
│   └── IteratorExpired      a shard iterator is too old
├── TooLarge 413
├── WrongType 415            the content type of the body is not accepted
├── TooMany 429
│   ├── LimitExceeded        more tables, indexes or tags than a database may have
│   └── LoginThrottled       too many wrong passwords; carries how long to wait
├── ExtraMissing 501         the feature needs a package that is not installed
├── Unavailable 503          try again; nothing was written, or the outcome is unknown and a retry is safe
├── Damaged 500              a file in cold storage cannot be read; other requests are not affected
└── Corrupt 500              stops the writer

Each message says which value was wrong, and how to fix it. The status sits on the class; what a protocol adds
(headers, body shape) is in `http/errors.py` alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar


class Error(Exception):
    """The root. `code` is stable and machine-readable, the message is for people, and `facts` has further values for
    programs."""

    status: ClassVar[int] = 500
    code: str = "INTERNAL"
    facts: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, message: str, *, code: str | None = None, facts: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
        if facts is not None:
            self.facts = facts


class Invalid(Error):
    status = 400
    code = "INVALID_REQUEST"


class Unauthenticated(Error):
    status = 401
    code = "UNAUTHENTICATED"


class WrongToken(Unauthenticated):
    """The credentials are wrong."""

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


class TableNotFound(NotFound):
    code = "TABLE_NOT_FOUND"

    def __init__(self, name: str, message: str | None = None) -> None:
        super().__init__(message or f"there is no table {name!r}; create it, or list the tables")
        self.name = name


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
            f"producer sequence {received} leaves a gap, {expected} is expected; send the missing requests first"
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


class InUse(Conflict):
    code = "IN_USE"


class ConditionFailed(Conflict):
    code = "CONDITION_FAILED"
    reason = "ConditionalCheckFailed"  # that a transaction is cancelled for

    def __init__(self, item: Any = None, message: str = "The conditional request failed") -> None:
        super().__init__(message)
        self.item = item  # the stored item, if the caller requested it


class DuplicateItem(ConditionFailed):
    code = "DUPLICATE_ITEM"
    reason = "DuplicateItem"

    def __init__(self) -> None:
        super().__init__(message="Duplicate primary key exists in table")


class TransactionCanceled(Conflict):
    code = "TRANSACTION_CANCELED"

    def __init__(self, reasons: list[tuple[str, str | None, Any]]) -> None:
        codes = ", ".join(code for code, _, _ in reasons)
        super().__init__(
            f"Transaction cancelled, please refer cancellation reasons for specific reasons [{codes}]",
        )
        self.reasons = reasons  # per action: code, message, item


class TransactionConflict(Conflict):
    """Nothing was changed; run the whole transaction again."""

    code = "TRANSACTION_CONFLICT"


class TokenMismatch(Conflict):
    code = "TOKEN_MISMATCH"


class Gone(Error):
    status = 410
    code = "GONE"


class Trimmed(Gone):
    code = "OFFSET_TRIMMED"

    def __init__(self, *, requested: int, earliest: int, offset: str, noun: str = "position") -> None:
        message = f"{noun} {requested} is no longer retained; the earliest offset is {offset}"
        if noun == "sequence":  # the caller reads after a sequence, not at it
            message = (
                f"sequence {requested - 1} is no longer retained; the oldest is {earliest}: read after {earliest - 1} "
                "or from the beginning with after=None"
            )
        super().__init__(message)
        self.earliest = earliest
        self.offset = offset


class IteratorExpired(Gone):
    code = "ITERATOR_EXPIRED"


class TooLarge(Error):
    status = 413
    code = "TOO_LARGE"


class WrongType(Error):
    """The Content-Type of the body is missing or not accepted."""

    status = 415
    code = "WRONG_CONTENT_TYPE"


class TooMany(Error):
    status = 429
    code = "TOO_MANY"


class LimitExceeded(TooMany):
    code = "LIMIT_EXCEEDED"


class LoginThrottled(TooMany):
    code = "TOO_MANY_ATTEMPTS"

    def __init__(self, wait_s: float) -> None:
        self.retry_after_s = max(1, math.ceil(wait_s))
        super().__init__(f"too many attempts with wrong credentials; wait {self.retry_after_s} s and try again")


class ExtraMissing(Error):
    """The feature belongs to an extra (`tailrace.extras`) whose packages are not installed."""

    status = 501
    code = "EXTRA_MISSING"


class Unavailable(Error):
    status = 503
    code = "UNAVAILABLE"


class Damaged(Error):
    """A file in cold storage cannot be read. The database itself is not affected."""

    status = 500
    code = "COLD_DAMAGED"


class Corrupt(Error):
    status = 500
    code = "CORRUPT"
