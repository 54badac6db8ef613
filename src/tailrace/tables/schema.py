"""The rules for creating and changing tables.

Pure: nothing here reads a database. The rules, their wording and their order are DynamoDB's, so that a request with two
mistakes gets the same error as there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from tailrace import limits
from tailrace.errors import Invalid, LimitExceeded
from tailrace.tables.change import VIEWS
from tailrace.tables.definition import Attribute, Definition, IndexDefinition, Projection
from tailrace.tables.messages import INVALID as _INVALID

HASH: Final = "HASH"
RANGE: Final = "RANGE"
PROVISIONED: Final = "PROVISIONED"
PAY_PER_REQUEST: Final = "PAY_PER_REQUEST"


class KeyElement(msgspec.Struct, frozen=True):
    """One attribute of a key."""

    name: str
    kind: str  # HASH or RANGE


class ProjectionSpec(msgspec.Struct, frozen=True):
    """The requested projection of an index; None if it is missing, which is not the same as an empty list."""

    kind: str | None = None
    attributes: tuple[str, ...] | None = None


class IndexSpec(msgspec.Struct, frozen=True):
    """A requested index."""

    name: str
    keys: tuple[KeyElement, ...]
    projection: ProjectionSpec = ProjectionSpec("ALL")
    throughput: tuple[int, int] | None = None  # read and write units
    on_demand: tuple[int, int] | None = None
    warm: tuple[int, int] | None = None


class StreamSpec(msgspec.Struct, frozen=True):
    """The requested change stream."""

    enabled: bool
    view: str | None = None
    max_age_s: int | None = limits.CHANGES_AGE_S
    max_count: int | None = limits.CHANGES_COUNT


class TableSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A requested table."""

    name: str
    attributes: tuple[Attribute, ...]
    keys: tuple[KeyElement, ...]
    local: tuple[IndexSpec, ...] | None = None
    globals: tuple[IndexSpec, ...] | None = None
    billing: str | None = None
    throughput: tuple[int, int] | None = None
    on_demand: tuple[int, int] | None = None
    warm: tuple[int, int] | None = None
    table_class: str | None = None
    protected: bool = False
    encryption: str | None = None
    stream: StreamSpec | None = None
    tags: dict[str, str] = {}


class IndexUpdate(msgspec.Struct, frozen=True):
    """New capacity for a global index."""

    name: str
    throughput: tuple[int, int] | None = None
    on_demand: tuple[int, int] | None = None
    warm: tuple[int, int] | None = None


class IndexChange(msgspec.Struct, frozen=True):
    """Create, update or delete a global index."""

    create: IndexSpec | None = None
    update: IndexUpdate | None = None
    delete: str | None = None

    @property
    def name(self) -> str | None:
        if self.update is not None:
            return self.update.name
        return self.create.name if self.create is not None else self.delete


class TableChanges(msgspec.Struct, frozen=True, kw_only=True):
    """The requested changes of a table; None: unchanged."""

    attributes: tuple[Attribute, ...] = ()
    billing: str | None = None
    throughput: tuple[int, int] | None = None
    on_demand: tuple[int, int] | None = None
    warm: tuple[int, int] | None = None
    table_class: str | None = None
    protected: bool | None = None
    encryption: str | None = None
    stream: StreamSpec | None = None
    indexes: tuple[IndexChange, ...] = ()


# -- creating


def check_table(spec: TableSpec) -> None:
    """Raise if the table is invalid."""
    check_name(spec.name)
    _check_billing(spec.billing, spec.throughput, spec.on_demand)
    names = [attribute.name for attribute in spec.attributes]
    _check_table_keys(spec, names)
    taken: set[str] = set()
    if spec.local is not None:
        _check_local(spec, names, taken)
    if spec.globals is not None:
        if not spec.globals:
            raise Invalid(f"{_INVALID}List of GlobalSecondaryIndexes is empty")
        for index in spec.globals:
            check_global(index, names)
            _check_index_billing(index, spec.billing)
            _take(taken, index.name)
        _check_global_count(len(spec.globals))
    indexes = [*(spec.local or ()), *(spec.globals or ())]
    _check_projected(index.projection.attributes or () for index in indexes)
    _check_all_used(spec, names, indexes)
    if spec.stream is not None:
        check_stream(spec.stream)
    check_tags(spec.tags)


