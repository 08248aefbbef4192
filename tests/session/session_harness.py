"""What the session tests share: adversarial text, small tokenizers, and stores to look into."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer

sys.path.append(str(Path(__file__).parent.parent / "incremental"))
from incremental_onepiece import LETTERS, artifact, spec

from toktier_stream.errors import Code, ToktierError
from toktier_stream.session import end, page, paged, sealing, splice, tree
from toktier_stream.session.batch import session_key
from toktier_stream.session.header import Header
from toktier_stream.session.record import Change, Session
from toktier_stream.session.store import Store
from toktier_stream.tokenizer.admission import load_encoder
from toktier_stream.tokenizer.artifact import Artifact
from toktier_stream.tokenizer.encoder import FastEncoder
from toktier_stream.tokenizer.face import Encoder, Ids, Tokens
from toktier_stream.tokenizer.reference import Reference, ReferenceEncoder
from toktier_stream.wire import digest

__all__ = ["LETTERS", "artifact", "spec"]

QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CL100K = QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")

_CORPUS = [
    "the quick brown fox jumps over the lazy dog, 1234567 times; don't stop",
    "pipeline pipe line tokens of a session, tools and results: {'a': [1, 2, 3]}",
    "def main(argv):\n    return [x for x in argv if x]\r\n\r\nclass A:\n\tpass\n",
    "日本語の文字。中文,标点!émile naïve Å ﷺ ½ ①",
    "aaaa bbbb abab   cccc     dddd       eeee",
] * 4

LITERALS = ("<|end|>", "<|e", "stop here", "e w", "1-", " x ", "ab cd ef", "\n\n\n")

PIECES = (
    # words and joints
    "the", " pipe", "line", "a", "ab", " ab ab", "X", " don't", "'S", "'ſ", "can't've ",
    "camelCase",
    # digits, white space, line ends
    "1", "23", "4567890123", " ", "  ", "     ", "\t", "\r", "\n", "\r\n", "\n\n", "\u00a0",
    "\u3000",
    # punctuation
    ".", ",", "!?", " ...", "---", "/", "{'a':", "]", "_",
    # literals, their parts, and what makes a literal out of its surroundings
    *LITERALS, "<|", "|>", "end", "stop", " here", "here", "e", " w", "w", "-", " x", "ab c",
    "d ef",
    # marks, compositions, rewritten characters, wide scripts
    "e\u0301", "\u0301", "o\u0323\u0302", "A\u030a", "Å", "é", "ﷺ", "½", "①", "日本", "語", "。",
    "、中", "ᄀ", "ᅡ", "ᆨ", "가", "👩\u200d💻", "😀", "\u200d", "\ufeff", "\x00", "ǅ", "ß", "٣",
    "\u0e33",
)  # fmt: skip

RUNS = (
    "a", "ab", "A", "aB", "7", " ", "\n", "\t", "\r\n", "=", "-", "語", "日本", "😀", "e\u0301",
    "é", "가", "\u0301", "<|e", "<", " x", "'s", "\u00a0", "\n ", " \n", "ſ", "٣", "1-",
)  # fmt: skip
"""What long runs are made of."""

texts = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)
long_texts = st.lists(st.sampled_from(PIECES), min_size=20, max_size=60).map("".join)


def build(path: Path, pattern: str, normalizer: normalizers.Normalizer | None) -> Artifact:
    """Train a byte-level BPE of a few hundred tokens, write its tokenizer.json, load it."""
    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = BpeTrainer(
        vocab_size=400, show_progress=False, max_token_length=6,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in LITERALS])
    tokenizer.save(str(path))
    return Artifact.load(path)


def family(
    path: Path, normalizer: normalizers.Normalizer | None, *, normalized: bool, words: Sequence[str]
) -> tuple[FastEncoder, ReferenceEncoder]:
    """A tokenizer of :func:`build` that looks for every second added token in normalized text, or
    takes some whole words although its merges do not make them; its engine and reference."""
    build(path, CL100K, normalizer)
    made = json.loads(path.read_text())
    for i, token in enumerate(made["added_tokens"] if normalized else ()):
        token["normalized"] = i % 2 == 0
    model = made["model"]
    model["ignore_merges"] = bool(words)
    for word in words:
        model["vocab"].setdefault(word, 1000 + len(word) * 7 + len(model["vocab"]))
    path.write_text(json.dumps(made))
    loaded = Artifact.load(path)
    oracle = ReferenceEncoder(Reference(loaded))
    encoder = load_encoder(loaded, reference=oracle.reference)
    assert isinstance(encoder, FastEncoder)
    return encoder, oracle


def make_small(patch: pytest.MonkeyPatch, kept: int = 2) -> None:
    """Pages of about 70 bytes, nodes of 4 children, ``kept`` lines of them in the header at most,
    windows of 8 characters."""
    patch.setattr(page, "ROOM", 60)
    patch.setattr(paged, "PAGE_BYTES", 70)
    patch.setattr(end, "LEAST", 16)
    patch.setattr(end, "MOST", 120)
    patch.setattr(tree, "FAN", 4)
    patch.setattr(tree, "KEPT", kept)
    patch.setattr(splice, "FIRST_WINDOW", 8)


def slower(patch: pytest.MonkeyPatch, way: str) -> None:
    """Leave out the compiled pass (sealing.py), and what does an append's tree at once."""
    if way in ("by the tree", "step by step"):
        patch.setattr(sealing, "seal", lambda *_: None)
    if way == "step by step":
        patch.setattr(paged.Paged, "store_end", lambda *_: None)


