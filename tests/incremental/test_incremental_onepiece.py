"""One-piece families: encoder and sessions against the reference, on a small tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from incremental_dictionaries import compiled
from incremental_onepiece import LETTERS, added, artifact, spec
from test_incremental_stream import Consumer

from toktier_stream.errors import Code, ToktierError
from toktier_stream.incremental import onepiece
from toktier_stream.incremental.families import OnePieceEncoder, OnePieceSession, refusal
from toktier_stream.tokenizer.face import Encoder
from toktier_stream.tokenizer.reference import Reference

VOCAB: dict[str, int] = spec()["model"]["vocab"]

PAIRS = {
    prepend: (OnePieceEncoder(artifact(spec(prepend))), Reference(artifact(spec(prepend))))
    for prepend in (True, False)
}

texts = st.text(LETTERS, max_size=12) | st.lists(
    st.sampled_from(["<s>", "</s>", "<a", "b>", "\n\n", "▁▁", " ", "é<", "abab", "cccc"]),
    max_size=4,
).map("".join)
edits = st.tuples(st.integers(0, 1000), st.integers(0, 1000), texts)


def _assert_exact(
    session: OnePieceSession, consumer: Consumer, reference: Reference, text: str
) -> None:
    expected = reference.encode(text.encode())
    assert consumer.ids == expected.ids.tolist()
    assert consumer.lengths == expected.lengths.tolist()
    assert session.tokens().ids.tolist() == consumer.ids
    assert session.text() == text.encode()
    assert len(session) == len(text.encode())
    assert session.count == len(consumer.ids)


@compiled
@given(st.sampled_from([True, False]), texts)
def test_the_encoder_equals_the_reference(prepend: bool, text: str) -> None:
    encoder, reference = PAIRS[prepend]
    found, expected = encoder.encode(text.encode()), reference.encode(text.encode())
    assert found.ids.tolist() == expected.ids.tolist()
    assert found.lengths.tolist() == expected.lengths.tolist()
    assert int(found.lengths.sum()) == len(text.encode())


@compiled
@given(st.sampled_from([True, False]), st.lists(texts, max_size=8))
def test_every_append_equals_the_reference(prepend: bool, parts: list[str]) -> None:
    encoder, reference = PAIRS[prepend]
    session, consumer, text = encoder.session(), Consumer(), ""
    for part in parts:
        change = session.append(part.encode())
        assert change.tail == 0
        consumer.apply(change)
        text += part
        _assert_exact(session, consumer, reference, text)


@compiled
@given(st.sampled_from([True, False]), texts, st.lists(texts | edits, max_size=8))
def test_every_edit_equals_the_reference(
    prepend: bool, start: str, todo: list[str | tuple[int, int, str]]
) -> None:
    """The text behind an edit is read in pieces of 16 bytes here, so that the way back into step
    is taken in small texts too."""
    encoder, reference = PAIRS[prepend]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onepiece, "_CHUNK", 16)
        session, consumer, text = encoder.session(), Consumer(), start * 6
        consumer.apply(session.append(text.encode()))
        for step in todo:
            if isinstance(step, str):
                consumer.apply(session.append(step.encode()))
                text += step
            else:
                a, b = sorted(len(text) * x // 1000 for x in step[:2])
                before = len(text[:a].encode()), len(text[:b].encode())
                consumer.apply(session.edit(*before, step[2].encode()))
                text = text[:a] + step[2] + text[b:]
            _assert_exact(session, consumer, reference, text)


@compiled
@given(st.sampled_from([True, False]), st.lists(texts, min_size=1, max_size=6), st.lists(edits))
def test_settled_tokens_stay_and_a_resumed_session_goes_on(
    prepend: bool, parts: list[str], changes: list[tuple[int, int, str]]
) -> None:
    encoder, reference = PAIRS[prepend]
    session, consumer, text = encoder.session(), Consumer(), ""
    marks = []
    for part in parts:
        consumer.apply(session.append(part.encode()))
        text += part
        for mark, before in marks:
            assert consumer.ids[: mark.tokens] == before
            assert sum(consumer.lengths[: mark.tokens]) == mark.size
            again = OnePieceSession.resume(encoder, mark, text.encode()[mark.size :])
            assert before + again.tokens().ids.tolist() == consumer.ids
            assert (again.count, len(again)) == (session.count, len(session))
        mark = session.settled()
        marks.append((mark, consumer.ids[: mark.tokens]))
    # The resumed session also takes edits, from its ``earliest`` on.
    mark, _ = marks[-1]
    session = OnePieceSession.resume(encoder, mark, text.encode()[mark.size :])
    for x, y, new in changes:
        first = len(text.encode()[: session.earliest].decode(errors="ignore"))
        room = max(0, len(text) - first)
        a, b = sorted(first + room * v // 1000 for v in (x, y))
        start, end = len(text[:a].encode()), len(text[:b].encode())
        if session.earliest <= start <= len(session):
            consumer.apply(session.edit(start, end, new.encode()))
            text = text[:a] + new + text[b:]
            assert consumer.ids == reference.ids(text).tolist()


@compiled
@given(
    st.sampled_from([True, False]), texts, texts, st.integers(0, 1000), st.integers(0, 1000), texts
)
def test_a_mark_holds_in_every_text_that_keeps_what_it_asks_for(
    prepend: bool, start: str, end: str, where: int, cut: int, new: str
) -> None:
    """Asked for one inside the text, it survives every change behind that place."""
    encoder, reference = PAIRS[prepend]
    text = start * 3 + end
    session = encoder.session(text.encode())
    kept = len(text) * where // 1000
    mark = session.settled(len(text[:kept].encode()))
    assert mark.since <= len(text[:kept].encode())
    before = session.tokens().ids[: mark.tokens].tolist()
    for changed in (text[: kept + (len(text) - kept) * cut // 1000] + new, text[:kept] + new):
        ids = reference.ids(changed).tolist()
        assert ids[: mark.tokens] == before
        again = OnePieceSession.resume(encoder, mark, changed.encode()[mark.size :])
        assert before + again.tokens().ids.tolist() == ids


def test_an_edit_far_from_the_end_keeps_the_tail() -> None:
    """Work behind the edit ends where old and new are in step, not at the end of the text."""
    encoder, reference = PAIRS[True]
    text = "ab a<s>b c xé\n" * 3000
    session, consumer = encoder.session(), Consumer()
    consumer.apply(session.append(text.encode()))
    for at in (0, 7, 5000, 20_000):
        change = session.edit(at, at + 7, b"bb a")
        data = text.encode()
        text = (data[:at] + b"bb a" + data[at + 7 :]).decode()
        consumer.apply(change)
        assert len(change.ids) < 20
        assert change.tail > 20_000 - at
        assert consumer.ids == reference.ids(text).tolist()


def test_a_literal_in_two_appends_is_found() -> None:
    """<ab is plain text until > makes it an added token; then its tokens are taken back."""
    encoder, reference = PAIRS[True]
    session, consumer = encoder.session(), Consumer()
    dropped = []
    for part in ("a", "<", "a", "b", ">"):
        change = session.append(part.encode())
        consumer.apply(change)
        dropped.append(change.dropped)
    assert consumer.ids == reference.ids("a<ab>").tolist()
    assert dropped[-1] == 2  # "<a" and "b"


def test_the_longest_literal_wins_only_when_it_is_whole() -> None:
    """Two newlines are a token, three another; the third decides."""
    encoder, reference = PAIRS[False]
    session, consumer = encoder.session(), Consumer()
    for end in range(1, 8):
        consumer.apply(session.append(b"\n"))
        assert consumer.ids == reference.ids("\n" * end).tolist()


def test_edits_are_checked() -> None:
    encoder, _ = PAIRS[True]
    session = encoder.session("aé".encode())
    for start, end, code in (
        (0, 2, Code.OFFSET_IN_CHARACTER),
        (2, 3, Code.OFFSET_IN_CHARACTER),
        (0, 4, Code.OFFSET_RANGE),
        (2, 1, Code.OFFSET_RANGE),
    ):
        with pytest.raises(ToktierError) as caught:
            session.edit(start, end, b"")
        assert caught.value.code is code
    assert session.text() == "aé".encode()


def test_the_encoder_has_the_common_face() -> None:
    encoder: Encoder = PAIRS[True][0]
    assert not encoder.splices
    assert encoder.last_cut(b"a b", 1, 2) == encoder.first_cut(b"a b", 1, 2) == -1
    assert encoder.literal_reach == len("▁▁".encode())
    assert encoder.longest_token == 5  # ▁abab
    assert len(encoder.fingerprint) == 64


def _model(**change: Any) -> Callable[[dict[str, Any]], None]:
    return lambda parsed: parsed["model"].update(change)


def _part(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda parsed: parsed.update({name: value})


def _without_byte(parsed: dict[str, Any]) -> None:
    del parsed["model"]["vocab"]["<0xFE>"]


def _byte_merge(parsed: dict[str, Any]) -> None:
    parsed["model"]["vocab"]["<0x0A>a"] = 900
    parsed["model"]["merges"].append("<0x0A> a")


def _replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_model(type="Unigram"), "not BPE"),
        (_model(ignore_merges=True), "whole pieces"),
        (_model(byte_fallback=False), "no byte fallback"),
        (_model(dropout=0.5), "dropout"),
        (_without_byte, "1 byte tokens"),
        (_byte_merge, "takes part in a merge rule"),
        (_part("pre_tokenizer", {"type": "ByteLevel"}), "bytes are not in the vocabulary"),
        (_part("normalizer", {"type": "NFC"}), "NFC does not work by character"),
        (_part("normalizer", {"type": "Prepend", "prepend": "ab"}), "Prepend"),
        (_part("normalizer", _replace({"String": "  "}, "▁")), "more than single"),
        (_part("normalizer", _replace({"Regex": " "}, "▁")), "more than single"),
        (_part("normalizer", _replace({"String": " "}, "")), "more than single"),
        (_part("normalizer", _replace({"String": " "}, "x")), "vocabulary lacks"),
        (_part("normalizer", _replace({"String": "b"}, "a")), "one width"),
        (_part("pre_tokenizer", {"type": "Whitespace"}), "Whitespace can split"),
        (
            _part("pre_tokenizer", {"type": "Split", "pattern": {"String": "a"}}),
            "Split can split",
        ),
        (_part("added_tokens", added(["x"], VOCAB, normalized=True)), "after normalization"),
        (_part("added_tokens", added(["x"], VOCAB, lstrip=True)), "surroundings"),
        (_part("added_tokens", added(["x" * 300], VOCAB)), "longer than 255"),
        (_part("added_tokens", added(["x", "x"], VOCAB)), "same content"),
        (_part("added_tokens", [{"id": 5000, "content": "x", "normalized": False}]), "has id 5000"),
    ],
)
def test_what_breaks_a_condition_is_refused_with_the_reason(
    change: Callable[[dict[str, Any]], None], reason: str
) -> None:
    parsed = json.loads(json.dumps(spec()))
    change(parsed)
    with pytest.raises(ToktierError, match=reason) as caught:
        OnePieceEncoder(artifact(parsed))
    assert caught.value.code is Code.TOKENIZER_UNSUPPORTED
    assert refusal(artifact(parsed)) == caught.value.detail


def test_ids_of_added_tokens_are_expected_where_the_reference_gives_them() -> None:
    encoder, reference = PAIRS[True]
    for token in encoder.pipeline.literals:
        assert reference.tokenizer.token_to_id(token.content) == token.id


def test_what_fulfils_the_conditions_has_no_refusal() -> None:
    """Also with a pre-tokenizer that never meets its character, as Gemma's."""
    parsed = spec()
    split = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious"}
    parsed["pre_tokenizer"] = {**split, "invert": False}
    assert refusal(artifact(parsed)) == ""
    text = "a b <s>  ab"
    encoder, reference = OnePieceEncoder(artifact(parsed)), Reference(artifact(parsed))
    assert encoder.encode(text.encode()).ids.tolist() == reference.ids(text).tolist()


def test_chained_replacements_compose_as_the_reference_applies_them() -> None:
    parsed = spec(prepend=False)
    steps = [
        _replace({"String": "x"}, "y"),
        _replace({"String": "y"}, "é"),
        _replace({"String": " "}, "▁"),
    ]
    parsed["normalizer"] = {"type": "Sequence", "normalizers": steps}
    assert "one width" in refusal(artifact(parsed))  # x and y both become é
    parsed["normalizer"]["normalizers"] = [steps[0], _replace({"String": "y"}, "▁")]
    parsed["added_tokens"] = []
    assert "one width" in refusal(artifact(parsed))
    parsed["normalizer"]["normalizers"] = [_replace({"String": "é"}, "a"), steps[2]]
    text = "aéb é ab"
    encoder, reference = OnePieceEncoder(artifact(parsed)), Reference(artifact(parsed))
    found, expected = encoder.encode(text.encode()), reference.encode(text.encode())
    assert found.ids.tolist() == expected.ids.tolist()
    assert found.lengths.tolist() == expected.lengths.tolist()
    assert encoder.session(text.encode()).text() == text.encode()
