from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import Invalid
from tailrace.tables import messages, number


def _text(sign: str, digits: int, exponent: int) -> str:
    return f"{sign}{digits}E{exponent - len(str(digits)) + 1}"


# Every number there is: up to 38 digits, the first of them at a power of ten from -130 to 125; and small ones, which
# meet one another more often.
numbers = st.one_of(
    st.builds(_text, st.sampled_from(["", "-"]), st.integers(1, 10**38 - 1), st.integers(-130, 125)),
    st.integers(-2000, 2000).map(str),
    st.decimals(-20, 20, places=3).map(str),
).map(number.canonical)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("0", "0"),
        ("-0", "0"),
        ("0.000", "0"),
        ("0e125", "0"),
        ("0.0e126", "0"),
        ("+3", "3"),
        ("00042", "42"),
        ("1.0", "1"),
        ("1.", "1"),
        (".123", "0.123"),
        ("-.5", "-0.5"),
        ("0042.1200", "42.12"),
        ("1.5E2", "150"),
        ("-17e5", "-1700000"),
        ("1e+5", "100000"),
        ("1e-3", "0.001"),
        ("123e-2", "1.23"),
        ("1e00000000000000000000000000005", "100000"),
        ("1E125", "1" + "0" * 125),
        ("1e-130", "0." + "0" * 129 + "1"),
        ("0.1e126", "1" + "0" * 125),
        ("12345678901234567890123456789012345678", "12345678901234567890123456789012345678"),
        ("1" * 38 + "0" * 10, "1" * 38 + "0" * 10),
        ("9.9999999999999999999999999999999999999E+125", "9" * 38 + "0" * 88),
    ],
)
def test_a_number_has_one_text(text: str, canonical: str) -> None:
    assert number.canonical(text) == canonical
    assert number.canonical(canonical) == canonical


@pytest.mark.parametrize(
    "text",
    [
        "abc",
        "1.2.3",
        " 1",
        "1 ",
        "1\n",
        "0x10",
        "1e",
        "e5",
        ".",
        "-",
        "+",
        "NaN",
        "Infinity",
        "-Infinity",
        "1_000",
        "١٢",
        "²",
    ],
)
def test_what_is_no_number(text: str) -> None:
    with pytest.raises(Invalid) as caught:
        number.canonical(text)
    assert str(caught.value) == f"The parameter cannot be converted to a numeric value: {text}"


def test_an_empty_text_is_no_number() -> None:
    with pytest.raises(Invalid) as caught:
        number.canonical("")
    assert str(caught.value) == "The parameter cannot be converted to a numeric value"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1e126", messages.NUMBER_OVERFLOW),
        ("-1e126", messages.NUMBER_OVERFLOW),
        ("11e125", messages.NUMBER_OVERFLOW),
        ("1" + "0" * 126, messages.NUMBER_OVERFLOW),
        ("1e2147483648", messages.NUMBER_OVERFLOW),
        ("1e99999999999", messages.NUMBER_OVERFLOW),
        ("0e126", messages.NUMBER_OVERFLOW),
        ("1e-131", messages.NUMBER_UNDERFLOW),
        ("-0.9e-130", messages.NUMBER_UNDERFLOW),
        ("1e-99999999999", messages.NUMBER_UNDERFLOW),
        ("0e-131", messages.NUMBER_UNDERFLOW),
        ("1e9223372036854775808", "The parameter cannot be converted to a numeric value: 1e9223372036854775808"),
        ("1e" + "9" * 5000, "The parameter cannot be converted to a numeric value: 1e" + "9" * 5000),
        ("1" * 39, messages.NUMBER_TOO_PRECISE),
        ("-1.23456789012345678901234567890123456789", messages.NUMBER_TOO_PRECISE),
    ],
)
def test_what_is_out_of_range(text: str, message: str) -> None:
    with pytest.raises(Invalid) as caught:
        number.canonical(text)
    assert str(caught.value) == message


@given(numbers)
@settings(max_examples=100)
def test_a_canonical_text_is_the_same_number(text: str) -> None:
    assert number.canonical(text) == text
    assert number.canonical(str(Decimal(text))) == text
    assert "E" not in text


@given(numbers, numbers)
@settings(max_examples=300)
def test_the_bytes_are_in_the_order_of_numbers(a: str, b: str) -> None:
    left, right = Decimal(a), Decimal(b)
    x, y = number.ordered(a), number.ordered(b)
    assert (x < y) == (left < right)
    assert (x == y) == (left == right) == (number.hashed(a) == number.hashed(b))
    assert a == b or not x.startswith(y)
    assert number.compare(a, b) == (left > right) - (left < right)


@given(st.integers(-3000, 3000), st.integers(-3000, 3000), st.integers(0, 4))
@settings(max_examples=300)
def test_the_bytes_are_in_the_order_of_numbers_that_are_near(a: int, b: int, places: int) -> None:
    x, y = (number.ordered(number.canonical(f"{n}e-{places}")) for n in (a, b))
    assert (x < y) == (a < b)
    assert a == b or not x.startswith(y)


# Measured against the service, at the limit of an item's size.
@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 1),
        ("-0", 1),
        ("1", 2),
        ("12", 2),
        ("123", 3),
        ("1234", 3),
        ("12345678901234567890123456789012345678", 20),
        ("100", 2),
        ("1010", 3),
        ("0.0000001", 2),
        ("1E125", 2),
        ("1E-100", 2),
        ("1.5", 3),
        ("1.234", 4),
        ("3.14159", 5),
        ("123456", 4),
        ("100.5", 4),
        ("0.15", 2),
        ("-42", 3),
    ],
)
def test_the_size_of_a_number(text: str, size: int) -> None:
    assert number.measure(text) == (number.canonical(text), size)
    assert number.measure_long(text) == (number.canonical(text), size)


@given(st.integers(-(10**20), 10**20), st.integers(-(10**20), 10**20), st.integers(0, 9))
@settings(max_examples=100)
def test_arithmetic_is_exact(a: int, b: int, places: int) -> None:
    x, y = number.canonical(f"{a}e-{places}"), number.canonical(f"{b}e-{places}")
    assert number.add(x, y) == number.canonical(f"{a + b}e-{places}")
    assert number.subtract(x, y) == number.canonical(f"{a - b}e-{places}")


def test_a_difference_of_tiny_numbers_is_zero() -> None:
    tiny = number.canonical("1.2345678901234567890123456789012345678e-130")
    assert number.subtract(tiny, tiny) == "0"


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ("9e125", "9e125", messages.NUMBER_OVERFLOW),
        ("1e50", "1", messages.NUMBER_OVERFLOW),  # needs 51 digits, and the service calls that an overflow too
        ("1.1e-130", "-1e-130", messages.NUMBER_UNDERFLOW),
    ],
)
def test_a_sum_out_of_range(a: str, b: str, message: str) -> None:
    with pytest.raises(Invalid) as caught:
        number.add(number.canonical(a), number.canonical(b))
    assert str(caught.value) == message


def test_the_greatest_sum() -> None:
    assert number.add(number.canonical("9e125"), number.canonical("9e124")) == number.canonical("9.9e125")
    assert number.subtract("10000000000000000000000", "1") == "9999999999999999999999"
