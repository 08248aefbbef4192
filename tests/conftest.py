"""What tests need from outside: Apache Kafka, real tokenizers, real transcripts.

Each is used wherever it can be had. Where it cannot, the tests that need it are left out and one
line says which and why; with ``TOKTIER_TEST_REQUIRE_ALL=1`` that is an error instead.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
FAMILIES = (
    "qwen3", "llama3", "llama3_1", "gptoss", "deepseek_v3", "deepseek_v4", "gpt4o", "gpt35turbo",
    "claude", "gpt2", "gemma3", "llama2", "bert",
)  # fmt: skip
_left_out: dict[str, str] = {}


@pytest.fixture(scope="session")
def kafka_script() -> ModuleType:
    """``ops/kafka.py`` as a module."""
    return _load_kafka_script()


def _load_kafka_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ops_kafka", REPOSITORY / "ops" / "kafka.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError("ops/kafka.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["ops_kafka"] = module
    spec.loader.exec_module(module)
    return module


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
    return f"Apache Kafka cannot be started: no {' and no '.join(absent)}" if absent else ""


def _missing_compiler() -> str:
    """The GPU's kernels are compiled for the CPU, too, to be tested there."""
    return "" if shutil.which("g++") else "no g++"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what cannot run here, and remember why."""
    needs = {
        "kafka": _missing_kafka,
        "kafka_own": _missing_own_kafka,
        "families": _missing_families,
        "compiler": _missing_compiler,
    }
    for item in items:
        if item.path.parent.name == "gpu":
            item.add_marker("compiler")
    for marker, reason in needs.items():
        marked = [i for i in items if i.get_closest_marker(marker)]
        if not marked:
            continue
        why = reason()
        if not why:
            continue
        if os.environ.get("TOKTIER_TEST_REQUIRE_ALL") == "1":
            pytest.exit(f"TOKTIER_TEST_REQUIRE_ALL=1, and {why}", returncode=3)
        _left_out[marker] = f"{len(marked)} tests that need {marker} were left out: {why}"
        config.hook.pytest_deselected(items=marked)
        items[:] = [i for i in items if i not in marked]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line for each thing that could not run here."""
    for line in _left_out.values():
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def kafka_bootstrap() -> Iterator[str]:
    """host:port of a real Apache Kafka broker, one for the whole run."""
    given = os.environ.get("TOKTIER_TEST_KAFKA")
    if given:
        yield given
        return
    handle = _load_kafka_script().start()
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
