"""Typed values and items: reading them off the wire, their size, equality and order, and their plain Python form.

A value is a dict of one entry, type to content: `{"S": "x"}`, `{"N": "12.5"}` (canonical text), `{"B": b"raw"}`, and so
on; an item is a dict of values. Values are not changed after they were read.

There are two readers. The fast one reads well-formed items and gives up at the first irregularity. The thorough one
then reads the same item again, to raise the service's error, or to accept unusual forms that the service accepts too.
It has two stages, as the service has. The first checks the JSON alone: a string where a string is required, base64
where bytes are; it raises SerializationExceptions, and drops nulls and unknown types. The second checks the values and
raises ValidationExceptions.
"""

from __future__ import annotations

from base64 import b64encode
from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from decimal import Decimal
from hashlib import sha256
from typing import Any, Final, TypeAlias
from zlib import adler32

import msgspec

from tailrace.errors import Invalid
from tailrace.tables import messages, number
from tailrace.tables.messages import INVALID, malformed
from tailrace.tables.number import CACHED_CHARACTERS_MAX, canonical, measure

Value: TypeAlias = dict[str, Any]
Item: TypeAlias = dict[str, Value]

NAME_BYTES_MAX: Final = 65_535
DEPTH_MAX: Final = 31  # nested lists and maps; the contents of the innermost are level 32
_VALUE_CLASS: Final = "com.amazonaws.dynamodb.v20120810.AttributeValue"
_VALUE_MAP: Final = f"java.util.Map<java.lang.String, {_VALUE_CLASS}>"
_STRUCTURE: Final = "Start of structure or map found where not expected"
_TRUE: Final = frozenset(("TRUE", "1", "YES"))
_FALSE: Final = frozenset(("FALSE", "0", "NO"))
_SETS: Final = frozenset(("SS", "NS", "BS"))
_INT_DIGITS_MAX: Final = 18  # what surely fits in 64 bits
_INT_MAX: Final = 10**_INT_DIGITS_MAX  # up to here, the canonical text of an int is its own

encode = msgspec.msgpack.Encoder().encode
_encode_ordered: Final = msgspec.msgpack.Encoder(order="deterministic").encode
_decoder: Final = msgspec.msgpack.Decoder(dict[str, dict[str, Any]])


class _Odd(Exception):
    """An irregular value: the thorough reader decides."""


# The errors that the fast reader can raise for irregular JSON.
_SURPRISES: Final = (_Odd, AttributeError, ValueError, LookupError, TypeError, Invalid)


def decode(body: bytes) -> Item:
    """The item that `encode` encoded to these bytes."""
    return _decoder.decode(body)


# -- reading


def read_item(raw: object) -> tuple[Item, int]:
    """Check and normalise an item as JSON decodes it, and count its size; `raw` may be changed and become the item."""
    try:
        return raw, _read_attributes(raw, 1)  # type: ignore[return-value, arg-type]
    except _SURPRISES:
        return _thorough_item(raw)


def read_value(raw: object) -> Value:
    """Check and normalise one value as JSON decodes it; `raw` may be changed and become the value."""
    try:
        _read_attributes({"": raw}, 1)  # type: ignore[dict-item]
    except _SURPRISES:
        return _thorough_value(raw)
    return raw  # type: ignore[return-value]


def _read_attributes(attributes: Item, depth: int) -> int:
    """Normalise these values in place and count the size of names and values. Irregular values raise any error of
    _SURPRISES. Strings and numbers, the most frequent values, are handled inline."""
    size = 0
    for name, value in attributes.items():
        size += len(name) if name.isascii() else len(name.encode())
        if len(value) != 1:
            raise _Odd
        if "S" in value:
            text = value["S"]
            size += len(text) if text.isascii() else len(text.encode())
        elif "N" in value:
            text = value["N"]
            value["N"], cost = measure(text) if len(text) <= CACHED_CHARACTERS_MAX else number.measure_long(text)
            size += cost
        else:
            (kind,) = value
            size += _read(value, kind, value[kind], depth)
    return size