def check_name(name: str) -> None:
    """Raise if the name of a table or an index is invalid. The DynamoDB API has a higher minimum length."""
    if not limits.TABLE_NAME_CHARACTERS_MIN <= len(name) <= limits.TABLE_NAME_CHARACTERS_MAX or not _spelt_well(name):
        raise Invalid(
            "Invalid table/index name.  Table/index names must be between 1 and 255 characters long, and may contain "
            "only the characters a-z, A-Z, 0-9, '_', '-', and '.'"
        )


def _spelt_well(name: str) -> bool:
    return name.isascii() and all(letter.isalnum() or letter in "_.-" for letter in name)


def _check_billing(billing: str | None, throughput: tuple[int, int] | None, on_demand: tuple[int, int] | None) -> None:
    if billing == PAY_PER_REQUEST:
        if throughput is not None:
            raise _no_units()
        return
    if throughput is None:
        raise Invalid(
            f"{_INVALID}ReadCapacityUnits and WriteCapacityUnits must both be specified when BillingMode is PROVISIONED"
        )
    if on_demand is not None:
        raise Invalid(f"{_INVALID}OnDemandThroughput cannot be specified when BillingMode is PROVISIONED")
    check_units(throughput)


def _no_units() -> Invalid:
    return Invalid(
        f"{_INVALID}Neither ReadCapacityUnits nor WriteCapacityUnits can be specified when "
        "BillingMode is PAY_PER_REQUEST"
    )


def check_units(throughput: tuple[int, int]) -> None:
    """Raise if throughput is out of bounds."""
    for name, units in zip(("ReadCapacityUnits", "WriteCapacityUnits"), throughput, strict=True):
        if not 1 <= units <= limits.CAPACITY_UNITS_MAX:
            raise Invalid(f"Given value {units} for {name} is out of bounds")


def _check_table_keys(spec: TableSpec, names: list[str]) -> None:
    keys = [element.name for element in spec.keys]
    if len(keys) > len(names) or not keys:
        raise Invalid("Invalid KeySchema: Some index key attribute have no definition")
    _check_defined(keys, names)
    _check_two(spec.keys)
    duplicate = _first_duplicate(names)
    if duplicate is not None:
        raise Invalid(f"{_INVALID}Duplicate AttributeName in AttributeDefinitions: {duplicate}")
    if spec.local is None and spec.globals is None and len(keys) != len(names):
        raise Invalid(
            f"{_INVALID}Number of attributes in KeySchema does not exactly match number of attributes "
            "defined in AttributeDefinitions"
        )


def _check_defined(keys: list[str], names: Iterable[str]) -> None:
    names = list(names)
    if not set(keys) <= set(names):
        raise Invalid(
            f"{_INVALID}Some index key attributes are not defined in AttributeDefinitions. "
            f"Keys: [{', '.join(keys)}], AttributeDefinitions: [{', '.join(names)}]"
        )


def _check_two(keys: tuple[KeyElement, ...]) -> None:
    """The key of a table or of a local index: a hash, and perhaps a range."""
    if len(keys) > 2:
        raise Invalid("Invalid KeySchema: There are more than 2 KeySchemaElements")
    if len(keys) == 2 and keys[0].name == keys[1].name:
        raise _same_name()
    if keys[0].kind != HASH:
        raise Invalid("Invalid KeySchema: The first KeySchemaElement is not a HASH key type")
    if len(keys) == 2 and keys[1].kind != RANGE:
        raise Invalid("Invalid KeySchema: The second KeySchemaElement is not a RANGE key type")


def _same_name() -> Invalid:
    return Invalid("Both the Hash Key and the Range Key element in the KeySchema have the same name")


