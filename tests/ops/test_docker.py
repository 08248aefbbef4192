"""The worker's image: its Dockerfile is linted, and held to the repository, the CLI, the settings.

No container engine is needed: what would only show in a build is checked from the parsed file.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from docker_files import DOCKER, REPOSITORY, is_ignored, seconds
from dockerfile_parse import DockerfileParser
from typer.testing import CliRunner

from toktier_stream.cli.app import app
from toktier_stream.config import Settings
from toktier_stream.pipeline.health import Report
from toktier_stream.pipeline.health_http import HealthServer, probe

DOCKERFILE = DOCKER / "Dockerfile"
IGNORE = (DOCKER / "Dockerfile.dockerignore").read_text()

Instruction = tuple[str, str]


def instructions() -> list[Instruction]:
    """(instruction, value) of the whole file, comments left out."""
    parsed = DockerfileParser(str(DOCKERFILE)).structure
    return [(i["instruction"], i["value"]) for i in parsed if i["instruction"] != "COMMENT"]


def final_stage() -> list[Instruction]:
    """The instructions from the last FROM on."""
    found = instructions()
    last = max(n for n, (name, _) in enumerate(found) if name == "FROM")
    return found[last:]


def value_of(name: str) -> str:
    """The value of an instruction that the final stage has once."""
    (value,) = [value for instruction, value in final_stage() if instruction == name]
    return value


def image_environment() -> dict[str, str]:
    """What ENV of the final stage sets."""
    return dict(word.split("=", 1) for word in shlex.split(value_of("ENV")))


def healthcheck() -> tuple[dict[str, str], list[str]]:
    """The health check's options and its command."""
    options, _, command = value_of("HEALTHCHECK").partition(" CMD ")
    found = dict(re.findall(r"--([a-z-]+)=(\S+)", options))
    return found, json.loads(command)


def commands() -> dict[str, Any]:
    """The CLI's verbs; a verb with verbs below it has ``commands`` of its own."""
    return typer.main.get_command(app).commands  # type: ignore[attr-defined,no-any-return]


def hadolint(dockerfile: str) -> subprocess.CompletedProcess[str]:
    """The linter's verdict on a Dockerfile."""
    binary = shutil.which("hadolint", path=sysconfig.get_path("scripts")) or "hadolint"
    return subprocess.run(
        [binary, "-"], input=dockerfile, capture_output=True, text=True, check=False
    )


def test_the_linter_has_nothing_to_say() -> None:
    """hadolint parses the Dockerfile, and the shell in it, and finds nothing."""
    verdict = hadolint(DOCKERFILE.read_text())
    assert (verdict.returncode, verdict.stdout) == (0, "")


def test_the_linter_can_fail() -> None:
    """An instruction that does not exist is refused."""
    broken = DOCKERFILE.read_text().replace("\nSTOPSIGNAL", "\nSTOPSIGNALS")
    assert hadolint(broken).returncode != 0


def test_it_is_built_in_stages_on_one_pinned_base() -> None:
    """The virtual environment is copied between stages, so both need the same Python."""
    bases = [value.split(" AS ") for name, value in instructions() if name == "FROM"]
    assert len(bases) == 2
    assert {base[0] for base in bases} == {"python:3.12-slim-bookworm"}
    assert 'install ".[worker]"' in DOCKERFILE.read_text()


def copies() -> Iterator[tuple[str | None, list[str]]]:
    """(stage copied from or None, sources) of each COPY."""
    for name, value in instructions():
        if name == "COPY":
            words = shlex.split(value)
            stage = next((w.split("=")[1] for w in words if w.startswith("--from=")), None)
            yield stage, [w for w in words if not w.startswith("--")][:-1]


def test_it_copies_only_what_exists_and_is_sent() -> None:
    """Each file copied is in the repository and not kept out of the build context."""
    stages = {v.split(" AS ")[1] for n, v in instructions() if n == "FROM" and " AS " in v}
    context = [source for stage, sources in copies() if stage is None for source in sources]
    assert {stage for stage, _ in copies() if stage} <= stages
    assert context
    for source in context:
        assert (REPOSITORY / source).exists(), source
        assert not is_ignored(source, IGNORE), source


