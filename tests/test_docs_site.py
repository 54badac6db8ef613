"""The documentation site builds, without a broken link or a page that the navigation lacks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_the_site_builds_and_can_be_searched(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for page in ("index.html", "architecture.html", "reference/glossary.html", "why/index.html"):
        assert (tmp_path / page).is_file(), page
    assert (tmp_path / "assets" / "architecture.svg").is_file()
    pages = json.loads((tmp_path / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    assert any("lease" in page["text"].lower() for page in pages)
    for page in tmp_path.rglob("*.html"):
        assert "fonts.googleapis" not in page.read_text(encoding="utf-8"), f"{page.name} loads from another site"


def test_the_index_links_every_page() -> None:
    docs = ROOT / "docs"
    index = (docs / "index.md").read_text(encoding="utf-8")
    pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")} - {"index.md"}
    notes = (docs / "why" / "index.md").read_text(encoding="utf-8")
    missing = {page for page in pages if f"({page})" not in index and f"({Path(page).name})" not in notes}
    assert missing == set(), "docs/index.md lists all pages, docs/why/index.md the design notes"
