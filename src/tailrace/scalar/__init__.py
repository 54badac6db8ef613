"""SQL scalar expressions over typed items: the filters and partition keys of routes, the values of UPDATE and INSERT.

An expression is parsed by sqlglot, checked, and compiled once to a Python function; no parser runs on the write path.
Logic is three-valued: comparing a missing value, or values of different kinds, is unknown. A compiled expression never
raises an error, whatever an item contains, unless its value is about to be stored.

    reading     from text to syntax tree, within limits
    compiler    from syntax tree to terms, together with comparing and functions
    term        Python source with its known type
    runtime     the functions that compiled expressions call
    exact       the same functions for values that are stored: a missing result is an error
    expression  the compiled functions, cached by text
    attribute   conversion between plain and typed values
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace import lazy

if TYPE_CHECKING:
    from tailrace.scalar.attribute import KINDS, from_attribute, key_text, to_attribute
    from tailrace.scalar.exact import NoResult
    from tailrace.scalar.expression import (
        Condition,
        Scalar,
        ValueExpression,
        compile_condition,
        compile_value,
        condition,
        exact_value,
        stored_value,
        value,
    )
    from tailrace.scalar.problem import ExpressionError

__all__ = [
    "KINDS",
    "Condition",
    "ExpressionError",
    "NoResult",
    "Scalar",
    "ValueExpression",
    "compile_condition",
    "compile_value",
    "condition",
    "exact_value",
    "from_attribute",
    "key_text",
    "stored_value",
    "to_attribute",
    "value",
]

_HOMES = {
    "tailrace.scalar.attribute": ("KINDS", "from_attribute", "key_text", "to_attribute"),
    "tailrace.scalar.exact": ("NoResult",),
    "tailrace.scalar.expression": (
        "Condition",
        "Scalar",
        "ValueExpression",
        "compile_condition",
        "compile_value",
        "condition",
        "exact_value",
        "stored_value",
        "value",
    ),
    "tailrace.scalar.problem": ("ExpressionError",),
}
__getattr__, __dir__ = lazy.names(__name__, {name: home for home, names in _HOMES.items() for name in names})
