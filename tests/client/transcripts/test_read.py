"""Finding the format of a file from its content, and files that are damaged or unknown."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from toktier_stream.client.transcripts import Format, read_transcript, render, turns
from toktier_stream.errors import Code, ToktierError

CODEX = [
    {"type": "session_meta", "payload": {"id": "1", "base_instructions": {"text": "be brief"}}},
    {
        "type": "response_item",
        "payload": {"type": "message", "role": "user", "content": [{"text": "hi"}]},
    },
]
CLAUDE = [
    {"type": "mode", "mode": "normal", "sessionId": "1"},
    {
        "type": "user",
        "uuid": "a",
        "parentUuid": None,
        "sessionId": "1",
        "message": {"role": "user", "content": "hi"},
    },
]
SWE = {"history": [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]}
PLAIN = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]


def jsonl(records: list[Any]) -> bytes:
    return "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records).encode()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (json.dumps(SWE, indent=2).encode(), Format.SWE_AGENT),
        (json.dumps(SWE).encode(), Format.SWE_AGENT),
        (jsonl(CLAUDE), Format.CLAUDE_CODE),
        (jsonl(CODEX), Format.CODEX),
        (jsonl(PLAIN), Format.MESSAGES),
        (json.dumps(PLAIN).encode(), Format.MESSAGES),
        (json.dumps({"messages": PLAIN}).encode(), Format.MESSAGES),
        (b"\xef\xbb\xbf" + json.dumps(PLAIN).encode(), Format.MESSAGES),
        (jsonl(CODEX).replace(b"\n", b"\r\n"), Format.CODEX),
    ],
)
def test_the_content_decides(tmp_path: Path, content: bytes, expected: Format) -> None:
    """The name says nothing; the first records do."""
    path = tmp_path / "transcript.bin"
    path.write_bytes(content)
    transcript = read_transcript(path)
    assert transcript.format is expected
    assert transcript.name == "transcript.bin"
    assert any(m["content"] == "hi" for call in turns(transcript) for m in call)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no known format"),
        (b"hello\n", "line 1 is no JSON"),
        (b"\x00\xff\xfe", "line 1 is no JSON"),
        (b"[]", "no known format"),
        (b'{"a": 1}', "no known format"),
        (b'{"history": []}', "no message"),
        (jsonl(CODEX[:1]) + b"{broken\n" + jsonl(CODEX[1:]), "line 2 is no JSON"),
        (json.dumps(SWE, indent=2).encode()[:-5], "line 1 is no JSON"),
        (jsonl([CLAUDE[0]]), "no message"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    """With the one code for it, the file's name and the reason, and without its text."""
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    with pytest.raises(ToktierError, match=reason) as caught:
        read_transcript(path)
    assert caught.value.code is Code.TRANSCRIPT_FORMAT
    assert "x.jsonl" in caught.value.detail
    assert "hello" not in caught.value.detail


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """With the same code, and what the system said."""
    with pytest.raises(ToktierError, match="No such file"):
        read_transcript(tmp_path / "nowhere")


@pytest.mark.parametrize("cut", [1, 5, 40, 60])
@pytest.mark.parametrize("records", [CODEX, CLAUDE, PLAIN], ids=["codex", "claude", "plain"])
def test_an_unfinished_last_line_is_left_out_and_noted(
    tmp_path: Path, records: list[Any], cut: int
) -> None:
    """A log that is being written reads as what is complete, even cut inside a character."""
    path = tmp_path / "log"
    whole = jsonl(records)
    path.write_bytes(whole + jsonl([records[-1] | {"extra": "é" * 40}])[:cut])
    transcript = read_transcript(path)
    assert transcript.notes == (f"line {len(records) + 1} is unfinished",)
    path.write_bytes(whole)
    assert transcript.turns == read_transcript(path).turns


def test_half_surrogates_are_mended_and_noted(tmp_path: Path) -> None:
    """A lone half becomes U+FFFD, a split pair its character; all text can be encoded."""
    path = tmp_path / "log"
    path.write_bytes(b'[{"role": "user", "content": "a\\ud83d\\ude00b\\ud83dc"}]')
    transcript = read_transcript(path)
    assert transcript.turns[0].messages[0]["content"] == "a\U0001f600b\ufffdc"
    assert transcript.notes == ("1 strings with half of a surrogate pair",)


def test_the_real_transcripts_grow(transcripts: Path | None) -> None:
    """Where this checkout has real logs: each is read without notes, every call's text begins
    with the one before it, and the tools' outputs are all there."""
    for path in sorted(transcripts.glob("*/*")) if transcripts else ():
        transcript = read_transcript(path)
        assert transcript.notes == (), path.name
        texts = [render(call) for call in turns(transcript)]
        assert len(texts) >= 5
        assert all(b.startswith(a) and b != a for a, b in itertools.pairwise(texts))
        *_, last = turns(transcript)
        calls = sum(len(m.get("tool_calls", ())) for m in last)
        assert calls in (0, sum(m["role"] == "tool" for m in last))
