"""The invented project: outputs have the asked size, files are remembered and changed."""

from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toktier_stream.bench import outputs, words
from toktier_stream.bench.prose import Prose
from toktier_stream.bench.workspace import Workspace, fill


@given(st.integers(0, 10_000), st.integers(0, 3000))
def test_outputs_have_exactly_the_asked_size(seed: int, chars: int) -> None:
    """Whatever tool is drawn."""
    used = Workspace(Prose(Random(seed))).use(chars)
    assert len(used.output) == chars
    assert json.loads(used.arguments)


def test_every_tool_is_used() -> None:
    """A few hundred uses show them all, with distinct commands."""
    workspace = Workspace(Prose(Random(0)))
    uses = [workspace.use(200) for _ in range(1500)]
    assert {use.name for use in uses} == {"read_file", "bash", "fetch"}
    commands = {json.loads(u.arguments)["command"].split()[0] for u in uses if u.name == "bash"}
    assert commands == {"rg", "ls", "git", "pytest", "docker", "cat", "xxd"}


def test_an_edit_carries_its_bulk_in_the_arguments() -> None:
    """The old and the new text are in the call, and a line comes back."""
    used = Workspace(Prose(Random(1))).edit(2000)
    arguments = json.loads(used.arguments)
    assert set(arguments) == {"file_path", "old_string", "new_string"}
    assert 1500 < len(arguments["old_string"]) + len(arguments["new_string"]) < 2600
    assert used.output == f"The file {arguments['file_path']} has been updated."


def test_a_file_read_again_says_the_same() -> None:
    """Lines once read stay until an edit changes them."""
    seen: dict[tuple[str, str], str] = {}
    workspace = Workspace(Prose(Random(2)))
    again = 0
    for _ in range(300):
        used = workspace.use(1500)
        if used.name != "read_file":
            continue
        path = json.loads(used.arguments)["file_path"]
        for line in used.output.split("\n")[:-1]:
            number, _, code = line.partition("\t")
            if (path, number) in seen and number.strip().isdigit():
                again += 1
                assert seen[path, number] == code
            seen[path, number] = code
    assert again > 50


def test_lines_are_cut_at_the_size() -> None:
    """Like a tool that cuts its output; nothing is asked of the source beyond it."""
    assert fill(iter(["abc", "def"]), 5) == "abc\nd"
    assert fill(iter([]), 0) == ""
    assert fill(iter(["ab", "c"]), 3) == "ab\n"


@pytest.mark.parametrize("language", words.CODE)
def test_code_is_indented(language: str) -> None:
    """Blocks go in and out again."""
    source = Prose(Random(3)).code(language)
    depths = {len(line) - len(line.lstrip()) for line in (next(source) for _ in range(500)) if line}
    assert 0 in depths
    assert len(depths) >= 4


def test_words_are_there_in_every_list() -> None:
    """The data files are packaged, and no list has a word twice."""
    for vocabulary in (words.ENGLISH, words.VERBS, words.NOUNS, *(v for v, _ in words.SCRIPTS)):
        assert len(set(vocabulary)) == len(vocabulary) >= 18


def test_json_lines_are_json() -> None:
    """Compact or indented, the records of an API can be parsed."""
    for seed in range(20):
        lines = outputs.json_lines(Prose(Random(seed)))
        first = next(lines)
        if first != "{":
            assert isinstance(json.loads(first), dict)
