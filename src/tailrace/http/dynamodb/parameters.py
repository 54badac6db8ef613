"""What requests about items have in common: which parameters go together, expressions and what they replaced.

Before there were expressions, conditions and projections were written as JSON (Expected, AttributesToGet and so on). A
request uses the one way or the other. Both become the same objects.
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
    Structure,
    Text,
)
from tailrace.tables import expression, legacy, value
from tailrace.tables.expression import Condition, Paths, Placeholders
from tailrace.tables.messages import INVALID
from tailrace.tables.value import Item as ItemValue

# -- shapes

VALUES: Final = Item()
NAMES: Final = MapOf(Text())
ATTRIBUTES_TO_GET: Final = ListOf(Text(), least=1, most=255)
CONDITIONAL_OPERATOR: Final = Text(enum=("OR", "AND"))
RETURN_VALUES: Final = Text(enum=("ALL_NEW", "UPDATED_OLD", "ALL_OLD", "NONE", "UPDATED_NEW"))
ON_CONDITION_FAILURE: Final = Text(enum=("ALL_OLD", "NONE"))
COMPARISON_OPERATOR: Final = Text(
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


# -- which go together


def check_mixed(request: Request, expressions: tuple[str, ...], replaced: tuple[str, ...]) -> None:
    """Refuse expressions beside what they replaced, and placeholders beside no expression."""
    used = [name for name in expressions if name in request]
    if used:
        if "KeyConditions" in request and "KeyConditionExpression" not in request:
            # The one exception: the key's conditions may be of the old kind beside expressions of the new one.
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
    """ConditionalOperator joins the conditions of an old parameter, which must have some."""
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


def condition(request: Request, given: Placeholders, parameter: str = "ConditionExpression") -> Condition | None:
    text = request.get(parameter)
    return None if text is None else expression.condition(text, given, parameter)


def projection(request: Request, given: Placeholders) -> Paths | None:
    """What to show, by ProjectionExpression or AttributesToGet."""
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
        if error.code == "SERIALIZATION" or any(part in text for part in _TOLD_BARE):
            raise
        raise Invalid(f"The provided starting key is invalid: {text}") from error


_TOLD_BARE: Final = (  # the service puts no words before these
    "contains duplicates",
    "number set",
    "numeric value",
    "significant digits",
    "number with magnitude",
)


def capacity(request: Request) -> str:
    """How much of the consumed capacity to tell: NONE, TOTAL or INDEXES."""
    return str(request.get("ReturnConsumedCapacity", "NONE"))