def _read(value: Value, kind: str, inner: Any, depth: int) -> int:
    """As `_read_attributes`, for one value that is neither a string nor a number."""
    if kind == "M":
        if depth > DEPTH_MAX:
            raise _Odd
        return 3 + len(inner) + _read_attributes(inner, depth + 1)
    if kind == "L":
        if type(inner) is not list or depth > DEPTH_MAX:
            raise _Odd
        size = 3 + len(inner)
        for element in inner:
            size += _read_attributes({"": element}, depth + 1)
        return size
    if kind == "BOOL":
        if inner is not True and inner is not False:
            raise _Odd
        return 1
    if kind == "NULL":
        if inner is not True:
            raise _Odd
        return 1
    if kind == "B":
        value["B"] = data = _binary(inner)
        return len(data)
    return _read_set(value, kind, inner)


def _read_set(value: Value, kind: str, inner: Any) -> int:
    if type(inner) is not list or not inner:
        raise _Odd
    if kind == "SS":
        text = "".join(inner)  # a TypeError if one is not a string
        size = len(text) if text.isascii() else len(text.encode())
    elif kind == "NS":
        value["NS"] = inner = [canonical(element) for element in inner]
        size = sum(map(number.size, inner))
    elif kind == "BS":
        value["BS"] = inner = [_binary(element) for element in inner]
        size = sum(map(len, inner))
    else:
        raise _Odd
    if len(set(inner)) != len(inner):
        raise _Odd
    if kind != "NS":
        value[kind] = in_order(kind, inner)
    return size


def in_order(kind: str, elements: list[Any]) -> list[Any]:
    """A set's elements in the order in which the service returns them: by their bytes, but numbers as they came."""
    return elements if kind == "NS" else sorted(elements)


def _binary(text: Any) -> bytes:
    if type(text) is bytes:
        return text
    data = a2b_base64(text, strict_mode=True)
    # The last character before padding has unused bits; the service requires them to be 0.
    rest = len(data) % 3
    if rest and b2a_base64(data[-rest:], newline=False) != text[-4:].encode():
        raise _Odd
    return data


def _thorough_item(raw: object) -> tuple[Item, int]:
    """The item in `raw` and its size; raises the service's error."""
    item = check_types(raw)
    return item, _measure(item)


def _thorough_value(raw: object) -> Value:
    """The value in `raw`; raises the service's error."""
    value = _typed_value(raw, 1)
    _check(value)
    return value


def check_types(raw: object) -> Item:
    """The first stage alone: a map of values whose JSON is of the right types; its values may still be invalid."""
    if isinstance(raw, dict):
        return {_typed_string(name): _typed_value(value, 1) for name, value in raw.items()}
    if isinstance(raw, list):
        raise malformed(f"Unrecognized collection type {_VALUE_MAP}")
    raise malformed("Unexpected field type")


def check_names(names: Iterable[str]) -> None:
    """Raise for invalid attribute names."""
    for name in names:
        if not name:
            raise Invalid(f"{INVALID}Empty attribute name")
        if len(name) * 4 > NAME_BYTES_MAX and len(name.encode()) > NAME_BYTES_MAX:
            raise Invalid(f"{INVALID}Attribute name is too large, must be less than {NAME_BYTES_MAX + 1} bytes")


# -- the thorough reader, first stage: JSON types


def _typed_value(raw: object, depth: int) -> Value:
    if raw is None:
        return {}
    if isinstance(raw, list):
        raise malformed(f"Unrecognized collection type class {_VALUE_CLASS}")
    if not isinstance(raw, dict):
        raise malformed("Unexpected value type in payload")
    return {kind: reader(inner, depth) for kind, reader in _READERS.items() if (inner := raw.get(kind)) is not None}


def _numeric_token(raw: object) -> str:
    whole = isinstance(raw, int) or (isinstance(raw, (float, Decimal)) and raw % 1 == 0)
    return "NUMBER_VALUE" if whole else "DECIMAL_VALUE"


