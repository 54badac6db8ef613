"""The functions that compiled expressions call: loading values from items, comparisons, arithmetic, text.

The rule here: no function raises an error, whatever an item contains. An operation without a result (on a value of the
wrong kind, a division by zero, a result of more than 38 digits, a cast that does not fit) returns None, the SQL NULL.

A plain value is None, a bool, an int or a `Decimal` (a number is exact, never a float), a str, bytes, or a document: a
list, a dict, a set.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import (
    ROUND_CEILING,
    ROUND_FLOOR,
    ROUND_HALF_UP,
    Context,
    Decimal,
    DecimalException,
    DivisionByZero,
    Inexact,
    InvalidOperation,
    Overflow,
    Subnormal,
)
from typing import Any, Final, TypeAlias
from uuid import UUID

import msgspec

from tailrace.errors import Invalid
from tailrace.scalar.pattern import BadPattern, folded, matcher, raised
from tailrace.tables import value as values
from tailrace.tables.number import DIGITS_MAX, MAGNITUDE_MAX, MAGNITUDE_MIN, canonical, decimal_of
from tailrace.tables.value import Value

Number: TypeAlias = int | Decimal

EMPTY: Final[dict[str, Any]] = {}  # a missing row or attribute
_INT_MAX: Final = 10**DIGITS_MAX - 1  # the largest int with 38 digits
TEXT_CHARACTERS_MAX: Final = 1_048_576  # of a result of || or REPLACE; an item cannot hold more
_TRAPS: Final = [Overflow, Subnormal, InvalidOperation, DivisionByZero]
_EXACT: Final = Context(prec=DIGITS_MAX, traps=[*_TRAPS, Inexact], Emin=MAGNITUDE_MIN, Emax=MAGNITUDE_MAX)
_ROUNDED: Final = Context(prec=DIGITS_MAX, traps=_TRAPS, Emin=MAGNITUDE_MIN, Emax=MAGNITUDE_MAX)
_WIDE: Final = Context(prec=400, traps=_TRAPS)  # represents every number exactly
# The characters that TRIM removes by default: Unicode's space separators, neither tabs nor line ends.
_SPACES: Final = " \u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch
_UUID_CHARACTERS_MAX: Final = 64
_NUMBER: Final = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?").fullmatch
_NUMBER_CHARACTERS_MAX: Final = 200
_TRUE: Final = frozenset(("true", "t", "yes", "y", "1"))
_FALSE: Final = frozenset(("false", "f", "no", "n", "0"))


# -- from items


def load(value: Value) -> Any:
    """The plain value of a typed one; None if it is missing (empty)."""
    if not value:
        return None
    if "S" in value:
        return value["S"]
    text = value.get("N")
    if text is not None:
        return Decimal(text) if "." in text else int(text)
    return values.to_plain(value)


def number_of(text: str | None) -> Number | None:
    """The number of its canonical text."""
    if text is None:
        return None
    return Decimal(text) if "." in text else int(text)


def element(value: Value, index: int) -> Value:
    """An element of a list, counted from 0; EMPTY if it does not exist."""
    elements = value.get("L")
    if elements is None or index >= len(elements):
        return EMPTY
    found: Value = elements[index]
    return found


def as_number(plain: Any) -> Number | None:
    """The value if it is a number."""
    kind = type(plain)
    return plain if kind is int or kind is Decimal else None


def as_text(plain: Any) -> str | None:
    """The value if it is text."""
    return plain if type(plain) is str else None


def as_boolean(plain: Any) -> bool | None:
    """The value if it is a boolean."""
    return plain if plain is True or plain is False else None


def as_blob(plain: Any) -> bytes | None:
    """The value if it is binary."""
    return plain if type(plain) is bytes else None


def uuid_text(plain: Any) -> Any:
    """A text that is a UUID in the form in which a UUID column stores it; any other value as it is."""
    if type(plain) is not str or _UUID(plain) is not None or len(plain) > _UUID_CHARACTERS_MAX:
        return plain
    try:
        return str(UUID(plain))
    except ValueError:
        return plain


def number_in_text(plain: Any) -> Any:
    """The number that a text is; any other value as it is."""
    if type(plain) is not str or len(plain) > _NUMBER_CHARACTERS_MAX or _NUMBER(plain) is None:
        return plain
    try:
        return number_of(canonical(plain))
    except Invalid:  # too many digits
        return plain


def whole_in_text(plain: Any) -> Any:
    """The whole number that a text is; any other value as it is."""
    found = number_in_text(plain)
    return found if type(found) is int else plain


def compared_parameter(reads: Callable[[Any], Any], plain: Any, kind: str) -> Any:
    """A parameter that is compared with a column of this kind. Like `parameter`, it raises."""
    found = reads(plain)
    if type(found) is str and kind != "UUID":
        raise Invalid(
            f"cannot compare a {kind} column with the text {found[:60]!r}: their types differ; give a number",
            code="KIND_MISMATCH",
        )
    return found


def parameter(params: Any, index: int) -> Any:
    """A parameter as a plain value. This one does raise: who gives parameters can put them right."""
    if index >= len(params):
        raise Invalid(f"parameter {index + 1} is missing: {len(params)} were given")
    return plain_of(params[index])


def plain_of(given: Any) -> Any:
    """The plain value of a parameter: floats become exact numbers."""
    kind = type(given)
    if given is None or kind is bool or kind is bytes or (kind is str and given.isascii()):
        return given
    if kind is int:
        return given if -_INT_MAX <= given <= _INT_MAX else load(values.from_plain(given))
    return load(values.from_plain(exact(given)))


def exact(given: Any) -> Any:
    """The value with each float replaced by a `Decimal` of its shortest representation."""
    if isinstance(given, float):
        return Decimal(repr(float(given)))  # NaN and infinity are refused later
    if isinstance(given, list | tuple):
        return [exact(part) for part in given]
    if isinstance(given, dict):
        return {name: exact(part) for name, part in given.items()}
    return given


def settle(plain: Any) -> Any:
    """The final result of an expression: a whole number is an int, any other a Decimal without trailing zeros."""
    if type(plain) is not Decimal:
        return plain
    return _tidy(plain)


def _tidy(found: Decimal) -> Number | None:
    try:
        return number_of(canonical(str(found)))
    except Invalid:  # too many digits, or out of range
        return None


# -- comparing


def _group(plain: Any) -> type:
    """The group of types that can be compared with one another."""
    kind = type(plain)
    return int if kind is Decimal else kind


def equal(a: Any, b: Any) -> bool | None:
    """Whether two plain values are equal; unknown if one is NULL or their kinds differ."""
    if a is None or b is None:
        return None
    group = _group(a)
    if group is not _group(b):
        return None
    if group in (list, dict, set):
        # In Python True equals 1, also inside lists; typed values distinguish them.
        return _typed_equal(a, b)
    return bool(a == b)


def _typed_equal(a: Any, b: Any) -> bool:
    return values.equal(values.from_plain(a), values.from_plain(b))


def order(a: Any, b: Any) -> int | None:
    """Less than, equal to or greater than 0, as a compares to b; unknown if they cannot be ordered."""
    if a is None or b is None:
        return None
    group = _group(a)
    if group is not _group(b) or group in (list, dict, set):
        return None
    return 0 if a == b else -1 if a < b else 1


def equal_raw(a: Value, b: Value) -> bool | None:
    """Like `equal`, for the typed values of items."""
    if not a or not b or "NULL" in a or "NULL" in b:
        return None
    if a == b:
        return True
    if a.keys() != b.keys():
        return None
    return values.equal(a, b)


def same(a: Any, b: Any) -> bool:
    """IS NOT DISTINCT FROM: never unknown; two NULLs are the same, values of different kinds are not."""
    if a is None or b is None:
        return a is b
    return equal(a, b) is True


def same_raw(a: Value, b: Value) -> bool:
    """Like `same`, for typed values."""
    if a == b:
        return True
    if not a or "NULL" in a:
        return not b or "NULL" in b
    return bool(b) and values.equal(a, b)


def greatest(*plains: Any) -> Any:
    """The greatest of the values that are not NULL; NULL if they cannot be ordered."""
    found = None
    for plain in plains:
        if plain is None:
            continue
        if found is None:
            found = plain
        elif (ordered := order(found, plain)) is None:
            return None
        elif ordered < 0:
            found = plain
    return found


def least(*plains: Any) -> Any:
    """The least of the values that are not NULL; NULL if they cannot be ordered."""
    found = None
    for plain in plains:
        if plain is None:
            continue
        if found is None:
            found = plain
        elif (ordered := order(found, plain)) is None:
            return None
        elif ordered > 0:
            found = plain
    return found


def nullif(a: Any, b: Any) -> Any:
    """NULL if both are equal, else the first."""
    return None if equal(a, b) is True else a


# -- numbers


def add(a: Number | None, b: Number | None) -> Number | None:
    """The exact sum."""
    if a is None or b is None:
        return None
    if type(a) is int and type(b) is int and -_INT_MAX <= (result := a + b) <= _INT_MAX:
        return result
    return _calculated(_EXACT.add, a, b)


def subtract(a: Number | None, b: Number | None) -> Number | None:
    """The exact difference."""
    if a is None or b is None:
        return None
    if type(a) is int and type(b) is int and -_INT_MAX <= (result := a - b) <= _INT_MAX:
        return result
    return _calculated(_EXACT.subtract, a, b)


def multiply(a: Number | None, b: Number | None) -> Number | None:
    """The exact product."""
    if a is None or b is None:
        return None
    if type(a) is int and type(b) is int and -_INT_MAX <= (result := a * b) <= _INT_MAX:
        return result
    return _calculated(_EXACT.multiply, a, b)


def divide(a: Number | None, b: Number | None) -> Number | None:
    """The quotient, rounded to 38 digits."""
    if a is None or b is None or b == 0:
        return None
    if type(a) is int and type(b) is int and a % b == 0:
        return a // b
    return _calculated(_ROUNDED.divide, a, b)


def divide_whole(a: Number | None, b: Number | None) -> Number | None:
    """The quotient without its fraction."""
    if a is None or b is None or b == 0:
        return None
    if type(a) is int and type(b) is int:
        quotient = abs(a) // abs(b)
        return quotient if (a < 0) == (b < 0) else -quotient
    return _calculated(_WIDE.divide_int, a, b)


def remainder(a: Number | None, b: Number | None) -> Number | None:
    """The remainder of a division, with the sign of the dividend."""
    if a is None or b is None or b == 0:
        return None
    if type(a) is int and type(b) is int:
        rest = abs(a) % abs(b)
        return -rest if a < 0 else rest
    return _calculated(_WIDE.remainder, a, b)


def _calculated(operation: Any, a: Number, b: Number) -> Number | None:
    try:
        return _tidy(operation(Decimal(a), Decimal(b)))
    except DecimalException:
        return None


def negate(a: Number | None) -> Number | None:
    """The number with the other sign."""
    if a is None:
        return None
    return -a if type(a) is int else a.copy_negate() if isinstance(a, Decimal) else None


def absolute(a: Number | None) -> Number | None:
    """The number without its sign."""
    if a is None:
        return None
    return a.copy_abs() if isinstance(a, Decimal) else abs(a)


def rounded(a: Number | None, places: Number | None = 0) -> Number | None:
    """The number rounded to `places` decimal places, half away from zero; negative places round before the point."""
    return _quantized(a, places, ROUND_HALF_UP)


def ceiling(a: Number | None) -> Number | None:
    """The least whole number that is not less."""
    return _quantized(a, 0, ROUND_CEILING)


def floor(a: Number | None) -> Number | None:
    """The greatest whole number that is not greater."""
    return _quantized(a, 0, ROUND_FLOOR)


def _quantized(a: Number | None, places: Number | None, rounding: str) -> Number | None:
    if a is None or places is None or places != int(places):
        return None
    if type(a) is int and places >= 0:
        return a
    if not -MAGNITUDE_MAX - 1 <= places <= -MAGNITUDE_MIN:
        return a if places > 0 else 0
    try:
        return _tidy(Decimal(a).quantize(Decimal((0, (1,), -int(places))), rounding, _WIDE))
    except DecimalException:
        return None


# -- text


def text_of(plain: Any) -> str | None:
    """The text of a value: canonical for a number, true or false, JSON for a document; None for binary."""
    if type(plain) is str:
        return plain
    if plain is True or plain is False:
        return "true" if plain else "false"
    if type(plain) is int or type(plain) is Decimal:
        try:
            return canonical(str(plain))
        except Invalid:
            return None
    if plain is None or type(plain) is bytes:
        return None
    return json_of(plain).decode()


def json_of(plain: Any) -> bytes:
    """Compact JSON with sorted names; numbers have all their digits, binary is base64, a set is a sorted list."""
    return msgspec.json.encode(values.to_json(values.from_plain(plain)), order="sorted")


def joined(*plains: Any) -> str | bytes | None:
    """a || b || …: binary if all are binary, else text; NULL if one of them is NULL."""
    if None in plains:
        return None
    if all(type(plain) is bytes for plain in plains):
        return b"".join(plains) if sum(map(len, plains)) <= TEXT_CHARACTERS_MAX else None
    return concatenated(*plains)


def concatenated(*plains: Any) -> str | None:
    """CONCAT: the texts of the values that are not NULL."""
    texts = [text_of(plain) for plain in plains if plain is not None]
    if None in texts or sum(len(text or "") for text in texts) > TEXT_CHARACTERS_MAX:
        return None
    return "".join(text or "" for text in texts)


def lower(text: str | None) -> str | None:
    """The text in lower case."""
    return None if text is None else folded(text)


def upper(text: str | None) -> str | None:
    """The text in upper case."""
    return None if text is None else raised(text)


def length(plain: Any) -> int | None:
    """Characters of a text, bytes of a binary, elements of a list."""
    return len(plain) if type(plain) in (str, bytes, list) else None


def starts_with(text: str | None, prefix: str | None) -> bool | None:
    """Whether the text begins with the prefix."""
    return None if text is None or prefix is None else text.startswith(prefix)


def ends_with(text: str | None, suffix: str | None) -> bool | None:
    """Whether the text ends with the suffix."""
    return None if text is None or suffix is None else text.endswith(suffix)


def contains(text: str | None, part: str | None) -> bool | None:
    """Whether the text contains the part."""
    return None if text is None or part is None else part in text


def replaced(text: str | None, part: str | None, by: str | None) -> str | None:
    """The text with each occurrence of a part replaced; an empty part occurs nowhere."""
    if text is None or part is None or by is None:
        return None
    if not part:
        return text
    if len(by) > len(part) and len(text) + text.count(part) * (len(by) - len(part)) > TEXT_CHARACTERS_MAX:
        return None
    return text.replace(part, by)


def trimmed(text: str | None, characters: str | None = _SPACES) -> str | None:
    """The text without these characters at both ends."""
    return None if text is None or characters is None else text.strip(characters) if characters else text


def trimmed_left(text: str | None, characters: str | None = _SPACES) -> str | None:
    """The text without these characters at its beginning."""
    return None if text is None or characters is None else text.lstrip(characters) if characters else text


def trimmed_right(text: str | None, characters: str | None = _SPACES) -> str | None:
    """The text without these characters at its end."""
    return None if text is None or characters is None else text.rstrip(characters) if characters else text


def substring(text: str | None, start: Number | None, count: Number | None = _INT_MAX) -> str | None:
    """`count` characters from position `start`; 1 is the first character, -1 the last. A negative count takes the
    characters before."""
    if text is None or start is None or count is None or start != int(start) or count != int(count):
        return None
    first, size = int(start), int(count)
    # A start before the beginning, including 0, counts characters that do not exist.
    begin = first - 1 if first > 0 else len(text) + first if first < 0 else -1
    begin, end = (begin, begin + size) if size >= 0 else (begin + size, begin)
    return text[max(begin, 0) : max(end, 0)]


def like(text: str | None, wanted: str | None, escape: str | None, fold: bool) -> bool | None:
    """LIKE with a pattern that is not constant; an invalid pattern is unknown."""
    if text is None or wanted is None:
        return None
    try:
        return matcher(wanted, escape, fold)(text)
    except BadPattern:
        return None


# -- casts


def to_text(plain: Any) -> str | None:
    """CAST AS TEXT."""
    if type(plain) is bytes:
        try:
            return plain.decode()
        except UnicodeDecodeError:
            return None
    return text_of(plain)


def to_number(plain: Any) -> Number | None:
    """CAST AS DECIMAL: parses a text; a boolean is 1 or 0."""
    if type(plain) is str:
        if len(plain) > 512:
            return None
        try:
            return number_of(canonical(plain.strip(" \t\n\r\v\f")))
        except Invalid:
            return None
    if plain is True or plain is False:
        return int(plain)
    return as_number(plain)


def to_whole(plain: Any, bits: int) -> int | None:
    """CAST AS an integer type: rounded, half away from zero; NULL if it does not fit."""
    found = rounded(to_number(plain))
    if found is None or not -(1 << bits - 1) <= found < 1 << bits - 1:
        return None
    return int(found)


def to_decimal(plain: Any, digits: int, places: int) -> Number | None:
    """CAST AS DECIMAL(digits, places): rounded, half away from zero; NULL if it does not fit."""
    found = rounded(to_number(plain), places)
    return None if found is None or abs(found) >= 10 ** (digits - places) else found


def to_double(plain: Any) -> Number | None:
    """CAST AS DOUBLE: the nearest double, as its shortest decimal representation."""
    found = to_number(plain)
    return None if found is None else _tidy(Decimal(repr(float(found))))


def to_boolean(plain: Any) -> bool | None:
    """CAST AS BOOLEAN: parses a text; a number is true unless it is 0."""
    if type(plain) is str:
        word = plain.lower()
        return True if word in _TRUE else False if word in _FALSE else None
    if type(plain) is int or type(plain) is Decimal:
        return plain != 0
    return as_boolean(plain)


def to_blob(plain: Any) -> bytes | None:
    """CAST AS BLOB: a text's UTF-8."""
    return plain.encode() if type(plain) is str else as_blob(plain)


def to_json(plain: Any) -> Any:
    """CAST AS JSON: parses a text; any other value stays as it is."""
    if type(plain) is not str:
        return plain
    try:
        return read_json(plain)
    except Invalid:
        return None


def read_json(text: str) -> Any:
    """The value of a JSON text, with exact numbers; raises Invalid if it is not JSON or cannot be stored in an item."""
    try:
        decoded = _json.decode(text)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise Invalid(f"{text[:80]!r} is not JSON: {error}") from None
    return load(values.from_plain(exact(decoded)))


_json: Final = msgspec.json.Decoder(float_hook=decimal_of)
