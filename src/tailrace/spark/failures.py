"""Errors of Spark, reduced to the message that helps the user.

The parts of a Python data source run in processes that Spark starts. Errors there are returned as text, which Spark
puts between its own message and the stack of a JVM. Spark omits the Python traceback when an environment variable is
set, and reads the variable after the exception was raised. So an `Error`, whose message says what was wrong and how to
fix it, sets the variable, and one line is left. Other exceptions are bugs and keep their traceback.
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


def hide_traceback(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """The function; Spark shows an `Error` that it raises without a traceback."""

    @functools.wraps(function)
    def shown(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except Error:
            os.environ[_HIDE] = "1"
            raise

    return shown


def hide_traceback_each(function: Callable[_P, Iterator[_R]]) -> Callable[_P, Iterator[_R]]:
    """As `hide_traceback`, for generators."""

    @functools.wraps(function)
    def shown(*args: _P.args, **kwargs: _P.kwargs) -> Iterator[_R]:
        try:
            yield from function(*args, **kwargs)
        except Error:
            os.environ[_HIDE] = "1"
            raise

    return shown


def explain(error: BaseException) -> str:
    """The error in one sentence: the message of an `Error` if it has one, else the first line of Spark's."""
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
    """The most informative line: the first, or the last one of a Python traceback."""
    lines = [line for line in text.splitlines() if line.strip() and not _STATE.fullmatch(line)]
    if not lines:
        return ""
    if lines[0].endswith("Traceback (most recent call last):"):
        inside = itertools.takewhile(lambda line: "JVM stacktrace:" not in line, lines[1:])
        # One that ends with a colon announces another traceback, of the process that it came from.
        return next((line for line in inside if not line.startswith(" ") and not line.endswith(":")), lines[0])
    called = _CALLED.match(text)
    return _CONDITION.sub("", called["message"] if called is not None else lines[0])