def _typed_string(raw: object, depth: int = 0) -> str:
    if isinstance(raw, str):
        try:
            raw.encode()
        except UnicodeEncodeError:
            raise malformed("Unable to parse: half of a surrogate pair in a string") from None
        return raw
    if isinstance(raw, bool):
        raise malformed(f"{'TRUE' if raw else 'FALSE'}_VALUE cannot be converted to String")
    if isinstance(raw, list):
        raise malformed("Unrecognized collection type class java.lang.String")
    if isinstance(raw, dict):
        raise malformed(_STRUCTURE)
    raise malformed(f"{_numeric_token(raw)} cannot be converted to String")


def _typed_binary(raw: object, depth: int = 0) -> bytes:
    if isinstance(raw, bytes):
        return raw
    if isinstance(raw, list):
        raise malformed("Unrecognized collection type class java.nio.ByteBuffer")
    if isinstance(raw, dict):
        raise malformed(_STRUCTURE)
    if not isinstance(raw, str):
        raise malformed("only base-64-encoded strings are convertible to bytes")
    if len(raw) % 4:
        raise malformed(f"Base64 encoded length is expected a multiple of 4 bytes but found: {len(raw)}")
    try:
        data = a2b_base64(raw, strict_mode=True)
    except (Base64Error, ValueError):
        data = b""
    if b2a_base64(data, newline=False).decode() != raw:
        raise malformed("Invalid last non-pad Base64 character dectected")
    return data


def _typed_boolean(raw: object, depth: int) -> bool:
    if isinstance(raw, bool):
        return raw
    if isinstance(raw, str):
        if raw.upper() in _TRUE:
            return True
        if raw.upper() in _FALSE:
            return False
        raise malformed("Unexpected token received from parser")
    if isinstance(raw, list):
        raise malformed("Unrecognized collection type class java.lang.Boolean")
    if isinstance(raw, dict):
        raise malformed(_STRUCTURE)
    raise malformed(f"{_numeric_token(raw)} cannot be converted to Boolean")


def _typed_list(raw: object) -> list[Any]:
    if isinstance(raw, list):
        return raw
    raise malformed(_STRUCTURE if isinstance(raw, dict) else "Unexpected field type")


def _typed_strings(raw: object, depth: int) -> list[str | None]:
    return [None if element is None else _typed_string(element) for element in _typed_list(raw)]


def _typed_binaries(raw: object, depth: int) -> list[bytes | None]:
    return [None if element is None else _typed_binary(element) for element in _typed_list(raw)]


def _typed_values(raw: object, depth: int) -> list[Value]:
    elements = _typed_list(raw)
    _check_depth(depth)  # here and not later, so that no depth of JSON exhausts the stack
    return [_typed_value(element, depth + 1) for element in elements]


def _typed_map(raw: object, depth: int) -> Item:
    if isinstance(raw, list):
        raise malformed(f"Unrecognized collection type {_VALUE_MAP}")
    if not isinstance(raw, dict):
        raise malformed("Unexpected field type")
    _check_depth(depth)
    return {_typed_string(name): _typed_value(value, depth + 1) for name, value in raw.items()}


# In the order in which the service checks them.
_READERS: Final[dict[str, Callable[[Any, int], Any]]] = {
    "S": _typed_string,
    "B": _typed_binary,
    "N": _typed_string,
    "BOOL": _typed_boolean,
    "NULL": _typed_boolean,
    "BS": _typed_binaries,
    "NS": _typed_strings,
    "SS": _typed_strings,
    "L": _typed_values,
    "M": _typed_map,
}


# -- the thorough reader, second stage: values


def _measure(item: Item) -> int:
    return sum(len(name.encode()) + _check(value) for name, value in item.items())


def _check(value: Value) -> int:
    """Normalise the numbers of a value in place and count its size; raises the service's error."""
    if not value:
        raise Invalid(messages.VALUE_EMPTY)
    size = 0
    for kind, inner in value.items():
        if kind == "S":
            size += len(inner.encode())
        elif kind == "B":
            size += len(inner)
        elif kind == "N":
            value["N"] = text = number.canonical(inner)
            size += number.size(text)
        elif kind == "BOOL":
            size += 1
        elif kind == "NULL":
            if not inner:
                raise Invalid(messages.NULL_NOT_TRUE)
            size += 1
        elif kind == "L":
            size += 3 + len(inner) + sum(map(_check, inner))
        elif kind == "M":
            size += 3 + len(inner) + _measure(inner)
        else:
            size += _check_set(value, kind, inner)
    if len(value) > 1:
        raise Invalid(messages.VALUE_AMBIGUOUS)
    return size


