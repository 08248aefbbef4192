"""The check of a card, as a command and as a script, on the CPU target; and with no card at all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from toktier_gpu.batch import Batch
from toktier_gpu.host import GpuEncoder
from toktier_stream.cli.app import app
from toktier_stream.errors import Code, ToktierError
from toktier_stream.tokenizer.shipped import shipped_path

SCRIPT = Path(__file__).resolve().parent.parent.parent / "ops" / "gpu-check.py"
SMALL = ("--device", "shim", "-t", f"small={shipped_path()}", "--characters", "3K")


def run(*arguments: str) -> Result:
    """The command in this process."""
    return CliRunner().invoke(app, ["bench", "gpu", *arguments])


def test_the_command_compares_and_measures(tmp_path: Path) -> None:
    """JSON in both places: exactness of three kinds of text, timings with all parts apart."""
    saved = tmp_path / "gpu.json"
    result = run(*SMALL, "--json", "--save", str(saved), "--text", str(SCRIPT))
    assert result.exit_code == 0, result.output
    shown = json.loads(result.stdout)
    assert shown == json.loads(saved.read_text())
    assert shown["device"] == "shim"
    assert len(shown["exactness"]["small"]) == 3
    assert all(o["characters"] > 500 for o in shown["exactness"]["small"].values())
    rows = shown["timings"]["small"]
    assert [row["texts"] for row in rows] == [1, 1, 16]
    for part in ("encode_graph", "encode_eager", "upload", "kernels_graph", "download_ids"):
        assert all(row[part] > 0 for row in rows)
    assert all(row["cpu_engine"] > 0 and row["cpu_engine_threads"] > 0 for row in rows)
    assert "0 differences" in result.stderr


def test_tables_for_people() -> None:
    """The device stands above, the load average below."""
    result = run(*SMALL)
    assert result.exit_code == 0, result.output
    assert "Exact on shim" in result.stdout
    assert "Load average" in result.stdout


def test_a_wrong_id_is_told_by_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """1, and the number of differences."""
    plain = GpuEncoder.encode

    def wrong(self: GpuEncoder, texts: list[bytes]) -> Batch:
        batch = plain(self, texts)
        return Batch(batch.ids ^ (len(texts) > 16), batch.lengths, batch.offsets)

    monkeypatch.setattr(GpuEncoder, "encode", wrong)
    result = run(*SMALL, "--json")
    assert result.exit_code == 1, result.output
    assert any(o["differences"] for o in json.loads(result.stdout)["exactness"]["small"].values())


def test_without_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stable code and the cause."""
    monkeypatch.setitem(sys.modules, "cupy", None)
    result = run("-t", f"small={shipped_path()}")
    assert isinstance(result.exception, ToktierError)
    assert result.exception.code is Code.GPU_UNAVAILABLE
    assert "CuPy" in str(result.exception)


def test_a_device_is_a_number_or_the_shim() -> None:
    """Exit code 2."""
    assert run("--device", "gpu1").exit_code == 2


def test_the_script_needs_little(tmp_path: Path) -> None:
    """With numpy and tokenizers alone, after tables were prepared elsewhere."""
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes(shipped_path().read_bytes())
    common = [str(tmp_path), "--families", "small", "--device", "shim", "--characters", "2000"]
    assert _script(*common, "--prepare").returncode == 0
    saved = tmp_path / "gpu.json"
    done = _script(*common, "--json", str(saved), blocked="numba lmdb aiokafka structlog typer")
    assert done.returncode == 0, done.stderr
    assert "0 differences" in done.stdout.splitlines()[-1]
    assert json.loads(saved.read_text())["timings"]["small"][0]["cpu_engine"] is None
    common[4] = "0"
    done = _script(*common, blocked="cupy")
    assert done.returncode == 2
    assert "CuPy" in done.stderr


def _script(*arguments: str, blocked: str = "") -> subprocess.CompletedProcess[str]:
    code = (
        "import runpy, sys\n"
        f"for m in {blocked.split()!r}: sys.modules[m] = None\n"
        f"sys.argv = [{str(SCRIPT)!r}, *{list(arguments)!r}]\n"
        f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')\n"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
