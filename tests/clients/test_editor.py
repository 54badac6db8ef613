"""The editor in examples/editor: two windows in Chromium that lose their connection, and an editor-like load."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.node import node
from tests.support.server import ROOT, ServerProcess

EDITOR = ROOT / "examples" / "editor"

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]


def test_two_windows_converge_also_after_a_network_loss(server: ServerProcess, tmp_path: Path) -> None:
    found = subprocess.run([ROOT / "tools" / "ensure-chromium", "--find"], capture_output=True, text=True, check=False)
    if found.returncode != 0:
        pytest.skip("Chromium is not installed; tools/ensure-chromium installs it where it can")
    arguments = ["--test", "--test-reporter=tap", "test/editor.test.mjs"]
    done = node(EDITOR, arguments, env={"TAILRACE_URL": server.url, "TMPDIR": str(tmp_path)}, timeout_s=500)
    counts = dict(re.findall(r"^# (pass|fail|cancelled|skipped) (\d+)$", done.stdout, re.M))
    assert done.returncode == 0, done.stdout + done.stderr
    assert counts == {"pass": "4", "fail": "0", "cancelled": "0", "skipped": "1"}, done.stdout  # screenshots on request


def test_an_editor_like_load_loses_nothing(server: ServerProcess) -> None:
    load = {"server": server.url, "writers": "20", "readers": "20", "rate": "5", "seconds": "2"}
    done = node(EDITOR, ["load.mjs", *(f"--{name}={value}" for name, value in load.items())], env={}, timeout_s=300)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert (result["edits"], result["participants"], result["lost"], result["same"]) == (200, 40, 0, True), result
