"""Exactly once, by killing: a few kills of two streaming queries under load. `make cluster-test` kills more."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from tests.cluster.torment import CHECKPOINT, DRIVER, SERVER, Torment

pytestmark = pytest.mark.slow


def test_what_was_written_is_there_once_after_a_driver_a_server_and_a_checkpoint_were_lost(tmp_path: Path) -> None:
    with Torment(tmp_path) as scene:
        scene.run([DRIVER, SERVER, CHECKPOINT])
        scene.settle()