def _check_set(value: Value, kind: str, elements: list[Any]) -> int:
    if kind == "BS":
        if not elements:
            raise Invalid(f"{INVALID}Binary sets should not be empty")
        if None in elements:
            raise Invalid(f"{INVALID}Binary sets may not contain null values")
        if len(set(elements)) != len(elements):
            shown = ", ".join(b64encode(element).decode() for element in elements)
            raise Invalid(f"{INVALID}Input collection [{shown}]of type BS contains duplicates.")
        value["BS"] = in_order("BS", elements)
        return sum(map(len, elements))
    noun = "string" if kind == "SS" else "number"
    if not elements:
        raise Invalid(f"{INVALID}An {noun} set  may not be empty")
    if None in elements:
        raise Invalid(f"{INVALID}An {noun} set  may not have a null string as a member")
    if kind == "SS":
        if len(set(elements)) != len(elements):
            raise Invalid(f"{INVALID}Input collection [{', '.join(elements)}] contains duplicates.")
        value["SS"] = in_order("SS", elements)
        return sum(len(element.encode()) for element in elements)
    value["NS"] = numbers = [number.canonical(element) for element in elements]
    if len(set(numbers)) != len(numbers):
        raise Invalid("Input collection contains duplicates")
    return sum(map(number.size, numbers))


# -- size


def size(value: Value) -> int:
    """How many bytes of an item this value counts for."""
    ((kind, inner),) = value.items()
    if kind == "S":
        return len(inner) if inner.isascii() else len(inner.encode())
    if kind == "N":
        return number.size(inner)
    if kind == "M":
        return 3 + len(inner) + item_size(inner)
    if kind == "L":
        return 3 + len(inner) + sum(map(size, inner))
    if kind == "B":
        return len(inner)
    if kind == "SS":
        return len("".join(inner).encode())
    if kind == "NS":
        return sum(map(number.size, inner))
    if kind == "BS":
        return sum(map(len, inner))
    return 1


def item_size(item: Item) -> int:
    """How many bytes the item counts for: the names and the values of its attributes."""
    total = 0
    for name, value in item.items():
        total += len(name) if name.isascii() else len(name.encode())
        if "S" in value:
            text = value["S"]
            total += len(text) if text.isascii() else len(text.encode())
        else:
            total += size(value)
    return total


# -- equality and order


def equal(a: Value, b: Value) -> bool:
    """Whether both are the same type and content; sets have no order."""
    if a == b:
        return True
    ((kind, left),) = a.items()
    right = b.get(kind)
    if right is None:
        return False
    if kind in _SETS:
        return len(left) == len(right) and set(left) == set(right)
    if kind == "L":
        return len(left) == len(right) and all(map(equal, left, right))
    if kind == "M":
        return same(left, right)
    return False


def same(a: Item | None, b: Item | None) -> bool:
    """Whether both items have the same attributes with equal values, or both are None."""
    if a is None or b is None:
        return a is b
    if a == b:
        return True
    return a.keys() == b.keys() and all(equal(value, b[name]) for name, value in a.items())


def alike(a: bytes, b: bytes) -> bool:
    """Whether two different encodings may be of the same item, in another order: then they have the same bytes. The
    low half of Adler-32 is their sum, whatever their order, and takes far less time than decoding both."""
    return len(a) == len(b) and adler32(a) & 0xFFFF == adler32(b) & 0xFFFF


def compare(a: Value, b: Value) -> int | None:
    """Below 0, 0 or above 0, as `a` is less than, equal to or greater than `b`; None if they are of different types, or
    of one without an order: not a string, a number or binary."""
    ((kind, left),) = a.items()
    right = b.get(kind)
    if right is None:
        return None
    if kind == "N":
        return number.compare(left, right)
    if kind == "S" or kind == "B":
        # Python's order of strings is by code point, which is the order of their UTF-8.
        return 0 if left == right else -1 if left < right else 1
    return None