def _first_duplicate(names: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _check_local(spec: TableSpec, names: list[str], taken: set[str]) -> None:
    assert spec.local is not None
    if not spec.local:
        raise Invalid(f"{_INVALID}List of LocalSecondaryIndexes is empty")
    if len(spec.keys) != 2:
        raise Invalid(
            f"{_INVALID}Table KeySchema does not have a range key, which is required when "
            "specifying a LocalSecondaryIndex"
        )
    table_hash = spec.keys[0].name
    for index in spec.local:
        check_name(index.name)
        _check_defined([element.name for element in index.keys], names)
        _check_two(index.keys)
        if len(index.keys) != 2:
            raise Invalid(f"{_INVALID}Index KeySchema does not have a range key for index: {index.name}")
        if index.keys[0].name != table_hash:
            raise Invalid(
                f"{_INVALID}Index KeySchema does not have the same leading hash key as table KeySchema for index: "
                f"{index.name}. index hash key: {index.keys[0].name}, table hash key: {table_hash}"
            )
        _check_projection(index.projection)
        _take(taken, index.name)
    if len(spec.local) > limits.LOCAL_INDEXES_MAX:
        raise Invalid(
            f"{_INVALID}Number of LocalSecondaryIndexes exceeds per-table limit of {limits.LOCAL_INDEXES_MAX}"
        )


def check_global(index: IndexSpec, names: Iterable[str]) -> None:
    """Raise if a global index over attributes of these names is invalid."""
    check_name(index.name)
    keys = [element.name for element in index.keys]
    _check_defined(keys, names)
    if _first_duplicate(keys) is not None:
        raise _same_name()
    if not keys or index.keys[0].kind != HASH:
        raise Invalid("Invalid KeySchema: The first KeySchemaElement is not a HASH key type")
    kinds = [element.kind for element in index.keys]
    if kinds != sorted(kinds):
        raise Invalid("Invalid KeySchema: All HASH key elements must precede all RANGE key elements")
    for kind in (HASH, RANGE):
        if kinds.count(kind) > limits.KEY_PARTS_MAX:
            raise Invalid(
                f"{_INVALID}Number of {kind} key attributes exceeds the limit of {limits.KEY_PARTS_MAX} for index: "
                f"{index.name}"
            )
    _check_projection(index.projection)


def _check_projection(projection: ProjectionSpec) -> None:
    kind, attributes = projection.kind, projection.attributes
    if kind not in ("ALL", "KEYS_ONLY", "INCLUDE"):
        raise Invalid(f"{_INVALID}Unknown ProjectionType: {'null' if kind is None else kind}")
    if kind != "INCLUDE":
        if attributes is not None:
            raise Invalid(f"{_INVALID}ProjectionType is {kind}, but NonKeyAttributes is specified")
        return
    if not attributes:
        raise Invalid(f"{_INVALID}ProjectionType is INCLUDE, but NonKeyAttributes is not specified")
    duplicate = _first_duplicate(attributes)
    if duplicate is not None:
        raise Invalid(f"{_INVALID}Duplicate attribute name in NonKeyAttributes: {duplicate}")


def _check_index_billing(index: IndexSpec, billing: str | None) -> None:
    if billing == PAY_PER_REQUEST:
        if index.throughput is not None:
            raise Invalid(
                f"{_INVALID}ProvisionedThroughput should not be specified for index: {index.name} when "
                "BillingMode is PAY_PER_REQUEST"
            )
    elif index.throughput is None:
        raise Invalid(f"{_INVALID}ProvisionedThroughput must be specified for index: {index.name}")
    else:
        check_units(index.throughput)


def _take(taken: set[str], name: str) -> None:
    if name in taken:
        raise Invalid(f"{_INVALID}Duplicate index name: {name}")
    taken.add(name)


def _check_global_count(count: int) -> None:
    if count > limits.GLOBAL_INDEXES_MAX:
        raise Invalid(
            f"{_INVALID}GlobalSecondaryIndex count exceeds the per-table limit of {limits.GLOBAL_INDEXES_MAX}"
        )


def _check_projected(attributes: Iterable[tuple[str, ...]]) -> None:
    count = sum(map(len, attributes))
    if count > limits.PROJECTED_ATTRIBUTES_MAX:
        raise Invalid(
            f"{_INVALID}Number of projected attributes of all indexes, {count}, exceeds the per-table limit of "
            f"{limits.PROJECTED_ATTRIBUTES_MAX}"
        )


def _check_all_used(spec: TableSpec, names: list[str], indexes: list[IndexSpec]) -> None:
    used = dict.fromkeys(element.name for keys in (spec.keys, *(index.keys for index in indexes)) for element in keys)
    if len(used) != len(names):
        raise Invalid(
            f"{_INVALID}Some AttributeDefinitions are not used. AttributeDefinitions: [{', '.join(names)}], "
            f"keys used: [{', '.join(used)}]"
        )


def check_stream(stream: StreamSpec) -> None:
    """Raise for a change stream without a view, or a view without a change stream."""
    if stream.enabled and stream.view is None:
        raise Invalid(f"{_INVALID}StreamViewType must be specified when StreamEnabled is true")
    if not stream.enabled and stream.view is not None:
        raise Invalid(f"{_INVALID}StreamViewType cannot be specified when StreamEnabled is false")
    if stream.view is not None and stream.view not in VIEWS:
        raise Invalid(f"{_INVALID}Unknown StreamViewType: {stream.view}")


def check_tags(tags: dict[str, str]) -> None:
    """Raise for tags that DynamoDB does not accept. Letters of any alphabet are valid."""
    if len(tags) > limits.TAGS_MAX:
        raise Invalid(
            f"{_INVALID}Number of tags, {len(tags)}, exceeds the limit of {limits.TAGS_MAX} tags per resource"
        )
    for name, text in tags.items():
        if not 1 <= len(name) <= limits.TAG_KEY_CHARACTERS_MAX:
            raise Invalid(
                f"{_INVALID}Tag key has {len(name)} characters, it must have 1 to {limits.TAG_KEY_CHARACTERS_MAX}"
            )
        if len(text) > limits.TAG_VALUE_CHARACTERS_MAX:
            raise Invalid(
                f"{_INVALID}Tag value has {len(text)} characters, it may have {limits.TAG_VALUE_CHARACTERS_MAX}"
            )
        if name.lower().startswith("aws:"):
            raise Invalid(f"{_INVALID}Tag key {name} is reserved: aws: is no prefix for tags of yours")
        for part in (name, text):
            if not all(letter.isalnum() or letter.isspace() or letter in "+-=._:/@" for letter in part):
                raise Invalid(
                    f"{_INVALID}Tag {part} has characters that are not allowed; use letters, digits, space and +-=._:/@"
                )


# -- changing


def check_changes(changes: TableChanges) -> None:
    """Raise if the changes are invalid for any table."""
    fields = (
        changes.billing, changes.throughput, changes.on_demand, changes.warm, changes.table_class, changes.protected,
        changes.encryption, changes.stream,
    )  # fmt: skip
    if not changes.indexes and all(field is None for field in fields):
        raise Invalid(
            "At least one of ProvisionedThroughput, BillingMode, UpdateStreamEnabled, GlobalSecondaryIndexUpdates or "
            "SSESpecification or ReplicaUpdates is required"
        )
    if changes.billing == PROVISIONED and changes.throughput is None:
        raise Invalid(f"{_INVALID}ProvisionedThroughput must be specified when BillingMode is PROVISIONED")
    if changes.throughput is not None:
        check_units(changes.throughput)
    seen: set[str] = set()
    for change in changes.indexes:
        count = sum(part is not None for part in (change.create, change.update, change.delete))
        if count == 0:
            raise Invalid(
                f"{_INVALID}One of GlobalSecondaryIndexUpdate.Update, GlobalSecondaryIndexUpdate.Create, "
                "GlobalSecondaryIndexUpdate.Delete must not be null"
            )
        if count > 1:
            raise Invalid(
                f"{_INVALID}Only one of GlobalSecondaryIndexUpdate.Update, GlobalSecondaryIndexUpdate.Create, "
                "GlobalSecondaryIndexUpdate.Delete may be specified in one GlobalSecondaryIndexUpdate"
            )
        assert change.name is not None
        if change.name in seen:
            raise Invalid(
                f"{_INVALID}Only one global secondary index update per index is allowed simultaneously. "
                f"Index: {change.name}"
            )
        seen.add(change.name)
    if changes.stream is not None:
        check_stream(changes.stream)


def check_against(definition: Definition, changes: TableChanges) -> None:
    """Raise if the changes are invalid for this table."""
    billing = changes.billing or definition.billing
    if billing == PAY_PER_REQUEST and changes.throughput is not None:
        raise _no_units()
    if billing == PROVISIONED and changes.on_demand is not None:
        raise Invalid(f"{_INVALID}OnDemandThroughput cannot be specified when BillingMode is PROVISIONED")
    if sum(change.update is None for change in changes.indexes) > 1:
        raise LimitExceeded(
            "Subscriber limit exceeded: Only 1 online index can be created or deleted simultaneously per table"
        )
    for change in changes.indexes:
        units = change.update.throughput if change.update is not None else None
        if units is not None and max(units) > limits.CAPACITY_UNITS_MAX:
            raise Invalid(
                "This operation cannot be performed with given input values. Please contact DynamoDB service team "
                "for more info: Action Blocked: IndexUpdate"
            )
    if billing == PROVISIONED and definition.billing == PAY_PER_REQUEST:
        named = {change.name for change in changes.indexes}
        missing = [index.name for index in definition.indexes if not index.local and index.name not in named]
        if missing:
            raise Invalid(f"{_INVALID}ProvisionedThroughput must be specified for index: {','.join(missing)}")


def check_new_index(definition: Definition, spec: IndexSpec, attributes: tuple[Attribute, ...], billing: str) -> None:
    """Raise if the new index is invalid for this table. The request must define its attributes, even known ones."""
    if spec.name in definition.by_name:
        raise Invalid("Attempting to create an index which already exists")
    names = [attribute.name for attribute in attributes]
    duplicate = _first_duplicate(names)
    if duplicate is not None:
        raise Invalid(f"{_INVALID}Duplicate AttributeName in AttributeDefinitions: {duplicate}")
    check_global(spec, names)
    _check_index_billing(spec, billing)
    kinds = {attribute.name: attribute.kind for attribute in attributes}
    for element in spec.keys:
        known = definition.kinds.get(element.name)
        if known is not None and known != kinds[element.name]:
            raise Invalid(
                f"{_INVALID}Attributes cannot be redefined. Please check that your attribute has the same type as "
                f"previously defined. Existing schema: {_existing(definition, element.name)} "
                f"New schema: {_schema(((part.name, part.kind) for part in spec.keys), kinds)}"
            )
    _check_global_count(1 + sum(not index.local for index in definition.indexes))
    _check_projected((*(index.projection.attributes for index in definition.indexes), spec.projection.attributes or ()))


def _existing(definition: Definition, attribute: str) -> str:
    """The first key that has the attribute, as the service's messages spell it."""
    ranges = () if definition.range is None else (definition.range,)
    for hashed, ranged in [((definition.hash,), ranges), *((index.hash, index.range) for index in definition.indexes)]:
        if attribute in hashed + ranged:
            return _schema([*((name, HASH) for name in hashed), *((name, RANGE) for name in ranged)], definition.kinds)
    raise AssertionError(f"{attribute} is defined and in no key")


def _schema(keys: Iterable[tuple[str, str]], kinds: dict[str, str]) -> str:
    return f"Schema:[SchemaElement: {', '.join(f'key{{{name}:{kinds[name]}:{kind}}}' for name, kind in keys)}]"


# -- definitions


def index_of(spec: IndexSpec, space: int, *, local: bool) -> IndexDefinition:
    """The index that a spec, which has passed the checks, describes."""
    projection = Projection(spec.projection.kind or "ALL", spec.projection.attributes or ())
    hashed = tuple(element.name for element in spec.keys if element.kind == HASH)
    ranged = tuple(element.name for element in spec.keys if element.kind == RANGE)
    return IndexDefinition(
        spec.name, space, local, hashed, ranged, projection, on_demand=spec.on_demand, warm=spec.warm
    )  # the caller sets the throughput: it depends on the table's billing mode


def attributes_in_use(definition: Definition) -> tuple[Attribute, ...]:
    """The attribute definitions without those that no key has any more."""
    used = {*definition.keys, *(name for index in definition.indexes for name in index.hash + index.range)}
    return tuple(attribute for attribute in definition.attributes if attribute.name in used)
