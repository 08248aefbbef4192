"""BERT tokenizers for tests: small ones trained here, and texts made to trip them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from tokenizers.trainers import WordPieceTrainer

from toktier_stream.session.engines import ENGINES
from toktier_stream.tokenizer.artifact import Artifact
from toktier_stream.tokenizer.registry import Entry
from toktier_stream.tokenizer.wordpiece import WordPieceEncoder

LITERALS = ("[UNK]", "[CLS]", "[SEP]", "[MASK]", "[X y]", "[X", "-1-")
PIECES = (
    *LITERALS, "[X ", "y]", "[", "]", "[C", "LS]", "-", "1-",
    "the", "quick", "er", "ing", "unaffable", "THE", "X", "a", "b", "word" * 20, "w" * 101,
    " ", " ", "  ", "\t", "\n", "\r\n", "\u00a0", "\u3000", "\u2028", "\x1c", "\x85", "\u200b",
    ".", ",", "!?", "'", "…", "$", "_", "`", "^", "~", "«", "、", "\u2019",
    "1", "23", "٣", "½", "①", "Ⅷ",
    "\x00", "\x01", "\u200d", "\ufeff", "\ufffd", "\u00ad", "\x7f", "\U000e0001",
    "é", "e\u0301", "\u0301", "\u0323\u0302", "o\u0302\u0323", "Å", "İ", "I\u0307", "Σ", "ΑΣ",
    "ß", "ﬁ", "ﷺ", "ǅ", "\u302e", "\u302f\u0301", "\U0001d15e", "\U0001d165\u0301", "\u0e33",
    "中", "文字", "\u3400", "\U0002f800", "ア", "か\u3099", "\u3099", "가", "\u1100\u1161", "한글",
    "👩\u200d💻", "🙂\ufe0f", "\u0378", "\U0010ffff",
)  # fmt: skip

texts = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=14).map("".join)


def bert_spec(*, lowercase: bool, strip_accents: bool | None = None) -> dict[str, Any]:
    """A tokenizer.json with a vocabulary of a few hundred words and parts of words."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=strip_accents
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    corpus = ["the quick brown fox, unaffable and quicker, is running", *PIECES] * 2
    trainer = WordPieceTrainer(vocab_size=420, show_progress=False, special_tokens=[*LITERALS])
    tokenizer.train_from_iterator(corpus, trainer)
    made: dict[str, Any] = json.loads(tokenizer.to_str())
    return made


def as_cased(spec: dict[str, Any]) -> dict[str, Any]:
    """A tokenizer.json read anew without lower-casing, its vocabulary with capitals."""
    normalizer = {**spec["normalizer"], "lowercase": False, "strip_accents": None}
    vocab = dict(spec["model"]["vocab"])
    for word in [w for w in vocab if w.isascii() and w.isalpha()][:3000]:
        for form in (word.upper(), word.capitalize()):
            vocab.setdefault(form, len(vocab))
    return {**spec, "normalizer": normalizer, "model": {**spec["model"], "vocab": vocab}}


def entry_of(spec: dict[str, Any]) -> Entry:
    """A tokenizer in no file, open to every engine."""
    data = json.dumps(spec).encode()
    sha256 = hashlib.sha256(data).hexdigest()
    return Entry(Artifact(Path("made-by-a-test.json"), sha256, data), ENGINES)


def encoder_of(entry: Entry) -> WordPieceEncoder:
    """The encoder, which must be the one with cuts."""
    assert entry.admission.path == "word-piece", entry.admission
    assert isinstance(entry.encoder, WordPieceEncoder)
    return entry.encoder


def check_cuts(encoder: WordPieceEncoder, left: str, string: str) -> int:
    """At every cut of ``string`` the reference's ids and lengths are those of the two parts,
    whatever stands to the left; the number of cuts. Both directions must see the same ones."""
    text = string.encode()
    cuts = [at for at in range(len(text) + 1) if encoder.last_cut(text, at, at) == at]
    assert [at for at in range(len(text) + 1) if encoder.first_cut(text, at, at) == at] == cuts
    assert encoder.last_cut(text, 0, len(text)) == max(cuts, default=-1)
    assert encoder.first_cut(text, 0, len(text)) == min(cuts, default=-1)
    for before in {"", left}:
        whole = encoder.reference.encode(before.encode() + text)
        for cut in cuts:
            if before and cut < encoder.literal_reach:
                continue
            first = encoder.reference.encode(before.encode() + text[:cut])
            second = encoder.reference.encode(text[cut:])
            for name in ("ids", "lengths"):
                parts = np.concatenate((getattr(first, name), getattr(second, name)))
                assert np.array_equal(parts, getattr(whole, name)), ascii((before, string, cut))
    return len(cuts)