class Nothing:
    """A store without records."""

    def read(self, number: int, crc: int) -> bytes:
        """See :class:`toktier_stream.session.page.Reader`."""
        raise ToktierError(Code.STORE_CORRUPT, f"record {number}")


def fresh(encoder: Encoder, text: bytes) -> Session:
    """A session of a text, in memory only."""
    session = Session(Header(b"session"), Nothing())
    session.reset(encoder, text)
    return session


class MadeUp:
    """An encoder for tests of storage: whole words, digits one by one, and any lengths.

    Pieces: one ASCII letter run with the space before it, or one other character. A NUL vanishes
    (its bytes count to the next token), ``#`` makes three tokens. Cuts: letter to space.
    """

    fingerprint = "made-up"
    engine = "made-up-1"
    longest_token = 6
    literal_reach = 0
    splices = True

    def encode(self, text: bytes) -> Tokens:
        """See the class."""
        ids: list[int] = []
        lengths: list[int] = []
        pending = at = 0
        while at < len(text):
            end = at + 1
            letter = text[at : at + 1].isalpha()
            if letter or (text[at] == 0x20 and text[at + 1 : at + 2].isalpha()):
                while end < len(text) and text[end : end + 1].isalpha() and end - at < 6:
                    end += 1
            else:
                while end < len(text) and text[end] & 0xC0 == 0x80:
                    end += 1
            piece = text[at:end]
            if piece == b"\0":
                pending += 1
            elif piece == b"#":
                ids += [1, 2, 3]
                lengths += [0, 0, pending + 1]
                pending = 0
            else:
                ids.append(int.from_bytes(piece, "big") % 16_000_000 + 7)
                lengths.append(pending + len(piece))
                pending = 0
            at = end
        if pending and lengths:
            lengths[-1] += pending
        return Tokens(np.array(ids, dtype=np.uint32), np.array(lengths, dtype=np.uint32))

    def _cut(self, text: bytes, at: int) -> bool:
        return 0 < at < len(text) and text[at - 1 : at].isalpha() and text[at] == 0x20

    def last_cut(self, text: bytes, low: int, high: int) -> int:
        """See :class:`toktier_stream.tokenizer.face.Encoder`."""
        return next((b for b in range(high, low - 1, -1) if self._cut(text, b)), -1)

    def first_cut(self, text: bytes, low: int, high: int) -> int:
        """See :class:`toktier_stream.tokenizer.face.Encoder`."""
        return next((b for b in range(low, high + 1) if self._cut(text, b)), -1)


def applied(old: Ids, change: Change) -> list[int]:
    """The ids that a consumer has after a change."""
    tail = old[len(old) - change.tail :]
    return [*old[: change.keep].tolist(), *change.ids.tolist(), *tail.tolist()]


def check_session(session: Session, encoder: Encoder, text: bytes) -> None:
    """Hold everything a session says about itself to the text it should have."""
    want = encoder.encode(text).ids
    assert session.ids().tolist() == want.tolist()
    assert session.text() == text
    assert (session.tokens, session.bytes) == (len(want), len(text))
    assert session.chars == len(text.decode())
    assert session.digest == digest.of(want)


def record_name(session_id: bytes, number: int) -> bytes:
    """The key of a page or an index node in LMDB."""
    return number.to_bytes(4, "big") + session_key(session_id)


def dump(store: Store) -> dict[str, list[tuple[bytes, bytes]]]:
    """Everything in a store's session and page databases."""
    with store._env.begin() as txn:
        return {
            "sessions": list(txn.cursor(store._sessions)),
            "pages": list(txn.cursor(store._pages)),
        }


@dataclass
class Changelog:
    """A compacted topic: the last value of each key."""

    values: dict[bytes, bytes] = field(default_factory=dict)
    offset: int = 0

    def append(self, changes: list[tuple[bytes, bytes | None]]) -> None:
        """Publish a batch's records."""
        for key, value in changes:
            self.offset += 1
            if value is None:
                self.values.pop(key, None)
            else:
                self.values[key] = value
