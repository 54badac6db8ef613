"""How much is tried: little by default, much with TAILRACE_SOAK=1 or hypothesis' deep profile (`make soak`)."""

from __future__ import annotations

import os

SOAK = os.environ.get("TAILRACE_SOAK") == "1" or os.environ.get("HYPOTHESIS_PROFILE") == "deep"


def examples(usual: int) -> int:
    """How many examples hypothesis tries."""
    return usual * 20 if SOAK else usual


def rounds(usual: int) -> int:
    """How often something slow is repeated."""
    return usual * 10 if SOAK else usual
