"""Local normalization gives what the reference's normalizer gives, and its offsets."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from engine_samples import (
    EXAMPLES,
    GPT2_SPLIT,
    FamilyFile,
    artifact_of,
    assert_same,
    bpe_spec,
    family,
    normalizer_of,
    quick_encoder,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from toktier_stream.tokenizer import normalization, runs
from toktier_stream.tokenizer.normalization import FORMS, Normalized, Normalizer, form_of
from toktier_stream.tokenizer.reference import Reference
from toktier_stream.tokenizer.tables import Refusal


def apply(normalizer: Normalizer, text: str) -> Normalized | None:
    data = text.encode()
    segments = np.array([[0, len(data), -1]], dtype=np.int64)
    return normalizer.apply(data, np.frombuffer(data + bytes(16), dtype=np.uint8), segments)


def origins(result: Normalized) -> list[int]:
    """By byte of the normal form, the place in the source of its character."""
    text = result.text[:-16].tobytes()
    out, k, delta = [], 0, 0
    for place in range(len(text)):
        while k < len(result.changes) and result.changes[k, 1] <= place:
            delta = int(result.changes[k, 3] - result.changes[k, 1])
            k += 1
        if k < len(result.changes) and result.changes[k, 0] <= place:
            out.append(int(result.origin[result.changes[k, 4] + place - result.changes[k, 0]]))
        else:
            at = place
            while text[at] & 0xC0 == 0x80:
                at -= 1
            out.append(at + delta)
    return out


def unsettled(form: str) -> st.SearchStrategy[str]:
    """Texts full of what can change: every such character is in it, and some of the others."""
    kinds = normalizer_of(form).kinds
    changing = [chr(c) for c in np.flatnonzero(kinds == runs.OTHER)]
    marks = [chr(c) for c in np.flatnonzero(kinds >= runs.ORDERED)]
    starters = [
        *"abceioun<=>; \n;éậÅ…中😀",
        "\uac00", "\uac01", "\u1100", "\u1161", "\u11a8", "\u09c7", "\u09be", "\u0b47", "\u0344",
    ]  # fmt: skip
    sources = [st.sampled_from(s) for s in (starters, changing, marks)]
    return st.lists(st.one_of(*sources), max_size=24).map("".join)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_against_the_reference(form: str) -> None:
    """The text, and the character of the source that each byte comes from."""
    normalizer = normalizer_of(form)

    @settings(max_examples=EXAMPLES * 4, deadline=None, database=None)
    @given(unsettled(form))
    def check(text: str) -> None:
        result = apply(normalizer, text)
        expected = normalizer.normalize(text)
        if result is None:
            assert text == expected
            return
        assert result.text[:-16].tobytes().decode() == expected
        assert result.segments.tolist() == [[0, len(expected.encode()), -1]]
        places = np.cumsum([0] + [len(c.encode()) for c in text])
        offsets = normalizer._aligner.encode(text).offsets
        sizes = [len(c.encode()) for c in expected]
        assert origins(result) == np.repeat(places[[s for s, _ in offsets]], sizes).tolist()

    check()


@pytest.mark.parametrize("form", ["NFC", "NFKC"])
def test_every_character_alone_and_between_others(form: str) -> None:
    """No code point of Unicode changes without being asked about: alone, and between a letter
    and a mark."""
    normalizer = normalizer_of(form)
    points = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    for template in ("{}\n", "e{}\u0327\n"):
        text = "".join(template.format(chr(c)) for c in points)
        result = apply(normalizer, text)
        ours = text if result is None else result.text[:-16].tobytes().decode()
        assert ours == normalizer.normalize(text)


@pytest.mark.parametrize("form", ["NFC", "NFKC"])
def test_cases_that_broke_others(form: str) -> None:
    """Marks that the reference's older Unicode leaves alone, jamo that compose, and orders."""
    spec = bpe_spec([(b"e", b"\xcc")], pre_tokenizer=GPT2_SPLIT, normalizer={"type": form})
    encoder, reference = quick_encoder(spec), Reference(artifact_of(spec))
    for text in (
        "\u09fe\u09cd", "\u0c4d\u0c3c", "\u0301\u1abf", "\u1abf\u0301", "a\u0323\u0307\u0323",
        "\u1112\u1161\u11ab", "\u1112\u1161", "\ud55c\u11ab", "\ud558\u11ab", "\u09c7\u09be",
        "\u0344", "a\u0344b", "\u2126\u212b", "\u0958", "\u1e0b\u0323", "e\u0301" * 40, "ﷺ", "①…ﬁ",
        ">\u0338", "\n\u0338", " \u0301", "\u0301", "\u0f71\u0f72\u0f80", "x\u0300\u0316x",
    ):  # fmt: skip
        assert_same(encoder, reference, text)
        assert_same(encoder, reference, f"plain {text} text{text}")


