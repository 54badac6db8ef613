"""JSON mode: what is a message, what is refused, and that nothing accepted can spoil an array for its readers."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tailrace.errors import Invalid
from tailrace.streams import json_mode


def entry(body: bytes) -> bytes:
    """The entry, which must be what an array is made of: checked with a parser that is not ours."""
    made = json_mode.entry(body)
    json.loads(json_mode.array([made]))
    return made


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"1", b"1"),
        (b"null", b"null"),
        (b'"a"', b'"a"'),
        (b'{"a": [1, 2]}', b'{"a": [1, 2]}'),
        (b"[1]", b"1"),
        (b"[1, 2 ,3]", b"1, 2 ,3"),
        (b"[[1, 2], [3]]", b"[1, 2], [3]"),
        (b"[[]]", b"[]"),
        (b"[[[1]]]", b"[[1]]"),
        (b' \t\r\n {"a": 1} \n', b'{"a": 1}'),
        (b" \n[ 1 ,\n 2 ] \t", b"1 ,\n 2"),
        (b'{"a": 1, "a": 2}', b'{"a": 1, "a": 2}'),
        (b'"a,b]"', b'"a,b]"'),
        (b'["a,b", "]"]', b'"a,b", "]"'),
        (b"-0.5e+10", b"-0.5e+10"),
        (b"1E400", b"1E400"),
        (b"12345678901234567890123456789012345678901234567890", b"12345678901234567890123456789012345678901234567890"),
        ('"ä \U0001f600"'.encode(), '"ä \U0001f600"'.encode()),
        (b'"\\u00e4\\n\\/"', b'"\\u00e4\\n\\/"'),
        (b'"\xe2\x80\xa8"', b'"\xe2\x80\xa8"'),
    ],
)
def test_messages_are_kept_as_they_were_written(body: bytes, expected: bytes) -> None:
    assert entry(body) == expected


@pytest.mark.parametrize(
    "body",
    [
        b"", b" ", b"\n", b"{", b"}", b"[", b"]", b"[1", b"[1,]", b"[,1]", b"[1,,2]", b"[1 2]", b"1 2", b"1,2", b"{}{}",
        b'{"a"}', b'{"a":}', b'{"a":1,}', b"{a:1}", b"{'a':1}", b"{1:2}", b"nul", b"nullx", b"True", b"tru", b"None",
        b"undefined", b"NaN", b"[NaN]", b"-NaN", b"Infinity", b"-Infinity", b"01", b"+1", b".5", b"1.", b"1e", b"-",
        b"0x10", b"1_000", b'"', b'"a', b'"a\nb"', b'"\t"', b'"\x00"', b'"\\x"', b'"\\u12"', b'"\\', b"'a'", b"[1]]",
        b"[1]\x00", b"\x00", b"1\x00", b"// comment\n1", b"/* */1", b"1 // x", b'"\xff"', b'"\xc3"', b'"\xed\xa0\x80"',
        b"\xff\xfe1\x00", b"\xef\xbb\xbf1", b"\xef\xbb\xbf[1]", b"\xc2\xa01", b"\x0b1", b"[1\x0b]", b"{\"\xff\":1}",
    ],
)  # fmt: skip
def test_what_is_not_json_is_refused(body: bytes) -> None:
    with pytest.raises(Invalid, match="the body is not valid JSON") as refused:
        json_mode.entry(body)
    assert refused.value.code == "INVALID_JSON"
    with pytest.raises(Invalid):
        json_mode.initial(body)


@pytest.mark.parametrize("body", [b"[]", b" [ ] ", b"[\n]"])
def test_an_empty_array_is_nothing_to_append(body: bytes) -> None:
    with pytest.raises(Invalid, match="the array is empty") as refused:
        json_mode.entry(body)
    assert refused.value.code == "EMPTY_ARRAY"
    assert json_mode.initial(body) == b"", "but a stream may begin with it"


@pytest.mark.parametrize("shape", [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]")])
def test_deep_nesting_is_refused_and_never_crashes(shape: tuple[bytes, bytes]) -> None:
    opening, closing = shape
    for depth in (10, 100, 5_000, 100_000, 1_000_000):
        body = opening * depth + b"1" + closing * depth
        try:
            made = json_mode.entry(body)
        except Invalid as refused:
            assert refused.code == "INVALID_JSON"
            assert depth > 100
        else:
            assert depth < 5_000
            assert made


@pytest.mark.parametrize("shape", [(b"[", b"]"), (b'{"a":', b"}")])
def test_what_was_accepted_can_be_counted(shape: tuple[bytes, bytes]) -> None:
    """Nested as deeply as is accepted, and read back from a place deeper in the stack."""
    opening, closing = shape

    def accepted(depth: int) -> bytes | None:
        try:
            return json_mode.entry(opening * depth + b"1" + closing * depth)
        except Invalid:
            return None

    low, high = 1, 1_000_000
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if accepted(middle) is not None else (low, middle)
    deepest = accepted(low)
    assert deepest is not None

    def deeper(levels: int) -> Any:
        return deeper(levels - 1) if levels else json_mode.prefix(deepest, 1)

    assert deeper(50) == (deepest, 1)


def test_the_error_does_not_repeat_the_whole_body() -> None:
    with pytest.raises(Invalid) as refused:
        json_mode.entry(b"x" * 1_000_000)
    assert len(str(refused.value)) < 300


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.lists(_values, min_size=1, max_size=6), st.sampled_from([None, 1, "\t"]))
def test_an_array_is_its_elements(values: list[Any], indent: Any) -> None:
    body = json.dumps(values, indent=indent, ensure_ascii=False).encode("utf-8", "surrogatepass")
    try:
        body.decode()
    except UnicodeDecodeError:
        return
    assert json.loads(json_mode.array([entry(body)])) == values
    for count in range(len(values) + 1):
        part, whole = json_mode.prefix(entry(body), count)
        assert whole == len(values)
        assert json.loads(json_mode.array([part] if part else [])) == values[:count]


@given(_values.filter(lambda value: not isinstance(value, list)))
def test_a_value_is_one_message(value: Any) -> None:
    body = json.dumps(value).encode()
    try:
        made = entry(body)
    except Invalid:
        assert "\\ud" in json.dumps(value), "only a half of a surrogate pair is refused"
        return
    assert json.loads(json_mode.array([made])) == [value]


@given(st.lists(st.lists(_values, min_size=1, max_size=3), max_size=5))
def test_entries_in_one_array(appends: list[list[Any]]) -> None:
    try:
        entries = [entry(json.dumps(values).encode()) for values in appends]
    except Invalid:
        return
    assert json.loads(json_mode.array(entries)) == [value for values in appends for value in values]


@given(
    st.binary(max_size=60) | st.text(alphabet='[]{}",:0123456789.eE+-\\utrfalsn \t\n\x00', max_size=40).map(str.encode)
)
@example(b'"\\ud800"')
@example(b'["\\ud83d\\ude00"]')
def test_whatever_is_accepted_is_json_to_others_too(body: bytes) -> None:
    try:
        made = json_mode.entry(body)
    except Invalid:
        return
    read = json.loads(json_mode.array([made]))
    assert read
    original = json.loads(body)
    assert read == (original if isinstance(original, list) else [original])


def test_half_of_a_surrogate_pair_is_accepted_and_split_into_messages() -> None:
    body = json_mode.entry(b' [1, {"a": "\\ud83d"} ,[2]] ')
    assert body == b'1, {"a": "\\ud83d"} ,[2]'
    assert json_mode.messages(body) == [b"1", b'{"a": "\\ud83d"}', b"[2]"]
    assert json_mode.prefix(body, 2) == (b'1,{"a": "\\ud83d"}', 3)
    json_mode.check(body)


@pytest.mark.parametrize("body", [b'["\\ud83d", NaN]', b'{"a": "\\ud83d",}', b'"\\ud83d" 1', b'["\\ud8"]'])
def test_what_is_wrong_beside_it_stays_wrong(body: bytes) -> None:
    with pytest.raises(Invalid, match="not valid JSON"):
        json_mode.entry(body)


_TEXTS = ['"', "\\", "a,b", "[", "]}{", "\u00e9\n", "", '\\"', "x" * 300, "\n" * 300]


def _value(draw: random.Random, depth: int) -> Any:
    match draw.randrange(9):
        case 0 | 1:
            return draw.choice(_TEXTS) * draw.randrange(4)
        case 5 | 6 if depth < 4:
            return [_value(draw, depth + 1) for _ in range(draw.randrange(5))]
        case 7 | 8 if depth < 4:
            return {str(number): _value(draw, depth + 1) for number in range(draw.randrange(4))}
    return draw.choice([1, 0.5, None, True, -3, 10**20])


@pytest.mark.parametrize(("size", "tokens"), [(1, 4_096), (7, 3), (50, 2), (300, 4_096)])
def test_messages_are_found_wherever_an_entry_is_cut(size: int, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_mode, "_CUT_BYTES", size)
    monkeypatch.setattr(json_mode, "_CUT_TOKENS", tokens)
    for seed in range(400):
        draw = random.Random(seed)
        values = [_value(draw, 0) for _ in range(draw.randrange(1, 30))]
        made = [json.dumps(each, separators=draw.choice([(",", ":"), (" , ", " : ")])).encode() for each in values]
        entry = draw.choice([b",", b" ,\n"]).join(made)
        assert json_mode.messages(entry) == made
        count = draw.randrange(1, 32)
        first, whole = json_mode.prefix(entry, count)
        assert whole == len(made)
        assert json_mode.messages(first) == made[:count]


@pytest.mark.parametrize("message", [b'""', b"{}", b'{"a":[1,2]}', b'"\\ud83d"', b'["a,]",1]'])
def test_no_call_of_the_decoder_is_long(message: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds up all threads: a call for each 64 KiB and a message or so, not one for all of an entry."""
    sizes = []

    class Watched:
        def decode(self, text: bytes) -> Any:
            sizes.append(len(text))
            return decoder.decode(text)

    decoder = json_mode._ARRAY
    monkeypatch.setattr(json_mode, "_ARRAY", Watched())
    count = 1_000_000 // len(message)
    entry = b",".join([message] * count)
    assert len(json_mode.messages(entry)) == count
    assert json_mode.prefix(entry, count // 2)[1] == count
    assert max(sizes) < 256 * 1024
