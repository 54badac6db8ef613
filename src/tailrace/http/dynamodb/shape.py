"""The shapes of requests: declared per operation and checked before anything else.

The service checks twice. First the types, while it reads the JSON: a wrong type is a SerializationException, and
members that are null or unknown are dropped. Then the constraints (required members, lengths, ranges, patterns,
enumerations): all violations, at most ten, are reported in one ValidationException.

Theory of operation: `passes` is one fast pass that tells whether a value is valid as it is. Only if it is not, two slow
passes follow: `read`, which checks the types and returns the normalized value, and then `violations`. The contents of
items are left to `tables.value`, which reads every value anyway. `read` checks them as well, so that after any other
error a caller can find out whether the service would have reported a wrong type first.
"""

from __future__ import annotations

import re
from base64 import b64encode
from binascii import Error as NotBase64
from binascii import a2b_base64
from collections.abc import Callable, Coroutine, Iterable
from math import floor
from typing import Any, Final, NamedTuple

from tailrace.errors import Invalid
from tailrace.http.dynamodb.context import Commanded, Context

VIOLATIONS_MAX: Final = 10  # reported in one error
NAME: Final = "[a-zA-Z0-9_.-]+"
_JAVA: Final = "com.amazonaws.dynamodb.v20120810."
_CAST: Final = (
    "class sun.reflect.generics.reflectiveObjects.ParameterizedTypeImpl cannot be cast to class java.lang.Class "
    "(sun.reflect.generics.reflectiveObjects.ParameterizedTypeImpl and java.lang.Class are in module java.base of "
    "loader 'bootstrap')"
)
_STRUCTURE_FOUND: Final = "Start of structure or map found where not expected"
_NESTED_MAX: Final = 64  # levels of an attribute value that are checked; `tables.value` refuses more than 32


def serialization(message: str) -> Invalid:
    """The error for a value of the wrong type."""
    return Invalid(message, code="SERIALIZATION")


Request = dict[str, Any]
Body = bytes | dict[str, Any]  # of a response: encoded JSON, or an object to encode
Run = Callable[[Context, Request], Body | Commanded | Coroutine[Any, Any, Body]]


class Violation(NamedTuple):
    """A violated constraint."""

    text: str
    alone: str | None = None  # the service's message if it is the only violation


class Path(NamedTuple):
    """The path of a value, as older messages spell it (tableName) and as newer ones do (TableName)."""

    lower: str = ""
    proper: str = ""

    def member(self, name: str) -> Path:
        low = name[:1].lower() + name[1:]
        return Path(f"{self.lower}.{low}", f"{self.proper}.{name}") if self.lower else Path(low, name)

    def element(self, key: str) -> Path:
        return Path(f"{self.lower}.{key}.member", f"{self.proper}.{key}.member")


class ApiShape:
    """The shape of one value. `java` is the type's name in the service's messages."""

    java = ""
    late = False  # the service's message for a single violation does not contain the value

    def passes(self, value: Any) -> bool:
        """Whether the value is valid as it is. Fast; may return False for a valid value, never True for an invalid
        one."""
        raise AssertionError(f"{type(self).__name__} has no passes()")

    def read(self, value: Any, nested: bool = False) -> Any:
        """The normalized value; raises an error if it has the wrong type. `nested`: it is in a list or map."""
        raise AssertionError(f"{type(self).__name__} has no read()")

    def violations(self, value: Any, path: Path, found: list[Violation]) -> None:
        """Append the violated constraints of a value to `found`."""

    def render(self, value: Any) -> str:
        """The value as the service's messages show it."""
        if value is None:
            return "null"
        return str(value).lower() if isinstance(value, bool) else str(value)

    def violated(self, value: Any, path: Path, constraint: str, found: list[Violation]) -> None:
        shown = "null" if value is None else f"'{self.render(value)}'"
        alone = f"Value at '{path.proper}' failed to satisfy constraint: {constraint}" if self.late else None
        found.append(Violation(f"Value {shown} at '{path.lower}' failed to satisfy constraint: {constraint}", alone))


