"""The operations on tables: the shapes of their requests, their commands, and their responses.

A shape has the constraints of single members; the rules that relate several members are in `tables.schema`, for all
APIs. Members for features that are not supported (replicas, policies) are refused, not ignored: a client that requests
a replica must not believe that it has one.
"""

from __future__ import annotations

import re
from typing import Any, Final

from tailrace import limits
from tailrace.errors import Forbidden, Invalid, TableNotFound
from tailrace.http.dynamodb import backups, describe, render
from tailrace.http.dynamodb.context import Context
from tailrace.http.dynamodb.shape import (
    INDEX_NAME,
    NAME,
    ApiShape,
    Boolean,
    Integer,
    ListOf,
    ManagedTableName,
    Operation,
    Path,
    Request,
    String,
    Structure,
    Violation,
)
from tailrace.tables.definition import Attribute
from tailrace.tables.lifecycle import (
    CreateTable,
    DeleteTable,
    DescribeTable,
    DescribeTimeToLive,
    ListTables,
    ListTags,
    SetTimeToLive,
    TagTable,
    UntagTable,
    UpdateTable,
)
from tailrace.tables.schema import (
    IndexChange,
    IndexSpec,
    IndexUpdate,
    KeyElement,
    ProjectionSpec,
    StreamSpec,
    TableChanges,
    TableSpec,
)

NO_LIMIT: Final = -1  # the service's value for no limit on request units
ENDPOINT_MINUTES: Final = 1440  # how long a client may cache the response of DescribeEndpoints

# The limits that DescribeLimits returns: the service's defaults. Capacity is stored and returned, never enforced.
ACCOUNT_UNITS: Final = 80_000
TABLE_UNITS: Final = 40_000


# -- shapes


class _UnsupportedMember(ApiShape):
    """A member of the service's request that is not supported here."""

    def __init__(self, what: str) -> None:
        self.what = what

    def passes(self, value: Any) -> bool:
        return False

    def read(self, value: Any, nested: bool = False) -> Any:
        return value

    def violations(self, value: Any, path: Path, found: list[Violation]) -> None:
        if value not in ([], {}, False, "DISABLED"):
            raise Invalid(f"{self.what} are not supported: leave out {path.proper}")


class _IndexUpdateAction(Structure):
    """New capacity for an index, of any kind. The error for none at all names ProvisionedThroughput."""

    def passes(self, value: Any) -> bool:
        return super().passes(value) and len(value) > 1

    def violations(self, value: Any, path: Path, found: list[Violation]) -> None:
        super().violations(value, path, found)
        if value.keys() <= {"IndexName"}:
            missing = path.member("ProvisionedThroughput")
            self.members["ProvisionedThroughput"].violated(None, missing, "Member must not be null", found)


