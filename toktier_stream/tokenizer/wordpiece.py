"""WordPiece (BERT): the reference encodes, and where a text may be cut is derived.

BERT's normalizer maps character by character, except that marks of canonical decompositions may
change places; its pre-tokenizer isolates punctuation and drops white space; each word is encoded on
its own. So a text may be cut where a word surely ends and another begins; the proof is in
ARCHITECTURE.md. The classes that this needs are asked of the reference itself.

Tokens reach over the white space behind them, so that a cut behind white space needs a token to its
left, too.
"""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from toktier_stream.tokenizer import added, cache, normalization
from toktier_stream.tokenizer.added import LiteralTable
from toktier_stream.tokenizer.admission import Progress, artifact_seed, table_folder
from toktier_stream.tokenizer.artifact import Artifact
from toktier_stream.tokenizer.cuts import find_cut
from toktier_stream.tokenizer.encoder import divided
from toktier_stream.tokenizer.reference import REFERENCE_VERSION, Reference, ReferenceEncoder
from toktier_stream.tokenizer.tables import CODE_POINTS, Refusal

ENGINE: Final = f"wordpiece-1 ({REFERENCE_VERSION})"
"""Changes with every change that could change ids or cuts."""

OTHER, SPACE, WORD, ALONE, MANY = range(5)
"""Classes of characters: vanishes or does anything else; becomes white space; becomes one character
of a word; becomes a word of one character, whatever stands around it; becomes several characters of
a word (there is no cut beside these: a token of a part of a character has no place in the text)."""

SELF_TEST_TEXTS: Final = 60
_STEP: Final = 1 << 8
_MARKER: Final = "q"


def classify(reference: Reference) -> npt.NDArray[np.uint8]:
    """uint8[0x110000]: what the reference makes of each character between two letters.

    Raises ValueError where the answer cannot be read.
    """
    classes = np.zeros(CODE_POINTS, dtype=np.uint8)
    scalars = [c for c in range(CODE_POINTS) if not 0xD800 <= c < 0xE000]
    for first in range(0, len(scalars), _STEP):
        batch = scalars[first : first + _STEP]
        if _all_in_one_word(reference, batch):
            classes[batch] = WORD
            continue
        groups: list[list[str]] = [[]]
        for piece in _words(reference, "".join(f"a{chr(c)}a {_MARKER} " for c in batch)):
            if piece == _MARKER:
                groups.append([])
            else:
                groups[-1].append(piece)
        if len(groups) != len(batch) + 1:
            raise ValueError("the words of single characters cannot be told apart")
        classes[batch] = [_class_of(group) for group in groups[:-1]]
    return classes


def _words(reference: Reference, text: str) -> list[str]:
    """What reaches the model."""
    tokenizer = reference.tokenizer
    text = tokenizer.normalizer.normalize_str(text)
    return [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]


def _all_in_one_word(reference: Reference, points: list[int]) -> bool:
    """Whether each becomes one character of a word: most do. With one ``a`` between any two, and no
    other, what lies between these is what became of one character."""
    words = _words(reference, "a" + "a".join(map(chr, points)) + "a")
    return (
        len(words) == 1
        and words[0].count("a") == len(points) + 1
        and words[0][::2] == "a" * (len(points) + 1)
    )


def _class_of(words: list[str]) -> int:
    if words == ["a", "a"]:
        return SPACE
    if len(words) == 1 and len(words[0]) > 2 and words[0][0] == words[0][-1] == "a":
        return WORD if len(words[0]) == 3 else MANY
    if len(words) == 3 and len(words[1]) == 1 and words[0] == words[2] == "a":
        return ALONE
    return OTHER


def _boundaries() -> npt.NDArray[np.bool_]:
    """bool[5, 5]: between which classes a word surely ends and another begins."""
    table = np.zeros((5, 5), dtype=np.bool_)
    table[WORD, ALONE] = table[ALONE, WORD] = table[ALONE, ALONE] = True
    table[SPACE, WORD] = table[SPACE, ALONE] = True
    table.setflags(write=False)
    return table


