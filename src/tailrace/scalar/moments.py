"""Timestamps in expressions: the functions that compiled code calls, and their rules.

A timestamp is a text in ISO 8601, with or without an offset from UTC (without one it is UTC), of which at least the
date is given. In an expression it is a `datetime` in UTC; a text that is compared with a timestamp is read as one, and
a text that is none is unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

CHARACTERS_MAX: Final = 64  # of the text of a timestamp


def as_moment(plain: Any) -> datetime | None:
    """The timestamp of a text; a timestamp itself."""
    if type(plain) is datetime:
        return plain
    if type(plain) is not str or not 10 <= len(plain) <= CHARACTERS_MAX or plain[4] != "-" or not plain.isascii():
        return None
    try:
        found = datetime.fromisoformat(plain)
        return found if found.tzinfo is None else found.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        return None


def as_day(plain: Any) -> datetime | None:
    """The beginning of the day of a timestamp."""
    found = as_moment(plain)
    return None if found is None else found.replace(hour=0, minute=0, second=0, microsecond=0)


def moment_text(moment: datetime | None) -> str | None:
    """As in 2026-01-28 12:00:00; a fraction of a second only where there is one."""
    return None if moment is None else moment.isoformat(" ")


def day_text(moment: datetime | None) -> str | None:
    """As in 2026-01-28."""
    return None if moment is None else moment.date().isoformat()


# By the name of a part: the number of a timestamp's part.
PARTS: Final[dict[str, Callable[[datetime], int]]] = {
    "YEAR": lambda moment: moment.year,
    "QUARTER": lambda moment: (moment.month + 2) // 3,
    "MONTH": lambda moment: moment.month,
    "WEEK": lambda moment: moment.isocalendar().week,
    "DAY": lambda moment: moment.day,
    "DOW": lambda moment: moment.isoweekday() % 7,
    "ISODOW": lambda moment: moment.isoweekday(),
    "DOY": lambda moment: moment.timetuple().tm_yday,
    "HOUR": lambda moment: moment.hour,
    "MINUTE": lambda moment: moment.minute,
    "SECOND": lambda moment: moment.second,
    "EPOCH": lambda moment: int(moment.replace(tzinfo=UTC).timestamp() // 1),
}


def moment_part(part: Callable[[datetime], int], moment: datetime | None) -> int | None:
    """EXTRACT(part FROM moment)."""
    return None if moment is None else part(moment)


FUNCTIONS: Final = {
    **{each.__name__: each for each in (as_moment, as_day, moment_text, day_text, moment_part)},
    "to_moment": as_moment,  # CAST, of which an exact expression has its own
    "to_day": as_day,
}
