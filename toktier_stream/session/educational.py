"""The splice as one would explain it: encode the whole new text, compare, keep what is equal.

Slow on purpose and short enough to believe. The fast path (splice.py) is held to it by tests: both
give the same stream, and the fast one never keeps a token that this one does not.
"""

from __future__ import annotations

from dataclasses import dataclass

from toktier_stream.tokenizer.face import Encoder


@dataclass(frozen=True, slots=True)
class SlowSplice:
    """Keep the first ``keep`` old tokens, then ``ids``, then the last ``tail`` old tokens."""

    keep: int
    ids: list[int]
    tail: int


def replaced(old: bytes, start: int, end: int, text: bytes) -> bytes:
    """The new text of an edit."""
    return old[:start] + text + old[end:]


def splice(encoder: Encoder, old: bytes, start: int, end: int, text: bytes) -> SlowSplice:
    """The smallest splice from the tokens of ``old`` to those of the edited text."""
    before = encoder.encode(old).ids.tolist()
    after = encoder.encode(replaced(old, start, end, text)).ids.tolist()
    shorter = min(len(before), len(after))
    keep = 0
    while keep < shorter and before[keep] == after[keep]:
        keep += 1
    tail = 0
    while tail < shorter - keep and before[-1 - tail] == after[-1 - tail]:
        tail += 1
    return SlowSplice(keep, after[keep : len(after) - tail], tail)


def apply(old_ids: list[int], change: SlowSplice) -> list[int]:
    """What a consumer does with a splice."""
    kept, tail = old_ids[: change.keep], old_ids[len(old_ids) - change.tail :]
    return kept + change.ids + tail