def slow_rewrite(
    data: bytes, segments: list[list[int]], spans: list[tuple[int, int, bytes]]
) -> tuple[bytes, list[list[int]], list[list[int]]]:
    """The twin in plain Python: the text, the segments and the places after a replacement."""
    text, places, at, form = b"", [], 0, 0
    for start, end, new in spans:
        text += data[at:start]
        places.append([len(text), len(text) + len(new), start, end, form])
        text += new
        at, form = end, form + len(new)

    def moved(edge: int) -> int:
        return edge + sum(len(new) - (end - start) for start, end, new in spans if end <= edge)

    return text + data[at:], [[moved(a), moved(b), token] for a, b, token in segments], places


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 70), st.integers(1, 9), st.binary(max_size=12), st.booleans()),
        min_size=1,
        max_size=6,
    ),
    st.integers(0, 40),
    st.booleans(),
)
def test_spans_are_replaced_as_by_the_twin(
    parts: list[tuple[int, int, bytes, bool]], rest: int, spare: bool
) -> None:
    """Text, segments (some of their edges beside spans) and places; what is written into a text
    that was there keeps inside it."""
    spans, edges, at = [], [0], 0
    for before, size, new, edge in parts:
        at += before
        spans.append((at, at + size, new))
        edges += [at, at + size] if edge else []
        at += size
    data = bytes(i * 7 % 251 for i in range(at + rest))
    edges = sorted({*edges, len(data)})
    segments = [[a, b, i % 2 - 1] for i, (a, b) in enumerate(pairwise(edges))]
    expected = slow_rewrite(data, segments, spans)
    changes = []
    for start, end, new in spans:
        known = normalization.Rewritten(new, np.arange(len(new), dtype=np.int64))
        changes.append((start, end, known))
    room = np.full(len(expected[0]) + 16 + 9, 0xEE, dtype=np.uint8) if spare else None
    result = normalization._rewrite_text(
        np.frombuffer(data + bytes(16), dtype=np.uint8), len(data),
        np.array(segments, dtype=np.int64), changes, room,
    )  # fmt: skip
    assert result.text[:-16].tobytes() == expected[0]
    assert result.segments.tolist() == expected[1]
    assert result.changes.tolist() == expected[2]
    origin = [start + i for start, _, new in spans for i in range(len(new))]
    assert result.origin.tolist() == origin
    assert room is None or (room[-9:] == 0xEE).all()


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    st.sampled_from(["NFC", "NFKC", "NFD", "NFKD"]),
    st.lists(
        st.sampled_from(["e\u0301", "é", "ﬁ", "<x>", "中", "\u0301"])
        | st.integers(1, 90).map(lambda n: ("ab c" * n)[:n]),
        max_size=9,
    ).map("".join),
)
def test_long_stretches_between_changes(form: str, text: str) -> None:
    """What is passed over in blocks, as bytes and as tokens, is passed over rightly."""
    spec = bpe_spec(
        [(b"a", b"b"), (b"e", b"\xcc")], pre_tokenizer=GPT2_SPLIT, normalizer={"type": form},
        added=[{"content": "<x>"}],
    )  # fmt: skip
    assert_same(quick_encoder(spec), Reference(artifact_of(spec)), text)


