"""The chat in examples/chat: two windows in Chromium, and an assistant that answers in both."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.node import node
from tests.support.server import ROOT

HERE = Path(__file__).resolve().parent

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]


def test_a_question_is_answered_live_in_the_page(tmp_path: Path) -> None:
    found = subprocess.run([ROOT / "tools" / "ensure-chromium", "--find"], capture_output=True, text=True, check=False)
    if found.returncode != 0:
        pytest.skip("Chromium is not installed; tools/ensure-chromium installs it where it can")
    command = [sys.executable, "-u", str(ROOT / "examples" / "chat" / "chat.py"), "serve"]
    command += ["--port", "0", "--page-port", "0", "--data", str(tmp_path / "data")]
    chat = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert chat.stdout is not None
        line = chat.stdout.readline()
        at = re.search(r"the chat is at (\S+)", line)
        assert at is not None, line + chat.stdout.read()
        environment = {"CHAT_URL": at[1], "TMPDIR": str(tmp_path)}
        done = node(HERE, ["--test", "--test-reporter=tap", "chat.test.mjs"], env=environment, timeout_s=300)
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        chat.send_signal(2)  # as Ctrl-C does: it ends the server that it has started
        chat.wait(60)