_ATTRIBUTE_NAME: Final = String(least=1, most=255)
NAME_CHARACTERS_MIN: Final = 3  # of a table or an index in this API, as in the service
_ATTRIBUTE_DEFINITIONS: Final = ListOf(
    Structure(
        "AttributeDefinition",
        {"AttributeName": _ATTRIBUTE_NAME, "AttributeType": String(enum=("B", "N", "S"))},
        required=("AttributeName", "AttributeType"),
    )
)
_KEY_ELEMENT: Final = Structure(
    "KeySchemaElement",
    {"AttributeName": _ATTRIBUTE_NAME, "KeyType": String(enum=("HASH", "RANGE"))},
    required=("AttributeName", "KeyType"),
)
_TWO_KEYS: Final = ListOf(_KEY_ELEMENT, least=1, most=2)
_MANY_KEYS: Final = ListOf(_KEY_ELEMENT, least=1)  # of a global index; tables.schema has the maximum
_PROJECTION: Final = Structure(
    "Projection",
    {
        "ProjectionType": String(enum=("ALL", "INCLUDE", "KEYS_ONLY")),
        "NonKeyAttributes": ListOf(String(least=1, most=255), least=1, most=20),
    },
)
_UNITS: Final = Integer(least=1, long=True)
_THROUGHPUT: Final = Structure(
    "ProvisionedThroughput",
    {"WriteCapacityUnits": _UNITS, "ReadCapacityUnits": _UNITS},
    required=("WriteCapacityUnits", "ReadCapacityUnits"),
)
_ANY_UNITS: Final = Integer(long=True)
_ON_DEMAND: Final = Structure(
    "OnDemandThroughput", {"MaxReadRequestUnits": _ANY_UNITS, "MaxWriteRequestUnits": _ANY_UNITS}
)
_WARM: Final = Structure("WarmThroughput", {"ReadUnitsPerSecond": _ANY_UNITS, "WriteUnitsPerSecond": _ANY_UNITS})
_BILLING: Final = String(enum=("PROVISIONED", "PAY_PER_REQUEST"))
_STREAM: Final = Structure(
    "StreamSpecification",
    {
        "StreamEnabled": Boolean(),
        "StreamViewType": String(enum=("NEW_IMAGE", "OLD_IMAGE", "NEW_AND_OLD_IMAGES", "KEYS_ONLY")),
    },
    required=("StreamEnabled",),
)
_ENCRYPTION: Final = Structure(
    "SSESpecification", {"Enabled": Boolean(), "SSEType": String(enum=("AES256", "KMS")), "KMSMasterKeyId": String()}
)
_TABLE_CLASS: Final = String(enum=("STANDARD", "STANDARD_INFREQUENT_ACCESS"))
_TAGS: Final = ListOf(
    Structure("Tag", {"Key": String(least=1, most=128), "Value": String(most=256)}, required=("Key", "Value"))
)
_LOCAL_INDEX: Final = Structure(
    "LocalSecondaryIndex",
    {"IndexName": INDEX_NAME, "KeySchema": _TWO_KEYS, "Projection": _PROJECTION},
    required=("IndexName", "KeySchema", "Projection"),
)
_GLOBAL_INDEX: Final = Structure(
    "GlobalSecondaryIndex",
    {
        "IndexName": INDEX_NAME,
        "KeySchema": _MANY_KEYS,
        "Projection": _PROJECTION,
        "ProvisionedThroughput": _THROUGHPUT,
        "OnDemandThroughput": _ON_DEMAND,
        "WarmThroughput": _WARM,
    },
    required=("IndexName", "KeySchema", "Projection"),
)
_INDEX_CHANGE: Final = Structure(
    "GlobalSecondaryIndexUpdate",
    {
        "Update": _IndexUpdateAction(
            "UpdateGlobalSecondaryIndexAction",
            {
                "IndexName": INDEX_NAME,
                "ProvisionedThroughput": _THROUGHPUT,
                "OnDemandThroughput": _ON_DEMAND,
                "WarmThroughput": _WARM,
            },
            required=("IndexName",),
        ),
        "Create": Structure(
            "CreateGlobalSecondaryIndexAction",
            {
                "Projection": _PROJECTION,
                "IndexName": INDEX_NAME,
                "ProvisionedThroughput": _THROUGHPUT,
                "KeySchema": _MANY_KEYS,
                "OnDemandThroughput": _ON_DEMAND,
                "WarmThroughput": _WARM,
            },
            required=("Projection", "IndexName", "KeySchema"),
        ),
        "Delete": Structure("DeleteGlobalSecondaryIndexAction", {"IndexName": INDEX_NAME}, required=("IndexName",)),
    },
)
_CREATE: Final = Structure(
    "CreateTableInput",
    {
        "AttributeDefinitions": _ATTRIBUTE_DEFINITIONS,
        "TableName": ManagedTableName(length_alone=True),
        "BillingMode": _BILLING,
        "ProvisionedThroughput": _THROUGHPUT,
        "KeySchema": _TWO_KEYS,
        "GlobalSecondaryIndexes": ListOf(_GLOBAL_INDEX),
        "LocalSecondaryIndexes": ListOf(_LOCAL_INDEX),
        "StreamSpecification": _STREAM,
        "SSESpecification": _ENCRYPTION,
        "Tags": _TAGS,
        "TableClass": _TABLE_CLASS,
        "DeletionProtectionEnabled": Boolean(),
        "OnDemandThroughput": _ON_DEMAND,
        "WarmThroughput": _WARM,
        "ResourcePolicy": _UnsupportedMember("Resource policies"),
        "GlobalTableSourceArn": _UnsupportedMember("Replicas"),
        "GlobalTableSettingsReplicationMode": _UnsupportedMember("Replicas"),
        "VectorIndexes": _UnsupportedMember("Vector indexes"),
    },
    required=("AttributeDefinitions", "TableName", "KeySchema"),
)
IMPORTED: Final = Structure(  # the table that an import makes
    "TableCreationParameters",
    {
        name: shape
        for name, shape in _CREATE.members.items()
        if name
        in (
            "AttributeDefinitions", "TableName", "BillingMode", "ProvisionedThroughput", "KeySchema",
            "GlobalSecondaryIndexes", "SSESpecification", "OnDemandThroughput",
        )
    },
    required=("AttributeDefinitions", "TableName", "KeySchema"),
)  # fmt: skip
_UPDATE: Final = Structure(
    "UpdateTableInput",
    {
        "TableName": ManagedTableName(),
        "ProvisionedThroughput": _THROUGHPUT,
        "BillingMode": _BILLING,
        "GlobalSecondaryIndexUpdates": ListOf(_INDEX_CHANGE),
        "AttributeDefinitions": _ATTRIBUTE_DEFINITIONS,
        "StreamSpecification": _STREAM,
        "SSESpecification": _ENCRYPTION,
        "TableClass": _TABLE_CLASS,
        "DeletionProtectionEnabled": Boolean(),
        "OnDemandThroughput": _ON_DEMAND,
        "WarmThroughput": _WARM,
        "ReplicaUpdates": _UnsupportedMember("Replicas"),
        "MultiRegionConsistency": _UnsupportedMember("Replicas"),
        "GlobalTableWitnessUpdates": _UnsupportedMember("Replicas"),
        "GlobalTableSettingsReplicationMode": _UnsupportedMember("Replicas"),
        "VectorIndexUpdates": _UnsupportedMember("Vector indexes"),
    },
    required=("TableName",),
)
_LIST: Final = Structure(
    "ListTablesInput",
    {
        "ExclusiveStartTableName": String(least=NAME_CHARACTERS_MIN, most=255, pattern=NAME),
        "Limit": Integer(least=1, most=limits.LIST_TABLES_MAX),
    },
)
_SET_TIME_TO_LIVE: Final = Structure(
    "UpdateTimeToLiveInput",
    {
        "TableName": ManagedTableName(),
        "TimeToLiveSpecification": Structure(
            "TimeToLiveSpecification",
            {"AttributeName": _ATTRIBUTE_NAME, "Enabled": Boolean()},
            required=("AttributeName", "Enabled"),
        ),
    },
    required=("TableName", "TimeToLiveSpecification"),
)


