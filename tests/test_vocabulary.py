"""The vocabulary of code and documentation: words that the glossary replaces do not come back, and a class name is
found once.

docs/reference/glossary.md has the words to use. Test code is not searched, because it may quote what it refuses.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

from tests.support.pages import PAGES, ROOT

MODULES = sorted((ROOT / "src").rglob("*.py"))

# Each word, as a pattern, with the words to use. Parts of identifiers count: `told_at`, `_door`, `ShelfCache`.
REPLACED = {
    "doors?": "handler, endpoint, API",
    "told": "report, status, response, message",
    "shelf|shelves": "cold cache",
    "upkeep": "retention, maintenance",
    "slowing": "throttle, rate limit",
    "heard": "heartbeat, last_seen, received",
    "somebody": "principal, caller, user",
    r"let\s+in": "authenticated, accepted, permitted",
}
WORDS = {re.compile(rf"(?<![a-z])(?:{pattern})(?![a-z])", re.IGNORECASE): use for pattern, use in REPLACED.items()}
CAMEL_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

# The embedded API and the client offer the same two classes; the synchronous one is generated from the asynchronous.
SHARED_CLASS_NAMES = {"AsyncConsumer", "Consumer"}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def replaced_words(text: str) -> list[str]:
    """A line for each word that the glossary replaces, also where it is a part of an identifier or is wrapped."""
    spaced = CAMEL_CASE.sub("_", text)
    found = []
    for word, use in WORDS.items():
        for match in word.finditer(spaced):
            line = spaced.count("\n", 0, match.start()) + 1
            found.append(f"line {line}: {match.group()!r}; use: {use}")
    return found


@pytest.mark.parametrize("path", [*MODULES, *PAGES], ids=name_of)
def test_replaced_words_do_not_come_back(path: Path) -> None:
    found = replaced_words(path.read_text(encoding="utf-8"))
    assert not found, "\n".join([name_of(path), *found])


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("The front door.", 1),
        ("def told(self):", 1),
        ("told_at_ms = 1", 1),
        ("class ColdShelf:", 1),
        ("class Upkeep:", 1),
        ("Somebody was let\nin.", 2),
        ("last_heard = SLOWING", 2),
        ("outdoors, a bookshelf, overheard, slow, an outlet in Rome", 0),
    ],
)
def test_words_are_found_in_prose_and_in_identifiers(text: str, count: int) -> None:
    assert len(replaced_words(text)) == count


def test_class_names_are_unique() -> None:
    homes = defaultdict(list)
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(f"{name_of(path)}:{node.lineno}")
    shared = {name: places for name, places in homes.items() if len(places) > 1}
    assert {name: places for name, places in shared.items() if name not in SHARED_CLASS_NAMES} == {}
    assert set(shared) == SHARED_CLASS_NAMES, "the list holds only names that are still shared"
