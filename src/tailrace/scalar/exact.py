"""What compiled expressions call when their value is about to be stored: as `runtime`, but nothing is lost in silence.

A filter must never fail a write, so there what has no result is NULL. A statement that would store that NULL over a
value must not: here the same is an error, and the statement changes nothing. NULL still comes of NULL.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tailrace.errors import Invalid
from tailrace.scalar import runtime
from tailrace.tables.number import DIGITS_MAX

SHOWN_CHARACTERS_MAX: Final = 60
TRY: Final = "try_"  # before the name of a cast: that of TRY_CAST, which is NULL where CAST fails
EXACT: Final = "exact_"  # before the name of a check: the value must be of the kind, unless it is NULL

_TOO_LARGE: Final = f"the number would need more than {DIGITS_MAX} digits, or is out of range"
_TOO_LONG: Final = f"the text would be longer than {runtime.TEXT_CHARACTERS_MAX:,} characters"
_ZERO: Final = "a division by zero; write NULLIF(…, 0) to have NULL"


class NoResult(Invalid):
    """A value that is to be stored cannot be worked out."""

    code = "NO_RESULT"


def _shown(given: Any) -> str:
    found = repr(given) if isinstance(given, str | bytes) else str(runtime.text_of(given))
    return found if len(found) <= SHOWN_CHARACTERS_MAX else found[:SHOWN_CHARACTERS_MAX] + "…"


def _checked(name: str, why: Callable[..., str]) -> Callable[..., Any]:
    """The function of `runtime`, which fails where it has no result of arguments none of which is NULL."""
    lax = getattr(runtime, name)

    def checked(*arguments: Any) -> Any:
        found = lax(*arguments)
        if found is None and not any(argument is None for argument in arguments):
            raise NoResult(why(*arguments))
        return found

    return checked


def _cast(name: str, kind: str) -> Callable[..., Any]:
    return _checked(name, lambda given, *_: f"{_shown(given)} cannot be cast to {kind}; TRY_CAST makes NULL of it")


def _kind(name: str, kind: str) -> Callable[..., Any]:
    return _checked(name, lambda given: f"{_shown(given)} is not {kind}")


def _concatenated(*plains: Any) -> str:
    found = runtime.concatenated(*plains)
    if found is None:
        raise NoResult(_unjoined(*plains))
    return found


def _unjoined(*plains: Any) -> str:
    return "binary has no text to join; CAST it" if any(type(each) is bytes for each in plains) else _TOO_LONG


def _divided(a: Any, b: Any) -> str:
    return _ZERO if b == 0 else _TOO_LARGE


def _extreme(name: str) -> Callable[..., Any]:
    lax = getattr(runtime, name)

    def extreme(*plains: Any) -> Any:
        found = lax(*plains)
        if found is None and any(plain is not None for plain in plains):
            raise NoResult(f"{name} takes values of one kind that have an order")
        return found

    return extreme


_LARGE: Final = ("add", "subtract", "multiply", "settle", "rounded", "ceiling", "floor")
_KINDS: Final = {
    "as_number": "a number",
    "as_text": "a text",
    "as_boolean": "TRUE or FALSE",
    "as_blob": "binary",
}
_CASTS: Final = {
    "to_text": "TEXT",
    "to_number": "DECIMAL",
    "to_whole": "an integer of this size",
    "to_decimal": "a DECIMAL of so many digits",
    "to_double": "DOUBLE",
    "to_boolean": "BOOLEAN",
    "to_blob": "BLOB",
    "to_json": "JSON",
}

FUNCTIONS: Final[dict[str, Any]] = {
    **{name: _checked(name, lambda *_: _TOO_LARGE) for name in _LARGE},
    **{name: _checked(name, _divided) for name in ("divide", "divide_whole", "remainder")},
    **{f"{EXACT}{name}": _kind(name, kind) for name, kind in _KINDS.items()},
    **{name: _cast(name, kind) for name, kind in _CASTS.items()},
    **{f"{TRY}{name}": getattr(runtime, name) for name in _CASTS},
    "joined": _checked("joined", _unjoined),
    "concatenated": _concatenated,
    "replaced": _checked("replaced", lambda *_: _TOO_LONG),
    "substring": _checked("substring", lambda *_: "SUBSTR takes whole numbers"),
    "length": _checked("length", lambda given: f"{_shown(given)} has no length"),
    "greatest": _extreme("greatest"),
    "least": _extreme("least"),
}
