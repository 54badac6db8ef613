"""Rows for a table that come as Arrow: from typed columns to encoded keys and items, column by column.

Each column becomes MessagePack as a whole, in the same form that `value.encode` gives an item: so a row that is put
again unchanged has the same bytes. Nested columns are encoded from the inside out. Only keys are made one by one, and
where a table has indexes, its items are decoded once to be checked against them.

A column is an attribute, and a null is none. In a struct a null is no attribute either; in a list or a map it is NULL.
A VARIANT is the document that it holds; these are read one by one.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping
from functools import lru_cache
from itertools import accumulate, count, pairwise
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tailrace import limits
from tailrace.errors import Error, Invalid, TooLarge
from tailrace.jobs.rows import DELETE, PARTIALS, PUT, CheckedRows, PackedWrites, packed_numbers, pieces, writes, wrong
from tailrace.jobs.variant_values import TIME_FORMAT, is_variant
from tailrace.jobs.variant_values import read as read_variant
from tailrace.tables import key as keys
from tailrace.tables import messages, number, value
from tailrace.tables.definition import Definition

OP: Final = "_op"  # the column that has the operation of each row
_WEIGHT_MAX: Final = 256 * limits.MiB  # of the rows of one request, encoded; the estimate is generous
_VALUE_BYTES: Final = 16  # about what a value has beside its content
_CANONICAL_CHARACTERS: Final = number.DIGITS_MAX + 2  # of a number whose digits are surely not too many
_NULL: Final = b"\x81\xa4NULL\xc3"
_BINARY: Final = pa.binary()
_encode: Final = msgspec.msgpack.Encoder().encode
_WANTED: Final = {"S": "a string", "N": "an integer or a decimal", "B": "binary"}


class EncodedColumn(NamedTuple):
    """The values of a column, encoded, each after its name; null and of size 0 where the column is null."""

    parts: pa.Array
    sizes: pa.Array
    content: pa.Array | None = None  # of a string, a number or binary: what a key is made of
    kind: str = ""  # of the content: S, N or B


class _InvalidValue(Exception):
    """A value cannot be stored: the row, and why."""


def for_table(body: bytes, definition: Definition) -> CheckedRows:
    """Rows in an Arrow stream, checked and encoded. Slow: not for an event loop."""
    batches = _batches(body)
    if not batches:
        return CheckedRows(0, b"")
    table = pa.Table.from_batches(batches).combine_chunks()
    rows = [_encoded(batch, definition) for batch in table.to_batches() if batch.num_rows]
    assert len(rows) <= 1, "columns are combined"
    return CheckedRows(table.num_rows, _encode(rows[0]) if rows else b"")


def stored_keys(body: bytes, definition: Definition) -> tuple[bytes, ...]:
    """The keys of items, out of an Arrow stream with their key columns. Slow: not for an event loop."""
    found: list[bytes] = []
    for batch in _batches(body):
        columns: dict[str, EncodedColumn] = {}
        for name in set(batch.schema.names) & set(definition.keys):
            try:
                columns[name] = _column(batch.column(name), name, b"", 1)
            except _InvalidValue as problem:
                row, why = problem.args
                raise wrong(row, Invalid(f"the column {name!r}: {why}")) from None
        found += _keys(definition, columns)
    return tuple(found)


# -- the Arrow stream


def _batches(body: bytes) -> list[pa.RecordBatch]:
    """The record batches. Forms that are small to send and large to read are refused before they are read."""
    try:
        for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(body)):
            if message.type == "dictionary":
                raise Invalid("a column is dictionary-encoded; send its values", code="INVALID_ROWS")
            if message.type == "record batch" and _is_compressed(message.metadata.to_pybytes()):
                raise Invalid("the Arrow stream is compressed; send it uncompressed", code="INVALID_ROWS")
        batches = list(pa.ipc.open_stream(pa.py_buffer(body)))
        weight = 0
        for batch in batches:
            weight += batch.nbytes + sum(
                _weight(column, field.name) for column, field in zip(batch.columns, batch.schema, strict=True)
            )
            if weight > _WEIGHT_MAX:
                raise _too_large()
            batch.validate(full=True)
    except (pa.ArrowException, OSError, struct.error, UnicodeDecodeError) as error:
        raise Invalid(f"the body is not an Arrow stream: {error}", code="INVALID_ROWS") from None
    return batches


def _is_compressed(metadata: bytes) -> bool:
    """Whether the head of a record batch, a Message of Arrow's Flatbuffers schema, names a compression."""

    def field(table: int, number: int) -> int | None:
        vtable = table - struct.unpack_from("<i", metadata, table)[0]
        if 4 + 2 * number >= struct.unpack_from("<H", metadata, vtable)[0]:
            return None
        (at,) = struct.unpack_from("<H", metadata, vtable + 4 + 2 * number)
        return table + at if at else None

    header = field(struct.unpack_from("<I", metadata, 0)[0], 2)
    return header is not None and field(header + struct.unpack_from("<I", metadata, header)[0], 3) is not None