# -- digests


def digest(item: Item) -> bytes:
    """32 bytes that are the same for equal items, whatever the order of attributes and of a set's elements."""
    return sha256(_encode_ordered({name: _settled(value) for name, value in item.items()})).digest()


def _settled(value: Value) -> Value:
    ((kind, inner),) = value.items()
    if kind in _SETS:
        return {kind: sorted(inner)}
    if kind == "L":
        return {kind: [_settled(element) for element in inner]}
    if kind == "M":
        return {kind: {name: _settled(element) for name, element in inner.items()}}
    return value


# -- plain Python


def item_from_plain(plain: Mapping[Any, Any]) -> tuple[Item, int]:
    """The item of a plain dict, and its size."""
    if type(plain) is not dict and not isinstance(plain, Mapping):
        raise Invalid(f"an item is a dict of attributes, not {type(plain).__name__}")
    return _attributes_from_plain(plain, 1)


def from_plain(plain: Any) -> Value:
    """The typed value of a plain Python object. A float raises: it is not the decimal number that it shows."""
    if type(plain) is str and plain.isascii():
        return {"S": plain}
    return _from_plain(plain, 1)[0]


def _attributes_from_plain(plain: Mapping[Any, Any], depth: int) -> tuple[Item, int]:
    """The attributes of a plain dict, and the size of names and values. Strings and numbers, the most frequent values,
    are handled inline."""
    attributes: Item = {}
    size = 0
    for name, content in plain.items():
        if type(name) is str and name.isascii():
            size += len(name)
        else:
            name = _name(name)
            size += len(name.encode())
        if type(content) is str and content.isascii():
            attributes[name] = {"S": content}
            size += len(content)
        elif type(content) is int and -_INT_MAX <= content <= _INT_MAX:
            text = str(content)
            attributes[name] = {"N": text}
            size += number.size(text)
        else:
            attributes[name], cost = _from_plain(content, depth)
            size += cost
    if len(attributes) != len(plain):  # a mapping that has a name twice
        size = item_size(attributes)
    return attributes, size


def _from_plain(plain: Any, depth: int) -> tuple[Value, int]:
    """The typed value of a plain Python object, and its size."""
    if plain is True or plain is False:
        return {"BOOL": plain}, 1
    if plain is None:
        return {"NULL": True}, 1
    if isinstance(plain, str):
        text = _text(plain)
        return {"S": text}, len(text) if text.isascii() else len(text.encode())
    if type(plain) is dict:  # before the checks of classes, which take longer
        return _map_from_plain(plain, depth)
    if isinstance(plain, (list, tuple)):
        _check_depth(depth)
        elements: list[Value] = []
        total = 3 + len(plain)
        for element in plain:
            value, cost = _from_plain(element, depth + 1)
            elements.append(value)
            total += cost
        return {"L": elements}, total
    if isinstance(plain, (int, Decimal)):
        text = _from_number(plain)
        return {"N": text}, number.size(text)
    if isinstance(plain, (bytes, bytearray, memoryview)):
        data = bytes(plain)
        return {"B": data}, len(data)
    if isinstance(plain, Mapping):
        return _map_from_plain(plain, depth)
    if isinstance(plain, AbstractSet):
        value = _from_set(plain)
        return value, size(value)
    if isinstance(plain, float):
        raise Invalid(f"the float {plain!r} is not exact; use Decimal({str(plain)!r}), or an int")
    raise Invalid(
        f"a {type(plain).__name__} cannot be stored; use str, int, Decimal, bytes, bool, None, list, dict or set"
    )


def _map_from_plain(plain: Mapping[Any, Any], depth: int) -> tuple[Value, int]:
    _check_depth(depth)
    inner, cost = _attributes_from_plain(plain, depth + 1)
    return {"M": inner}, 3 + len(inner) + cost