def _length(
    shape: ApiShape, value: Any, path: Path, found: list[Violation], min_length: int, max_length: int | None
) -> None:
    if len(value) < min_length:
        shape.violated(value, path, f"Member must have length greater than or equal to {min_length}", found)
    if max_length is not None and len(value) > max_length:
        shape.violated(value, path, f"Member must have length less than or equal to {max_length}", found)


def _scalar(value: Any, java: str) -> Invalid:
    """The error for a value that is not of the expected scalar type."""
    name = java.removeprefix("java.lang.")
    if value is True or value is False:
        return serialization(f"{'TRUE' if value else 'FALSE'}_VALUE cannot be converted to {name}")
    if isinstance(value, int | float):
        return serialization(f"{'NUMBER' if value % 1 == 0 else 'DECIMAL'}_VALUE cannot be converted to {name}")
    if isinstance(value, str):
        return serialization(f"STRING_VALUE cannot be converted to {name}")
    if isinstance(value, list):
        return serialization(f"Unrecognized collection type class {java}")
    return serialization(_STRUCTURE_FOUND)


class String(ApiShape):
    """A string."""

    java = "java.lang.String"

    def __init__(
        self,
        *,
        least: int = 0,
        most: int | None = None,
        pattern: str | None = None,
        enum: Iterable[str] | None = None,
        late: bool = False,
    ) -> None:
        self.least = least
        self.most = most
        self.pattern = pattern
        self.enum = None if enum is None else tuple(enum)  # in the order of the service's messages
        self.late = late
        self._match = re.compile(pattern).fullmatch if pattern else None
        self._values = None if enum is None else frozenset(self.enum or ())
        self._free = not least and most is None and pattern is None and enum is None

    def passes(self, value: Any) -> bool:
        if type(value) is not str:
            return False
        if self._free:
            return True
        if self._values is not None:
            return value in self._values
        if len(value) < self.least or (self.most is not None and len(value) > self.most):
            return False
        return self._match is None or self._match(value) is not None

    def read(self, value: Any, nested: bool = False) -> Any:
        if not isinstance(value, str):
            raise _scalar(value, self.java)
        return value

    def violations(self, value: Any, path: Path, found: list[Violation]) -> None:
        if self.enum is not None and value not in self.enum:
            self.violated(value, path, f"Member must satisfy enum value set: [{', '.join(self.enum)}]", found)
        if self._match is not None and not self._match(value):
            self.violated(value, path, f"Member must satisfy regular expression pattern: {self.pattern}", found)
        _length(self, value, path, found, self.least, self.most)

    def constraints(self) -> str:
        """All constraints, as listed in the message about the keys of a map."""
        constraints = []
        if self.most is not None:
            constraints.append(f"Member must have length less than or equal to {self.most}")
        if self.least:
            constraints.append(f"Member must have length greater than or equal to {self.least}")
        if self.pattern is not None:
            constraints.append(f"Member must satisfy regular expression pattern: {self.pattern}")
        return f"[{', '.join(constraints)}]"


_table_name: Final = re.compile("[a-zA-Z0-9_.-]{3,255}").fullmatch
_table_arn: Final = re.compile("arn:aws[a-z-]*:dynamodb:[a-z0-9-]*:[0-9]*:table/([a-zA-Z0-9_.-]{3,255})").fullmatch
TABLE_ARN_CHARACTERS_MAX: Final = 1024  # as in the service


def table_name(given: str) -> str:
    """The table name in a TableName, which may be a name or an ARN."""
    if given.startswith("arn:") and len(given) <= TABLE_ARN_CHARACTERS_MAX:
        match = _table_arn(given)
        if match is not None:
            return match[1]
    return given


