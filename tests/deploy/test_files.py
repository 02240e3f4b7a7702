"""The files in `docs/deploy`: existing settings, working ports and paths, and nothing forbidden in the image.

The tests need no container runtime. Where systemd is installed, it checks the unit.
"""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from agentic_rag.base.settings import Settings
from tests.access.tenants import make_key
from tests.server.rig import Rig
from tests.settings_page import make_page

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "docs" / "deploy"
FILES = sorted(path for path in DEPLOY.iterdir() if path.is_file())
PAGE = ROOT / "docs" / "deploy.md"
VARIABLES = frozenset(re.findall(r"`([A-Z][A-Z0-9_]+)`", make_page()))
FOREIGN = frozenset({"POSTGRES_USER", "POSTGRES_DB", "POSTGRES_PASSWORD", "QDRANT__SERVICE__API_KEY", "SITE", "SERVER"})
FOREIGN_SERVICES = frozenset({"proxy", "postgres", "qdrant"})


def settings_in(text: str) -> set[str]:
    return set(re.findall(r"AGENTIC_RAG_[A-Z0-9_]+|\b(?:ANTHROPIC|OPENAI|QDRANT)_[A-Z][A-Z_]*[A-Z]\b", text))


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


@pytest.mark.parametrize("path", [*FILES, PAGE], ids=lambda path: path.name)
def test_every_mentioned_setting_exists(path: Path) -> None:
    assert settings_in(path.read_text()) - VARIABLES == set()


def test_the_page_names_every_file() -> None:
    text = PAGE.read_text()
    assert [path.name for path in FILES if f"deploy/{path.name}" not in text] == []


# The image