def test_it_copies_all_that_packaging_needs() -> None:
    """The package, and the files that pyproject.toml names, are in the image's build stage."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    needed = {"pyproject.toml", project["project"]["readme"]}
    needed.update(project["project"]["license-files"])
    needed.update(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    assert needed == {s for stage, sources in copies() if stage is None for s in sources}


@pytest.mark.parametrize(
    "path",
    [".git/config", "state/data.mdb", "docker/tokenizers/qwen3/tokenizer.json", "tests/conftest.py",
     "toktier_stream/__pycache__/config.cpython-312.pyc", "evidence/mismatch.json"],
)  # fmt: skip
def test_the_build_context_is_an_allow_list(path: str) -> None:
    """History, state, evidence and tokenizers never reach a build."""
    assert is_ignored(path, IGNORE)
    assert not is_ignored("toktier_stream/wire/messages.py", IGNORE)


def test_it_runs_as_a_user_without_rights() -> None:
    """A numeric user, so that Kubernetes can see that it is not root; set before what runs."""
    user, group = value_of("USER").split(":")
    assert int(user) > 0
    assert int(group) > 0
    assert f"--uid {user} " in DOCKERFILE.read_text()
    after = [name for name, _ in final_stage()[[n for n, _ in final_stage()].index("USER") :]]
    assert "RUN" not in after
    assert "COPY" not in after


def test_volumes_are_the_folders_that_the_settings_name() -> None:
    """State and cache are on volumes, at the paths in the environment, owned by the user."""
    environment = image_environment()
    volumes = json.loads(value_of("VOLUME"))
    assert volumes == [environment["TOKTIER_STATE_DIR"], environment["TOKTIER_CACHE"]]
    made = next(value for name, value in final_stage() if name == "RUN")
    user = value_of("USER").split(":")[0]
    assert re.search(rf"install .*--owner={user} .*{volumes[0]} {volumes[1]}", made, re.DOTALL)
    names = [name for name, _ in final_stage()]
    assert names.index("RUN") < names.index("VOLUME")


def test_its_variables_are_settings() -> None:
    """Each TOKTIER_ variable is a field; TOKTIER_CACHE alone is read by the tokenizer room."""
    ours = {n.removeprefix("TOKTIER_").lower() for n in image_environment() if "TOKTIER_" in n}
    assert ours - Settings.model_fields.keys() == {"cache"}


def test_the_entry_point_is_a_verb() -> None:
    """Exec form, so that the worker itself gets the signal that its handler waits for."""
    program, verb, *rest = json.loads(value_of("ENTRYPOINT"))
    scripts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["scripts"]
    assert program in scripts
    assert verb == "worker"
    assert verb in commands()
    assert rest == []
    assert value_of("STOPSIGNAL") == "SIGTERM"


def test_the_health_check_can_tell() -> None:
    """Its command, with the port of a real server: passes on 200, fails on 503 and on nothing."""
    options, (program, *arguments) = healthcheck()
    assert seconds(options["timeout"]) < seconds(options["interval"])
    assert seconds(options["start-interval"]) < seconds(options["start-period"])
    assert program == "python"
    listen = image_environment()["TOKTIER_HEALTH_LISTEN"]
    assert f"http://{listen}/livez" in arguments[-1]
    alive = True
    server = HealthServer("127.0.0.1:0", {"/livez": probe(lambda: Report(alive, b"{}"))})
    host, port = server.start()

    def passes() -> bool:
        command = [sys.executable, *(a.replace(listen, f"{host}:{port}") for a in arguments)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    assert passes()
    alive = False
    assert not passes()
    server.stop()
    assert not passes()


def test_the_settings_of_the_image_are_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    """``check-config`` passes with its environment, and fails with a setting that is wrong."""
    for name in [name for name in os.environ if name.startswith("TOKTIER_")]:
        monkeypatch.delenv(name)
    environment = {k: v for k, v in image_environment().items() if k.startswith("TOKTIER_")}
    runner = CliRunner()
    assert runner.invoke(app, ["check-config"], env=environment).exit_code == 0
    wrong = environment | {"TOKTIER_BROKER": "http://kafka:9092"}
    assert runner.invoke(app, ["check-config"], env=wrong).exit_code != 0


def readme_commands() -> list[list[str]]:
    """The words of each ``toktier-stream …`` line of the README's code blocks."""
    text = (DOCKER / "README.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines if line.startswith("toktier-stream")]


def test_the_readme_tells_commands_that_exist() -> None:
    """Every toktier-stream command of the README has a known verb and known options."""
    found = readme_commands()
    assert len(found) >= 3
    for _, *words in found:
        command = commands()[words[0]]
        if hasattr(command, "commands"):
            command = command.commands[words[1]]
        known = {option for parameter in command.params for option in parameter.opts}
        assert {w for w in words if w.startswith("-")} <= known, words


def test_paths_the_readme_names_exist() -> None:
    """Files of the repository that the README points at are there."""
    text = (DOCKER / "README.md").read_text()
    named = set(re.findall(r"\]\(([^)#:]+)\)", text))
    assert named
    assert [path for path in named if not Path(DOCKER / path).exists()] == []
