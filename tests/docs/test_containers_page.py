"""The recipes of docs/containers.md: they parse, and the commands in them exist and take their options."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import typer

from parley.cli.main import application

yaml = pytest.importorskip("yaml", reason="needs PyYAML, which comes with the extras flower and ray")

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "examples" / "cluster"
USER = "10001"


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((CLUSTER / name).read_text(encoding="utf-8")))


def understood(words: list[str]) -> str:
    """The command that takes these words; raises a usage error where none does."""
    whole = typer.main.get_command(application())
    command: click.Command = whole
    rest = list(words)
    while isinstance(command, click.Group):
        assert rest, f"{words} names no command"
        assert rest[0] in command.commands, f"there is no command {rest[0]}"
        command = command.commands[rest.pop(0)]
    command.make_context("parley", rest, parent=click.Context(whole))
    return str(command.name)


def containers() -> Iterator[tuple[str, dict[str, Any]]]:
    for name in ("server.yaml", "node.yaml"):
        for document in documents(name):
            if document["kind"] == "Deployment":
                yield name, document


def test_a_command_that_does_not_exist_is_noticed() -> None:
    with pytest.raises(AssertionError, match="no command serve"):
        understood(["deploy", "serve"])
    with pytest.raises(click.UsageError, match="--nodes"):
        understood(["deploy", "client", "--nodes", "north"])


def test_compose_is_a_server_and_three_nodes_with_nothing_in_common() -> None:
    (compose,) = documents("compose.yaml")
    services = compose["services"]
    assert {name: understood(one["command"]) for name, one in services.items()} == {
        "server": "server",
        "north": "client",
        "south": "client",
        "west": "client",
    }
    built = CLUSTER / services["server"]["build"]["context"]
    assert (built / services["server"]["build"]["dockerfile"]).is_file()
    for name in ("north", "south", "west"):
        own, authority = services[name]["volumes"]
        assert own == f"./federation/{name}:/work/{name}"
        assert authority.endswith("ca.crt:ro")
        assert f"/work/{name}" in services[name]["command"]
    assert all(one["read_only"] and one["cap_drop"] == ["ALL"] for one in services.values())


def test_docker_reads_the_compose_file() -> None:
    if (
        shutil.which("docker") is None
        or subprocess.run(["docker", "compose", "version"], capture_output=True).returncode
    ):
        pytest.skip("needs docker compose")
    subprocess.run(["docker", "compose", "-f", CLUSTER / "compose.yaml", "config", "-q"], check=True, timeout=60)


@pytest.mark.parametrize("name", ["server.yaml", "node.yaml"])
def test_manifests_are_whole(name: str) -> None:
    found = documents(name)
    assert all({"apiVersion", "kind", "metadata", "spec"} <= one.keys() for one in found)
    claims = {one["metadata"]["name"] for one in found if one["kind"] == "PersistentVolumeClaim"}
    (deployment,) = [one["spec"] for one in found if one["kind"] == "Deployment"]
    pod = deployment["template"]["spec"]
    assert deployment["selector"]["matchLabels"] == deployment["template"]["metadata"]["labels"]
    assert {
        one["persistentVolumeClaim"]["claimName"] for one in pod["volumes"] if "persistentVolumeClaim" in one
    } == claims
    (container,) = pod["containers"]
    assert {one["name"] for one in container["volumeMounts"]} == {one["name"] for one in pod["volumes"]}
    assert deployment["replicas"] == 1
    for one in found:
        if one["kind"] == "Service":
            assert one["spec"]["selector"] == deployment["template"]["metadata"]["labels"]
            assert one["spec"]["ports"][0]["targetPort"] == container["ports"][0]["containerPort"]


@pytest.mark.parametrize("name", ["server.yaml", "node.yaml"])
def test_manifests_follow_the_schemas_of_kubernetes(name: str) -> None:
    kubernetes = pytest.importorskip("kubernetes_validate", reason="needs the package kubernetes-validate")
    for document in documents(name):
        kubernetes.validate(document, kubernetes.latest_version(), strict=True)
        document["spec"]["replica"] = 1
        with pytest.raises(kubernetes.ValidationError, match="replica"):
            kubernetes.validate(document, kubernetes.latest_version(), strict=True)


def test_health_is_asked_of_the_folder_that_is_served() -> None:
    (compose,) = documents("compose.yaml")
    asked = [(each["command"], each["healthcheck"]["test"][1:]) for each in compose["services"].values()]
    for _, document in containers():
        (container,) = document["spec"]["template"]["spec"]["containers"]
        asked.append((container["args"], container["livenessProbe"]["exec"]["command"]))
    for command, (program, *words) in asked:
        assert program == "parley"
        assert understood(words) == "health"
        assert words[2:] == command[2:4]


def test_pods_run_parley_as_the_user_of_the_image() -> None:
    assert f"--uid {USER}" in (ROOT / "Containerfile").read_text(encoding="utf-8")
    commands = {}
    for name, document in containers():
        pod = document["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert str(pod["securityContext"]["runAsUser"]) == USER
        commands[name] = understood(pod["containers"][0]["args"])
    assert commands == {"server.yaml": "server", "node.yaml": "client"}


def test_the_slurm_job_is_a_script_whose_command_exists() -> None:
    script = CLUSTER / "ray.slurm"
    subprocess.run(["bash", "-n", script], check=True)
    lines = script.read_text(encoding="utf-8").splitlines()
    (line,) = [line for line in lines if line.startswith("parley ")]
    words = shlex.split(line.rstrip("& "))
    assert understood(words[1:]) == "run"
    assert any(line.startswith("#SBATCH --signal=B:TERM@") for line in lines)


def test_the_page_s_docker_commands_name_what_exists() -> None:
    text = (ROOT / "docs" / "containers.md").read_text(encoding="utf-8")
    inside = re.findall(r"^docker compose .* exec \w+ parley (.*)$", text, re.MULTILINE)
    assert [understood(shlex.split(words)) for words in inside] == ["pending", "run"]
    assert understood(shlex.split(re.findall(r"^docker run .* parley (.*)$", text, re.MULTILINE)[0])) == "demo"
    assert all((CLUSTER / name).is_file() for name in ("compose.yaml", "server.yaml", "node.yaml", "ray.slurm"))