class TableName(String):
    """The name or ARN of a table, in the operations on items. `newer`: if an empty name is the only violation, its
    message has the length limits that the service introduced with ARNs."""

    def __init__(self, *, newer: bool = True) -> None:
        super().__init__(least=3, most=255, pattern=NAME)
        self.newer = newer

    def passes(self, value: Any) -> bool:
        return type(value) is str and _table_name(value) is not None

    def read(self, value: Any, nested: bool = False) -> Any:
        return table_name(super().read(value, nested))

    def violations(self, value: Any, path: Path, found: list[Violation]) -> None:
        super().violations(value, path, found)
        if value == "" and self.newer:
            text = f"Value '' at '{path.lower}' failed to satisfy constraint: "
            alone = f"{text}Member must have length greater than or equal to 1"
            found[:] = [Violation(each.text, alone) if each.text.startswith(text) else each for each in found]


class ManagedTableName(String):
    """The name of a table, in the operations on tables: a missing name or a wrong length is reported first.

    `length_alone`: if no required member is missing, a wrong length is reported as the only violation (CreateTable).
    """

    def __init__(self, *, length_alone: bool = False) -> None:
        super().__init__(pattern=NAME)
        self.length_alone = length_alone

    def passes(self, value: Any) -> bool:
        return type(value) is str and _table_name(value) is not None

    def read(self, value: Any, nested: bool = False) -> Any:
        return table_name(super().read(value, nested))

    def first(self, name: str, value: Any) -> str | None:
        """The error that is reported before all violations, if there is one."""
        if value is None:
            return f"The parameter '{name}' is required but was not present in the request"
        if not 3 <= len(value) <= 255:
            return f"{name} must be at least 3 characters long and at most 255 characters long"
        return None


class Boolean(ApiShape):
    """A boolean; some strings are accepted as well."""

    java = "java.lang.Boolean"

    def passes(self, value: Any) -> bool:
        return value is True or value is False

    def read(self, value: Any, nested: bool = False) -> Any:
        if value is True or value is False:
            return value
        if isinstance(value, str):
            word = value.upper()
            if word in ("TRUE", "1", "YES"):
                return True
            if word in ("FALSE", "0", "NO"):
                return False
            raise serialization("Unexpected token received from parser")
        raise _scalar(value, self.java)


