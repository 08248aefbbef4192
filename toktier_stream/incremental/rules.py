"""The vocabulary and merge rules of one BPE model, as arrays over symbols.

A *symbol* is what BPE starts from: a byte (byte-level vocabularies) or a code point that is itself
in the vocabulary (SentencePiece style). Symbols are numbered ``0..A-1``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from toktier_stream.errors import Code, ToktierError
from toktier_stream.tokenizer.artifact import byte_level_alphabet

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Symbols = npt.NDArray[Any]
"""uint8 or int32: symbols, or negative codes that stand for barriers."""

UNKNOWN = -1
"""Stands for a character that is no symbol."""


@dataclass(frozen=True, slots=True)
class Rules:
    """One BPE model.

    ``points[A]`` gives the byte or code point of each symbol, ascending. Token ``t`` (a row, not
    an id) is spelled ``spelling[starts[t]:starts[t+1]]`` in symbols and has vocabulary id
    ``ids[t]``; ``atoms[A]`` is the row of each symbol's own token, -1 if the vocabulary lacks it.
    Rule ``i`` merges rows ``lefts[i], rights[i]`` into row ``products[i]``; its rank is ``i``, and
    where a pair occurs twice the later rank counts, as in the reference. With ``ignore_merges`` a
    piece that is a token as a whole is that token, whatever BPE makes of it.
    """

    bytewise: bool
    ignore_merges: bool
    points: Ints
    atoms: Ints
    ids: npt.NDArray[np.uint32]
    spelling: Ints
    starts: Longs
    lefts: Ints
    rights: Ints
    products: Ints

    def token(self, row: int) -> list[int]:
        """The symbols of one token."""
        return [int(s) for s in self.spelling[self.starts[row] : self.starts[row + 1]]]


def is_bytewise(spec: Mapping[str, Any]) -> bool:
    """Whether a tokenizer.json writes bytes in the byte-level alphabet."""

    def mentions(part: Any) -> bool:
        if isinstance(part, dict):
            return part.get("type") == "ByteLevel" or any(mentions(v) for v in part.values())
        return isinstance(part, list) and any(mentions(v) for v in part)

    return mentions(spec.get("pre_tokenizer"))


def refusal(model: Mapping[str, Any]) -> str:
    """Why a ``model`` section is not plain BPE; empty if it is."""
    if model.get("type", "BPE") != "BPE":
        return f"the model is {model.get('type')}, not BPE"
    if model.get("dropout"):
        return "the model uses dropout"
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return "the model marks subwords by prefix or suffix"
    vocab = model.get("vocab", {})
    if len(set(vocab.values())) != len(vocab):
        return "two vocabulary entries share an id"
    return ""


def from_spec(spec: Mapping[str, Any]) -> Rules:
    """The rules of a parsed tokenizer.json. Raises ``TOKENIZER_UNSUPPORTED`` or ``_LOAD``."""
    model = spec["model"]
    reason = refusal(model)
    if reason:
        raise ToktierError(Code.TOKENIZER_UNSUPPORTED, reason)
    vocab: dict[str, int] = model["vocab"]
    bytewise = is_bytewise(spec)
    if bytewise:
        alphabet = byte_level_alphabet()
        missing = [c for c in alphabet if c not in vocab]
        if missing:
            raise ToktierError(
                Code.TOKENIZER_UNSUPPORTED, f"{len(missing)} bytes are not in the vocabulary"
            )
    else:
        alphabet = {t: ord(t) for t in vocab if len(t) == 1}
    ignore_merges = bool(model.get("ignore_merges", False))
    return _assemble(vocab, model["merges"], alphabet, bytewise, ignore_merges)


def from_merges(
    alphabet: Iterable[int],
    merges: Sequence[tuple[bytes, bytes]],
    *,
    bytewise: bool = True,
    words: Sequence[bytes] = (),
) -> Rules:
    """A small dictionary: symbols are the bytes ``alphabet``, products get the next ids in order.

    For tests and generated families. With ``bytewise`` all 256 bytes are symbols, and those not in
    ``alphabet`` have no token: each stands alone and nothing merges across it. ``words`` are
    further tokens, taken when a whole piece equals them (``ignore_merges``).
    """
    letters = sorted(set(alphabet))
    vocab = {chr(b): i for i, b in enumerate(letters)}
    pairs = [(a.decode("latin-1"), b.decode("latin-1")) for a, b in merges]
    for token in [a + b for a, b in pairs] + [w.decode("latin-1") for w in words]:
        vocab.setdefault(token, len(vocab))
    symbols = {chr(b): b for b in (range(256) if bytewise else letters)}
    return _assemble(vocab, pairs, symbols, bytewise, bool(words))


def _split_merges(merges: Sequence[Any]) -> tuple[list[str], list[str]]:
    """Left and right sides; a rule is written ``"a b"`` or ``["a", "b"]``."""
    if merges and isinstance(merges[0], str):
        pairs = [m.split(" ") for m in merges]
        if any(len(p) != 2 for p in pairs):
            raise ToktierError(Code.TOKENIZER_LOAD, "a merge rule does not have two sides")
        return [p[0] for p in pairs], [p[1] for p in pairs]
    return [m[0] for m in merges], [m[1] for m in merges]


def _assemble(
    vocab: Mapping[str, int],
    merges: Sequence[Any],
    alphabet: Mapping[str, int],
    bytewise: bool,
    ignore_merges: bool,
) -> Rules:
    tokens = list(vocab)
    row = dict(zip(tokens, range(len(tokens)), strict=True))
    points = np.array(sorted(alphabet.values()), dtype=np.int32)
    # Character -> symbol, as a table over all code points; UNKNOWN where there is none.
    symbol_of = np.full(0x110000, UNKNOWN, dtype=np.int32)
    order = {p: i for i, p in enumerate(points.tolist())}
    for character, point in alphabet.items():
        symbol_of[ord(character)] = order[point]

    # A lone surrogate cannot be in valid JSON text of a vocabulary; "surrogatepass" keeps counts.
    joined = "".join(tokens).encode("utf-32-le", "surrogatepass")
    spelling = symbol_of[np.frombuffer(joined, dtype=np.uint32)]
    starts = np.zeros(len(tokens) + 1, dtype=np.int64)
    np.cumsum(np.fromiter(map(len, tokens), np.int64, len(tokens)), out=starts[1:])

    atoms = np.full(len(points), -1, dtype=np.int32)
    for character, point in alphabet.items():
        atoms[order[point]] = row.get(character, -1)

    left, right = _split_merges(merges)
    try:
        lefts = np.fromiter(map(row.__getitem__, left), np.int32, len(left))
        rights = np.fromiter(map(row.__getitem__, right), np.int32, len(left))
        both = map(str.__add__, left, right)
        products = np.fromiter(map(row.__getitem__, both), np.int32, len(left))
    except KeyError as error:
        raise ToktierError(Code.TOKENIZER_LOAD, "a merge rule is out of vocabulary") from error
    return Rules(
        bytewise=bytewise,
        ignore_merges=ignore_merges,
        points=points,
        atoms=atoms,
        ids=np.fromiter(vocab.values(), np.uint32, len(tokens)),
        spelling=spelling,
        starts=starts,
        lefts=lefts,
        rights=rights,
        products=products,
    )
