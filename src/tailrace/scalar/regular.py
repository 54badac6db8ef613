"""Regular expressions, by RE2: a match takes time linear in the text, whatever the pattern, since filters run inside
the transactions of writers."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

import re2

from tailrace.scalar.pattern import PATTERN_CHARACTERS_MAX, BadPattern

MEMORY_BYTES_MAX: Final = 1 << 20  # of a compiled pattern; a larger one is refused


@lru_cache(maxsize=256)
def search(pattern: str, *, fold: bool, whole: bool) -> Callable[[str], bool]:
    """A function that tells whether a text has a match: somewhere, or as a `whole`. `fold`: regardless of case."""
    if len(pattern) > PATTERN_CHARACTERS_MAX:
        raise BadPattern(f"a regular expression can have at most {PATTERN_CHARACTERS_MAX} characters")
    options = re2.Options()
    options.case_sensitive = not fold
    options.log_errors = False
    options.max_mem = MEMORY_BYTES_MAX
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else error.args[0]
        raise BadPattern(f"this regular expression cannot be used, {reason}") from None
    matched = compiled.fullmatch if whole else compiled.search
    return lambda text: matched(text) is not None