class Number(ApiShape):
    """A number, perhaps with a fraction."""

    def __init__(self, *, least: float | None = None, most: float | None = None, late: bool = False) -> None:
        self.least = least
        self.most = most
        self.late = late
        self.java = "java.lang.Double"

    def passes(self, value: Any) -> bool:
        return (
            (type(value) is int or type(value) is float)
            and (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
        )

    def read(self, value: Any, nested: bool = False) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _scalar(value, self.java)
        return value

    def violations(self, value: Any, path: Path, found: list[Violation]) -> None:
        if self.least is not None and value < self.least:
            self.violated(value, path, f"Member must have value greater than or equal to {self.least}", found)
        if self.most is not None and value > self.most:
            self.violated(value, path, f"Member must have value less than or equal to {self.most}", found)


class Integer(Number):
    """A whole number; a fraction is cut off. `long`: of 64 bits."""

    def __init__(
        self, *, least: int | None = None, most: int | None = None, long: bool = False, late: bool = False
    ) -> None:
        super().__init__(least=least, most=most, late=late)
        self.java = "java.lang.Long" if long else "java.lang.Integer"

    def passes(self, value: Any) -> bool:
        return (
            type(value) is int
            and (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and -0x8000000000000000 <= value <= 0x7FFFFFFFFFFFFFFF
        )

    def read(self, value: Any, nested: bool = False) -> Any:
        number = super().read(value, nested)
        bound = 0x7FFFFFFFFFFFFFFF if self.java == "java.lang.Long" else 0x7FFFFFFF
        # As in Java: a number beyond the range of the type becomes the nearest one in range.
        return int(min(max(floor(number), -bound - 1), bound))


class ListOf(ApiShape):
    """A list."""

    def __init__(self, member: ApiShape, *, least: int = 0, most: int | None = None, late: bool = False) -> None:
        self.member = member
        self.least = least
        self.most = most
        self.late = late
        self.java = f"java.util.List<{member.java}>"
        self._passes = member.passes

    def passes(self, value: Any) -> bool:
        if type(value) is not list or len(value) < self.least or (self.most is not None and len(value) > self.most):
            return False
        passes = self._passes
        return all(passes(each) for each in value)

    def read(self, value: Any, nested: bool = False) -> Any:
        if isinstance(value, dict):
            raise serialization(_STRUCTURE_FOUND)
        if not isinstance(value, list):
            raise serialization(_CAST if nested else "Unexpected field type")
        return [None if each is None else self.member.read(each, True) for each in value]

    def violations(self, value: Any, path: Path, found: list[Violation]) -> None:
        _length(self, value, path, found, self.least, self.most)
        for i, each in enumerate(value):
            if len(found) >= VIOLATIONS_MAX:
                return
            place = path.element(str(i + 1))
            if each is None:
                self.member.violated(each, place, "Member must not be null", found)
            else:
                self.member.violations(each, place, found)

    def render(self, value: Any) -> str:
        return f"[{', '.join(self.member.render(each) for each in value)}]"


class MapOf(ApiShape):
    """A map with string keys. `keys`: the shape of its keys; `values`: the length limits of values that are lists."""

    def __init__(
        self,
        member: ApiShape,
        *,
        least: int = 0,
        most: int | None = None,
        keys: String | None = None,
        values: tuple[int, int] | None = None,
        late: bool = False,
    ) -> None:
        self.member = member
        self.least = least
        self.most = most
        self.keys = keys
        self.values = values
        self.late = late
        self.java = f"java.util.Map<java.lang.String, {member.java}>"
        self._passes = member.passes

    def passes(self, value: Any) -> bool:
        if type(value) is not dict or len(value) < self.least or (self.most is not None and len(value) > self.most):
            return False
        keys = self.keys
        if keys is not None and not all(keys.passes(key) for key in value):
            return False
        if self.values is not None and not all(self._sized(each) for each in value.values()):
            return False
        passes = self._passes
        return all(passes(each) for each in value.values())

    def _sized(self, each: Any) -> bool:
        assert self.values is not None
        return type(each) is list and self.values[0] <= len(each) <= self.values[1]

    def read(self, value: Any, nested: bool = False) -> Any:
        if isinstance(value, list):
            raise serialization(f"Unrecognized collection type {self.java}")
        if not isinstance(value, dict):
            raise serialization(_CAST if nested else "Unexpected field type")
        rename = self.keys.read if self.keys is not None else str
        kept: dict[str, Any] = {}
        for key, each in value.items():
            name = rename(key)
            if name in kept:  # a name and an ARN of the same table
                raise Invalid(
                    f"Two keys of one map name the same table: {name}. Name each table once, by name or by ARN"
                )
            kept[name] = None if each is None else self.member.read(each, True)
        return kept

    def violations(self, value: Any, path: Path, found: list[Violation]) -> None:
        _length(self, value, path, found, self.least, self.most)
        keys, values = self.keys, self.values
        if keys is not None and not all(keys.passes(key) for key in value):
            self.violated(value, path, f"Map keys must satisfy constraint: {keys.constraints()}", found)
        if values is not None and not all(each is None or self._sized(each) for each in value.values()):
            bounds = (
                f"[Member must have length less than or equal to {values[1]}, "
                f"Member must have length greater than or equal to {values[0]}]"
            )
            self.violated(value, path, f"Map value must satisfy constraint: {bounds}", found)
        for key, each in value.items():
            if len(found) >= VIOLATIONS_MAX:
                return
            if each is None:
                self.member.violated(each, path.element(key), "Member must not be null", found)
            else:
                self.member.violations(each, path.element(key), found)

    def render(self, value: Any) -> str:
        return "{" + ", ".join(f"{key}={self.member.render(each)}" for key, each in value.items()) + "}"


class Structure(ApiShape):
    """Named members, declared in the order of the service's messages. `name` is the service's name of the structure."""

    def __init__(self, name: str, members: dict[str, ApiShape], *, required: Iterable[str] = ()) -> None:
        self.name = name
        self.members = members
        self.required = tuple(required)
        self.java = _JAVA + name
        self._passes = {member: shape.passes for member, shape in members.items()}
        self._managed_name = next(
            ((member, shape) for member, shape in members.items() if isinstance(shape, ManagedTableName)), None
        )
        self._required = frozenset((*self.required, *(() if self._managed_name is None else self._managed_name[:1])))
        unknown = set(self.required) - set(members)
        assert not unknown, f"{name} requires {unknown}, which it does not have"

    def passes(self, value: Any) -> bool:
        if type(value) is not dict:
            return False
        passes = self._passes
        for member, each in value.items():
            if member not in passes or not passes[member](each):
                return False
        return self._required <= value.keys()

    def read(self, value: Any, nested: bool = False) -> Any:
        if isinstance(value, list):
            raise serialization(f"Unrecognized collection type class {self.java}")
        if not isinstance(value, dict):
            raise serialization("Unexpected value type in payload" if nested else "Unexpected field type")
        return {
            member: shape.read(value[member]) for member, shape in self.members.items() if value.get(member) is not None
        }

    def violations(self, value: Any, path: Path, found: list[Violation]) -> None:
        for member, shape in self.members.items():
            if len(found) >= VIOLATIONS_MAX:
                return
            each = value.get(member)
            if each is not None:
                shape.violations(each, path.member(member), found)
            elif member in self.required:
                shape.violated(each, path.member(member), "Member must not be null", found)

    def render(self, value: Any) -> str:
        if value is None:
            return "null"
        shown = (
            f"{member[:1].lower()}{member[1:]}={'null' if value.get(member) is None else shape.render(value[member])}"
            for member, shape in self.members.items()
        )
        return f"{self.name}({', '.join(shown)})"

    # -- as the shape of a whole request

    def check(self, request: Any) -> Request:
        """The normalized request; raises an error if it is not valid."""
        if self.passes(request):
            checked: Request = request
            return checked
        checked = self.read(request)
        found: list[Violation] = []
        self.violations(checked, Path(), found)
        if self._managed_name is not None:
            name, shape = self._managed_name
            assert isinstance(shape, ManagedTableName)
            first = shape.first(name, checked.get(name))
            if first is not None:
                if not shape.length_alone or name not in checked or not checked.keys() >= set(self.required):
                    raise Invalid(first)
                found.clear()
                bounded = String(least=3, most=255, pattern=NAME)
                bounded.violations(checked[name], Path().member(name), found)
        if found:
            raise Invalid(_violations_message(found))
        return checked


def _violations_message(found: list[Violation]) -> str:
    del found[VIOLATIONS_MAX:]
    alone = {violation.alone for violation in found}
    if len(alone) == 1 and None not in alone:
        return f"1 validation error detected: {alone.pop()}"
    texts = "; ".join(violation.text for violation in found)
    return f"{len(found)} validation error{'s' if len(found) > 1 else ''} detected: {texts}"


class Blob(ApiShape):
    """Bytes, as base64. Only checked after another error was found; `tables.value` decodes them."""

    java = "java.nio.ByteBuffer"

    def passes(self, value: Any) -> bool:
        return type(value) is str

    def read(self, value: Any, nested: bool = False) -> Any:
        if isinstance(value, bytes):
            return value
        if isinstance(value, bool | int | float):
            raise serialization("only base-64-encoded strings are convertible to bytes")
        if not isinstance(value, str):
            raise _scalar(value, self.java)
        if len(value) % 4:
            raise serialization(f"Base64 encoded length is expected a multiple of 4 bytes but found: {len(value)}")
        try:
            # A text that does not encode back to itself had stray bits or characters.
            good = b64encode(a2b_base64(value)).decode() == value
        except (NotBase64, ValueError):
            good = False
        if not good:
            raise serialization("Invalid last non-pad Base64 character dectected")
        return value


class AttributeValue(ApiShape):
    """A typed value. `tables.value` reads its contents; here only types are checked, and only after another error."""

    java = _JAVA + "AttributeValue"

    def passes(self, value: Any) -> bool:
        return type(value) is dict

    def read(self, value: Any, nested: bool = False, depth: int = 0) -> Any:
        if isinstance(value, list):
            raise serialization(f"Unrecognized collection type class {self.java}")
        if not isinstance(value, dict):
            raise serialization("Unexpected value type in payload" if nested else "Unexpected field type")
        if depth > _NESTED_MAX:
            return value
        kept: dict[str, Any] = {}
        for kind, each in value.items():
            if each is None:
                continue
            if kind == "M":
                if not isinstance(each, dict):
                    _ITEM.read(each)
                kept[kind] = {name: self.read({} if v is None else v, True, depth + 1) for name, v in each.items()}
            elif kind == "L":
                if not isinstance(each, list):
                    _LIST.read(each)
                kept[kind] = [self.read({} if v is None else v, True, depth + 1) for v in each]
            elif kind in _KINDS:
                kept[kind] = _KINDS[kind].read(each)
        return kept

    def render(self, value: Any) -> str:
        if not isinstance(value, dict):
            return super().render(value)
        return "AttributeValue(" + ", ".join(f"{kind.lower()}={each}" for kind, each in value.items()) + ")"


class Item(ApiShape):
    """Attributes by name: an item, a key, or the values of an expression."""

    java = f"java.util.Map<java.lang.String, {AttributeValue.java}>"

    def passes(self, value: Any) -> bool:
        return type(value) is dict

    def read(self, value: Any, nested: bool = False) -> Any:
        if isinstance(value, list):
            raise serialization(f"Unrecognized collection type {self.java}")
        if not isinstance(value, dict):
            raise serialization(_CAST if nested else "Unexpected field type")
        return {name: _VALUE.read({} if each is None else each, True) for name, each in value.items()}

    def render(self, value: Any) -> str:
        if not isinstance(value, dict):
            return super().render(value)
        return "{" + ", ".join(f"{name}={_VALUE.render(each)}" for name, each in value.items()) + "}"


_VALUE: Final = AttributeValue()
_ITEM: Final = Item()
_LIST: Final = ListOf(_VALUE)
_KINDS: Final[dict[str, ApiShape]] = {
    "S": String(),
    "N": String(),
    "B": Blob(),
    "BOOL": Boolean(),
    "NULL": Boolean(),
    "SS": ListOf(String()),
    "NS": ListOf(String()),
    "BS": ListOf(Blob()),
}


class Operation(NamedTuple):
    """An operation: the shape of its request, and the function that runs it.

    `run` gets a valid request (no member is null, none is unknown) and returns the body of the response; or a command
    with a function that makes it of the result; or, where it has to wait, a coroutine that returns it. The coroutine
    awaits nothing but the context, and `sleep(0)`.
    """

    shape: Structure
    run: Run
    names_table: bool = False  # whether its error names the table that was not found
    offload: Callable[[Request], bool] | None = None  # whether a small request takes long and must run in a thread
    detects: bool = False  # whether it writes one item, so that some errors are worded as `messages.detected` does
    split: tuple[str, int] | None = None  # the member that holds items, and how many lists or maps enclose them


# -- shapes that many operations share

RETURN_CONSUMED_CAPACITY: Final = String(enum=("INDEXES", "TOTAL", "NONE"))
RETURN_ITEM_COLLECTION_METRICS: Final = String(enum=("SIZE", "NONE"))
INDEX_NAME: Final = String(least=3, most=255, pattern=NAME)
