"""BPE models are read as the reference reads them, and merged as it merges."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from engine_samples import (
    EXAMPLES,
    FamilyFile,
    artifact_of,
    assert_same,
    bpe_spec,
    quick_encoder,
    spelled,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from toktier_stream.tokenizer.artifact import Artifact
from toktier_stream.tokenizer.bpe import NONE, SCAN, may_cut
from toktier_stream.tokenizer.jit import address_of, entry
from toktier_stream.tokenizer.merges import (
    BpeModel,
    MergeTables,
    compile_merges,
    last_rules,
    read_model,
)
from toktier_stream.tokenizer.reference import Reference
from toktier_stream.tokenizer.tables import Refusal


def model_of(spec: dict[str, Any]) -> BpeModel:
    model = read_model(spec)
    assert isinstance(model, BpeModel), model
    return model


def slow_bpe(model: BpeModel, text: bytes) -> list[bytes]:
    """The twin in plain Python: merge the pair of the smallest rank, leftmost first."""
    ranks: dict[tuple[bytes, bytes], int] = {}
    for rank, (left, right, _) in enumerate(model.rules.tolist()):
        ranks[model.tokens[left], model.tokens[right]] = rank
    parts = [bytes((b,)) for b in text]
    while True:
        found = [(ranks[p], i) for i, p in enumerate(pairwise(parts)) if p in ranks]
        if not found:
            return parts
        _, i = min(found)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


@st.composite
def models(draw: st.DrawFn) -> dict[str, Any]:
    """Small models over few symbols: chains, duplicates, tokens with and without merges."""
    symbols = [b"a", b"b", b" ", "é".encode()[:1], "é".encode()[1:], "中".encode()[:2], b"\xad"]
    tokens = list(symbols)
    merges = []
    for _ in range(draw(st.integers(0, 14))):
        pair = draw(st.sampled_from(tokens)), draw(st.sampled_from(tokens))
        merges.append(pair)
        if pair[0] + pair[1] not in tokens:
            tokens.append(pair[0] + pair[1])
    # Tokens of several bytes that serve as symbols above need merges of their own to be met.
    merges.insert(draw(st.integers(0, len(merges))), (b"\xe4", b"\xb8"))
    extra = draw(st.lists(st.lists(st.sampled_from(symbols), max_size=4).map(b"".join), max_size=3))
    return bpe_spec(
        merges, extra=[t for t in extra if t], ignore_merges=draw(st.booleans()), dropout=None
    )


PIECES = st.lists(
    st.sampled_from(["a", "b", " ", "é", "中", "aa", "ab", "ba", "z", "本", "aab" * 9, "中é" * 12]),
    max_size=30,
).map("".join)


@settings(max_examples=EXAMPLES, deadline=None)
@given(models(), st.lists(PIECES, max_size=6))
def test_random_models(spec: dict[str, Any], pieces: list[str]) -> None:
    """Any byte-level model, on pieces short and long, seen first and seen again."""
    encoder, reference = quick_encoder(spec), Reference(artifact_of(spec))
    for text in [*pieces, *reversed(pieces)]:
        assert_same(encoder, reference, text)


@settings(max_examples=EXAMPLES, deadline=None)
@given(models(), PIECES)
def test_only_last_rules_of_canonical_tokens_fire(spec: dict[str, Any], text: str) -> None:
    """The proof behind the small tables: dropping every other rule changes nothing."""
    model = model_of(spec)
    last = last_rules(model)
    kept = model.rules[np.sort(last[last >= 0])]
    pruned = BpeModel(model.tokens, model.ids, kept, model.ignore_merges)
    assert slow_bpe(model, text.encode()) == slow_bpe(pruned, text.encode())


@settings(max_examples=EXAMPLES, deadline=None)
@given(models())
def test_canonical_tokens(spec: dict[str, Any]) -> None:
    """A token is canonical iff its own BPE is itself."""
    model = model_of(spec)
    for token, rule in zip(model.tokens, last_rules(model).tolist(), strict=True):
        assert (rule != -1) == (slow_bpe(model, token) == [token])
        assert (rule == -2) == (len(token) == 1)


def test_both_spellings_of_merges() -> None:
    """ "a b" and ["a", "b"] are the same rule."""
    spec = bpe_spec([(b"a", b"b"), (b"ab", b"c")])
    old = json.loads(json.dumps(spec))
    old["model"]["merges"] = [" ".join(m) for m in spec["model"]["merges"]]
    assert np.array_equal(model_of(spec).rules, model_of(old).rules)
    assert_same(quick_encoder(old), Reference(artifact_of(old)), "abcab")


def test_a_repeated_pair_takes_its_later_rank() -> None:
    """With (a, b) again at the end, (b, c) goes first."""
    spec = bpe_spec([(b"a", b"b"), (b"b", b"c"), (b"a", b"b")])
    encoder = quick_encoder(spec)
    vocabulary = spec["model"]["vocab"]
    assert encoder.encode(b"abc").ids.tolist() == [vocabulary["a"], vocabulary["bc"]]
    assert_same(encoder, Reference(artifact_of(spec)), "abc")


def test_merges_with_and_without_ignore_merges() -> None:
    """A token without merges is met only as a whole piece, and only under ignore_merges."""
    for ignore in (False, True):
        spec = bpe_spec([(b"a", b"b")], extra=[b"abc"], ignore_merges=ignore)
        encoder = quick_encoder(spec)
        assert (len(encoder.encode(b"abc")) == 1) == ignore
        for text in ("abc", "abca", "abcabc"):
            assert_same(encoder, Reference(artifact_of(spec)), text)


def test_a_part_does_not_take_what_a_whole_piece_may() -> None:
    """中 and 国 are tokens that only whole pieces are; no token holds them side by side, so a long
    piece is cut between them, and its parts must not become these tokens. Nor may the memo mix
    the two up, whichever is seen first."""
    words = ["中".encode(), "国".encode(), "中中中中中".encode()]
    spec = bpe_spec([], extra=words, ignore_merges=True)
    reference = Reference(artifact_of(spec))
    for order in (["中", "中国" * 8, "中"], ["中国" * 8, "中", "中国" * 8], ["中" * 5, "中" * 6]):
        encoder = quick_encoder(spec)
        for text in order:
            assert_same(encoder, reference, text)


def refusal_of(**model: Any) -> str:
    refusal = read_model(bpe_spec([(b"a", b"b")], **model))
    assert isinstance(refusal, Refusal)
    return str(refusal)


def test_what_is_not_admitted() -> None:
    """Each obstacle is named."""
    assert "dropout" in refusal_of(dropout=0.1)
    assert "continuing_subword_prefix" in refusal_of(continuing_subword_prefix="##")
    assert "end_of_word_suffix" in refusal_of(end_of_word_suffix="</w>")
    assert "not BPE" in refusal_of(type="Unigram")
    spec = bpe_spec([])
    del spec["model"]["vocab"]["a"]
    assert "no token" in str(read_model(spec))
    spec = bpe_spec([])
    spec["model"]["vocab"]["a"] = spec["model"]["vocab"]["b"]
    assert "share an id" in str(read_model(spec))
    spec = bpe_spec([])
    spec["model"]["vocab"]["a"] = 1 << 20
    assert "above" in str(read_model(spec))


def test_what_needs_no_look() -> None:
    """Options about unknown symbols cannot matter where every byte has its token; bytes that no
    text holds may be missing."""
    spec = bpe_spec([(b"a", b"b")], unk_token="a", fuse_unk=True, byte_fallback=True)
    spec["model"]["continuing_subword_prefix"] = ""
    spec["model"]["dropout"] = 0.0
    del spec["model"]["vocab"][spelled(b"\xff")]
    assert_same(quick_encoder(spec), Reference(artifact_of(spec)), "abc é \x00")


@entry
def _allowed(spans: Any, left: Any, right: Any) -> Any:
    return may_cut(address_of(spans), left, right)


def allowed(tables: MergeTables, left: str, right: str) -> bool:
    packed = (int.from_bytes(c.encode(), "big") for c in (left, right))
    return bool(_allowed(tables.spans, *map(np.uint64, packed)))


@settings(max_examples=EXAMPLES, deadline=None)
@given(models(), st.sampled_from("ab é中本"), st.sampled_from("ab é中本"), PIECES, PIECES)
def test_cuts_of_pieces(spec: dict[str, Any], x: str, y: str, before: str, behind: str) -> None:
    """Where a cut is allowed, the parts are merged as the whole is."""
    model = model_of(spec)
    left, right = (before + x).encode(), (y + behind).encode()
    if allowed(compile_merges(model), x, y):
        assert slow_bpe(model, left + right) == slow_bpe(model, left) + slow_bpe(model, right)


def test_cuts_where_tokens_hold_parts_of_characters() -> None:
    """A token may end or start inside a character, or hold parts of two."""
    a, b = "中".encode(), "国".encode()
    for token in (a + b[:1], a + b[:2], a[2:] + b, a[1:] + b, a[2:] + b[:1], a + b, b"x" + a + b):
        merges = [(token[:i], token[i : i + 1]) for i in range(1, len(token))]
        tables = compile_merges(model_of(bpe_spec(merges)))
        assert not allowed(tables, "中", "国"), token
        assert allowed(tables, "本", "日")


@pytest.mark.families
def test_words_of_llama_that_are_not_their_own_merges(family_file: FamilyFile) -> None:
    """588 strings of its vocabulary are met as whole pieces only."""
    model = model_of(Artifact.load(family_file("llama3_1")).spec)
    assert int((last_rules(model) == -1).sum()) == 588


@pytest.mark.families
def test_tables_of_a_real_vocabulary(family_file: FamilyFile) -> None:
    """Every canonical token has one symbol, its id and its length; arrays survive the round trip
    through the cache's form."""
    model = model_of(Artifact.load(family_file("qwen3")).spec)
    tables = compile_merges(model)
    canonical = last_rules(model) != -1
    assert len(tables.emit) == int(canonical.sum()) < int(NONE)
    emitted = {(int(e) & 0xFFFFFFFF, int(e) >> 32) for e in tables.emit}
    sizes = [len(t) for t in model.tokens]
    assert emitted == {(int(model.ids[i]), sizes[i]) for i in np.flatnonzero(canonical).tolist()}
    again = MergeTables.from_arrays(tables.to_arrays())
    assert again.longest == tables.longest
    assert again.separate == tables.separate
    assert np.array_equal(again.words, tables.words)


@pytest.mark.alone
def test_long_pieces_are_never_quadratic() -> None:
    """Four times the piece takes about four times as long, not sixteen."""
    encoder = quick_encoder(bpe_spec([(b"a" * n, b"a" * n) for n in (1, 2, 4, 8, 16)]))
    encoder.warm()
    assert len(encoder.encode(b"a" * (SCAN + 1))) == 3

    def seconds(size: int) -> float:
        text, best = b"a" * size, float("inf")
        for _ in range(3):
            start = time.thread_time()
            encoder.encode(text)
            best = min(best, time.thread_time() - start)
        return best

    assert seconds(800_000) < 10 * seconds(200_000)
