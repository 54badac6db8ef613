"""A pytest plugin: every command that reaches a runner is replaced by its decoded copy, and so are its result, its
error and the notices of its commit. So tests of commands also test that they can travel: `make messages`.

    pytest -p tests.support.decoded tests/unit/tables
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tailrace import runner
from tailrace.bus import messages
from tailrace.command import Command
from tailrace.errors import Error

copied = {"commands": 0, "results": 0, "errors": 0, "notices": 0}
troubles: list[str] = []
unsendable: list[Any] = []
tags: set[str] = set()
_init = runner.QueuedCommand.__init__
_commit = runner.Runner._commit


def _copy(what: str, of: str, copy: Any, original: Any) -> Any:
    try:
        found = copy()
    except Error as error:
        assert error.code == messages.UNSENDABLE
        unsendable.append(original)  # it must be refused where it runs, too
        return original
    except Exception as error:
        troubles.append(f"{what} of {of}: {type(error).__name__}: {error}")
        return original
    copied[what] += 1
    return found


def _of_product(command: Command[Any]) -> bool:
    return type(command).__module__.startswith("tailrace.")


def copy_command(self: Any, command: Command[Any], by: str) -> None:
    if _of_product(command):
        tags.add(type(command).__name__)
        command = _copy(
            "commands",
            type(command).__name__,
            lambda: messages.decode_command(*messages.encode_command(command)),
            command,
        )
    _init(self, command, by)


def copy_outcomes(self: Any, batch: Any) -> None:
    _commit(self, batch)
    for job in batch.jobs:
        kind, result, error = type(job.command), job.result, job.error
        if not _of_product(job.command):
            continue
        if error is None:
            if any(command is job.command for command in unsendable):
                troubles.append(f"{kind.__name__} was done, but cannot travel: {job.command!r:.200}")
            job.result = _copy(
                "results",
                kind.__name__,
                lambda kind=kind, result=result: messages.decode_result(kind, messages.encode_result(result)),
                result,
            )
            if type(job.result) is not type(result):
                troubles.append(f"the result of {kind.__name__} became a {type(job.result).__name__}")
        elif isinstance(error, Error) and error not in (batch.error, self.stopped):
            job.error = _copy(
                "errors",
                type(error).__name__,
                lambda error=error: messages.decode_error(messages.encode_error(error)),
                error,
            )
            if type(job.error) is not type(error) or str(job.error) != str(error) or vars(job.error) != vars(error):
                troubles.append(f"{error!r} {vars(error)} became {job.error!r} {vars(job.error)}")
    plain = [notice for notice in batch.notices if type(notice.item).__module__.startswith("tailrace.")]
    if len(plain) == len(batch.notices):
        batch.notices = _copy(
            "notices", "a commit", lambda: messages.decode_notices(messages.encode_notices(plain)), batch.notices
        )


runner.QueuedCommand.__init__ = copy_command  # type: ignore[method-assign]
runner.Runner._commit = copy_outcomes  # type: ignore[method-assign]


@pytest.fixture(autouse=True)
def _the_same_elsewhere() -> Iterator[None]:
    yield
    unsendable.clear()
    if troubles:
        found = "\n".join(dict.fromkeys(troubles))
        troubles.clear()
        raise AssertionError(f"not the same after a journey between processes:\n{found}")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    terminalreporter.write_line("decoded copies: " + ", ".join(f"{count} {what}" for what, count in copied.items()))
    terminalreporter.write_line("never run: " + ", ".join(sorted(messages.COMMANDS.keys() - tags)))
