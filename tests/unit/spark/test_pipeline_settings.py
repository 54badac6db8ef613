"""pipeline.toml: everything has a default, nothing is ignored."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec
import pytest

from tailrace.errors import Invalid
from tailrace.spark.jobs import settings
from tailrace.spark.jobs.settings import EXAMPLE, PipelineSettings, load, matches, octets, seconds

NOTHING: dict[str, str] = {}


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "pipeline.toml"
    path.write_text(text)
    return str(path)


def test_no_file_means_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = load(environ=NOTHING)
    assert found == PipelineSettings()
    assert found.tier.enabled
    assert found.tier.tables == found.tier.topics == ("*",)
    assert found.tier.streams == ()
    assert found.views.names == ("*",)


def test_the_file_then_the_environment_then_the_arguments(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
        url = "http://a:1"
        [spark]
        "spark.executor.memory" = "2g"
        [tier]
        tables = ["orders", "app_*"]
        batch_records = 1_000
        [compact]
        target_bytes = "64MiB"
        retention = "365d"
        [[replicate]]
        table = "orders"
        to = "delta:///x"
        """,
    )
    found = load(path, environ=NOTHING)
    assert found.url == "http://a:1"
    assert found.spark == {"spark.executor.memory": "2g"}
    assert found.tier.tables == ("orders", "app_*")
    assert found.tier.batch_records == 1_000
    assert found.tier.topics == ("*",)
    assert found.replicate[0].to == "delta:///x"
    assert load(path, environ={"TAILRACE_URL": "http://b:2"}).url == "http://b:2"
    assert load(path, environ={"TAILRACE_URL": "http://b:2"}, url="http://c:3").url == "http://c:3"


def test_the_example_shows_every_setting_with_its_default() -> None:
    assert msgspec.convert(tomllib.loads(EXAMPLE), PipelineSettings) == PipelineSettings()
    lines = []
    for text in EXAMPLE.splitlines()[3:]:  # the first lines are words
        bare = text.removeprefix("# ")
        if bare.startswith(("retention", "master", '"spark.')):
            continue  # their default is none
        if bare.startswith("[[replicate]]"):
            break
        lines.append(bare)
    shown = tomllib.loads("\n".join(lines))
    found = msgspec.convert(shown, PipelineSettings)
    assert octets(found.compact.target_bytes, "") == settings.TARGET_BYTES
    assert msgspec.structs.replace(found, compact=PipelineSettings().compact) == PipelineSettings()
    sections = {field.name for field in msgspec.structs.fields(PipelineSettings)}
    for name in sections - {"url", "master", "spark", "replicate"}:
        wanted = {field.name for field in msgspec.structs.fields(type(getattr(PipelineSettings(), name)))} - {
            "retention"
        }
        assert set(shown[name]) == wanted, name


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("teir = 1", "teir"),
        ("[tier]\nbatch_record = 5", "batch_record"),
        ("[compact]\nevry = '1h'", "evry"),
        ("[[replicate]]\ntable = 'a'\nto = 'b'\nfrom = 'c'", "from"),
        ("[[replicate]]\ntable = 'a'", "to"),
        ("[tier]\nbatch_records = 'many'", "batch_records"),
        ("[tier]\nbatch_records = 0", "batch_records"),
        ("[tier]\ninterval_s = -1.0", "interval_s"),
        ("[tier]\ninterval_s = nan", "interval_s"),
        ("[tier]\nage_s = inf", "age_s"),
        ("[compact]\nevery = 'often'", "compact.every"),
        ("[compact]\nevery = '0s'", "compact.every"),
        ("[compact]\nretention = '5 parsecs'", "compact.retention"),
        ("[compact]\ntarget_bytes = '5 eggs'", "compact.target_bytes"),
        ("[compact]\nvacuum = '59m'", "compact.vacuum"),
        ("[snapshot]\nevery = ''", "snapshot.every"),
        ("[views]\npoll_s = 0.0", "views.poll_s"),
        ("[[replicate]]\ntable='a'\nto='b'\n[[replicate]]\ntable='a'\nto='b'", "replicate"),
        ("this is no toml", "cannot read"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(Invalid, match=named.replace(".", r"\.")):
        load(written(tmp_path, text), environ=NOTHING)


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"absent\.toml"):
        load(str(tmp_path / "absent.toml"), environ=NOTHING)


def test_durations_and_sizes() -> None:
    assert [seconds(text, "x") for text in ("90s", "15m", "1h", "7d", "2w")] == [90, 900, 3600, 604800, 1209600]
    assert [octets(given, "x") for given in (5, "5", "1KiB", "2 MiB", "1GB")] == [5, 5, 1024, 2 << 20, 10**9]


def test_patterns_mean_what_they_say() -> None:
    assert matches("orders", ("orders",))
    assert not matches("orders2", ("orders",))
    assert matches("orders2", ("ord*2",))
    assert matches("a/b/c", ("a/*",))
    assert not matches("axb", ("a.b",))
    assert not matches("a", ())
