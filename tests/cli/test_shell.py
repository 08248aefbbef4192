"""The engine and the sessions from a shell: JSON lines in, JSON lines out, in order."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np

from toktier_stream.session.engines import open_tokenizer
from toktier_stream.tokenizer.shipped import shipped_path
from toktier_stream.wire import digest

REFERENCE = open_tokenizer(shipped_path()).reference
BAD = [b"{", b"[1]", b'{"text": 3}', b'{"text": "\\ud800"}', b'{"text": "\xff"}']


def pipe(verb: str, lines: list[bytes], *arguments: str) -> tuple[int, list[dict]]:
    """Run a verb with the shipped tokenizer; returns its exit code and its lines."""
    done = subprocess.run(
        [sys.executable, "-m", "toktier_stream", verb, "-t", str(shipped_path()), *arguments],
        input=b"\n".join(lines),
        capture_output=True,
        timeout=240,
        check=False,
    )
    assert b"Traceback" not in done.stderr, done.stderr
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def test_encode_equals_the_reference_line_by_line():
    """Ids and byte lengths, in order; a bad line gets its code and the others go on."""
    texts = ["", "one", "<|im_start|>user\ngrößer 漢字 1234", "e\u0301" * 5, "a" * 10_000]
    lines = [json.dumps({"text": t}).encode() for t in texts]
    code, answers = pipe("encode", [*lines, *BAD, lines[1]])
    assert code == 1
    for text, answer in zip([*texts, texts[1]], [*answers[: len(texts)], answers[-1]], strict=True):
        assert answer["ids"] == REFERENCE.ids(text).tolist()
        assert sum(answer["lengths"]) == len(text.encode())
        assert answer["route"] == "cpu"
    assert [a["error"] for a in answers[len(texts) : -1]] == [
        "UNDECODABLE",
        "UNDECODABLE",
        "UNDECODABLE",
        "LONE_SURROGATE",
        "INVALID_UTF8",
    ]
    code, answers = pipe("encode", lines, "--reference")
    assert code == 0
    assert [a["ids"] for a in answers] == [REFERENCE.ids(t).tolist() for t in texts]


def test_sessions_from_a_shell_survive_the_process(tmp_path):
    """Reset, append, edit and close; with --store another process goes on."""
    store = ("--store", str(tmp_path / "store"))
    text = "some text " * 100
    code, first = pipe(
        "session",
        [
            json.dumps({"session": "s", "reset": text}).encode(),
            json.dumps({"session": "s", "append": "and more"}).encode(),
            json.dumps({"session": "s", "edit": [0, 4, "Größe"]}).encode(),
            json.dumps({"session": "s", "edit": [0, 4]}).encode(),
            json.dumps({"session": "s", "edit": [3, 4, ""]}).encode(),
            json.dumps({"session": "t", "append": "nothing there"}).encode(),
            json.dumps({"session": "s"}).encode(),
        ],
        *store,
    )
    assert code == 1
    assert [a.get("error") for a in first[3:]] == [
        "EDIT_OFFSETS",
        "OFFSET_IN_CHARACTER",
        "STATE_MISS",
        "MISSING_OP",
    ]
    code, second = pipe(
        "session",
        [
            json.dumps({"session": "s", "append": " in another process"}).encode(),
            json.dumps({"session": "s", "close": True}).encode(),
        ],
        *store,
    )
    assert code == 0
    ids: list[int] = []
    for u in (*first[:3], second[0]):
        ids = ids[: u["keep"]] + u["ids"] + (ids[len(ids) - u["tail"] :] if u["tail"] else [])
    final = "Größe" + text[4:] + "and more in another process"
    assert ids == REFERENCE.ids(final).tolist()
    assert int(second[0]["digest"], 16) == digest.of(np.array(ids, dtype=np.uint32))
    assert second[0]["route"] == "splice"
    assert second[1]["closed"] is True
