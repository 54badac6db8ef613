"""Exactly once, by killing, ten times: drivers and servers on one machine, and executors too on a cluster.

Each time the driver is started it cuts its batches into another number of partitions; once its checkpoint is gone.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.torment import BOTH, CHECKPOINT, DRIVER, EXECUTOR, SERVER, Torment, shuffled
from tests.support.cluster import Cluster

pytestmark = pytest.mark.timeout(1200)


def test_ten_kills_of_drivers_and_servers(tmp_path: Path) -> None:
    with Torment(tmp_path) as scene:
        kills = [DRIVER] * 4 + [SERVER] * 3 + [BOTH] * 2 + [CHECKPOINT]
        scene.run(shuffled(scene.chance, *kills))
        scene.settle()


def test_ten_kills_of_executors_drivers_and_servers_on_a_cluster(tmp_path: Path, cluster: Cluster) -> None:
    with Torment(tmp_path, cluster, shuffle=True) as scene:
        kills = [EXECUTOR] * 6 + [DRIVER] * 2 + [SERVER] + [CHECKPOINT]
        scene.run(shuffled(scene.chance, *kills))
        scene.settle()
