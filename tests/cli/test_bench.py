"""``toktier-stream bench``: each verb on small sizes, as tables, JSON and images."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner, Result

from toktier_stream.bench import append
from toktier_stream.cli import bench_options
from toktier_stream.cli.app import app
from toktier_stream.errors import Code, ToktierError
from toktier_stream.tokenizer.shipped import shipped_path

SMALL = ("-t", f"small={shipped_path()}")
RUNS = {
    "append": ("--contexts", "2K,6K", "--appends", "256,1.5K", "--rounds", "1", "--no-peers"),
    "store": ("--sizes", "3K", "--sessions", "3", "--batches", "1", "--resident", ""),
    "encode": ("--sizes", "2K", "--rounds", "1"),
    "incremental": ("--family", "4", "--updates", "2000", "--rounds", "1"),
}


def run(*arguments: str) -> Result:
    """The command in this process."""
    return CliRunner().invoke(app, ["bench", *arguments])


@pytest.mark.parametrize("verb", RUNS)
def test_each_verb_prints_json_and_saves_it(verb, tmp_path):
    """The same result in both places; steps go to standard error."""
    saved = tmp_path / "result.json"
    result = run(verb, *SMALL, *RUNS[verb], "--json", "--save", str(saved))
    assert result.exit_code == 0, result.output
    shown = json.loads(result.stdout)
    assert shown == json.loads(saved.read_text())
    assert shown["load_average"] >= 0
    assert "small" in result.stderr


@pytest.mark.parametrize("verb", ["append", "store"])
def test_tables_for_people_and_an_image(verb, tmp_path):
    """The load average stands under the table."""
    image = tmp_path / "plot.png"
    result = run(verb, *SMALL, *RUNS[verb], "--plot", str(image))
    assert result.exit_code == 0, result.output
    assert "Load average" in result.stdout
    assert image.read_bytes().startswith(b"\x89PNG")


def test_a_wrong_id_is_told_by_the_exit_code(monkeypatch):
    """1, after the table."""
    monkeypatch.setattr(append._Context, "full", lambda self, _: self.reference("") + 1)
    result = run("append", *SMALL, *RUNS["append"])
    assert result.exit_code == 1
    assert "*" in result.stdout


def test_given_texts_are_joined(tmp_path):
    """Files and folders."""
    for i in range(3):
        (tmp_path / f"{i}.txt").write_text(f"text {i} and more of it, word by word. " * 100)
    result = run("append", *SMALL, *RUNS["append"], "--json", "--text", str(tmp_path))
    assert json.loads(result.stdout)["text"] == "given"


@pytest.mark.parametrize("sizes", ["", "many", "1G", "0"])
def test_sizes_that_are_none_are_refused(sizes):
    """Exit code 2."""
    assert run("append", *SMALL, "--contexts", sizes).exit_code == 2


def test_sizes_have_units():
    """Thousands and millions of characters."""
    assert bench_options.sizes_of("256,1.5K, 4.4m") == [256, 1500, 4_400_000]


def test_a_tokenizer_needs_a_name_and_a_file(tmp_path):
    """CONFIG_INVALID; a folder stands for the tokenizer.json in it."""
    for wrong in (str(shipped_path()), "x=/no/such/file", "=x"):
        result = run("append", "-t", wrong)
        assert isinstance(result.exception, ToktierError)
        assert result.exception.code is Code.CONFIG_INVALID
    assert bench_options.files_of([f"a={tmp_path}"]) == {"a": tmp_path / "tokenizer.json"}
