"""Numbers: decimal, 38 significant digits, magnitudes from 1E-130 to 9.99E+125, never a float.

A number is stored as its *canonical text*: plain decimal notation, no exponent, no needless zero, so that equal numbers
are equal texts. `ordered` gives bytes whose order is the order of the numbers. They are a base-100 floating-point form:
a byte of sign and exponent, then a byte per pair of digits (1 to 100, so that 0 can end them); of a negative number
every byte is inverted. The service hashes the same form without its end to place an item.
"""

from __future__ import annotations

import re
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import lru_cache
from typing import Final

from tailrace.errors import Invalid
from tailrace.tables import messages

DIGITS_MAX: Final = 38
MAGNITUDE_MAX: Final = 125  # the power of ten of the first digit
MAGNITUDE_MIN: Final = -130
EXPONENT_MAX: Final = 2**63 - 1  # beyond it, a text is not read as a number at all
CACHED_CHARACTERS_MAX: Final = 48  # of a text for the cached `measure`, whose memory is bounded by this

# No digit can follow digits, so a wrong text is refused in linear time.
_NUMBER: Final = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?)([0-9]+))?")
_EXACT: Final = Context(prec=DIGITS_MAX, traps=[Inexact])

_EXPONENT_DIGITS: Final = len(str(EXPONENT_MAX))

# From two decimal digits as one byte of BCD to the byte of a pair.
_PAIR: Final = bytes((b >> 4) * 10 + (b & 15) + 1 if (b >> 4) < 10 and (b & 15) < 10 else 0 for b in range(256))
_PAIR_NEGATIVE: Final = bytes(102 - b if b else 0 for b in _PAIR)
_PAIRS_MAX: Final = 20
_END: Final = b"\x00"
_END_NEGATIVE: Final = b"\x66"  # above every pair of a negative number


def decimal_of(text: str) -> Decimal:
    """The number in a JSON text, for decoders: an exponent that no Decimal has is a `ValueError`, which they report."""
    try:
        return Decimal(text)
    except InvalidOperation:
        raise ValueError(f"{text[:40]} is out of range") from None


def canonical(text: str) -> str:
    """The canonical text of a number; raises the service's error if it is not a number, or out of range."""
    if text.isdigit() and text.isascii() and len(text) <= DIGITS_MAX and (text[0] != "0" or len(text) == 1):
        return text
    return _canonical(text)


def _canonical(text: str) -> str:
    found = _NUMBER.fullmatch(text)
    if found is None:
        raise _not_a_number(text)
    sign, whole, fraction, exponent_sign, exponent = found.groups()
    whole = whole or ""
    fraction = fraction or ""
    if not whole and not fraction:
        raise _not_a_number(text)
    point = len(whole)
    digits = whole + fraction
    if exponent is not None:
        exponent = exponent.lstrip("0") or "0"
        if len(exponent) > _EXPONENT_DIGITS or int(exponent) > EXPONENT_MAX:
            raise _not_a_number(text)
        point += -int(exponent) if exponent_sign == "-" else int(exponent)
    # Of a zero the last digit counts: 0e126 is out of range, though 0 is not.
    significant = digits.lstrip("0") or "0"
    point -= len(digits) - len(significant)
    if point - 1 > MAGNITUDE_MAX:
        raise Invalid(messages.NUMBER_OVERFLOW)
    if point - 1 < MAGNITUDE_MIN:
        raise Invalid(messages.NUMBER_UNDERFLOW)
    significant = significant.rstrip("0")
    if not significant:
        return "0"
    if len(significant) > DIGITS_MAX:
        raise Invalid(messages.NUMBER_TOO_PRECISE)
    if point <= 0:
        plain = "0." + "0" * -point + significant
    elif point >= len(significant):
        plain = significant + "0" * (point - len(significant))
    else:
        plain = significant[:point] + "." + significant[point:]
    return "-" + plain if sign == "-" else plain


def _not_a_number(text: str) -> Invalid:
    return Invalid(f"{messages.NOT_A_NUMBER}: {text}" if text else messages.NOT_A_NUMBER)


def _pairs(text: str) -> tuple[bool, int, str]:
    """Of a canonical number other than 0: is it negative, the power of 100, and an even count of digits."""
    negative = text[0] == "-"
    if negative:
        text = text[1:]
    whole, _, fraction = text.partition(".")
    if whole == "0":
        digits = fraction.lstrip("0")
        point = len(digits) - len(fraction)
    else:
        digits = whole + fraction if fraction else whole.rstrip("0")
        point = len(whole)
    if point & 1:
        digits = "0" + digits
        point += 1
    if len(digits) & 1:
        digits += "0"
    return negative, point >> 1, digits


def ordered(text: str) -> bytes:
    """Bytes in the order of numbers, of a canonical number; no number's bytes begin another's."""
    if text == "0":
        return b"\x80\x00"
    negative, power, digits = _pairs(text)
    if not negative:
        return bytes((power + 192,)) + bytes.fromhex(digits).translate(_PAIR) + _END
    return hashed(text)


def hashed(text: str) -> bytes:
    """The bytes that the service hashes for a canonical number; unique, but one may be a prefix of another."""
    if text == "0":
        return b"\x80"
    negative, power, digits = _pairs(text)
    if not negative:
        return bytes((power + 192,)) + bytes.fromhex(digits).translate(_PAIR)
    pairs = bytes.fromhex(digits).translate(_PAIR_NEGATIVE)
    return bytes((63 - power,)) + pairs + (_END_NEGATIVE if len(pairs) < _PAIRS_MAX else b"")


@lru_cache(maxsize=8192)
def size(text: str) -> int:
    """How many bytes of an item a canonical number counts for: one per pair of digits, and one or two more."""
    if text == "0":
        return 1
    negative, _, digits = _pairs(text)
    return 1 + (len(digits) >> 1) + negative


def measure_long(text: str) -> tuple[str, int]:
    """A number's canonical text and its size."""
    plain = canonical(text)
    return plain, size(plain)


# The same numbers come again and again: counters, states, prices. Only for texts of up to CACHED_CHARACTERS_MAX.
measure = lru_cache(maxsize=8192)(measure_long)


def add(a: str, b: str) -> str:
    """The sum of canonical numbers; more than 38 digits are an overflow, as in the service."""
    return _exact(Decimal(a), Decimal(b))


def subtract(a: str, b: str) -> str:
    """The difference of canonical numbers, with the bounds of `add`."""
    return _exact(Decimal(a), Decimal(b).copy_negate())


def _exact(a: Decimal, b: Decimal) -> str:
    try:
        result = _EXACT.add(a, b)
    except Inexact:
        raise Invalid(messages.NUMBER_OVERFLOW) from None
    return canonical(str(result)) if result else "0"


def compare(a: str, b: str) -> int:
    """Below 0, 0 or above 0, as canonical `a` is less than, equal to or greater than `b`."""
    if a == b:
        return 0
    return -1 if Decimal(a) < Decimal(b) else 1
