"""The pages of the documentation, and the examples on them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    if "node_modules" not in path.parts
)

FENCE = re.compile(r"(?P<mark><!-- run -->\s*\n)?^```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^```", re.M | re.S)


def page_name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def marked(path: Path) -> list[tuple[str, str]]:
    """The examples of a page that are to be run: language and code."""
    found = FENCE.finditer(path.read_text(encoding="utf-8"))
    return [(match["language"], match["code"]) for match in found if match["mark"]]


SESSIONS = [path for path in PAGES if marked(path)]