PARTS = ["<x>", "e\u0301", "a", " ", "\u0301", "ﬁ", "é", "中", "\u1100\u1161", "\u11a8", "a\u0323"]


@settings(max_examples=EXAMPLES * 3, deadline=None)
@given(
    st.sampled_from(["NFC", "NFKC", "NFD", "NFKD"]),
    st.lists(st.sampled_from(PARTS), max_size=20).map("".join),
    st.integers(0, 3),
)
def test_lengths_under_normalization(form: str, text: str, deep: int) -> None:
    """Byte lengths of tokens refer to the source, by the reference's rule, also where tokens end
    inside characters that were rewritten, beside added tokens and at the ends of the text."""
    merges = [
        (b"e", b"\xcc"), (b"\xc3", b"\xa9"), (b"f", b"i"), (b"\xa9", b"a"), (b"a", b"\xcc"),
        (b"\xe4", b"\xb8"), (b"\x81", b"e"),
    ]  # fmt: skip
    spec = bpe_spec(
        merges[: len(merges) - deep],
        pre_tokenizer=GPT2_SPLIT,
        normalizer={"type": form},
        added=[{"content": "<x>"}],
    )
    assert_same(quick_encoder(spec), Reference(artifact_of(spec)), text)


def test_a_post_processor_does_not_move_tokens() -> None:
    """Some files trim white space off the reference's offsets; byte lengths count it all the
    same, as they do in a text that nothing rewrites."""
    spec = bpe_spec([(b" ", b"a")], pre_tokenizer=GPT2_SPLIT, normalizer={"type": "NFC"})
    spec["post_processor"] = {**GPT2_SPLIT, "trim_offsets": True, "use_regex": True}
    encoder, reference = quick_encoder(spec), Reference(artifact_of(spec))
    for text in (" a  a", " a  a e\u0301", "x e\u0301 \n a"):
        assert_same(encoder, reference, text)


def test_forms_that_are_understood() -> None:
    """One form, however it is wrapped; an empty sequence is none; anything else is refused."""
    assert form_of(None) == ""
    assert form_of({"type": "Sequence", "normalizers": []}) == ""
    nested: Any = {"type": "Sequence", "normalizers": [{"type": "NFKC"}]}
    assert form_of({"type": "Sequence", "normalizers": [nested]}) == "NFKC"
    assert form_of({"type": "Sequence", "normalizers": [nested, nested]}) == "NFKC"
    for normalizer in ({"type": "Lowercase"}, {"type": "Replace", "content": "x"}):
        assert isinstance(form_of(normalizer), Refusal)
    mixed = {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "NFKC"}]}
    assert isinstance(form_of(mixed), Refusal)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Distinct segments are forgotten at a limit, long ones at once; the answers stay the same."""
    monkeypatch.setattr(normalization, "REMEMBERED", 4)
    normalizer = Normalizer("NFC", normalizer_of("NFC").kinds)
    for _ in range(2):
        for letter in "aceghijklmnopqrsuwyz":
            for text in (letter + "\u0301", letter + "\u0301" * 100):
                result = apply(normalizer, text)
                got = text if result is None else result.text[:-16].tobytes().decode()
                assert got == normalizer.normalize(text)
        assert len(normalizer._known) <= 4


@pytest.mark.families
@pytest.mark.parametrize("name", ["qwen3", "claude"])
def test_real_families_under_normalization(name: str, family_file: FamilyFile) -> None:
    """The families that normalize, on texts full of what changes."""
    encoder, reference = family(family_file(name))
    assert encoder.normalizer is not None

    @settings(max_examples=EXAMPLES * 2, deadline=None, database=None)
    @given(unsettled(encoder.normalizer.form))
    def check(text: str) -> None:
        assert_same(encoder, reference, text)
        assert_same(encoder, reference, f"some text before {text} and behind\n{text}")

    check()