def _of_one_table(name: str) -> Structure:
    return Structure(name, {"TableName": ManagedTableName()}, required=("TableName",))


_RESOURCE_ARN: Final = String(most=1283)  # as in the service
_TAG: Final = Structure("TagResourceInput", {"ResourceArn": _RESOURCE_ARN, "Tags": _TAGS})
_UNTAG: Final = Structure("UntagResourceInput", {"ResourceArn": _RESOURCE_ARN, "TagKeys": ListOf(String())})
_LIST_TAGS: Final = Structure("ListTagsOfResourceInput", {"ResourceArn": _RESOURCE_ARN, "NextToken": String()})


# -- from requests to the parameters of commands


def _attributes(request: Request) -> tuple[Attribute, ...]:
    given = request.get("AttributeDefinitions", ())
    return tuple(Attribute(each["AttributeName"], each["AttributeType"]) for each in given)


def _keys(schema: list[dict[str, str]]) -> tuple[KeyElement, ...]:
    return tuple(KeyElement(each["AttributeName"], each["KeyType"]) for each in schema)


def _throughput(given: Request) -> tuple[int, int] | None:
    units = given.get("ProvisionedThroughput")
    return None if units is None else (units["ReadCapacityUnits"], units["WriteCapacityUnits"])


def _on_demand(given: Request) -> tuple[int, int] | None:
    most = given.get("OnDemandThroughput")
    if most is None:
        return None
    return most.get("MaxReadRequestUnits", NO_LIMIT), most.get("MaxWriteRequestUnits", NO_LIMIT)


def _warm(given: Request) -> tuple[int, int] | None:
    units = given.get("WarmThroughput")
    if units is None:
        return None
    for name in ("ReadUnitsPerSecond", "WriteUnitsPerSecond"):
        if units.get(name, 0) < 1:
            raise Invalid(f"One or more parameter values were invalid: WarmThroughput needs a positive {name}")
    return units["ReadUnitsPerSecond"], units["WriteUnitsPerSecond"]


def _index(given: Request) -> IndexSpec:
    projection = given["Projection"]
    named = projection.get("NonKeyAttributes")
    return IndexSpec(
        name=given["IndexName"],
        keys=_keys(given["KeySchema"]),
        projection=ProjectionSpec(projection.get("ProjectionType"), None if named is None else tuple(named)),
        throughput=_throughput(given),
        on_demand=_on_demand(given),
        warm=_warm(given),
    )


def _indexes(given: list[Request] | None) -> tuple[IndexSpec, ...] | None:
    return None if given is None else tuple(_index(each) for each in given)