def _name(name: Any) -> str:
    if type(name) is str and name.isascii():
        return name
    if not isinstance(name, str):
        raise Invalid(f"the attribute name {name!r} is a {type(name).__name__}; names are strings")
    return _text(name)


def _text(text: str) -> str:
    if type(text) is str and text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Invalid(f"a string has half of a surrogate pair at {error.start}, which UTF-8 cannot encode") from None
    return str(text)


def check_text(text: object, what: str) -> str:
    """Return a string of a Python program if it can be stored; `what` names it in the error."""
    if not isinstance(text, str):
        raise Invalid(f"{what} is a string, not {text!r}")
    try:
        return _text(text)
    except Invalid as error:
        raise Invalid(f"{what}: {error}") from None


def _check_depth(depth: int) -> None:
    if depth > DEPTH_MAX:
        raise Invalid(messages.NESTED_TOO_DEEP)


def _from_number(plain: int | Decimal) -> str:
    if type(plain) is int and -_INT_MAX <= plain <= _INT_MAX:
        return str(plain)
    if isinstance(plain, Decimal):
        return canonical(str(plain))
    if abs(plain) >= 10 ** (number.MAGNITUDE_MAX + 1):  # before str(), which takes long for huge numbers
        raise Invalid(messages.NUMBER_OVERFLOW)
    return canonical(str(int(plain)))


def _from_set(plain: AbstractSet[Any]) -> Value:
    """A set of strings, numbers or bytes; in the order of their values, so that the same set is stored the same way."""
    if not plain:
        raise Invalid("a set cannot be empty; leave the attribute out, or use a list")
    if all(isinstance(element, str) for element in plain):
        return {"SS": sorted(_text(element) for element in plain)}
    if all(isinstance(element, bytes) for element in plain):
        return {"BS": sorted(plain)}
    if all(isinstance(element, (int, Decimal)) and not isinstance(element, bool) for element in plain):
        return {"NS": sorted({_from_number(element) for element in plain}, key=Decimal)}
    raise Invalid("the elements of a set must be all strings, all numbers (int, Decimal) or all bytes")


def item_to_plain(item: Item) -> dict[str, Any]:
    """The plain dict of an item."""
    plain: dict[str, Any] = {}
    for name, value in item.items():  # strings and numbers inline: a call for each would cost more than the rest
        if "S" in value:
            plain[name] = value["S"]
        elif "N" in value:
            text = value["N"]
            plain[name] = Decimal(text) if "." in text else int(text)
        else:
            plain[name] = to_plain(value)
    return plain


def to_plain(value: Value) -> Any:
    """The plain Python object of a value; a number is an int where it is whole, else a Decimal."""
    (kind,) = value
    inner = value[kind]
    if kind == "M":
        return item_to_plain(inner)
    if kind == "L":
        return [to_plain(element) for element in inner]
    if kind == "N":
        return _to_number(inner)
    if kind == "NULL":
        return None
    if kind == "NS":
        return {_to_number(element) for element in inner}
    return set(inner) if kind in _SETS else inner


def _to_number(text: str) -> int | Decimal:
    return Decimal(text) if "." in text else int(text)


# -- plain JSON


def item_to_json(item: Item) -> dict[str, Any]:
    """The item as plain JSON that `msgspec.json.encode` takes."""
    return {name: value["S"] if "S" in value else to_json(value) for name, value in item.items()}


def to_json(value: Value) -> Any:
    """The value as plain JSON: a number with all its digits, a set as a list, binary as base64 text."""
    ((kind, inner),) = value.items()
    if kind == "S":
        return inner
    if kind == "N":
        return _json_number(inner)
    if kind == "NULL":
        return None
    if kind == "L":
        return [to_json(element) for element in inner]
    if kind == "M":
        return item_to_json(inner)
    if kind == "B":
        return b64encode(inner).decode()
    if kind == "NS":
        return [_json_number(element) for element in inner]
    if kind == "BS":
        return [b64encode(element).decode() for element in inner]
    return inner


def _json_number(text: str) -> int | msgspec.Raw:
    if len(text) <= _INT_DIGITS_MAX and "." not in text:
        return int(text)
    return msgspec.Raw(text.encode())
