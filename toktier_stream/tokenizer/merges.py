"""A BPE model as tables: which pairs merge, which words are one token, where words may be cut."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from toktier_stream.tokenizer import merge_build
from toktier_stream.tokenizer.artifact import byte_level_alphabet
from toktier_stream.tokenizer.bpe import EMPTY, NONE, SHORT, SYMBOL_BITS
from toktier_stream.tokenizer.spans import span_bits
from toktier_stream.tokenizer.tables import Refusal

PADDING: Final = 16
"""Bytes behind a text or blob that kernels may read and never use."""

NOT_CANONICAL: Final = 1 << 32
"""In a word's value: a token whose own BPE is not itself (only whole pieces may take it)."""

# Bytes that no valid UTF-8 text holds: a vocabulary may lack them.
_NEVER: Final = frozenset({0xC0, 0xC1, *range(0xF5, 0x100)})


@dataclass(frozen=True, slots=True, eq=False)
class BpeModel:
    """A byte-level BPE vocabulary and its rules, as the reference reads them."""

    tokens: tuple[bytes, ...]
    """The tokens that text can be made of, as bytes."""
    ids: npt.NDArray[np.uint32]
    """uint32[n]: the id of each token."""
    rules: npt.NDArray[np.int64]
    """int64[m, 3]: left, right and merged token (indices), in rank order. Each pair once."""
    ignore_merges: bool
    """A piece that is a token is that token, whatever its merges say."""


