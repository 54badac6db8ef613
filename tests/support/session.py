"""Runs the examples of one page of the documentation in order, as a newcomer would who has `make run` up.

Reads ``{"blocks": [[language, code], ...], "passes": 2}`` as JSON from standard input and works in the current
directory, which has a `.venv` with the product (`tests.support.environment`); this program itself runs in it. Python
blocks share one namespace (``pycon`` is compared with what it shows, as doctest does); bash blocks that follow each
other share one shell, and their exports and their directory hold from then on; JavaScript is skipped where its packages
are not installed. A ``console`` block with a line like ``$ tailrace serve --dev`` starts that server on a free port,
which stands for the documented one. Port 4437, unless the page starts a server there, is a server with the shop of
`make run`. Directories below /tmp/tailrace- are below the current one.
"""

from __future__ import annotations

import contextlib
import doctest
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import traceback
from itertools import groupby
from pathlib import Path
from typing import Any

from tests.support.server import ROOT, ServerProcess

_ADDRESS = re.compile(r"(?:127\.0\.0\.1|localhost):(\d{4})\b")
_PORT = re.compile(r"(-port) (\d{4})\b")  # of a program that a shell block starts
_SCRATCH = "/tmp/tailrace-"
_FOLLOWS = re.compile(r"^(.*(?:live=|tailrace tail |--follow\b).*)$", re.M)  # what has a terminal of its own
_NODE_HOME = ROOT / "tests" / "clients"  # where the packages are that JavaScript may import
_OWN_CLIENT = ROOT / "clients" / "js" / "tailrace.js"
_EXPORTED = ".exported"


class Session:
    """What the examples of a page have in common."""

    def __init__(self, stack: contextlib.ExitStack, home: Path, addresses: dict[str, str]) -> None:
        self._stack = stack
        self._home = home
        self._addresses = dict(addresses)  # of each documented port
        self._names: dict[str, Any] = {"__name__": "__main__"}

    def run(self, language: str, code: str) -> None:
        if language in ("bash", "sh"):
            code = _PORT.sub(self._free, code)
        code = _ADDRESS.sub(lambda match: self._addresses.get(match[1], match[0]), code)
        code = code.replace(_SCRATCH, f"{self._home}/tailrace-")
        match language:
            case "python":
                exec(compile(code, "<example>", "exec"), self._names)
            case "pycon":
                self._compare(code)
            case "bash" | "sh":
                self._shell(code)
            case "javascript":
                self._javascript(code)
            case "console":
                self._serve(code)
            case _:
                raise AssertionError(f"an example in {language or 'no language'} cannot be run")

    def _free(self, match: re.Match[str]) -> str:
        """A free port instead of the documented one."""
        if match[2] not in self._addresses:
            with socket.create_server(("127.0.0.1", 0)) as listener:
                self._addresses[match[2]] = f"127.0.0.1:{listener.getsockname()[1]}"
        return f"{match[1]} {self._addresses[match[2]].rpartition(':')[2]}"

    def _serve(self, code: str) -> None:
        line = next(line for line in code.splitlines() if line.startswith("$ "))
        words = shlex.split(line[2:].replace(".venv/bin/", ""))
        environment = dict(word.split("=", 1) for word in words[: words.index("tailrace")])
        options = words[words.index("serve") + 1 :]
        port = "4437"
        if "--port" in options:
            at = options.index("--port")
            port = options[at + 1]
            del options[at : at + 2]
        if "--data" not in options:
            options += ["--data", "data"]
        at = options.index("--data") + 1
        options[at] = str(Path(options[at]).resolve())
        self._addresses[port] = serve(self._stack, options, environment)
        if port == "4437":
            point_to(self._addresses[port])
        for name in ("TAILRACE_URL", "AWS_ENDPOINT_URL"):  # set before the server was there
            if name in os.environ:
                os.environ[name] = _ADDRESS.sub(lambda match: self._addresses.get(match[1], match[0]), os.environ[name])

    def _compare(self, code: str) -> None:
        test = doctest.DocTestParser().get_doctest(code, self._names, "example", None, 0)
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        result = doctest.DocTestRunner(optionflags=flags).run(test, clear_globs=False)
        self._names.update(test.globs)
        assert result.failed == 0, f"{result.failed} of {result.attempted} examples show something else"

    def _shell(self, code: str) -> None:
        behind = _FOLLOWS.search(code) is not None
        script = _FOLLOWS.sub(r"\1 &", code)
        script = re.sub(r"\bcurl ", "curl -fsS ", script)  # what fails must fail
        script = f"trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{script}\n{'sleep 1' if behind else ''}\n"
        exported = self._home / _EXPORTED
        subprocess.run(["bash", "-euo", "pipefail", "-c", f"{script}env -0 > {exported}"], check=True)
        for pair in exported.read_text().split("\0"):
            name, equals, value = pair.partition("=")
            if equals:
                os.environ[name] = value
        os.chdir(os.environ["PWD"])

    def _javascript(self, code: str) -> None:
        if (_NODE_HOME / "node_modules").is_dir():
            code = code.replace('from "tailrace"', f'from "{_OWN_CLIENT}"')
            subprocess.run(["node", "--input-type=module", "-e", code], cwd=_NODE_HOME, check=True)


def serve(stack: contextlib.ExitStack, options: list[str], environment: dict[str, str]) -> str:
    """Start a server for as long as the stack lasts. Returns its host and port."""
    server = ServerProcess([sys.executable, "-m", "tailrace.cli", "serve", "--port", "0", *options], env=environment)
    stack.enter_context(server)
    return server.url.partition("://")[2]


def point_to(address: str) -> None:
    """Let commands without an address use this server, as those of a newcomer use port 4437."""
    os.environ["TAILRACE_URL"] = f"http://{address}"


def open_shop(address: str) -> None:
    """Create and write the orders of `make run`."""
    from examples.shop import orders
    from tailrace.client import Client

    with Client(f"http://{address}") as client:
        orders.prepare(client)
        shop = orders.Shop(client, seed=1)
        for _ in range(30):
            shop.write()


def run_blocks(blocks: list[tuple[str, str]], home: Path, addresses: dict[str, str]) -> int:
    with contextlib.ExitStack() as stack:
        session = Session(stack, home, addresses)
        for language, group in groupby(blocks, key=lambda block: block[0]):
            codes = [code for _, code in group]
            for code in ["\n".join(codes)] if language in ("bash", "sh") else codes:
                try:
                    session.run(language, code)
                except Exception:
                    sys.stdout.flush()
                    traceback.print_exc()
                    sys.stderr.write(f"\nin this example:\n{code}")
                    return 1
    return 0


def main() -> int:
    page = json.load(sys.stdin)
    blocks: list[tuple[str, str]] = [(language, code) for language, code in page["blocks"]]
    home = Path.cwd()
    before = dict(os.environ)
    with contextlib.ExitStack() as stack:
        addresses = {}
        if any("4437" in code or "tailrace " in code for language, code in blocks if language != "pycon"):
            data = str(home / "served")
            addresses["4437"] = serve(stack, ["--dev", "--data", data, "--long-poll-timeout", "3"], {})
            open_shop(addresses["4437"])
        for _ in range(page["passes"]):
            os.environ.clear()
            os.environ.update(before)
            os.chdir(home)
            if "4437" in addresses:
                point_to(addresses["4437"])
            status = run_blocks(blocks, home, addresses)
            if status != 0:
                return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
