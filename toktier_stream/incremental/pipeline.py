"""The conditions under which the whole text of a tokenizer is one piece, and its character map.

They are those of SentencePiece-style BPE files (Gemma, Llama 2):

- the normalizer replaces single characters by single characters, and may put one character before
  each non-empty segment (a segment is the text between two added tokens);
- no pre-tokenizer can fire: it splits at a character that the normalizer leaves nowhere;
- each of the 256 byte tokens exists and takes part in no merge rule, so that a character outside
  the vocabulary is a barrier that becomes its bytes;
- added tokens are bare literals, matched leftmost-longest on the text as it came.

Where one fails, the artifact is not admitted here, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from toktier_stream.errors import Code, ToktierError
from toktier_stream.incremental import rules
from toktier_stream.incremental.rules import Ints
from toktier_stream.tokenizer.artifact import AddedToken, Artifact

CODE_POINTS = 0x110000
NO_SYMBOL = -(1 << 31)
LONGEST_LITERAL = 255
"""Bytes; the width of a literal is stored in one."""


def unknown_code(point: int) -> int:
    """The barrier code of a character outside the vocabulary."""
    return -1 - point


def literal_code(index: int) -> int:
    """The barrier code of an added token, by its place in :attr:`OnePiece.literals`."""
    return -1 - CODE_POINTS - index


@dataclass(frozen=True)
class OnePiece:
    """What happens to text before BPE. ``code_of[0x110000]``: symbol, or unknown code, of each
    source character; ``prepend`` the symbol put before a segment, or NO_SYMBOL; ``source_of``:
    from (symbol, UTF-8 bytes it had in the text) to the source character, where that is not the
    symbol's own."""

    code_of: Ints
    prepend: int
    source_of: Mapping[tuple[int, int], int]
    literals: tuple[AddedToken, ...]
    byte_ids: tuple[int, ...]


class _Refusal(Exception):
    """Why an artifact is not admitted."""


def read(artifact: Artifact, model: rules.Rules) -> OnePiece:
    """The character map of an admitted artifact. Raises ``TOKENIZER_UNSUPPORTED``, saying why."""
    try:
        return _read(artifact, model)
    except _Refusal as refusal:
        raise ToktierError(Code.TOKENIZER_UNSUPPORTED, str(refusal)) from refusal


def refusal(artifact: Artifact) -> str:
    """Why this artifact is no one-piece family; empty if it is one. Builds no tables."""
    try:
        _read(artifact, rules.from_spec(artifact.spec))
    except _Refusal as reason:
        return str(reason)
    except ToktierError as error:
        return error.detail
    return ""


def _read(artifact: Artifact, model: rules.Rules) -> OnePiece:
    spec = artifact.spec
    if model.bytewise:
        raise _Refusal("the vocabulary is byte-level")
    if model.ignore_merges:
        raise _Refusal("the model takes whole pieces from the vocabulary")
    byte_ids = _byte_tokens(spec["model"], model)
    changed, prepend = _normalizer(spec.get("normalizer"))
    _pre_tokenizer(spec.get("pre_tokenizer"), changed, prepend)
    symbol_of = {int(p): i for i, p in enumerate(model.points)}
    for point in {*changed.values(), *([] if prepend is None else [prepend])}:
        if point not in symbol_of:
            raise _Refusal(f"the normalizer writes U+{point:04X}, which the vocabulary lacks")

    code_of = -1 - np.arange(CODE_POINTS, dtype=np.int32)
    code_of[model.points] = np.arange(len(model.points), dtype=np.int32)
    source_of: dict[tuple[int, int], int] = {}
    for source, target in changed.items():
        code_of[source] = symbol_of[target]
        key = symbol_of[target], len(chr(source).encode())
        if key in source_of or (len(chr(target).encode()) == key[1] and target not in changed):
            raise _Refusal("two characters of one width are normalized to the same")
        source_of[key] = source
    code_of.setflags(write=False)
    return OnePiece(
        code_of=code_of,
        prepend=NO_SYMBOL if prepend is None else symbol_of[prepend],
        source_of=source_of,
        literals=_literals(artifact),
        byte_ids=byte_ids,
    )


def _byte_tokens(model: Mapping[str, Any], parsed: rules.Rules) -> tuple[int, ...]:
    if not model.get("byte_fallback"):
        raise _Refusal("the model has no byte fallback")
    vocab = model["vocab"]
    names = [f"<0x{b:02X}>" for b in range(256)]
    missing = sum(name not in vocab for name in names)
    if missing:
        raise _Refusal(f"{missing} byte tokens are not in the vocabulary")
    rows = np.flatnonzero(np.isin(parsed.ids, [vocab[name] for name in names]))
    if np.isin(rows, parsed.lefts).any() or np.isin(rows, parsed.rights).any():
        raise _Refusal("a byte token takes part in a merge rule")
    return tuple(int(vocab[name]) for name in names)


def _steps(part: Any, members: str) -> Iterator[Mapping[str, Any]]:
    if part is None:
        return
    if part.get("type") == "Sequence":
        for member in part[members]:
            yield from _steps(member, members)
    else:
        yield part


def _normalizer(part: Any) -> tuple[dict[int, int], int | None]:
    """Changed characters, source to target, and the character put before a segment."""
    changed: dict[int, int] = {}
    prepend: int | None = None
    for step in _steps(part, "normalizers"):
        if step.get("type") == "Prepend" and len(step["prepend"]) == 1 and prepend is None:
            prepend = ord(step["prepend"])
        elif step.get("type") == "Replace":
            pattern, content = step["pattern"].get("String", ""), step["content"]
            if len(pattern) != 1 or len(content) != 1:
                raise _Refusal("the normalizer replaces more than single characters")
            old, new = ord(pattern), ord(content)
            changed = {s: new if t == old else t for s, t in changed.items()}
            changed.setdefault(old, new)
            prepend = new if prepend == old else prepend
        else:
            raise _Refusal(f"the normalizer's {step.get('type')} does not work by character")
    return {s: t for s, t in changed.items() if s != t}, prepend


def _pre_tokenizer(part: Any, changed: Mapping[int, int], prepend: int | None) -> None:
    gone = {s for s in changed if s not in changed.values() and s != prepend}
    for step in _steps(part, "pretokenizers"):
        pattern = step.get("pattern", {}).get("String", "") if step.get("type") == "Split" else ""
        if not any(ord(c) in gone for c in pattern):
            raise _Refusal(f"the pre-tokenizer's {step.get('type')} can split the text")


def _literals(artifact: Artifact) -> tuple[AddedToken, ...]:
    vocab = artifact.spec["model"]["vocab"]
    tokens = artifact.added_tokens
    if any(t.normalized for t in tokens):
        raise _Refusal("an added token is matched after normalization")
    if not all(t.plain for t in tokens):
        raise _Refusal("an added token reaches into its surroundings")
    if not all(1 <= len(t.content.encode()) <= LONGEST_LITERAL for t in tokens):
        raise _Refusal(f"an added token is empty or longer than {LONGEST_LITERAL} bytes")
    if len({t.content for t in tokens}) != len(tokens):
        raise _Refusal("two added tokens have the same content")
    # The reference numbers added tokens that the vocabulary lacks itself, after all others.
    highest = -1
    for t in tokens:
        expected = vocab.get(t.content, max(highest + 1, len(vocab)))
        if t.id != expected:
            raise _Refusal(f"an added token has id {t.id} where the reference gives {expected}")
        highest = max(highest, expected)
    return tokens