def _index_change(given: Request) -> IndexChange:
    create, update, delete = given.get("Create"), given.get("Update"), given.get("Delete")
    return IndexChange(
        create=None if create is None else _index(create),
        update=None
        if update is None
        else IndexUpdate(update["IndexName"], _throughput(update), _on_demand(update), _warm(update)),
        delete=None if delete is None else delete["IndexName"],
    )


def _stream(request: Request) -> StreamSpec | None:
    given = request.get("StreamSpecification")
    return None if given is None else StreamSpec(given["StreamEnabled"], given.get("StreamViewType"))


def _encryption(request: Request) -> str | None:
    """The kind of encryption; empty: disabled; None: not in the request."""
    given = request.get("SSESpecification")
    if given is None:
        return None
    return str(given.get("SSEType", "KMS")) if given.get("Enabled") else ""


def _tags(given: list[dict[str, str]]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in given}


# -- tables


def _view(context: Context) -> describe.DescribeContext:
    return describe.DescribeContext(context.region, context.db.clock.now_ms())


def table_spec(request: Request) -> TableSpec:
    """The table that a request describes."""
    return TableSpec(
        name=request["TableName"],
        attributes=_attributes(request),
        keys=_keys(request["KeySchema"]),
        local=_indexes(request.get("LocalSecondaryIndexes")),
        globals=_indexes(request.get("GlobalSecondaryIndexes")),
        billing=request.get("BillingMode"),
        throughput=_throughput(request),
        on_demand=_on_demand(request),
        warm=_warm(request),
        table_class=request.get("TableClass"),
        protected=request.get("DeletionProtectionEnabled", False),
        encryption=_encryption(request) or None,
        stream=_stream(request),
        tags=_tags(request.get("Tags", [])),
    )


async def _create_table(context: Context, request: Request) -> dict[str, Any]:
    spec = table_spec(request)
    created = await context.execute(CreateTable(spec))
    return {"TableDescription": describe.created(created, _view(context))}


async def _update_table(context: Context, request: Request) -> dict[str, Any]:
    name = request["TableName"]
    changes = TableChanges(
        attributes=_attributes(request),
        billing=request.get("BillingMode"),
        throughput=_throughput(request),
        on_demand=_on_demand(request),
        warm=_warm(request),
        table_class=request.get("TableClass"),
        protected=request.get("DeletionProtectionEnabled"),
        encryption=_encryption(request),
        stream=_stream(request),
        indexes=tuple(_index_change(each) for each in request.get("GlobalSecondaryIndexUpdates", ())),
    )
    try:
        before = await context.execute(DescribeTable(name))
    except TableNotFound:
        before = None  # the command raises the error, after those about the request itself
    after = await context.execute(UpdateTable(name, changes))
    return {"TableDescription": describe.updated(before or after, after, _view(context))}


async def _delete_table(context: Context, request: Request) -> dict[str, Any]:
    deleted = await context.execute(DeleteTable(request["TableName"]))
    return {"TableDescription": describe.deleted(deleted, _view(context))}


async def _describe_table(context: Context, request: Request) -> dict[str, Any]:
    try:
        described = await context.execute(DescribeTable(request["TableName"]))
    except TableNotFound:
        restored = await backups.described(context, request["TableName"])
        if restored is None:
            raise
        return {"Table": restored}
    return {"Table": describe.described(described, _view(context))}


async def _list_tables(context: Context, request: Request) -> dict[str, Any]:
    after, limit = request.get("ExclusiveStartTableName"), request.get("Limit", limits.LIST_TABLES_MAX)
    # Tables with shorter names can be created with SQL, but no request of this API can name them.
    listed = await context.execute(ListTables(after, limit, NAME_CHARACTERS_MIN))
    response: dict[str, Any] = {"TableNames": listed.names}
    if listed.last is not None:
        response["LastEvaluatedTableName"] = listed.last
    return response


# -- time to live


async def _update_time_to_live(context: Context, request: Request) -> dict[str, Any]:
    spec = request["TimeToLiveSpecification"]
    await context.execute(SetTimeToLive(request["TableName"], spec["AttributeName"], spec["Enabled"]))
    return {"TimeToLiveSpecification": {"AttributeName": spec["AttributeName"], "Enabled": spec["Enabled"]}}


async def _describe_time_to_live(context: Context, request: Request) -> dict[str, Any]:
    known = await context.execute(DescribeTimeToLive(request["TableName"]))
    described = {"TimeToLiveStatus": known.status}
    if known.attribute is not None:
        described["AttributeName"] = known.attribute
    return {"TimeToLiveDescription": described}


# -- tags

_table_of: Final = re.compile(r"arn:aws[a-z-]*:dynamodb:[^:]+:([0-9]+):table/([^/]{3,})", re.DOTALL).fullmatch