def _weight(column: pa.Array, name: str) -> int:
    """About the bytes that the values of a column add when they are encoded; raises for types that repeat values."""
    kind = column.type
    total: int = len(column) * (len(name) + _VALUE_BYTES)
    if pa.types.is_struct(kind):
        return total + sum(_weight(column.field(at), kind.field(at).name) for at in range(kind.num_fields))
    if pa.types.is_map(kind):
        return total + _weight(column.keys, "") + _weight(column.items, "")
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return total + _weight(column.values, "")
    if kind.num_fields or pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        raise _unstorable(name, kind)
    return total


def _too_large() -> TooLarge:
    return TooLarge(f"the rows may have more than {_WEIGHT_MAX} bytes when they are stored; send fewer")


def _unstorable(name: str, kind: pa.DataType) -> Invalid:
    return Invalid(f"the column {name!r} is {kind}, which a table cannot store; cast it to a string")


# -- rows


def _encoded(batch: pa.RecordBatch, definition: Definition) -> PackedWrites:
    names = batch.schema.names
    if len(set(names)) != len(names):
        raise Invalid(f"two columns of {', '.join(names)[:200]} have the same name; rename one")
    deleted = _deleted(batch.column(OP)) if OP in names else None
    names = [name for name in names if name != OP]
    partials: tuple[bytes, bytes] = (b"", b"")
    if definition.partials_space is not None and PARTIALS in names:
        names.remove(PARTIALS)
        partials = _joined(_partials(batch.column(PARTIALS)))
    value.check_names(names)
    columns: dict[str, EncodedColumn] = {}
    weight = 0
    for name in names:
        try:
            columns[name] = _column(batch.column(name), name, _encode(name), 1)
        except _InvalidValue as problem:
            row, why = problem.args
            raise wrong(row, Invalid(f"the column {name!r}: {why}")) from None
        weight += columns[name].parts.nbytes
        if weight > 2 * _WEIGHT_MAX:  # `_weight` counts the bytes of variants, and they can become many more
            raise _too_large()
    stored = _keys(definition, columns)
    present, sizes = _total(columns, batch.num_rows)
    bodies = _concatenated(_heads(_MAP, present), *(pc.fill_null(each.parts, b"") for each in columns.values()))
    head = pa.scalar(bytes((0x80 + len(definition.keys),)), _BINARY)
    named = _concatenated(head, *(columns[name].parts for name in definition.keys))
    if deleted is not None:
        sizes = pc.if_else(deleted, pa.scalar(-1, pa.int64()), sizes)
        bodies = pc.if_else(deleted, pa.scalar(b"", _BINARY), bodies)
    if (row := _first(pc.greater(sizes, limits.ITEM_BYTES_MAX))) is not None:
        raise wrong(row, Invalid(messages.ITEM_TOO_LARGE))
    found = PackedWrites(
        packed_numbers(sizes.to_pylist()),
        packed_numbers(accumulate(map(len, stored))),
        b"".join(stored),
        *_joined(named),
        *_joined(bodies),
        *partials,
    )
    if definition.indexes:
        _check_indexes(definition, found)
    return found


