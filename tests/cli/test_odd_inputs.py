"""What people get wrong at a shell is told in one sentence, and the other lines go on."""

from __future__ import annotations

import json

from test_shell import pipe


def test_a_line_nested_without_end_is_one_bad_line():
    """The parser gives up on it; the next line is encoded."""
    code, answers = pipe("encode", [b"[" * 200_000, b'{"text": "and on"}'])
    assert code == 1
    assert answers[0]["error"] == "UNDECODABLE"
    assert answers[1]["ids"]


def test_a_session_id_longer_than_the_store_admits_is_one_bad_line():
    """Its own code, not a store's; the next session is served."""
    lines = [{"session": name, "reset": "text"} for name in ("k" * 481, "é" * 300, "k" * 480)]
    code, answers = pipe("session", [json.dumps(line).encode() for line in lines])
    assert code == 1
    assert [a.get("error") for a in answers] == ["SESSION_ID_TOO_LONG", "SESSION_ID_TOO_LONG", None]