def _is_arn(text: str) -> bool:
    """Whether the text has six non-empty parts separated by colons, the last of which has two non-empty parts separated
    by a slash. A part may contain more colons."""
    at = 1
    for sign in ":::::/":
        at = text.find(sign, at) + 2  # a part has at least one character
        if at < 2:
            return False
    return at <= len(text)


def _denied(operation: str, resource: str) -> Forbidden:
    return Forbidden(
        f"User: arn:aws:iam::{render.ACCOUNT}:tailrace is not authorized to perform: dynamodb:{operation} "
        f"on resource: {resource or '*'}"
    )


def _tagged(operation: str, request: Request, needs: str | None = None) -> str:
    """The table name in the ResourceArn. Errors come in the service's order, which includes the check that another
    member (`needs`) is present."""
    arn = request.get("ResourceArn")
    if arn is None:
        raise Invalid("Invalid TableArn")
    if arn and ":" not in arn:
        raise Invalid(f"Invalid ResourceArn: ARNs must start with 'arn:': {arn}")
    if not _is_arn(arn):
        raise _denied(operation, arn)
    if needs is not None and needs not in request:
        member = needs[:1].lower() + needs[1:]
        raise Invalid(
            f"1 validation error detected: Value null at '{member}' failed to satisfy constraint: "
            "Member must not be null"
        )
    match = _table_of(arn)
    if match is None:
        raise Invalid(f"Invalid TableArn: Invalid ResourceArn provided as input {arn}")
    if match[1] != render.ACCOUNT:
        raise _denied(operation, arn)
    return match[2]


async def _tag_resource(context: Context, request: Request) -> bytes:
    name = _tagged("TagResource", request, "Tags")
    try:
        await context.execute(TagTable(name, _tags(request["Tags"])))
    except TableNotFound as error:
        raise _no_resource(request, error) from error
    return b""


async def _untag_resource(context: Context, request: Request) -> bytes:
    name = _tagged("UntagResource", request, "TagKeys")
    try:
        await context.execute(UntagTable(name, tuple(request["TagKeys"])))
    except TableNotFound as error:
        raise TableNotFound(error.name, "Requested resource not found") from error
    return b""


async def _list_tags(context: Context, request: Request) -> dict[str, Any]:
    name = _tagged("ListTagsOfResource", request)
    try:
        tags = await context.execute(ListTags(name))
    except TableNotFound as error:
        raise _no_resource(request, error) from error
    return {"Tags": [{"Key": key, "Value": text} for key, text in tags.items()]}


def _no_resource(request: Request, error: TableNotFound) -> TableNotFound:
    # "ResourcArn" is the service's own spelling.
    return TableNotFound(error.name, f"Requested resource not found: ResourcArn: {request['ResourceArn']} not found")


# -- operations that tools call before they start


async def _describe_endpoints(context: Context, request: Request) -> dict[str, Any]:
    address = context.host.decode("latin-1") or "localhost"
    return {"Endpoints": [{"Address": address, "CachePeriodInMinutes": ENDPOINT_MINUTES}]}


async def _describe_limits(context: Context, request: Request) -> dict[str, Any]:
    return {
        "AccountMaxReadCapacityUnits": ACCOUNT_UNITS,
        "AccountMaxWriteCapacityUnits": ACCOUNT_UNITS,
        "TableMaxReadCapacityUnits": TABLE_UNITS,
        "TableMaxWriteCapacityUnits": TABLE_UNITS,
    }


OPERATIONS: Final[dict[str, Operation]] = {
    "CreateTable": Operation(_CREATE, _create_table),
    "UpdateTable": Operation(_UPDATE, _update_table),
    "DeleteTable": Operation(_of_one_table("DeleteTableInput"), _delete_table),
    "DescribeTable": Operation(_of_one_table("DescribeTableInput"), _describe_table),
    "ListTables": Operation(_LIST, _list_tables),
    "UpdateTimeToLive": Operation(_SET_TIME_TO_LIVE, _update_time_to_live),
    "DescribeTimeToLive": Operation(_of_one_table("DescribeTimeToLiveInput"), _describe_time_to_live),
    "TagResource": Operation(_TAG, _tag_resource),
    "UntagResource": Operation(_UNTAG, _untag_resource),
    "ListTagsOfResource": Operation(_LIST_TAGS, _list_tags),
    "DescribeEndpoints": Operation(Structure("DescribeEndpointsRequest", {}), _describe_endpoints),
    "DescribeLimits": Operation(Structure("DescribeLimitsInput", {}), _describe_limits),
}