def _total(columns: Mapping[str, EncodedColumn], rows: int) -> tuple[pa.Array, pa.Array]:
    """The number of attributes of each row, and the size of their names and values."""
    present = sizes = pc.cast(pa.nulls(rows, pa.int64()).fill_null(0), pa.int64())
    for name, column in columns.items():
        is_there = pc.cast(column.parts.is_valid(), pa.int64())
        present = pc.add(present, is_there)
        sizes = pc.add(pc.add(sizes, column.sizes), pc.multiply(is_there, len(name.encode())))
    return present, sizes


def _joined(parts: pa.Array) -> tuple[bytes, bytes]:
    """The ends of these bytes, and all of them."""
    ends, data = array("i"), parts.buffers()[2]
    ends.frombytes(parts.buffers()[1])
    ends = ends[parts.offset : parts.offset + len(parts) + 1]
    begin = ends[0]
    content = b"" if data is None else data.slice(begin, ends[-1] - begin).to_pybytes()
    return packed_numbers(end - begin for end in ends[1:]) if begin else packed_numbers(ends[1:]), content


def _deleted(ops: pa.Array) -> pa.Array:
    """Which rows are deletes."""
    if not pa.types.is_string(ops.type):
        raise Invalid(f"the column {OP!r} is {ops.type}; send {PUT} (or null) or {DELETE} as strings")
    ops = pc.utf8_upper(pc.fill_null(ops, PUT))
    deleted = pc.equal(ops, DELETE)
    row = _first(pc.invert(pc.or_(deleted, pc.equal(ops, PUT))))
    if row is not None:
        text = ops[row].as_py()[:40]
        raise wrong(row, Invalid(f"operation {text!r} is unknown; use {PUT} or {DELETE}", code="INVALID_OPERATION"))
    return deleted


def _partials(column: pa.Array) -> pa.Array:
    if not pa.types.is_string(column.type):
        raise Invalid(f"the column {PARTIALS!r} is {column.type}; send strings")
    return pc.fill_null(column, "").cast(_BINARY)


def _first(mask: pa.Array) -> int | None:
    """The number of the first row for which it is true."""
    found: int = pc.index(mask, True).as_py()
    return None if found < 0 else found


def _check_indexes(definition: Definition, rows: PackedWrites) -> None:
    for row, (key, _, size, body) in enumerate(writes(rows)):
        if size >= 0:
            item = value.decode(body)
            try:
                for index in definition.indexes:
                    keys.index_key(definition, index, item, key)
            except Error as error:
                raise wrong(row, error) from None


# -- keys


def _keys(definition: Definition, columns: Mapping[str, EncodedColumn]) -> list[bytes]:
    contents = []
    for name in definition.keys:
        kind = definition.kinds[name]
        column = columns.get(name)
        if column is None:
            raise Invalid(
                f"there is no column {name!r}, which is a key of table {definition.name!r}; the columns are "
                f"{', '.join(columns)[:200] or 'none'}",
                code="WRONG_SCHEMA",
            )
        if column.content is None or column.kind != kind:
            raise Invalid(
                f"the column {name!r} is of the wrong type: the key of table {definition.name!r} is {kind}; send "
                f"{_WANTED[kind]}",
                code="WRONG_SCHEMA",
            )
        if (row := _first(column.parts.is_null())) is not None:
            raise wrong(row, Invalid(f"the column {name!r} is null, and it is a key of table {definition.name!r}"))
        bytes_max = limits.PARTITION_KEY_BYTES_MAX if name == definition.hash else limits.SORT_KEY_BYTES_MAX
        lengths = pc.binary_length(column.content)
        if kind != "N" and (row := _first(pc.equal(lengths, 0))) is not None:
            raise wrong(row, messages.empty_key(name, kind))
        if kind != "N" and (row := _first(pc.greater(lengths, bytes_max))) is not None:
            too_long = messages.HASH_TOO_LONG if name == definition.hash else messages.RANGE_TOO_LONG
            raise wrong(row, Invalid(too_long))
        contents.append(list(pieces(*_joined(column.content))))
    return keys.stored_keys(definition, *contents)


