"""Logs read in bulk: entries as Arrow batches, and from those the rows that readers want. Pure over pyarrow."""

from __future__ import annotations

from tailrace import extras

extras.require("cold")