class WordPieceEncoder(ReferenceEncoder):
    """The reference with cuts. They are two-sided: the tokens are those of the two parts."""

    def __init__(
        self, reference: Reference, class_of: npt.NDArray[Any], kinds: npt.NDArray[Any]
    ) -> None:
        """``class_of`` from :func:`classify`, ``kinds`` from :func:`normalization.probe` of NFD."""
        super().__init__(reference)
        self.class_of = class_of
        table = LiteralTable.build({t.content.encode(): t.id for t in reference.added_tokens})
        for array in (class_of, kinds, table.first, table.edges, table.final):
            array.setflags(write=False)
        self._tables = (
            class_of, _boundaries(), kinds, table.reach, False, table.first, table.edges,
            table.shift, table.final,
        )  # fmt: skip

    @property
    def engine(self) -> str:
        return ENGINE

    @property
    def splices(self) -> bool:
        return True

    def last_cut(self, text: bytes, low: int, high: int) -> int:
        return self._cut(text, low, high, -1)

    def first_cut(self, text: bytes, low: int, high: int) -> int:
        return self._cut(text, low, high, 1)

    def divide(self, text: bytes, parts: int) -> list[int]:
        """As the exact encoder's: the tokens of the text are those of its parts."""
        return divided(len(text), parts, lambda at: self.first_cut(text, at, len(text) - 1))

    def _cut(self, text: bytes, low: int, high: int, step: int) -> int:
        source = np.frombuffer(text, dtype=np.uint8)
        while True:
            cut = int(find_cut(source, low, high, step, *self._tables))
            if cut < 0 or self._token_ends(text, cut):
                return cut
            low, high = (cut + 1, high) if step > 0 else (low, cut - 1)

    def _token_ends(self, text: bytes, cut: int) -> bool:
        """Whether something left of the cut is a token: else its white space is the next one's."""
        size = 64
        while True:
            low = max(0, cut - size)
            while low and text[low] & 0xC0 == 0x80:
                low -= 1
            points = np.frombuffer(bytes(text[low:cut]).decode().encode("utf-32-le"), dtype="<u4")
            if bool((self.class_of[points] >= WORD).any()):
                return True
            if low == 0:
                return False
            size *= 8


def refusals(artifact: Artifact, reference: Reference) -> list[str]:
    """What the argument does not cover."""
    spec = artifact.spec
    reasons = []
    for part, wanted in (
        ("model", "WordPiece"),
        ("normalizer", "BertNormalizer"),
        ("pre_tokenizer", "BertPreTokenizer"),
    ):
        kind = (spec.get(part) or {}).get("type")
        if kind != wanted:
            reasons.append(f"the {part} is {kind or 'missing'}, not {wanted}".replace("_", "-"))
    unusual = added.refusal(reference.added_tokens)
    reasons.extend(unusual.reasons if unusual else ())
    if any(t.normalized for t in reference.added_tokens):
        reasons.append("added tokens are looked for in the normalized text")
    return reasons


def wordpiece_engine(
    artifact: Artifact, reference: Reference, progress: Progress | None
) -> WordPieceEncoder | Refusal:
    """The encoder of a BERT tokenizer, or why it is none."""
    reasons = refusals(artifact, reference)
    if reasons:
        return Refusal(tuple(reasons))
    tell = progress or (lambda message: None)
    try:
        encoder = WordPieceEncoder(reference, *_tables(reference, tell))
    except ValueError as error:
        return Refusal((str(error),))
    tell("comparing with the reference")
    if not _self_tested(encoder):
        return Refusal(("cuts differ from the reference on the self-test",))
    return encoder


def _tables(reference: Reference, tell: Progress) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Classes and kinds, kept on disk for all tokenizers that normalize and split alike."""
    spec = reference.artifact.spec
    source = Path(__file__).read_text()
    parts = (REFERENCE_VERSION, source, spec["normalizer"], spec["pre_tokenizer"])
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    stored = cache.load(table_folder(), key)
    if stored is not None and stored.keys() == {"class_of", "kinds"}:
        return stored["class_of"], stored["kinds"]
    tell("asking the reference for the classes of characters")
    class_of, kinds = classify(reference), normalization.probe("NFD")
    try:
        cache.store(table_folder(), key, {"class_of": class_of, "kinds": kinds})
    except OSError as error:
        tell(f"compiled tables were not kept: {error.strerror}")
    return class_of, kinds


def members(class_of: npt.NDArray[Any], each: int, seed: int = 0) -> list[str]:
    """Some characters of each class."""
    choose = random.Random(seed)
    found: list[str] = []
    for c in range(5):
        points = [p for p in np.flatnonzero(class_of == c).tolist() if not 0xD800 <= p < 0xE000]
        low = [p for p in points if p < 0x250]
        found.extend(
            "".join(map(chr, choose.sample(some, min(each, len(some)))))
            for some in (low, points)
            if some
        )
    return found


def _self_tested(encoder: WordPieceEncoder) -> bool:
    """Whether random texts have the tokens of their parts at every cut."""
    choose = random.Random(artifact_seed(encoder.reference.artifact))
    classes = members(encoder.class_of, 16)
    literals = [t.content for t in encoder.reference.added_tokens] or ["[X]"]
    for _ in range(SELF_TEST_TEXTS):
        text = "".join(
            choose.choice(literals)
            if choose.random() < 0.1
            else choose.choice(choose.choice(classes))
            for _ in range(choose.randint(1, 24))
        ).encode()
        whole = encoder.encode(text)
        for at in range(1, len(text)):
            if encoder.last_cut(text, at, at) != at:
                continue
            left, right = encoder.encode(text[:at]), encoder.encode(text[at:])
            for name in ("ids", "lengths"):
                parts = np.concatenate((getattr(left, name), getattr(right, name)))
                if not np.array_equal(parts, getattr(whole, name)):
                    return False
    return True
