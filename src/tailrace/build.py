"""Which build runs: pure Python, or with the hot modules compiled (docs/how-to/install.md#the-compiled-build)."""

from __future__ import annotations

import sys
from importlib.util import find_spec


def compiled() -> bool:
    """Whether the hot modules are extension modules."""
    spec = find_spec("tailrace.runner")
    return spec is not None and spec.origin is not None and not spec.origin.endswith(".py")


def describe() -> str:
    """The build and its Python, for people: ``compiled, Python 3.11.7``."""
    kind = "compiled" if compiled() else "pure Python"
    return f"{kind}, Python {'.'.join(map(str, sys.version_info[:3]))}"