def instructions() -> list[tuple[str, str]]:
    """Return the container file's instructions with their arguments. Continued lines are joined."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Containerfile").read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [
        (word, " ".join(argument.split()))
        for word, _, argument in (line.partition(" ") for line in lines if line.strip())
    ]


def stages() -> list[list[tuple[str, str]]]:
    stages_found: list[list[tuple[str, str]]] = []
    for word, argument in instructions():
        if word == "FROM":
            stages_found.append([])
        stages_found[-1].append((word, argument))
    return stages_found


def of(stage: list[tuple[str, str]], word: str) -> list[str]:
    return [argument for instruction, argument in stage if instruction == word]


def test_the_container_image_is_built_from_the_lock_with_checked_hashes() -> None:
    build, final = stages()
    installs = [command for command in of(build, "RUN") if "pip install" in command]
    assert any("runtime_lock > /tmp/runtime.lock" in command for command in of(build, "RUN"))
    for line in installs:
        assert ("--require-hashes -r /tmp/" in line) != ("--no-deps --no-index /tmp/wheel" in line), line
    assert not any("pip install" in command for command in of(final, "RUN"))
    assert of(final, "COPY") == ["--from=build /opt/agentic-rag /opt/agentic-rag"]


def test_the_container_image_is_unprivileged_without_secrets_and_has_a_health_check() -> None:
    final = stages()[-1]
    assert of(final, "USER") == ["10001:10001"]
    last = max(number for number, (word, _) in enumerate(final) if word in ("RUN", "COPY"))
    assert final.index(("USER", "10001:10001")) > last, "what runs later would run as another"
    assert "bubblewrap" in " ".join(of(final, "RUN"))
    assert not re.search(r"(KEY|TOKEN|PASSWORD|SECRET)\s*=", " ".join(of(final, "ENV") + of(final, "ARG")))
    variables = dict(pair.split("=", 1) for pair in of(final, "ENV")[0].split())
    assert (variables["AGENTIC_RAG_DATA"], of(final, "VOLUME")) == ("/data", ["/data"])
    assert variables["AGENTIC_RAG_MODEL_CACHE"].startswith("/data/"), "nothing else can be written"
    assert of(final, "EXPOSE") == [variables["AGENTIC_RAG_PORT"]]
    (check,) = of(final, "HEALTHCHECK")
    assert f"http://127.0.0.1:{variables['AGENTIC_RAG_PORT']}/api/ready" in check


def test_the_container_build_context_has_exactly_the_needed_files() -> None:
    copied = [name for line in of(stages()[0], "COPY") for name in line.split()[:-1]]
    assert all((ROOT / name).exists() for name in copied)
    first, *rest = [
        line for line in (DEPLOY / "Containerfile.dockerignore").read_text().splitlines() if not line.startswith("#")
    ]
    assert first == "*"
    assert {line.removeprefix("!") for line in rest if line.startswith("!")} == set(copied)


# Compose and Kubernetes


@pytest.mark.parametrize("name", ["compose.yaml", "compose.postgresql.yaml"])
def test_compose_files_are_hardened_and_set_existing_settings(name: str) -> None:
    (compose,) = documents(name)
    for service, service_config in compose["services"].items():
        assert "ports" not in service_config or service == "proxy", "the server and its stores are reached inside alone"
        assert set(service_config.get("environment", {})) <= VARIABLES | FOREIGN
        assert service in FOREIGN_SERVICES | {"server"}
        image = service_config.get("image", "agentic-rag:0.1.0")
        assert not image.endswith(":latest")
        assert ":" in image.rpartition("/")[2]
    if name == "compose.yaml":
        server = compose["services"]["server"]
        assert (server["read_only"], server["cap_drop"], server["init"]) == (True, ["ALL"], True)
        subnet = compose["networks"]["inside"]["ipam"]["config"][0]["subnet"]
        assert server["environment"]["AGENTIC_RAG_TRUSTED_PROXIES"] == subnet
        Settings(_env_file=None, trusted_proxies=subnet)
        assert (DEPLOY / server["build"]["context"] / server["build"]["dockerfile"]).is_file()


def test_the_caller_waits_longer_than_a_stop_can_take() -> None:
    from agentic_rag.app.serving import END_SECONDS

    longest = Settings(_env_file=None).drain_seconds + END_SECONDS
    (compose,) = documents("compose.yaml")
    assert int(compose["services"]["server"]["stop_grace_period"].removesuffix("s")) > longest
    (stateful,) = [document for document in documents("kubernetes.yaml") if document["kind"] == "StatefulSet"]
    assert stateful["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > longest
    unit = (DEPLOY / "agentic-rag.service").read_text()
    assert int(re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)[0]) > longest


async def test_kubernetes_probes_need_no_key_and_one_unprivileged_server_runs(
    tmp_path: Path,
) -> None:
    by_kind = {document["kind"]: document for document in documents("kubernetes.yaml")}
    assert by_kind["StatefulSet"]["spec"]["replicas"] == 1
    pod = by_kind["StatefulSet"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] == 10001
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert {variable["name"] for variable in container["env"]} <= VARIABLES
    claims = {
        volume["persistentVolumeClaim"]["claimName"] for volume in pod["volumes"] if "persistentVolumeClaim" in volume
    }
    assert claims == {by_kind["PersistentVolumeClaim"]["metadata"]["name"]}
    assert by_kind["Service"]["spec"]["selector"] == by_kind["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    probes = {name: container[name]["httpGet"]["path"] for name in container if name.endswith("Probe")}
    assert set(probes) == {"startupProbe", "livenessProbe", "readinessProbe"}
    async with Rig(tmp_path) as rig:
        await make_key(rig, "ann", "operator")
    async with Rig(tmp_path, host="0.0.0.0") as rig:
        for path in probes.values():  # by the pod's address, without a key
            answer = await rig.http.get(path, headers={"host": "10.1.2.3:8000"})
            assert answer.status_code == 200, answer.text
    (command,) = documents("kubernetes-command.yaml")
    assert command["spec"]["volumes"][0] == pod["volumes"][0]
    assert command["spec"]["containers"][0]["image"] == container["image"]


# systemd


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
def test_systemd_accepts_the_unit_which_allows_bubblewrap(tmp_path: Path) -> None:
    text = (DEPLOY / "agentic-rag.service").read_text()
    program = tmp_path / "agentic-rag"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / "agentic-rag.service"
    unit.write_text(text.replace("/opt/agentic-rag/bin/agentic-rag", str(program)))
    result = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=60, check=False
    )
    own_lines = [line for line in result.stderr.splitlines() if "agentic-rag.service" in line and "man:" not in line]
    assert own_lines == [], result.stderr
    options = dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))
    assert options["NoNewPrivileges"] == "yes"
    assert options["CapabilityBoundingSet"] == ""
    forbidding = {"RestrictNamespaces", "ProtectKernelTunables", "ProtectKernelLogs", "ProtectProc", "ProcSubset"}
    assert forbidding & set(options) == set()
    assert "@mount" not in options["SystemCallFilter"]
