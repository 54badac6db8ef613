"""LIKE patterns: `%` matches any text, `_` any one character; ESCAPE defines an escape character.

A pattern is split at `%` into segments, and each segment is searched for after the previous one. The leftmost match of
a segment is always the best, so matching never backtracks and no pattern takes long. A long segment with `_` in a long
text is matched at all positions at once (the bitap algorithm), in a time that does not depend on the text's contents.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final, TypeAlias

Matcher: TypeAlias = Callable[[str], bool]
PATTERN_CHARACTERS_MAX: Final = 1_024  # bounds the cost of a match, and the size of the cache
STEPS_MAX: Final = 4_000_000  # characters of the text times those of the segment; beyond, bitap is used
_ANY: Final = None  # stands for `_` in a segment
Find: TypeAlias = Callable[[str, int], int]  # from a text and a start: the end of the first occurrence, or -1


class BadPattern(Exception):
    """The pattern is too long or ends with the escape character, or the escape is not a single character."""


@lru_cache(maxsize=256)
def matcher(pattern: str, escape: str | None, fold: bool) -> Matcher:
    """A function that tells whether a text matches the pattern; with `fold`, regardless of case."""
    if len(pattern) > PATTERN_CHARACTERS_MAX:
        raise BadPattern(f"a pattern can have at most {PATTERN_CHARACTERS_MAX} characters")
    if escape is not None and len(escape) != 1:
        raise BadPattern("ESCAPE must be one character")
    segments = _segments(folded(pattern) if fold else pattern, escape and folded(escape) if fold else escape)
    matches = _plain(segments) or _general(segments)
    if not fold:
        return matches
    return lambda text: matches(folded(text))


def folded(text: str) -> str:
    """The text in lower case, character by character, so that its length does not change."""
    if text.isascii():
        return text.lower()
    return "".join([character.lower()[0] for character in text])


def raised(text: str) -> str:
    """The text in upper case, character by character; a character without a single upper case stays as it is."""
    if text.isascii():
        return text.upper()
    return "".join(
        [upper if len(upper := character.upper()) == 1 else _UPPER.get(character, character) for character in text]
    )


_UPPER: Final = {"ß": "ẞ"}


def _segments(pattern: str, escape: str | None) -> list[list[str | None]]:
    """The segments between the `%` of the pattern: characters, and None for each `_`."""
    segments: list[list[str | None]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, None)
            if escaped is None:
                raise BadPattern("a pattern must not end with its ESCAPE character")
            segments[-1].append(escaped)
        elif character == "%":
            segments.append([])
        else:
            segments[-1].append(_ANY if character == "_" else character)
    return segments


def _plain(segments: list[list[str | None]]) -> Matcher | None:
    """The fast path for common patterns: 'x', 'x%', '%x', '%x%'."""
    if any(character is _ANY for segment in segments for character in segment):
        return None
    texts = ["".join(character or "" for character in segment) for segment in segments]
    if len(texts) == 1:
        wanted = texts[0]
        return lambda text: text == wanted
    if len(texts) == 2:
        first, last = texts
        if not last:
            return lambda text: text.startswith(first)
        length = len(first) + len(last)
        return lambda text: len(text) >= length and text.startswith(first) and text.endswith(last)
    if len(texts) == 3 and not texts[0] and not texts[2]:
        inner = texts[1]
        return lambda text: inner in text
    return None


def _regex(segment: list[str | None]) -> re.Pattern[str]:
    return re.compile("".join("." if character is _ANY else re.escape(character) for character in segment), re.DOTALL)


def _finder(segment: list[str | None]) -> Find:
    """A function that searches for a segment."""
    length = len(segment)
    if _ANY not in segment:
        wanted = "".join(character or "" for character in segment)

        def find(text: str, at: int) -> int:
            found = text.find(wanted, at)
            return found if found < 0 else found + length

        return find
    regex = _regex(segment)
    # Per character, a bit for each position of the segment that it matches.
    anything = sum(1 << at for at, character in enumerate(segment) if character is _ANY)
    fitting: dict[str, int] = {}
    for place, character in enumerate(segment):
        if character is not _ANY:
            fitting[character] = fitting.get(character, anything) | 1 << place
    whole = 1 << length - 1

    def search(text: str, at: int) -> int:
        if (len(text) - at) * length <= STEPS_MAX:
            found = regex.search(text, at)
            return -1 if found is None else found.end()
        begun = 0  # a bit for each prefix of the segment that ends here in the text
        for place in range(at, len(text)):
            begun = (begun << 1 | 1) & fitting.get(text[place], anything)
            if begun & whole:
                return place + 1
        return -1

    return search


def _general(segments: list[list[str | None]]) -> Matcher:
    first, *others = [_regex(segment) for segment in (segments[0], *segments[1:][-1:])]
    if not others:
        return lambda text: first.fullmatch(text) is not None
    last = others[-1]
    last_length = len(segments[-1])
    middle = [_finder(segment) for segment in segments[1:-1]]

    def matches(text: str) -> bool:
        found = first.match(text)
        if found is None:
            return False
        at = found.end()
        for find in middle:
            at = find(text, at)
            if at < 0:
                return False
        begin = len(text) - last_length
        return begin >= at and last.match(text, begin) is not None

    return matches
