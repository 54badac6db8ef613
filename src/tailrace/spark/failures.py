"""Errors as the person at the keyboard should see them.

The parts of a Python data source run in processes that Spark starts. What fails there comes back as text, which Spark
puts below its own words and above the stack of a JVM. Spark leaves out the Python traceback when a variable of the
process is set, and it looks at the variable when the exception is already on its way. So an error of ours, which says
what was wrong and how to put it right, sets it: one line is left. A bug of ours keeps its traceback.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

from tailrace.errors import Error

_P = ParamSpec("_P")
_R = TypeVar("_R")
_HIDE = "SPARK_HIDE_TRACEBACK"
_OURS = re.compile(r"tailrace(?:\.\w+)+: (?P<message>.+)")
_STATE = re.compile(r"\s*SQLSTATE: \w{5}\s*$")
_CONDITION = re.compile(r"^\[[A-Z0-9_.]+\]\s*")
_CALLED = re.compile(r"An error occurred while calling \S+\.\n: [\w.$]+: (?P<message>.+)")


def told(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """The function, with errors of ours shown without a traceback where Spark passes them on."""

    @functools.wraps(function)
    def shown(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except Error:
            os.environ[_HIDE] = "1"
            raise

    return shown


def told_each(function: Callable[_P, Iterator[_R]]) -> Callable[_P, Iterator[_R]]:
    """As `told`, for what yields."""

    @functools.wraps(function)
    def shown(*args: _P.args, **kwargs: _P.kwargs) -> Iterator[_R]:
        try:
            yield from function(*args, **kwargs)
        except Error:
            os.environ[_HIDE] = "1"
            raise

    return shown


def explain(error: BaseException) -> str:
    """What went wrong, in a sentence: our message if there is one in it, else the first line of Spark's."""
    if isinstance(error, Error):
        return str(error)
    seen: set[int] = set()
    first = ""
    at: Any = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        text = str(at)
        found = _OURS.search(text)
        if found is not None:
            return _STATE.sub("", found["message"]).strip()
        first = first or _first(text)
        at = getattr(at, "_cause", None) or at.__cause__
    return _STATE.sub("", first).strip() or type(error).__name__


def _first(text: str) -> str:
    """The line that says most: the first, or the last of a Python traceback that begins in it."""
    lines = [line for line in text.splitlines() if line.strip() and not _STATE.fullmatch(line)]
    if not lines:
        return ""
    if lines[0].endswith("Traceback (most recent call last):"):
        inside = itertools.takewhile(lambda line: "JVM stacktrace:" not in line, lines[1:])
        # One that ends with a colon announces another traceback, of the process that it came from.
        return next((line for line in inside if not line.startswith(" ") and not line.endswith(":")), lines[0])
    called = _CALLED.match(text)
    return _CONDITION.sub("", called["message"] if called is not None else lines[0])
