"""What tests need from outside: Apache Kafka, real tokenizers, real transcripts.

Each is used wherever it can be had. Where it cannot, the tests that need it are left out and one
line says which and why; with ``TOKTIER_TEST_REQUIRE_ALL=1`` that is an error instead.

``ops/test`` runs files side by side. Tests marked ``alone`` are run while no other is.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from kafka_loader import kafka_module

REPOSITORY = Path(__file__).resolve().parent.parent
FAMILIES = (
    "qwen3", "llama3", "llama3_1", "gptoss", "deepseek_v3", "deepseek_v4", "gpt4o", "gpt35turbo",
    "claude", "gpt2", "gemma3", "llama2", "bert",
)  # fmt: skip
_left_out: dict[str, str] = {}


@pytest.fixture(scope="session")
def kafka_script() -> ModuleType:
    """``ops/kafka.py`` as a module."""
    return kafka_module()


def _tokenizers_folder() -> Path:
    from toktier_stream.tokenizer.fetch import default_cache

    return default_cache()


def _missing_families() -> str:
    """Fetch what is missing; returns why some cannot be had, or an empty string."""
    from toktier_stream.errors import ToktierError
    from toktier_stream.tokenizer.fetch import fetch

    failed = []
    for name in FAMILIES:
        if not (_tokenizers_folder() / name / "tokenizer.json").exists():
            try:
                fetch(name, _tokenizers_folder())
            except ToktierError:
                failed.append(name)
    return f"tokenizers not to be had: {', '.join(failed)}" if failed else ""


def _missing_kafka() -> str:
    """One that is there already is enough."""
    return "" if os.environ.get("TOKTIER_TEST_KAFKA") else _missing_own_kafka()


def _missing_own_kafka() -> str:
    """Some tests kill, pause and restart a broker: they start their own."""
    absent = [tool for tool in ("java", "mvn") if shutil.which(tool) is None]
    if absent:
        return f"Apache Kafka cannot be started: no {' and no '.join(absent)}"
    script = kafka_module()
    try:
        script.fetch()
    except script.KafkaError as error:
        return f"Apache Kafka cannot be had: {str(error).splitlines()[-1]}"
    return ""


def _missing_compiler() -> str:
    """The GPU's kernels are compiled for the CPU, too, to be tested there."""
    return "" if shutil.which("g++") else "no g++"


_NEEDS = {
    "kafka": _missing_kafka,
    "kafka_own": _missing_own_kafka,
    "families": _missing_families,
    "compiler": _missing_compiler,
}


def _in_worker(config: pytest.Config) -> bool:
    """Whether this process is one of several that share a run."""
    return hasattr(config, "workerinput")


@contextmanager
def _locked(file: Path, how: int = fcntl.LOCK_EX) -> Iterator[None]:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as held:
        fcntl.flock(held, how)
        yield


def _missing(marker: str) -> str:
    """Why what a marker stands for cannot be had, or nothing. What must be fetched is fetched by
    one process; the others wait for it."""
    with _locked(_tokenizers_folder().parent / "tests.lock"):
        return _NEEDS[marker]()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Where nothing may be left out, what is missing ends the run before it begins."""
    if os.environ.get("TOKTIER_TEST_REQUIRE_ALL") == "1" and not _in_worker(session.config):
        reasons = dict.fromkeys(reason for marker in _NEEDS if (reason := _missing(marker)))
        if reasons:
            pytest.exit(f"TOKTIER_TEST_REQUIRE_ALL=1, and {'; '.join(reasons)}", returncode=3)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what cannot run here, and remember why."""
    for item in items:
        if item.path.parent.name == "gpu":
            item.add_marker("compiler")
    # In a shared run, files with tests that wait to be alone come first: no long test of another
    # file is under way then.
    if _in_worker(config):
        first = {i.path for i in items if i.get_closest_marker("alone")}
        items.sort(key=lambda i: i.path not in first)
    if os.environ.get("TOKTIER_TEST_REQUIRE_ALL") == "1":
        return
    for marker in _NEEDS:
        marked = [i for i in items if i.get_closest_marker(marker)]
        why = _missing(marker) if marked else ""
        if not why:
            continue
        _left_out[marker] = f"{len(marked)} tests that need {marker} were left out: {why}"
        config.hook.pytest_deselected(items=marked)
        items[:] = [i for i in items if i not in marked]
    if _in_worker(config):
        config.workeroutput["left_out"] = _left_out


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """What a process left out is told by the one that reports."""
    _left_out.update(getattr(node, "workeroutput", {}).get("left_out", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line for each thing that could not run here."""
    for line in _left_out.values():
        terminalreporter.write_line(line)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Tests that are marked ``alone`` measure time: none of another process runs meanwhile. First
    of all wrappers, so that waiting does not count towards a test's timeout."""
    if not _in_worker(item.config):
        return (yield)
    locks = item.config.cache.mkdir("alone")
    how = fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH
    with ExitStack() as running:
        # Who waits to be alone keeps others from beginning.
        with _locked(locks / "next"):
            running.enter_context(_locked(locks / "running", how))
        return (yield)


@pytest.fixture(scope="session")
def kafka_bootstrap() -> Iterator[str]:
    """host:port of a real Apache Kafka broker, one for the whole run."""
    given = os.environ.get("TOKTIER_TEST_KAFKA")
    if given:
        yield given
        return
    handle = kafka_module().start()
    try:
        yield handle.bootstrap
    finally:
        handle.stop()


@pytest.fixture(scope="session")
def family_file() -> Callable[[str], Path]:
    """The tokenizer.json of a real family, by short name."""

    def find(name: str) -> Path:
        return _tokenizers_folder() / name / "tokenizer.json"

    return find


@pytest.fixture(scope="session")
def transcripts() -> Path | None:
    """A folder of real agent transcripts, where this checkout has one beside it."""
    given = os.environ.get("TOKTIER_TEST_TRANSCRIPTS")
    folder = Path(given) if given else REPOSITORY.parent / "shared" / "transcripts"
    return folder if folder.is_dir() else None
