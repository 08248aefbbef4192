"""The reference: the pinned Hugging Face engine behind the encoder's face. It is the judge.

Byte lengths follow one rule for every engine. A token starts at the source byte of the character
that the reference's offsets name; a token that starts inside a character starts at its own byte
there if the source holds the token's bytes at that place, else at the character's first byte (the
character was rewritten by normalization). Each token reaches to the start of the next.
"""

from __future__ import annotations

import hashlib
from functools import cached_property

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import Encoding, Tokenizer

from toktier_stream.errors import Code, ToktierError
from toktier_stream.tokenizer.artifact import AddedToken, Artifact, byte_level_alphabet
from toktier_stream.tokenizer.face import Ids, Tokens

REFERENCE_VERSION = f"tokenizers-{tokenizers.__version__}"


def fingerprint(artifact: Artifact, engine: str) -> str:
    """Everything that can change ids, as one hash: file, reference version, engine version."""
    parts = "\n".join((artifact.sha256, REFERENCE_VERSION, engine))
    return hashlib.sha256(parts.encode()).hexdigest()


class Reference:
    """The frozen reference tokenizer of one artifact. Thread-safe."""

    def __init__(self, artifact: Artifact) -> None:
        """Raises ``TOKENIZER_LOAD`` if the reference engine refuses the file."""
        self.artifact = artifact
        try:
            self._tokenizer = Tokenizer.from_buffer(artifact.data)
        except Exception as error:  # the binding raises bare Exception
            raise ToktierError(Code.TOKENIZER_LOAD, f"{artifact.path}: {error}") from error
        # The contract is about the complete text.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        # Without special tokens a post-processor changes no id; but some trim white space off the
        # offsets, which here say where tokens start.
        self._tokenizer.post_processor = None

    @property
    def tokenizer(self) -> Tokenizer:
        """The engine itself, for probing."""
        return self._tokenizer

    def ids(self, text: str) -> Ids:
        """The ids that everything else in this system is held to. Raises ``REFERENCE_GAVE_UP``."""
        return np.array(self._encoding(text).ids, dtype=np.uint32)

    def _encoding(self, text: str) -> Encoding:
        try:
            return self._tokenizer.encode(text, add_special_tokens=False)
        except BaseException as error:
            # The engine panics where its pattern matcher runs out of retries (about ten million
            # white-space characters in a row); the binding's panic is no Exception.
            if type(error).__name__ != "PanicException":
                raise
        # Raised out here: the panic's own text may quote what it met.
        raise ToktierError(Code.REFERENCE_GAVE_UP, f"{len(text)} characters")

    def encode(self, text: bytes) -> Tokens:
        """Ids and byte lengths of valid UTF-8."""
        string = text.decode()
        encoding = self._encoding(string)
        ids = np.array(encoding.ids, dtype=np.uint32)
        if self._exact_bytes is not None and self._leaves_alone(string):
            lengths = self._exact_bytes[ids]
            if int(lengths.sum()) == len(text):
                return Tokens(ids, lengths)
        return Tokens(ids, self._lengths_from_offsets(text, encoding.offsets, ids))

    def leaves_alone(self, text: bytes) -> bool:
        """Whether the normalizer returns ``text`` unchanged."""
        return self._leaves_alone(text.decode())

    def _leaves_alone(self, string: str) -> bool:
        normalizer = self._tokenizer.normalizer
        return normalizer is None or normalizer.normalize_str(string) == string

    def _lengths_from_offsets(self, text: bytes, offsets: list[tuple[int, int]], ids: Ids) -> Ids:
        if not offsets:
            return np.zeros(0, dtype=np.uint32)
        source = np.frombuffer(text, dtype=np.uint8)
        starts_of_characters = np.append(np.flatnonzero((source & 0xC0) != 0x80), len(text))
        starts = starts_of_characters[np.array([s for s, _ in offsets], dtype=np.int64)]
        starts[0] = 0
        for i in np.flatnonzero(self._starts_inside_character[ids]):
            if i == 0:
                continue
            token = self._token_bytes[int(ids[i])]
            place = int(starts[i - 1]) + len(self._token_bytes.get(int(ids[i - 1]), b""))
            if starts[i] <= place and text[place : place + len(token)] == token:
                starts[i] = place
        # Never backwards: a token that covers nothing has length 0.
        starts = np.maximum.accumulate(starts)
        return np.diff(np.append(starts, len(text))).astype(np.uint32)

    @cached_property
    def _token_bytes(self) -> dict[int, bytes]:
        """The bytes of each model token, where the vocabulary is byte-level or byte-fallback."""
        added = {t.id for t in self.added_tokens}
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=False)
        if self.byte_level:
            alphabet = byte_level_alphabet()
            return {
                i: bytes(alphabet[c] for c in token)
                for token, i in vocabulary.items()
                if i not in added and all(c in alphabet for c in token)
            }
        return {
            i: bytes([int(token[3:5], 16)])
            for token, i in vocabulary.items()
            if len(token) == 6 and token.startswith("<0x") and token.endswith(">")
        }

    @cached_property
    def added_tokens(self) -> tuple[AddedToken, ...]:
        """The added tokens as the engine holds them: it may number them other than the file."""
        return tuple(
            AddedToken(
                id=token_id,
                content=token.content,
                special=token.special,
                normalized=token.normalized,
                lstrip=token.lstrip,
                rstrip=token.rstrip,
                single_word=token.single_word,
            )
            for token_id, token in self._tokenizer.get_added_tokens_decoder().items()
        )

    @cached_property
    def byte_level(self) -> bool:
        """Whether the vocabulary writes bytes in the byte-level alphabet."""
        return '"ByteLevel"' in str(self.artifact.spec.get("pre_tokenizer")).replace("'", '"')

    @cached_property
    def _size(self) -> int:
        ids = self._tokenizer.get_vocab(with_added_tokens=True).values()
        return max(ids, default=-1) + 1

    @cached_property
    def _starts_inside_character(self) -> npt.NDArray[np.bool_]:
        table = np.zeros(self._size, dtype=np.bool_)
        for i, token in self._token_bytes.items():
            table[i] = bool(token) and token[0] & 0xC0 == 0x80
        return table

    @cached_property
    def _exact_bytes(self) -> Ids | None:
        """Byte length by id, where that is the same in every text; else None."""
        if not self.byte_level or not all(t.plain for t in self.artifact.added_tokens):
            return None
        table = np.zeros(self._size, dtype=np.uint32)
        for i, token in self._token_bytes.items():
            table[i] = len(token)
        for t in self.added_tokens:
            table[t.id] = len(t.content.encode())
        return table

    @cached_property
    def longest_token(self) -> int:
        """Characters of the longest token the vocabulary can emit (bytes where a token is not
        whole characters), added tokens included."""
        lengths = [len(t.content) for t in self.artifact.added_tokens]
        if self.byte_level:
            tokens = self._token_bytes.values()
            lengths.extend(len(token.decode(errors="replace")) for token in tokens)
        else:
            lengths.extend(map(len, self._tokenizer.get_vocab(with_added_tokens=False)))
        return max(lengths, default=1)

    @cached_property
    def literal_reach(self) -> int:
        """Bytes of the longest added-token literal."""
        return max((len(t.content.encode()) for t in self.artifact.added_tokens), default=0)


class ReferenceEncoder:
    """The reference as an encoder without cuts: every change is encoded in full."""

    def __init__(self, reference: Reference) -> None:
        self.reference = reference
        self._fingerprint = fingerprint(reference.artifact, self.engine)

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @property
    def engine(self) -> str:
        return REFERENCE_VERSION

    @property
    def longest_token(self) -> int:
        return self.reference.longest_token

    @property
    def literal_reach(self) -> int:
        return self.reference.literal_reach

    @property
    def splices(self) -> bool:
        return False

    def encode(self, text: bytes) -> Tokens:
        return self.reference.encode(text)

    def last_cut(self, text: bytes, low: int, high: int) -> int:
        return -1

    def first_cut(self, text: bytes, low: int, high: int) -> int:
        return -1
