"""pipeline.toml: which jobs one Spark application runs, and how.

Every setting has a default. Without a file every table and topic is tiered, every view is maintained, and small files
are merged once an hour. An unknown key is an error that names it: a misspelt setting must not be ignored.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from tailrace import limits
from tailrace.errors import Invalid

FILE: Final = "pipeline.toml"
BATCH_RECORDS: Final = 200_000
INTERVAL_S: Final = 5.0
AGE_S: Final = 30.0
TARGET_BYTES: Final = limits.COLD_FILE_BYTES
VACUUM: Final = f"{limits.COLD_VACUUM_HOURS // 24}d"
VACUUM_S_MIN: Final = 3_600  # a file that is about to be committed must not be deleted
DAY_S: Final = 86_400

_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": DAY_S, "w": 7 * DAY_S}
_SIZES: Final = {"": 1, "B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "KB": 10**3, "MB": 10**6, "GB": 10**9}


class TierSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `[tier]`. In names, `*` stands for anything."""

    enabled: bool = True
    tables: tuple[str, ...] = ("*",)
    topics: tuple[str, ...] = ("*",)
    streams: tuple[str, ...] = ()
    interval_s: float = INTERVAL_S  # between two polls of the server
    batch_records: int = BATCH_RECORDS  # of one Delta table, in one commit
    age_s: float = AGE_S  # how long less than a full batch waits for more


class CompactSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `[compact]`."""

    enabled: bool = True
    every: str = "1h"
    target_bytes: int | str = TARGET_BYTES
    retention: str | None = None  # how long history is kept in cold storage; None: for ever
    vacuum: str = VACUUM  # how long unlisted files are kept for readers that began before


class SnapshotSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `[snapshot]`."""

    tables: tuple[str, ...] = ()
    every: str = "1d"
    retention: str | None = None  # how long snapshots are kept; None: for ever


class ViewSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `[views]`."""

    names: tuple[str, ...] = ("*",)
    poll_s: float = 10.0  # how often new views are looked for
    interval_s: float = 1.0  # between two batches of a view


class ReplicateSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of `[[replicate]]`."""

    table: str
    to: str
    name: str | None = None  # required where a table has several copies
    target_table: str | None = None
    target_token: str | None = None  # of a Tailrace server as target; or TAILRACE_TARGET_TOKEN
    checkpoint: str | None = None
    max_records: int | None = None
    interval_s: float | None = None


class PipelineSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    url: str = "http://127.0.0.1:4437"
    master: str | None = None  # None: this machine, or the setting of spark-submit
    spark: dict[str, str | int | bool] = {}  # settings of Spark, by their own names
    tier: TierSettings = TierSettings()
    compact: CompactSettings = CompactSettings()
    snapshot: SnapshotSettings = SnapshotSettings()
    views: ViewSettings = ViewSettings()
    replicate: tuple[ReplicateSettings, ...] = ()


def load(path: str | None = None, *, environ: Mapping[str, str] = os.environ, **given: Any) -> PipelineSettings:
    """The settings of `path` (pipeline.toml if it exists), overridden by the environment and by `given`."""
    found: dict[str, Any] = {}
    file = Path(path or FILE)
    if path is not None or file.is_file():
        try:
            found.update(tomllib.loads(file.read_text(encoding="utf-8")))
        except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise Invalid(f"cannot read the pipeline in {str(file)!r}: {error}") from error
    if (url := environ.get("TAILRACE_URL")) is not None:
        found["url"] = url
    found.update({name: value for name, value in given.items() if value is not None})
    try:
        settings = msgspec.convert(found, PipelineSettings)
    except msgspec.ValidationError as error:
        raise Invalid(f"{str(file)!r}: {error}; see docs/reference/pipeline.md") from error
    return checked(settings)