# -- columns


def _column(column: pa.Array, name: str, lead: bytes, depth: int) -> EncodedColumn:
    """A column with `lead`, its encoded name or nothing, before each value. `name` is for errors."""
    kind = column.type
    if pa.types.is_null(kind):
        return EncodedColumn(pa.nulls(len(column), _BINARY), _zeros(len(column)))
    if pa.types.is_boolean(kind):
        true, false = (pa.scalar(lead + _encode({"BOOL": each}), _BINARY) for each in (True, False))
        return EncodedColumn(pc.if_else(column, true, false), pc.cast(column.is_valid(), pa.int64()))
    if is_variant(kind):
        return _variants(column, lead, depth)
    if pa.types.is_nested(kind):
        if depth > value.DEPTH_MAX:
            raise Invalid(messages.NESTED_TOO_DEEP)
        if pa.types.is_struct(kind):
            return _struct(column, name, lead, depth)
        return _map(column, name, lead, depth) if pa.types.is_map(kind) else _list(column, name, lead, depth)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        data = column.cast(_BINARY)
        return _labelled(lead, "B", _BYTES, data, pc.binary_length(data))
    if pa.types.is_integer(kind) or pa.types.is_decimal(kind) or pa.types.is_floating(kind):
        texts = _numbers(column)
        return _labelled(lead, "N", _TEXT, texts.cast(_BINARY), _number_sizes(texts))
    data = _texts(column, name).cast(_BINARY)
    return _labelled(lead, "S", _TEXT, data, pc.binary_length(data))


def _labelled(lead: bytes, kind: str, form: str, data: pa.Array, sizes: pa.Array) -> EncodedColumn:
    """Values of one type, each a map of one: the type, and the content."""
    prefix = pa.scalar(lead + b"\x81" + _encode(kind), _BINARY)
    parts = _concatenated(prefix, _heads(form, pc.binary_length(data)), data)
    return EncodedColumn(parts, pc.fill_null(pc.cast(sizes, pa.int64()), 0), data, kind)


def _texts(column: pa.Array, name: str) -> pa.Array:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_date(kind) or pa.types.is_time(kind):
        return column.cast(pa.string())
    if pa.types.is_timestamp(kind):
        return pc.strftime(column.cast(pa.timestamp(kind.unit, "UTC")), format=TIME_FORMAT)
    raise _unstorable(name, kind)


def _variants(column: pa.Array, lead: bytes, depth: int) -> EncodedColumn:
    texts: list[bytes | None] = []
    sizes: list[int] = []
    total = 0
    by_name = dict(zip((field.name for field in column.type), column.flatten(), strict=True))
    bodies, metadata = by_name["value"].to_pylist(), by_name["metadata"].to_pylist()
    for row, (is_there, body, names) in enumerate(zip(column.is_valid().to_pylist(), bodies, metadata, strict=True)):
        if not is_there:
            texts.append(None)
            sizes.append(0)
            continue
        try:
            found = read_variant(body or b"", names or b"", depth)
        except Error as error:
            raise _InvalidValue(row, str(error)) from None
        texts.append(lead + _encode(found))
        sizes.append(value.size(found))
        total += len(texts[-1] or b"")
        if total > _WEIGHT_MAX:
            raise _too_large()
    return EncodedColumn(pa.array(texts, _BINARY), pa.array(sizes, pa.int64()))


