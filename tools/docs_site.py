"""Makes the repository's Markdown a site: a hook of MkDocs (mkdocs.yml).

The pages are written to be read in the repository, where links are relative to the file and may lead out of docs/. Here
README.md and its siblings become pages, links to them are rewritten, and links to sources become plain text. Headings
get the anchors that the repository's viewers give them.
"""

from __future__ import annotations

import html
import os
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
# Pages outside of docs/: path in the repository -> path in the site.
OUTSIDE = {
    "README.md": "readme.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "examples/README.md": "examples.md",
}

_CODE = re.compile(r"^( *)```.*?^\1```[^\n]*$|`+[^`\n]+`+", re.M | re.S)
_KEPT = re.compile("\0(\\d+)\0")
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_LIST_AFTER_TEXT = re.compile(r"^((?![-|>#]|\d+\. | ).*\S.*)\n(?=(?:- |\d+\. )\S)", re.M)


def anchor(text: str, _separator: str) -> str:
    """The anchor of a heading, as the repository's viewers make it."""
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.mdx_configs["toc"]["slugify"] = anchor
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, target in OUTSIDE.items():
        if (ROOT / source).exists():
            files.append(File.generated(config, target, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    here = page.file.src_uri
    source = next((name for name, target in OUTSIDE.items() if target == here), f"docs/{here}")
    code: list[str] = []

    def keep(match: re.Match[str]) -> str:
        code.append(_code(match.group(), match[1] or ""))
        return f"\0{len(code) - 1}\0"

    text = _CODE.sub(keep, markdown)
    text = _LIST_AFTER_TEXT.sub(r"\1\n\n", text)  # without a blank line Python's Markdown sees a paragraph
    return _KEPT.sub(lambda match: code[int(match[1])], _rewritten(text, source, here))


def _code(text: str, indent: str) -> str:
    """Code as Python's Markdown wants it: blocks of a list are indented by 4, and a table's pipes are not escaped."""
    if 0 < len(indent) < 4:
        return re.sub("^" + indent, "    ", text, flags=re.M)
    if r"\|" in text and "\n" not in text:
        return f"<code>{html.escape(text.strip('`').replace(chr(92) + '|', '|')).replace('|', '&#124;')}</code>"
    return text


def _rewritten(text: str, source: str, here: str) -> str:
    def link(match: re.Match[str]) -> str:
        picture, label, target = match.groups()
        path, hash_mark, fragment = target.partition("#")
        if not path or re.match(r"[a-z]+:", path):
            return match.group()
        found = (ROOT / source).parent.joinpath(path).resolve()
        site = _site_path(found)
        if site is None:
            return label
        relative = os.path.relpath(site, os.path.dirname(here) or ".").replace(os.sep, "/")
        return f"{picture}[{label}]({relative}{hash_mark}{fragment})"

    return _LINK.sub(link, text)


def _site_path(path: Path) -> str | None:
    """Where a file of the repository is in the site; None if it is not."""
    name = path.relative_to(ROOT).as_posix()
    if name in OUTSIDE:
        return OUTSIDE[name]
    if path.is_relative_to(DOCS):
        if path.is_dir():
            return f"{path.relative_to(DOCS).as_posix()}/index.md"
        return path.relative_to(DOCS).as_posix()
    return "examples.md" if name == "examples" else None
