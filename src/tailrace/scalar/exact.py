"""The functions that compiled expressions call when their value is about to be stored: `runtime` with errors.

A filter must never make a write fail, so in `runtime` an operation without a result is NULL. A statement must not store
that NULL over a value: here the same operation is an error, and the statement changes nothing. The result for NULL
arguments is still NULL.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tailrace.errors import Invalid
from tailrace.scalar import moments, runtime
from tailrace.tables.number import DIGITS_MAX

SHOWN_CHARACTERS_MAX: Final = 60
TRY: Final = "try_"  # the prefix of the casts of TRY_CAST, which returns NULL where CAST fails
EXACT: Final = "exact_"  # the prefix of checks: the value must be of the kind, or NULL

_MOMENTS: Final = {"to_moment": "TIMESTAMP", "to_day": "DATE"}
_TOO_LARGE: Final = f"the number would need more than {DIGITS_MAX} digits, or is out of range"
_TOO_LONG: Final = f"the text would be longer than {runtime.TEXT_CHARACTERS_MAX:,} characters"
_ZERO: Final = "division by zero; write NULLIF(…, 0) to get NULL instead"


class NoResult(Invalid):
    """A value that is about to be stored cannot be computed."""

    code = "NO_RESULT"


def _shown(given: Any) -> str:
    text = repr(given) if isinstance(given, str | bytes) else str(runtime.text_of(given))
    return text if len(text) <= SHOWN_CHARACTERS_MAX else text[:SHOWN_CHARACTERS_MAX] + "…"


def _checked(name: str, why: Callable[..., str]) -> Callable[..., Any]:
    """A function of `runtime` that raises an error if it has no result although no argument is NULL."""
    lax = moments.FUNCTIONS[name] if name in _MOMENTS else getattr(runtime, name)

    def checked(*arguments: Any) -> Any:
        result = lax(*arguments)
        if result is None and not any(argument is None for argument in arguments):
            raise NoResult(why(*arguments))
        return result

    return checked


def _cast(name: str, kind: str) -> Callable[..., Any]:
    return _checked(name, lambda given, *_: f"{_shown(given)} cannot be cast to {kind}; TRY_CAST returns NULL instead")


def _kind(name: str, kind: str) -> Callable[..., Any]:
    return _checked(name, lambda given: f"{_shown(given)} is not {kind}")


def _concatenated(*plains: Any) -> str:
    text = runtime.concatenated(*plains)
    if text is None:
        raise NoResult(_unjoined(*plains))
    return text


def _unjoined(*plains: Any) -> str:
    binary = any(type(each) is bytes for each in plains)
    return "a binary value cannot be concatenated with text; CAST it" if binary else _TOO_LONG


def _divided(a: Any, b: Any) -> str:
    return _ZERO if b == 0 else _TOO_LARGE


def _extreme(name: str) -> Callable[..., Any]:
    lax = getattr(runtime, name)

    def extreme(*plains: Any) -> Any:
        result = lax(*plains)
        if result is None and any(plain is not None for plain in plains):
            raise NoResult(f"{name} requires values of one type that can be ordered")
        return result

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
    "to_decimal": "a DECIMAL with this number of digits",
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
    **{name: _cast(name, kind) for name, kind in _MOMENTS.items()},
    **{f"{TRY}{name}": moments.FUNCTIONS[name] for name in _MOMENTS},
    "joined": _checked("joined", _unjoined),
    "concatenated": _concatenated,
    "replaced": _checked("replaced", lambda *_: _TOO_LONG),
    "substring": _checked("substring", lambda *_: "SUBSTR requires whole numbers"),
    "length": _checked("length", lambda given: f"{_shown(given)} has no length"),
    "greatest": _extreme("greatest"),
    "least": _extreme("least"),
}