def _struct(column: pa.Array, name: str, lead: bytes, depth: int) -> EncodedColumn:
    fields = [column.type.field(at).name for at in range(column.type.num_fields)]
    if len(set(fields)) != len(fields):
        raise Invalid(f"the column {name!r} has two fields of the same name, of {', '.join(fields)[:200]}; rename one")
    inner = {
        field: _column(part, f"{name}.{field}", _encode(field), depth + 1)
        for field, part in zip(fields, column.flatten(), strict=True)
    }
    present, sizes = _total(inner, len(column))
    prefix = pa.scalar(lead + b"\x81\xa1M", _BINARY)
    parts = _concatenated(prefix, _heads(_MAP, present), *(pc.fill_null(each.parts, b"") for each in inner.values()))
    return _nested(column, parts, pc.add(sizes, present))


def _list(column: pa.Array, name: str, lead: bytes, depth: int) -> EncodedColumn:
    if not pa.types.is_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    inner = _or_null(_column(column.values, name, b"", depth + 1))
    counts = pc.list_value_length(column)
    prefix = pa.scalar(lead + b"\x81\xa1L", _BINARY)
    parts = _concatenated(prefix, _heads(_LIST, counts), _gathered(column.offsets, inner.parts))
    return _nested(column, parts, pc.add(_sums(column.offsets, inner.sizes), counts))


def _map(column: pa.Array, name: str, lead: bytes, depth: int) -> EncodedColumn:
    texts = column.keys
    if not (pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type) or pa.types.is_integer(texts.type)):
        raise Invalid(f"the column {name!r} is a map whose keys are {texts.type}; cast them to strings")
    texts = texts.cast(pa.string()).cast(_BINARY)
    starts = column.offsets.to_pylist()
    for row, (start, end) in enumerate(pairwise(starts)):
        if len(set(texts[start:end].to_pylist())) != end - start:
            raise _InvalidValue(row, "a map has a key twice")
    inner = _or_null(_column(column.items, name, b"", depth + 1))
    lengths = pc.binary_length(texts)
    entries = _concatenated(_heads(_TEXT, lengths), texts, inner.parts)
    counts = pc.cast(pc.subtract(column.offsets[1:], column.offsets[:-1]), pa.int64())
    prefix = pa.scalar(lead + b"\x81\xa1M", _BINARY)
    parts = _concatenated(prefix, _heads(_MAP, counts), _gathered(column.offsets, entries))
    return _nested(column, parts, pc.add(_sums(column.offsets, pc.add(inner.sizes, lengths)), counts))


def _nested(column: pa.Array, parts: pa.Array, sizes: pa.Array) -> EncodedColumn:
    """Without what stands for null rows, and with the size of the list or map itself."""
    is_there = column.is_valid()
    return EncodedColumn(
        pc.if_else(is_there, parts, pa.scalar(None, _BINARY)),
        pc.if_else(is_there, pc.add(pc.cast(sizes, pa.int64()), 3), pa.scalar(0, pa.int64())),
    )


def _or_null(inner: EncodedColumn) -> EncodedColumn:
    missing = inner.parts.is_null()
    return EncodedColumn(pc.fill_null(inner.parts, _NULL), pc.add(inner.sizes, pc.cast(missing, pa.int64())))


def _gathered(offsets: pa.Array, parts: pa.Array) -> pa.Array:
    """The parts of each list, joined."""
    return pc.binary_join(pa.ListArray.from_arrays(offsets, parts), b"")


def _sums(offsets: pa.Array, sizes: pa.Array) -> pa.Array:
    """The sum of the sizes of each list."""
    until = pa.concat_arrays([_zeros(1), pc.cast(pc.cumulative_sum(sizes), pa.int64())])
    return pc.subtract(until.take(offsets[1:]), until.take(offsets[:-1]))


def _zeros(count: int) -> pa.Array:
    return pa.nulls(count, pa.int64()).fill_null(0)


# -- numbers


