"""Parameters that the operations on items share: which can be combined, expressions, and legacy parameters.

Before the service had expressions, conditions and projections were written as JSON (Expected, AttributesToGet and so
on). A request uses one form or the other. Both become the same objects.
"""

from __future__ import annotations

from typing import Final

from tailrace.errors import Invalid
from tailrace.http.dynamodb.shape import (
    AttributeValue,
    Boolean,
    Item,
    ListOf,
    MapOf,
    Request,
    String,
    Structure,
)
from tailrace.tables import expression, legacy, value
from tailrace.tables.expression import ItemCondition, Paths, Placeholders
from tailrace.tables.messages import INVALID
from tailrace.tables.value import Item as ItemValue

# -- shapes

VALUES: Final = Item()
NAMES: Final = MapOf(String())
ATTRIBUTES_TO_GET: Final = ListOf(String(), least=1, most=255)
CONDITIONAL_OPERATOR: Final = String(enum=("OR", "AND"))
RETURN_VALUES: Final = String(enum=("ALL_NEW", "UPDATED_OLD", "ALL_OLD", "NONE", "UPDATED_NEW"))
ON_CONDITION_FAILURE: Final = String(enum=("ALL_OLD", "NONE"))
COMPARISON_OPERATOR: Final = String(
    enum=(
        "IN",
        "NULL",
        "BETWEEN",
        "LT",
        "NOT_CONTAINS",
        "EQ",
        "GT",
        "NOT_NULL",
        "NE",
        "LE",
        "BEGINS_WITH",
        "GE",
        "CONTAINS",
    )
)
EXPECTED: Final = MapOf(
    Structure(
        "ExpectedAttributeValue",
        {
            "AttributeValueList": ListOf(AttributeValue()),
            "ComparisonOperator": COMPARISON_OPERATOR,
            "Exists": Boolean(),
            "Value": AttributeValue(),
        },
    )
)
CONDITIONS: Final = MapOf(
    Structure(
        "Condition",
        {"AttributeValueList": ListOf(AttributeValue()), "ComparisonOperator": COMPARISON_OPERATOR},
        required=("ComparisonOperator",),
    )
)


# -- combinations


def check_mixed(request: Request, expressions: tuple[str, ...], replaced: tuple[str, ...]) -> None:
    """Refuse expressions combined with legacy parameters, and placeholders without an expression."""
    used = [name for name in expressions if name in request]
    if used:
        if "KeyConditions" in request and "KeyConditionExpression" not in request:
            # The one exception: the legacy KeyConditions may be combined with expressions.
            replaced = tuple(name for name in replaced if name != "KeyConditions")
        old = [name for name in replaced if name in request]
        if old:
            raise Invalid(
                "Can not use both expression and non-expression parameters in the same request: "
                f"Non-expression parameters: {{{', '.join(old)}}} Expression parameters: {{{', '.join(used)}}}"
            )
    elif "ExpressionAttributeNames" in request:
        raise Invalid("ExpressionAttributeNames can only be specified when using expressions")
    if "ExpressionAttributeValues" in request:
        takes = [name for name in expressions if name != "ProjectionExpression"]
        if takes and not any(name in request for name in takes):
            raise Invalid(
                "ExpressionAttributeValues can only be specified when using expressions: "
                f"{' and '.join(takes)} {'are' if len(takes) > 1 else 'is'} null"
            )


def check_operator(request: Request, conditions: str) -> None:
    """Refuse ConditionalOperator without the conditions of a legacy parameter."""
    if "ConditionalOperator" in request and not request.get(conditions):
        what = "Expected" if conditions == "Expected" else "Filter or Expected"
        raise Invalid(f"{INVALID}ConditionalOperator cannot be used without {what}")


# -- expressions


def placeholders(request: Request) -> Placeholders:
    """The names and values that a request's expressions refer to."""
    names = request.get("ExpressionAttributeNames")
    values = request.get("ExpressionAttributeValues")
    if names is None and values is None:
        return Placeholders(None, None)
    return expression.placeholders(names, values)


def condition(request: Request, given: Placeholders, parameter: str = "ConditionExpression") -> ItemCondition | None:
    text = request.get(parameter)
    return None if text is None else expression.condition(text, given, parameter)


def projection(request: Request, given: Placeholders) -> Paths | None:
    """The attributes to return, from ProjectionExpression or AttributesToGet."""
    text = request.get("ProjectionExpression")
    if text is not None:
        return expression.projection(text, given)
    names = request.get("AttributesToGet")
    return None if names is None else legacy.attributes_to_get(names)


def check_attributes_to_get(request: Request) -> None:
    names = request.get("AttributesToGet")
    if names is None:
        return
    seen = set()
    for name in names:
        if name in seen:
            raise Invalid(f"{INVALID}Duplicate value in attribute name: {name}")
        seen.add(name)
    value.check_names(names)


def start_key(request: Request) -> ItemValue | None:
    """ExclusiveStartKey, if there is one."""
    raw = request.get("ExclusiveStartKey")
    if raw is None:
        return None
    try:
        return value.read_item(raw)[0]
    except Invalid as error:
        text = str(error)
        if error.code == "SERIALIZATION" or any(part in text for part in _UNPREFIXED):
            raise
        raise Invalid(f"The provided starting key is invalid: {text}") from error


_UNPREFIXED: Final = (  # messages that the service returns without a prefix
    "contains duplicates",
    "number set",
    "numeric value",
    "significant digits",
    "number with magnitude",
)


def capacity(request: Request) -> str:
    """How much of the consumed capacity to return: NONE, TOTAL or INDEXES."""
    return str(request.get("ReturnConsumedCapacity", "NONE"))