@dataclass(frozen=True, slots=True, eq=False)
class MergeTables:
    """What the kernels read. Only rules that can fire are kept: the last rule of each canonical
    token (a token T that stands anywhere in a result was made by the rules that make T alone,
    in the same order, because no merge crossed its edges)."""

    byte_pairs: npt.NDArray[np.uint32]
    """uint32[65536]: symbol of two adjacent bytes, or NONE."""
    pairs: npt.NDArray[np.uint64]
    """uint64[2**k]: open addressing; left, right and made symbol, 20 bits each; EMPTY."""
    emit: npt.NDArray[np.uint64]
    """uint64[symbols]: ``byte length << 32 | id``."""
    words: npt.NDArray[np.uint64]
    """uint64[3 * 2**k]: words of at most 15 bytes: two words of key, then id and flags."""
    long_words: npt.NDArray[np.uint64]
    """uint64[2 * 2**k]: longer words: hash, index + 1 into ``long_index``."""
    long_index: npt.NDArray[np.int64]
    """int64[longer words, 3]: place in ``blob``, size, id and flags."""
    blob: npt.NDArray[np.uint8]
    """The bytes of the longer words."""
    spans: npt.NDArray[np.uint64]
    """A set of bits over adjacent characters; see :mod:`spans`."""
    separate: bool
    """Some words are not canonical: parts of a cut piece must not take what whole pieces may."""
    longest: int
    """Characters of the longest token (a token of broken characters counts each broken part)."""

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Plain arrays; inverse of :meth:`from_arrays`."""
        return {f.name: np.asarray(getattr(self, f.name)) for f in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> MergeTables:
        """Raises KeyError if an array is missing."""
        values: dict[str, Any] = {f.name: arrays[f.name] for f in fields(cls)}
        values["separate"] = bool(values["separate"])
        values["longest"] = int(values["longest"])
        return cls(**values)


def read_model(spec: Mapping[str, Any]) -> BpeModel | Refusal:
    """The BPE model of a parsed tokenizer.json, or why it is not a plain byte-level one."""
    model = spec["model"]
    reasons = _model_reasons(model)
    if reasons:
        return Refusal(reasons)
    alphabet = byte_level_alphabet()
    vocabulary: dict[str, int] = model["vocab"]
    if len(set(vocabulary.values())) != len(vocabulary):
        return Refusal(("two tokens of the vocabulary share an id",))
    tokens: list[bytes] = []
    ids: list[int] = []
    index: dict[str, int] = {}
    for token, token_id in vocabulary.items():
        # A token outside the alphabet can neither be met in text nor be made by a rule.
        if token and all(c in alphabet for c in token):
            index[token] = len(tokens)
            tokens.append(bytes(alphabet[c] for c in token))
            ids.append(token_id)
    known = set(tokens)
    missing = [b for b in range(256) if b not in _NEVER and bytes((b,)) not in known]
    if missing:
        return Refusal((f"{len(missing)} bytes that text can hold have no token",))
    if len(tokens) >= NONE or max(ids) >= 1 << SYMBOL_BITS:
        return Refusal((f"an id or a count of tokens is above {int(NONE)}",))
    rules = _effective_rules(model["merges"], index)
    if len(rules) >= NONE:
        return Refusal((f"more than {int(NONE)} merges",))
    return BpeModel(
        tokens=tuple(tokens),
        ids=np.array(ids, dtype=np.uint32),
        rules=np.array(rules, dtype=np.int64).reshape(-1, 3),
        ignore_merges=bool(model.get("ignore_merges")),
    )


def _model_reasons(model: Mapping[str, Any]) -> tuple[str, ...]:
    # Old files name no type; the reference then takes the first model that fits.
    kind = model.get("type", "BPE")
    if kind != "BPE" or "merges" not in model or not isinstance(model.get("vocab"), dict):
        return (f"the model is {kind}, not BPE",)
    reasons = []
    if model.get("dropout"):
        reasons.append("the model drops merges at random (dropout)")
    affixes = ("continuing_subword_prefix", "end_of_word_suffix")
    reasons.extend(f"the model has a {name}" for name in affixes if model.get(name))
    # unk_token, fuse_unk and byte_fallback need no look: every byte of the text has its token.
    return tuple(reasons)


def _effective_rules(merges: Any, index: Mapping[str, int]) -> list[tuple[int, int, int]]:
    ranks: dict[tuple[int, int], tuple[int, int]] = {}
    for rank, merge in enumerate(merges):
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        a, b = index.get(left), index.get(right)
        if a is not None and b is not None:
            # The reference keeps a pair's later rank.
            ranks[a, b] = rank, index[left + right]
    ordered = sorted(ranks.items(), key=lambda item: item[1][0])
    return [(a, b, made) for (a, b), (_, made) in ordered]


def last_rules(model: BpeModel) -> npt.NDArray[np.int64]:
    """int64[n]: by token, the rule its own BPE fires last; -2 for bytes, -1: not canonical."""
    blob, offsets = _blob(model.tokens)
    byte_token = np.zeros(256, dtype=np.uint32)
    for i, token in enumerate(model.tokens):
        if len(token) == 1:
            byte_token[token[0]] = i
    pairs, shift = _pair_table(model.rules[:, 0], model.rules[:, 1], np.arange(len(model.rules)))
    last = np.zeros(len(model.tokens), dtype=np.int64)
    result = model.rules[:, 2].astype(np.uint32)
    merge_build.derive(blob, offsets, byte_token, pairs, shift, result, last)
    return last


def compile_merges(model: BpeModel) -> MergeTables:
    """The tables of a model."""
    tokens, last = model.tokens, last_rules(model)
    sizes = np.array([len(t) for t in tokens], dtype=np.uint64)
    kept = np.flatnonzero(last >= 0)
    kept = kept[np.argsort(last[kept])]
    symbol = np.full(len(tokens), NONE, dtype=np.uint32)
    symbol[kept] = 256 + np.arange(len(kept), dtype=np.uint32)
    emit = np.zeros(256 + len(kept), dtype=np.uint64)
    for i in np.flatnonzero(sizes == 1):
        symbol[i] = tokens[i][0]
    canonical = last != -1
    emit[symbol[canonical]] = model.ids[canonical] | (sizes[canonical] << np.uint64(32))
    rules = model.rules[last[kept]]
    left, right, made = symbol[rules[:, 0]], symbol[rules[:, 1]], symbol[kept]
    byte_pairs = np.full(1 << 16, NONE, dtype=np.uint32)
    of_bytes = (left < 256) & (right < 256)
    byte_pairs[(left[of_bytes] << np.uint32(8)) | right[of_bytes]] = made[of_bytes]
    pairs, _ = _pair_table(left, right, made)
    chosen = np.arange(len(tokens)) if model.ignore_merges else np.flatnonzero(canonical)
    value = model.ids.astype(np.uint64)
    value[~canonical] |= np.uint64(NOT_CANONICAL)
    words, long_words, long_index, blob = _word_tables([tokens[i] for i in chosen], value[chosen])
    return MergeTables(
        byte_pairs=byte_pairs,
        pairs=pairs,
        emit=emit,
        words=words,
        long_words=long_words,
        long_index=long_index,
        blob=blob,
        spans=span_bits([tokens[i] for i in np.flatnonzero(canonical)]),
        separate=model.ignore_merges and not bool(canonical.all()),
        longest=max(len(t.decode(errors="replace")) for t in tokens),
    )


def _blob(tokens: Any) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    offsets = np.zeros(len(tokens) + 1, dtype=np.int64)
    np.cumsum([len(t) for t in tokens], out=offsets[1:])
    return np.frombuffer(b"".join(tokens) + bytes(PADDING), dtype=np.uint8).copy(), offsets


def _capacity(count: int, load: float) -> int:
    return max(16, 1 << int(np.ceil(np.log2(max(1, count) / load))))


def _pair_table(left: Any, right: Any, made: Any) -> tuple[npt.NDArray[np.uint64], np.uint64]:
    pairs = np.full(_capacity(len(made), 0.5), EMPTY, dtype=np.uint64)
    shift = top_bits(len(pairs))
    merge_build.fill_pairs(
        pairs, shift, left.astype(np.uint32), right.astype(np.uint32), made.astype(np.uint32)
    )
    return pairs, shift


def top_bits(slots: int) -> np.uint64:
    """The shift that leaves of a 64-bit hash a slot of a table of ``slots``, a power of two."""
    return np.uint64(64 - (slots.bit_length() - 1))


def _word_tables(
    tokens: list[bytes], value: npt.NDArray[np.uint64]
) -> tuple[
    npt.NDArray[np.uint64], npt.NDArray[np.uint64], npt.NDArray[np.int64], npt.NDArray[np.uint8]
]:
    long_ones = [i for i, t in enumerate(tokens) if len(t) > SHORT]
    words = np.zeros(
        merge_build.WORD_SLOT * _capacity(len(tokens) - len(long_ones), 0.7), dtype=np.uint64
    )
    long_words = np.zeros(merge_build.LONG_SLOT * _capacity(len(long_ones), 0.5), dtype=np.uint64)
    short = [i for i, t in enumerate(tokens) if len(t) <= SHORT]
    order = np.array(long_ones + short, dtype=np.int64)
    blob, offsets = _blob([tokens[i] for i in order])
    shift = top_bits(len(words) // merge_build.WORD_SLOT)
    merge_build.fill_words(words, shift, long_words, blob, offsets, value[order])
    long_index = np.zeros((len(long_ones), 3), dtype=np.int64)
    long_index[:, 0] = offsets[: len(long_ones)]
    long_index[:, 1] = offsets[1 : len(long_ones) + 1] - long_index[:, 0]
    long_index[:, 2] = value[order][: len(long_ones)].astype(np.int64)
    end = int(offsets[len(long_ones)])
    return words, long_words, long_index, np.append(blob[:end], np.zeros(PADDING, np.uint8))
