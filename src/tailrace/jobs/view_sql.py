"""The text of a view's SELECT: the tables that it reads, and the same text with other names for them.

The SELECT is Spark SQL, and Spark plans it. Here it is only parsed, to find its sources. Pure: the server checks a view
when it is created, and the job replaces the names of tables by the names under which Spark knows their rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, TokenError

from tailrace import limits
from tailrace.scalar.problem import ExpressionError, TextOrigin
from tailrace.scalar.reading import first_too_deep

DIALECT: Final = "databricks"  # of Spark SQL the one with paths into VARIANT: value:customer.id::string
CODE: Final = "INVALID_VIEW"
_DEPTH_MAX: Final = 60


def tables(sql: str, line: int = 1, column: int = 1) -> tuple[str, ...]:
    """The tables that a SELECT reads, each once, in the order in which it names them."""
    origin = TextOrigin(line, column)
    found: dict[str, None] = {}
    for node in _tables(_parsed(sql, origin)):
        name = _name(node)
        if name.lower().startswith("system."):
            raise origin.error_at(f"{name} has no changes to follow; a view reads tables", node, CODE)
        found[name] = None
    if not found:
        raise origin.error("a view reads a table, and this SELECT reads none", 1, 1, CODE)
    if len(found) > limits.VIEW_SOURCES_MAX:
        raise origin.error(f"a view reads at most {limits.VIEW_SOURCES_MAX} tables", 1, 1, CODE)
    return tuple(found)


def renamed(sql: str, names: Mapping[str, str]) -> str:
    """The text with other names for its tables. Where a table has no alias, its own name becomes one."""
    edits: list[tuple[int, int, str]] = []
    tree = _parsed(sql, TextOrigin())
    for node in _tables(tree):
        parts = node.parts
        new = f"`{names[_name(node)]}`"
        if not node.alias and not node.args.get("sample"):  # an alias would have to follow the sample
            new += f" AS `{parts[-1].name}`"
        edits.append((*_span(sql, parts), new))
    dotted = {name for name in names if "." in name}
    for column in tree.find_all(exp.Column):
        if column.find_ancestor(exp.Hint):
            continue
        *qualifier, _ = column.parts
        if len(qualifier) > 1 and ".".join(part.name for part in qualifier) in dotted:
            edits.append((*_span(sql, qualifier), f"`{qualifier[-1].name}`"))
    for start, end, new in sorted(edits, reverse=True):
        sql = sql[:start] + new + sql[end:]
    return sql


def _span(sql: str, parts: Sequence[exp.Expr]) -> tuple[int, int]:
    """Where a name begins and ends in the text. The positions are sqlglot's: what is not the name there is never
    replaced."""
    for part in parts:
        start, end = part.meta.get("start", 0), part.meta.get("end", 0) + 1
        found = sql[start:end]
        if found.startswith("`"):
            found = found[1:-1].replace("``", "`")
        if found != part.name:
            raise TextOrigin().error(f"the name {part.name!r} is not found in the SELECT; quote it with `", 1, 1, CODE)
    return parts[0].meta["start"], parts[-1].meta["end"] + 1


def _parsed(sql: str, origin: TextOrigin) -> exp.Query:
    if len(sql) > limits.VIEW_SQL_CHARACTERS_MAX:
        raise origin.error(f"a view's SELECT has at most {limits.VIEW_SQL_CHARACTERS_MAX} characters", 1, 1, CODE)
    try:
        tokens = list(sqlglot.tokenize(sql, dialect=DIALECT))
        deep = first_too_deep(tokens, _DEPTH_MAX)
        if deep is not None:
            raise origin.error(
                f"a view's SELECT is nested at most {_DEPTH_MAX} deep", deep.line, max(1, deep.col), CODE
            )
        trees = [tree for tree in sqlglot.parse(_readable(sql, tokens), dialect=DIALECT) if tree is not None]
    except ExpressionError:
        raise
    except ParseError as error:
        detail = error.errors[0] if error.errors else {}
        near = str(detail.get("highlight") or "")
        line, end = int(detail.get("line") or 1), int(detail.get("col") or 1)
        raise origin.error(f"the SELECT cannot be read at {near[:60]!r}", line, max(1, end - len(near) + 1)) from None
    except TokenError:
        raise origin.error("the SELECT cannot be read: a quote or a bracket is not closed", 1, 1) from None
    except RecursionError:
        raise origin.error("the SELECT is nested too deep; take a part of it out", 1, 1, CODE) from None
    except Exception:  # sqlglot may raise anything for invalid text
        raise origin.error("the SELECT cannot be read; write it in another way", 1, 1) from None
    if len(trees) != 1 or not isinstance(trees[0], exp.Query):
        raise origin.error("a view is one SELECT", 1, 1, CODE)
    for node in trees[0].find_all(exp.Placeholder, exp.Parameter):
        raise origin.error_at("a view has no parameter; write the value", node, CODE)
    return trees[0]


def _readable(sql: str, tokens: list[Any]) -> str:
    """The text with another name for Spark's function window(), which sqlglot takes for the keyword; all positions stay
    the same."""
    for token, after in pairwise(tokens):
        if token.text.lower() == "window" and after.text == "(":
            sql = f"{sql[: token.start]}windo_{sql[token.end + 1 :]}"
    return sql


def _tables(tree: exp.Query) -> list[exp.Table]:
    """The tables in the text, without references to common table expressions. A hint names tables and aliases that
    are elsewhere in the text, and the positions in it are not those in the text."""
    found = []
    for node in tree.find_all(exp.Table):
        if not isinstance(node.this, exp.Identifier) or (len(node.parts) == 1 and _is_common(node)):
            continue
        if node.find_ancestor(exp.Hint):
            continue
        found.append(node)
    return found


def _is_common(node: exp.Table) -> bool:
    """Whether a table expression of an enclosing WITH has this name. Its own text names a table, unless the WITH is
    recursive."""
    name, inside = node.name.lower(), node.parent
    within: list[exp.Expr] = []
    while inside is not None:
        within.append(inside)
        clause = inside.args.get("with_") or inside.args.get("with")
        recursive = clause is not None and bool(clause.args.get("recursive"))
        for each in clause.expressions if clause is not None else ():
            inner = each in within
            if each.alias.lower() == name and (recursive or not inner):
                return True
            if inner:
                break  # later ones are not visible here
        inside = inside.parent
    return False


def _name(node: exp.Table) -> str:
    return ".".join(part.name for part in node.parts)
