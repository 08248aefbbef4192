"""The exact engine: the reference's ids and byte lengths, on every family that has pieces."""

from __future__ import annotations

import os
import random
import sys
import sysconfig
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from engine_samples import (
    BYTE_LEVEL,
    EXAMPLES,
    GPT2_SPLIT,
    TRAPS,
    WHOLE,
    FamilyFile,
    artifact_of,
    assert_same,
    bpe_spec,
    family,
    quick_encoder,
    texts,
    transcript_texts,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from toktier_stream.errors import Code, ToktierError
from toktier_stream.tokenizer import encoder as encoder_module
from toktier_stream.tokenizer import workspace
from toktier_stream.tokenizer.encoder import ENGINE, FastEncoder
from toktier_stream.tokenizer.matcher import sample_members
from toktier_stream.tokenizer.merges import last_rules, read_model
from toktier_stream.tokenizer.reference import Reference
from toktier_stream.tokenizer.tables import Refusal

LONG = os.environ.get("TOKTIER_TEST_LONG") == "1"
"""Whole files instead of their first part, and runs of a megabyte against the reference."""

every_family = pytest.mark.parametrize("name", BYTE_LEVEL)


@pytest.mark.families
@every_family
def test_random_texts(name: str, family_file: FamilyFile) -> None:
    """Texts over classes, vocabulary, added tokens, unstable characters and runs."""
    encoder, reference = family(family_file(name))

    @settings(max_examples=EXAMPLES, deadline=None, database=None)
    @given(texts(encoder, reference))
    def check(text: str) -> None:
        assert_same(encoder, reference, text)

    check()


@pytest.mark.families
@every_family
def test_traps(name: str, family_file: FamilyFile) -> None:
    """Texts that trip tokenizers, alone and joined in every order of two."""
    encoder, reference = family(family_file(name))
    assert encoder.engine == ENGINE
    for text in TRAPS:
        assert_same(encoder, reference, text)
    for first in TRAPS:
        assert_same(encoder, reference, "".join(first + second for second in TRAPS))


@pytest.mark.families
@every_family
def test_facts_about_the_vocabulary(name: str, family_file: FamilyFile) -> None:
    """What sessions ask an encoder about its tokens is what the reference says."""
    encoder, reference = family(family_file(name))
    assert encoder.longest_token == reference.longest_token
    assert encoder.literal_reach == reference.literal_reach
    assert encoder.splices


@pytest.mark.families
@every_family
def test_real_text(name: str, family_file: FamilyFile, transcripts: Path | None) -> None:
    """Agent transcripts with their markers, and Python's own sources."""
    encoder, reference = family(family_file(name))
    limit = sys.maxsize if LONG else 20_000
    for text in transcript_texts(transcripts):
        assert_same(encoder, reference, text[:limit])
    library = Path(sysconfig.get_paths()["stdlib"])
    for file in sorted(library.glob("*.py"))[:: 1 if LONG else 20]:
        assert_same(encoder, reference, file.read_text(encoding="utf-8")[:limit])


@pytest.mark.families
@every_family
def test_runs_of_one_character(name: str, family_file: FamilyFile) -> None:
    """Runs are compared with the reference. A megabyte of one character of each class is encoded
    in linearithmic time (and, with TOKTIER_TEST_LONG, compared too, on every family)."""
    encoder, reference = family(family_file(name))
    if encoder.normalizer is not None:
        marks = set(np.flatnonzero(encoder.normalizer.kinds).tolist())
    else:
        marks = set()
    for members in sample_members(encoder.compiled.matcher, each=1):
        character = next((c for c in members if ord(c) not in marks), members[0])
        for size in (1, 2, 16, 49, 1000):
            assert_same(encoder, reference, character * size)
        if not LONG and name not in {"qwen3", "gptoss"}:
            continue
        text = character * (1_000_000 // len(character.encode()))
        start = time.thread_time()
        encoder.encode(text.encode())
        assert time.thread_time() - start < 5
        if LONG:
            assert_same(encoder, reference, text)


@pytest.mark.families
def test_a_word_that_whole_piece_lookups_get_wrong(family_file: FamilyFile) -> None:
    """``kapsamıydı`` and every vocabulary string of Llama 3.1 that is not its own merges: alone,
    within text, and where they are only a part of a piece."""
    encoder, reference = family(family_file("llama3_1"))
    assert_same(encoder, reference, " kapsamıydı")
    model = read_model(reference.artifact.spec)
    assert not isinstance(model, Refusal)
    strange = np.flatnonzero(last_rules(model) == -1).tolist()
    assert len(strange) == 588
    for i in strange:
        word = model.tokens[i].decode(errors="ignore")
        assert_same(encoder, reference, f"{word}\n x{word}{word} {word}")


@settings(max_examples=EXAMPLES * 2, deadline=None)
@given(st.text("aab é中\n1'", max_size=60))
def test_a_memo_full_of_collisions(text: str) -> None:
    """With four slots nearly every piece meets another's: keys are compared whole."""
    spec = bpe_spec([(b"a", b"a"), (b" ", b"a"), (b"\xc3", b"\xa9")], pre_tokenizer=GPT2_SPLIT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workspace, "MEMO_BITS", 2)
        encoder, reference = quick_encoder(spec), Reference(artifact_of(spec))
        for _ in range(2):
            assert_same(encoder, reference, text)


def test_what_a_memo_holds_at_first() -> None:
    """Words of the vocabulary in their slots, the lower id where two share one; no long ones."""
    merges = [(b"a", b"a"), (b"aa", b"aa"), (b" ", b"a"), (b"aaaa", b"aaaa"), (b"a" * 8, b"a" * 8)]
    spec = bpe_spec(merges, pre_tokenizer=WHOLE)
    for bits in (2, 16):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(workspace, "MEMO_BITS", bits)
            encoder, reference = quick_encoder(spec), Reference(artifact_of(spec))
            memo = workspace.first_memo(encoder.compiled.merges.words).reshape(-1, 4)
            held = sorted(int(row[2]) >> 3 for row in memo if row[1])
            assert held == ([*range(260)] if bits == 16 else held)
            assert 0 < len(held) <= min(1 << bits, 260)
            assert {int(row[2]) & 7 for row in memo if row[1]} == {1}
            for size in range(1, 40):
                assert_same(encoder, reference, "a" * size)
                assert_same(encoder, reference, " a" * size)


def test_a_memo_holds_pieces_of_many_tokens() -> None:
    """Pieces of one to fifteen tokens, of any length that a memo key holds, twice each."""
    spec = bpe_spec([(b"a", b"a"), (b"aa", b"aa"), (b"aaaa", b"aaaa")], pre_tokenizer=WHOLE)
    encoder, reference = quick_encoder(spec), Reference(artifact_of(spec))
    for _ in range(2):
        for size in range(1, 40):
            assert_same(encoder, reference, "a" * size)
            assert_same(encoder, reference, "ab" * size)
            assert_same(encoder, reference, ("a" * 5 + "c") * size)


@pytest.mark.families
def test_a_prefix_first(family_file: FamilyFile, transcripts: Path | None) -> None:
    """An encoder that saw 4,096 characters of a text and then all of it answers as a new one."""
    encoder, _ = family(family_file("qwen3"))
    for text in [*transcript_texts(transcripts), "word " * 4000, "中国" * 3000]:
        data = text[:40_000].encode()
        prefix = text[:4_200].encode()
        first = fresh(encoder)
        first.encode(prefix)
        assert first.encode(data).ids.tolist() == fresh(encoder).encode(data).ids.tolist()


def fresh(encoder: FastEncoder) -> FastEncoder:
    """Another encoder of the same tables, with nothing in its memory."""
    return FastEncoder(encoder.fingerprint, encoder.compiled)


@pytest.mark.families
def test_many_threads_on_one_encoder(family_file: FamilyFile) -> None:
    """Sixteen threads that start at once, each on its own order of the same texts."""
    encoder, reference = family(family_file("qwen3"))
    encoder = fresh(encoder)
    numbered = [f"e\u0301 {i} words <|im_end|> {i}" for i in range(60)]
    inputs = [t.encode() for t in (*TRAPS, *numbered)]
    expected = [reference.ids(t.decode()).tolist() for t in inputs]
    barrier = threading.Barrier(16)
    wrong: list[int] = []

    def work(seed: int) -> None:
        order = list(range(len(inputs))) * 3
        random.Random(seed).shuffle(order)
        barrier.wait()
        wrong.extend(i for i in order if encoder.encode(inputs[i]).ids.tolist() != expected[i])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.families
def test_fork_after_load(family_file: FamilyFile) -> None:
    """A child that was forked while a thread encoded, encodes as its parent does."""
    encoder, _ = family(family_file("qwen3"))
    encoder.warm()
    text = ("some words, e\u0301, <|im_start|> and 中国人民 " * 300).encode()
    expected = encoder.encode(text).ids.tolist()
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            encoder.encode(text)

    thread = threading.Thread(target=busy)
    thread.start()
    child = os.fork()
    if child == 0:
        same = encoder.encode(text).ids.tolist() == expected
        same &= encoder.encode_parallel(text, 2).ids.tolist() == expected
        os._exit(0 if same else 1)
    _, status = os.waitpid(child, 0)
    stop.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0


def test_room_grows_and_is_given_back() -> None:
    """Texts of any size in any order; room for long ones is not kept."""
    encoder = quick_encoder(bpe_spec([(b"a", b"a")], pre_tokenizer=GPT2_SPLIT))
    sizes = [1, 5000, 3, workspace.KEPT_BYTES, workspace.KEPT_BYTES + 1, 2]
    for size in sizes:
        tokens = encoder.encode(b"a" * size)
        assert int(tokens.lengths.sum()) == size
    space = encoder._pool.take()
    assert space.room(1).size <= workspace.KEPT_BYTES


def test_results_are_the_callers_own() -> None:
    """A later encode does not write into an earlier answer."""
    encoder = quick_encoder(bpe_spec([], pre_tokenizer=GPT2_SPLIT))
    first = encoder.encode(b"abc")
    encoder.encode(b"xyz")
    assert first.ids.tolist() == [97, 98, 99]


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(st.sampled_from(["e\u0301", "é", "<x>", "ab ", "中", "b"]), max_size=40), st.data())
def test_tokens_behind_free_entries(parts: list[str], data: st.DataObject) -> None:
    """The end of a text, behind entries that the caller may fill: what its tokens are alone."""
    encoder = quick_encoder(
        bpe_spec(
            [(b"a", b"b"), (b"e", b"\xcc")], pre_tokenizer=GPT2_SPLIT, normalizer={"type": "NFC"},
            added=[{"content": "<x>"}],
        )
    )  # fmt: skip
    left = data.draw(st.integers(0, len(parts)))
    room = data.draw(st.integers(0, 9))
    start = len("".join(parts[:left]).encode())
    text = "".join(parts).encode()
    found, expected = encoder.encode_behind(text, start, room), encoder.encode(text[start:])
    assert np.array_equal(found.ids[room:], expected.ids)
    assert np.array_equal(found.lengths[room:], expected.lengths)
    assert len(found.ids) == len(found.lengths) == room + len(expected)


def test_text_beyond_the_kernels_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Places are 32-bit numbers; longer text is an error with a code, not a wrong answer."""
    encoder = quick_encoder(bpe_spec([], pre_tokenizer=GPT2_SPLIT))
    monkeypatch.setattr(encoder_module, "MAX_BYTES", 3)
    with pytest.raises(ToktierError) as caught:
        encoder.encode(b"abcd")
    assert caught.value.code is Code.SESSION_TOO_LARGE


@pytest.mark.families
@pytest.mark.parametrize("name", ["qwen3", "gptoss", "claude"])
def test_large_texts_on_several_threads(family_file: FamilyFile, name: str) -> None:
    """Whoever owns the process may give large texts more threads: the ids do not tell."""
    encoder, _ = family(family_file(name))
    encoder = fresh(encoder)
    text = ("some words, e\u0301, <|im_start|> and 中国人民 " * 9000).encode()
    assert len(text) >= encoder_module.DIVIDED_BYTES
    one = encoder.encode(text)
    encoder.threads = 4
    four = encoder.encode(text)
    assert four.ids.tolist() == one.ids.tolist()
    assert four.lengths.tolist() == one.lengths.tolist()
    behind = encoder.encode_behind(b"abc" + text, 3, 2)
    assert behind.ids[2:].tolist() == one.ids.tolist()
    assert behind.lengths[2:].tolist() == one.lengths.tolist()
