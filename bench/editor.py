"""What is measured of collaborative editing: how long an edit takes to be visible to the others.

The load is that of an editor (`examples/editor/load.mjs`): 20 writers with 5 edits a second each and 20 readers, in one
document, with the official Yjs provider and Yjs server over the server that is measured.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import Any, Final

from bench.load import Failed
from bench.rows import Line, Meter, Row, Sample, ServerRow, cpu_line
from bench.servers import NAMES, ROOT, Missing, Server

EDITOR: Final = ROOT / "examples" / "editor"
WRITERS: Final = 20
READERS: Final = 20
RATE: Final = 5  # edits of each writer a second
PATIENCE_S: Final = 180.0


class Editing(ServerRow):
    """Edits of one document by many people. A lost edit is an error."""

    name = "editor"
    contenders = NAMES[:2]
    title = f"an editor: {WRITERS} writers × {RATE} edits/s, {READERS} readers, one document"

    def lines(self) -> list[Line]:
        return [
            Line("p50", "edit visible to others p50", "ms", higher=False, at_most=50),
            Line("p99", "edit visible to others p99", "ms", higher=False),
            cpu_line("edit"),
            Line("lost", "edits lost", "", higher=False, at_most=0),
            Line("others", "of the server's core, taken by others", "%", higher=False, secondary=True),
        ]

    def prepare(self, server: Server) -> None:
        if shutil.which("node") is None:
            raise Missing("the participants run under Node; tools/ensure-node installs it where it can")
        if not (EDITOR / "node_modules").is_dir():
            raise Missing("the packages of examples/editor are missing; run `make node-modules`")

    def measure(self, server: Server) -> Sample:
        address = server.address
        options = {"writers": WRITERS, "readers": READERS, "rate": RATE, "seconds": round(self.settings.seconds * 2)}
        command = ["node", "load.mjs", f"--server=http://{address.host}:{address.port}"]
        command += [f"--{name}={value}" for name, value in options.items()]
        with Meter(server, self.settings) as meter:
            done = subprocess.run(
                command,
                cwd=EDITOR,
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=False,
                preexec_fn=lambda: os.sched_setaffinity(0, self.settings.client_cores),
            )
        if done.returncode:
            raise Failed(f"load.mjs failed: {done.stderr.strip()[-1000:]}")
        found: dict[str, Any] = json.loads(done.stdout)
        figures = {"p50": found["p50_ms"], "p99": found["p99_ms"], "lost": float(found["lost"])}
        complaints = [] if found["same"] else ["the participants do not have the same text"]
        return Sample(figures | meter.figures(found["edits"]), {}, complaints)


ROWS: Final[list[type[Row[Any]]]] = [Editing]
