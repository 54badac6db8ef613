"""``python -m examples.shop run | serve | check``: what `make run`, `make serve` and `make demo` run."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tailrace.errors import Error

CHECK_STEP_S = 240.0


def main() -> int:
    arguments = _parser().parse_args()
    try:
        if arguments.command == "check":
            return _check(arguments.timeout, arguments.keep)
        if arguments.command == "serve":
            from examples.shop import serving

            return serving.serve(arguments.data, arguments.port, arguments.compile or None)
        from examples.shop import running

        return running.run(arguments.data, arguments.port, arguments.install, arguments.compile or None)
    except Error as error:
        print(f"tailrace: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m examples.shop", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run a server, the shop and a pipeline until interrupted")
    serve = commands.add_parser("serve", help="run a server alone until interrupted")
    for one in (run, serve):
        one.add_argument("--data", type=Path, default=Path("data"), help="the directory of the database (data)")
        one.add_argument("--port", type=int, default=4437, help="the port to listen on (4437); 0 for any free one")
        one.add_argument("--compile", metavar="COMMAND", help="a command that compiles the server for the next start")
    run.add_argument("--install", metavar="COMMAND", help="a command that installs Spark, run before the pipeline")
    check = commands.add_parser("check", help="go through every step once, in a temporary directory, and check it")
    check.add_argument("--timeout", type=float, default=CHECK_STEP_S, help="seconds that a step may take (240)")
    check.add_argument("--keep", action="store_true", help="keep the files, and print where they are")
    return parser


def _check(within_s: float, keep: bool) -> int:
    from examples.shop import walkthrough

    began = time.monotonic()

    def say(step: str, text: str) -> None:
        bold, plain = ("\x1b[1m", "\x1b[0m") if sys.stdout.isatty() else ("", "")
        print(f"{time.monotonic() - began:6.1f} s  {bold}{step:<7}{plain} {text}", flush=True)

    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))  # programs are ended and files removed, as by Ctrl-C
    folder = Path(tempfile.mkdtemp(prefix="tailrace-demo-"))
    try:
        walkthrough.run(folder, say, within_s)
    finally:
        if keep:
            print(f"the files are in {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    say("done", "all steps passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