def checked(settings: PipelineSettings) -> PipelineSettings:
    """The settings, if every value is valid."""
    tier, compact, views = settings.tier, settings.compact, settings.views
    for name, value in (
        ("tier.interval_s", tier.interval_s), ("views.poll_s", views.poll_s), ("views.interval_s", views.interval_s),
    ):  # fmt: skip
        if not 0 < value < math.inf:
            raise Invalid(f"{name} must be a finite number of seconds above 0, not {value}")
    if not 0 <= tier.age_s < math.inf:
        raise Invalid(f"tier.age_s must be a finite number of seconds, 0 or more, not {tier.age_s}")
    if tier.batch_records < 1:
        raise Invalid(f"tier.batch_records must be 1 or more, not {tier.batch_records}")
    for each in settings.replicate:
        if (each.max_records is not None and each.max_records < 1) or not 0 < (each.interval_s or 1.0) < math.inf:
            raise Invalid(f"the copy of {each.table!r}: max_records and interval_s must be above 0")
    seconds(compact.every, "compact.every")
    if seconds(compact.vacuum, "compact.vacuum") < VACUUM_S_MIN:
        raise Invalid(
            f"compact.vacuum {compact.vacuum!r} is too short: a file may be written and not committed yet; give "
            "1h or more"
        )
    if compact.retention is not None:
        seconds(compact.retention, "compact.retention")
    octets(compact.target_bytes, "compact.target_bytes")
    seconds(settings.snapshot.every, "snapshot.every")
    if settings.snapshot.retention is not None:
        seconds(settings.snapshot.retention, "snapshot.retention")
    names = [each.name or f"{each.table} to {each.to}" for each in settings.replicate]
    if len(set(names)) != len(names):
        raise Invalid("two of [[replicate]] have the same name; give each its own name")
    return settings


def seconds(text: str, what: str, *, zero: bool = False) -> int:
    """A duration such as 90s, 15m, 1h, 365d or 2w."""
    found = re.fullmatch(r"(\d{1,9})\s*([smhdw])", text.strip())
    if found is None or (int(found[1]) == 0 and not zero):
        raise Invalid(f"{what} {text!r} is not a duration; write one like 90s, 15m, 1h, 7d or 52w")
    return int(found[1]) * _UNITS[found[2]]


def octets(given: int | str, what: str) -> int:
    """A size: bytes, or text such as 256MiB."""
    if isinstance(given, int):
        size = given
    else:
        found = re.fullmatch(r"(\d{1,12})\s*([KMG]i?B|B)?", given.strip())
        size = 0 if found is None else int(found[1]) * _SIZES[found[2] or ""]
    if size < 1:
        raise Invalid(f"{what} {given!r} is not a size; write one like 268435456 or 256MiB")
    return size


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether one of the patterns matches this name; `*` stands for anything."""
    return any(_pattern(each).fullmatch(name) for each in patterns)


def is_pattern(text: str) -> bool:
    return "*" in text


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in text.split("*")), re.S)


EXAMPLE: Final = """\
# The jobs of `tailrace pipeline run`. Lines that begin with # show defaults; remove the # to change one.
# The token comes from TAILRACE_TOKEN.

# url = "http://127.0.0.1:4437"
# master = "local[*]"            # or spark://host:7077, yarn, k8s://...

[spark]                          # settings of Spark, by their own names
# "spark.executor.memory" = "4g"

[tier]                           # copy logs to cold storage
# enabled = true
# tables = ["*"]                 # in names, * stands for anything
# topics = ["*"]
# streams = []
# interval_s = 5.0               # between two polls of the server
# batch_records = 200_000        # of one table or topic, in one commit
# age_s = 30.0                   # how long less than a full batch waits for more

[compact]                        # merge small files
# enabled = true
# every = "1h"
# target_bytes = "256MiB"
# retention = "365d"             # older history is removed; without it none is
# vacuum = "7d"                  # how long unlisted files are kept

[snapshot]                       # fold changes to the state of a table
# tables = []
# every = "1d"
# retention = "90d"              # older snapshots are removed; without it none is

[views]                          # maintain materialized views, also those created later
# names = ["*"]
# poll_s = 10.0
# interval_s = 1.0

# [[replicate]]                  # keep a copy of a table elsewhere
# table = "orders"
# to = "file:///srv/copies/orders"   # or s3://..., postgresql://..., http://...
"""