def _numbers(column: pa.Array) -> pa.Array:
    """The canonical text of each number."""
    texts = column.cast(pa.string())
    if pa.types.is_integer(column.type):
        return texts
    if pa.types.is_floating(column.type):
        odd = pc.or_(pc.match_substring_regex(texts, "[a-z]"), pc.equal(texts, "-0"))
    else:
        odd = pc.match_substring(texts, "E")
        dotted = pc.match_substring(texts, ".")
        trimmed = pc.utf8_rtrim(pc.utf8_rtrim(texts, "0"), ".")
        texts = pc.if_else(pc.and_not(dotted, odd), trimmed, texts)  # an exponent may end with 0
        odd = pc.or_(odd, pc.or_(pc.equal(texts, "-0"), pc.greater(pc.binary_length(texts), _CANONICAL_CHARACTERS)))
    if pc.any(odd).as_py():
        texts = pa.array(map(_canonical, texts.to_pylist(), odd.to_pylist(), count()), pa.string())
    return texts


def _canonical(text: str | None, odd: bool | None, row: int) -> str | None:
    if text is None or not odd:
        return text
    if text.lstrip("-") in ("nan", "inf"):
        raise _InvalidValue(row, f"{text} cannot be stored in a table; filter such rows")
    try:
        return number.canonical(text)
    except Error as error:
        raise _InvalidValue(row, f"{text}: {error}") from None


def _number_sizes(texts: pa.Array) -> pa.Array:
    """As `number.size`, of canonical numbers: one per pair of digits, and one or two more."""
    negative = pc.starts_with(texts, "-")
    plain = pc.utf8_ltrim(texts, "-")
    point = pc.find_substring(plain, ".")
    length = pc.binary_length(plain)
    is_whole = pc.less(point, 0)
    before = pc.if_else(is_whole, length, point)  # digits before the point
    # A fraction below one has no digits before the point, and zeros after it that do not count.
    digits_below = pc.binary_length(pc.utf8_ltrim(plain, "0."))
    is_below = pc.starts_with(plain, "0.")
    digits = pc.if_else(is_whole, pc.binary_length(pc.utf8_rtrim(plain, "0")), pc.subtract(length, 1))
    digits = pc.if_else(is_below, digits_below, digits)
    before = pc.if_else(is_below, pc.subtract(digits_below, pc.subtract(length, 2)), before)
    digits = pc.add(digits, pc.bit_wise_and(before, 1))
    pairs = pc.shift_right(pc.add(digits, 1), 1)
    sizes = pc.add(pc.add(pairs, 1), pc.cast(negative, pa.int32()))
    return pc.if_else(pc.equal(texts, "0"), pa.scalar(1, pa.int32()), sizes)


# -- MessagePack

_TEXT: Final = "text"
_BYTES: Final = "bytes"
_MAP: Final = "map"
_LIST: Final = "list"
# By form: below which length the head is one byte, and that byte; then the first byte before 8, 16 and 32 bits.
_FORMS: Final[dict[str, tuple[int, int, int | None, int, int]]] = {
    _TEXT: (32, 0xA0, 0xD9, 0xDA, 0xDB),
    _BYTES: (0, 0, 0xC4, 0xC5, 0xC6),
    _MAP: (16, 0x80, None, 0xDE, 0xDF),
    _LIST: (16, 0x90, None, 0xDC, 0xDD),
}


def _head(form: str, length: int) -> bytes:
    small, base, one, two, four = _FORMS[form]
    if length < small:
        return bytes((base + length,))
    if length < 1 << 8 and one is not None:
        return bytes((one, length))
    return bytes((two,)) + length.to_bytes(2) if length < 1 << 16 else bytes((four,)) + length.to_bytes(4)


@lru_cache(maxsize=8)
def _known_heads(form: str, count: int) -> pa.Array:
    return pa.array([_head(form, length) for length in range(count)], _BINARY)


def _heads(form: str, lengths: pa.Array) -> pa.Array:
    """The head of a text, of bytes, of a map or of a list, for each length."""
    longest = pc.max(lengths).as_py() or 0
    for known in (1 << 8, 1 << 16):
        if longest < known:
            return _known_heads(form, known).take(lengths)
    return pa.array([None if each is None else _head(form, each) for each in lengths.to_pylist()], _BINARY)


def _concatenated(*parts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(*parts, b"")
