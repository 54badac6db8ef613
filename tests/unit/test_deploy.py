"""The files for deployment agree with the product: settings load, commands exist, copied files are there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from tailrace import config
from tailrace.cli import cli
from tailrace.http.routes import ROUTES
from tailrace.spark.jobs import settings

ROOT = Path(__file__).resolve().parents[2]
UNITS = sorted((ROOT / "deploy").glob("*.service"))


def check_command(words: list[str]) -> None:
    """Parse a command line of tailrace without running it."""
    context: click.Context = click.Context(cli)
    command: click.Command = cli
    while isinstance(command, click.Group):
        found = command.get_command(context, words[0])
        assert found is not None, words
        command, words = found, words[1:]
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_runs_a_command(path: Path) -> None:
    (line,) = re.findall(r"^ExecStart=/opt/tailrace/bin/tailrace (.*)$", path.read_text(), re.M)
    check_command(shlex.split(line))


def test_the_settings_load() -> None:
    assert config.load(str(ROOT / "deploy" / "tailrace.toml"), environ={}).data == "/var/lib/tailrace"
    assert settings.load(str(ROOT / "deploy" / "pipeline.toml"), environ={}).tier.enabled


def test_the_images_are_built_from_files_that_exist() -> None:
    text = (ROOT / "Dockerfile").read_text()
    allowed = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.M)
    copied = {name for names in re.findall(r"^COPY (.+) \S+$", text, re.M) for name in names.split()}
    assert copied and copied <= set(allowed)
    assert all((ROOT / name).exists() for name in copied)
    for entry, arguments in re.findall(r"^ENTRYPOINT (\[.*\])\nCMD (\[.*\])$", text, re.M):
        check_command([*yaml.safe_load(entry)[1:], *yaml.safe_load(arguments)])
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    targets = set(re.findall(r"^FROM \S+ AS (\S+)$", text, re.M))
    assert {service["build"]["target"] for service in services.values()} == {"server", "pipeline"} <= targets


# -- several servers

CLUSTER = ROOT / "deploy" / "cluster"
KUBERNETES = sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))
PRODUCT = {"TAILRACE_SECRET_KEY"}  # set in the environment alone


def known_settings() -> set[str]:
    """The names in the environment of all settings."""
    return PRODUCT | {
        f"TAILRACE_{section}_{name}".upper() if section else f"TAILRACE_{name}".upper()
        for section, name in config._names()
    }


def check_settings(given: dict[str, str]) -> None:
    named = {name for name in given if name.startswith("TAILRACE_")}
    assert named <= known_settings()


def test_the_servers_of_the_compose_file() -> None:
    services = yaml.safe_load((CLUSTER / "compose.yaml").read_text())["services"]
    servers = {name: each for name, each in services.items() if name.startswith("server")}
    assert len(servers) == 3
    for name, service in servers.items():
        check_command(service["command"])
        check_settings(service["environment"])
        assert service["environment"]["TAILRACE_CLUSTER_ADVERTISE"].startswith(f"{name}:")
        assert service["environment"]["TAILRACE_CLUSTER_ADVERTISE_URL"] == f"http://{name}:4437"
        assert (CLUSTER / service["build"]["context"]).resolve() == ROOT
    balanced = re.findall(r"^  server (\S+) (\S+)$", (CLUSTER / "haproxy.cfg").read_text(), re.M)
    assert balanced == [(name, f"{name}:4437") for name in servers]
    mounted = [str(volume) for service in services.values() for volume in service.get("volumes", [])]
    files = [volume.split(":")[0] for volume in mounted if volume.startswith("./")]
    assert files and all((CLUSTER / name).is_file() for name in files)


def test_the_servers_of_the_compose_file_find_their_settings() -> None:
    """The settings of one of them, as the product reads them."""
    server = yaml.safe_load((CLUSTER / "compose.yaml").read_text())["services"]["server1"]
    given = {name: "postgresql://x" if name == "TAILRACE_DATABASE" else value for name, value in
             server["environment"].items()}  # fmt: skip
    loaded = config.load(environ=given)
    assert loaded.database == "postgresql://x"
    assert loaded.cluster.listen == "0.0.0.0:4439"
    assert loaded.cluster.advertise == "server1:4439"


def test_the_servers_of_the_compose_file_share_their_cold_storage() -> None:
    composed = yaml.safe_load((CLUSTER / "compose.yaml").read_text())
    servers = [each for name, each in composed["services"].items() if name.startswith("server")]
    (url,) = {server["environment"]["TAILRACE_COLD_URL"] for server in servers}
    default = re.fullmatch(r"\$\{TAILRACE_COLD_URL:-(.+)\}", url)
    assert default is not None
    (volumes,) = {tuple(server["volumes"]) for server in servers}
    (mounted,) = (volume for volume in volumes if volume.endswith(f":{default[1]}"))
    assert mounted.split(":")[0] in composed["volumes"]
    # A new volume belongs to the owner of the directory in the image.
    assert re.search(rf"install -d .* -o tailrace .*{default[1]}\b", (ROOT / "Dockerfile").read_text())


def manifests() -> list[dict[str, Any]]:
    return [each for path in KUBERNETES for each in yaml.safe_load_all(path.read_text())]


def test_the_manifests_for_kubernetes() -> None:
    kinds = [each["kind"] for each in manifests()]
    assert sorted(kinds) == ["PodDisruptionBudget", "Secret", "Secret", "Service", "Service", "StatefulSet"]
    by_name = {(each["kind"], each["metadata"]["name"]): each for each in manifests()}
    stateful = by_name["StatefulSet", "tailrace"]["spec"]
    pod = stateful["template"]["spec"]
    (server,) = pod["containers"]
    check_command(server["args"])
    ports = {port["name"]: port["containerPort"] for port in server["ports"]}
    secret = by_name["Secret", server["envFrom"][0]["secretRef"]["name"]]["stringData"]
    check_settings(secret)
    check_settings({each["name"]: each.get("value", "") for each in server["env"]})
    assert ("Service", stateful["serviceName"]) in by_name
    for kind, name in by_name:
        if kind == "Service":
            for port in by_name[kind, name]["spec"]["ports"]:
                assert ports[port["targetPort"]] == port["port"]
    labels = stateful["template"]["metadata"]["labels"]
    assert stateful["selector"]["matchLabels"] == labels
    assert by_name["PodDisruptionBudget", "tailrace"]["spec"]["selector"]["matchLabels"] == labels
    mounted = {each["name"] for each in server["volumeMounts"]}
    assert mounted == {each["name"] for each in pod["volumes"]}
    file = next(each["value"] for each in server["env"] if each["name"] == "TAILRACE_CLUSTER_SECRET_FILE")
    (kept,) = (each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each)
    assert Path(file).name in by_name["Secret", kept]["stringData"]


def test_the_probes_ask_for_paths_that_exist() -> None:
    (server,) = next(each for each in manifests() if each["kind"] == "StatefulSet")["spec"]["template"]["spec"][
        "containers"
    ]
    probes = {name: server[name]["httpGet"]["path"] for name in ("readinessProbe", "livenessProbe", "startupProbe")}
    assert probes == {"readinessProbe": "/readyz", "livenessProbe": "/healthz", "startupProbe": "/healthz"}
    assert {route.path for route in ROUTES} >= set(probes.values())
