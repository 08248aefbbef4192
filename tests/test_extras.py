"""The base install is enough for both client teams: none of the worker's packages is imported."""

from __future__ import annotations

import subprocess
import sys

BLOCK = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocker())
"""
WORKER_ONLY = {"lmdb", "numba", "tokenizers", "cupy", "pydantic_settings", "psutil"}


def run(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process where the worker's packages cannot be imported."""
    program = BLOCK.format(blocked=WORKER_ONLY) + code
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )


def test_the_clients_import_without_the_worker_extra():
    """Producer, consumer, templates, transcripts, both brokers."""
    done = run(
        "import toktier_stream.client.producer, toktier_stream.client.consumer\n"
        "import toktier_stream.client.chat_template, toktier_stream.client.replay\n"
        "import toktier_stream.broker.connect, toktier_stream.broker.kafka\n"
        "import toktier_stream.cli\n"
        "assert not {'lmdb', 'numba', 'tokenizers'} & set(sys.modules)\n"
    )
    assert done.returncode == 0, done.stderr


def test_a_command_that_needs_the_extra_names_it():
    """EXTRA_MISSING and the pip command, not a traceback."""
    for verb in (["demo"], ["check-config"], ["worker"], ["inspect", "."], ["tokenizers", "list"]):
        done = run(f"sys.argv = ['toktier-stream', *{verb!r}]\nimport toktier_stream.__main__\n")
        assert done.returncode == 3, (verb, done.stderr)
        assert "EXTRA_MISSING" in done.stderr, verb
        assert "pip install 'toktier-stream[worker]'" in done.stderr
        assert "Traceback" not in done.stderr
