"""The pre-tokenizer as one would explain it: stage by stage, match by match, by backtracking.

Slow and readable, without automata, tables or guesses. Tests hold it to the reference, and the
compiled tables to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from toktier_stream.tokenizer.artifact import byte_level_alphabet
from toktier_stream.tokenizer.classes import Probe
from toktier_stream.tokenizer.pattern import Ahead, Alternate, CharSet, Concat, Node
from toktier_stream.tokenizer.stages import Behavior, Pipeline, Stage, View

Span = tuple[int, int]
Segment = tuple[int, int, bool]
"""(start, end, whether the stage counts it as a match)."""


class Twin:
    """The slow twin of the matcher tables of one pipeline."""

    def __init__(self, pipeline: Pipeline, probe: Probe) -> None:
        self._pipeline = pipeline
        self._probe = probe
        self._character_of = {b: c for c, b in byte_level_alphabet().items()}
        self._holds = cache(self._ask)

    def pieces(self, text: str) -> list[Span]:
        """Byte spans of the pieces of ``text``, in order, removed stretches left out."""
        data = text.encode()
        spans = [(0, len(data))] if data else []
        for stage in self._pipeline.stages:
            spans = [cut for span in spans for cut in self._cut(stage, data, span)]
        return spans

    def _cut(self, stage: Stage, data: bytes, span: Span) -> list[Span]:
        """One stage on one piece, which is all the stage sees."""
        start, end = span
        if stage.view is View.BYTES:
            seen = "".join(self._character_of[b] for b in data[start:end])
            offsets = list(range(start, end + 1))
        else:
            seen = data[start:end].decode()
            offsets = [start]
            for character in seen:
                offsets.append(offsets[-1] + len(character.encode()))
            if stage.view is View.MARKED:
                seen = seen.replace(" ", self._pipeline.space_marker)
        segments = [
            (s, e, hit != stage.invert) for s, e, hit in self._segments(stage.pattern, seen)
        ]
        return [(offsets[s], offsets[e]) for s, e in kept(segments, stage.behavior)]

    def _segments(self, pattern: Node, text: str) -> Iterator[Segment]:
        """Matches from left to right, and the gaps between them."""
        done = at = 0
        while at < len(text):
            end = next(self._ends(pattern, text, at), None)
            if end is None:
                at += 1
                continue
            if at > done:
                yield done, at, False
            yield at, end, True
            done = at = end
        if done < len(text):
            yield done, len(text), False

    def _ends(self, node: Node, text: str, at: int) -> Iterator[int]:
        """Where a match of ``node`` that begins at ``at`` can end, the preferred end first."""
        if isinstance(node, CharSet):
            if at < len(text) and self._holds(node, text[at]):
                yield at + 1
        elif isinstance(node, Alternate):
            for option in node.options:
                yield from self._ends(option, text, at)
        elif isinstance(node, Concat):
            yield from self._in_sequence(node.parts, text, at)
        elif isinstance(node, Ahead):
            inside = (
                any(self._holds(s, text[at]) for s in node.sets) if at < len(text) else node.at_end
            )
            if inside != node.negative:
                yield at
        elif isinstance(node.body, CharSet):
            most = at
            while most < len(text) and self._holds(node.body, text[most]):
                most += 1
            if node.high is not None:
                most = min(most, at + node.high)
            counts = range(at + node.low, most + 1)
            if node.possessive:
                yield from counts[-1:]
            else:
                yield from reversed(counts) if node.greedy else counts
        else:
            yield from self._repeated(node.body, node.low, node.high, node.greedy, text, at)

    def _in_sequence(self, parts: tuple[Node, ...], text: str, at: int) -> Iterator[int]:
        if not parts:
            yield at
            return
        for end in self._ends(parts[0], text, at):
            yield from self._in_sequence(parts[1:], text, end)

    def _repeated(
        self, body: Node, low: int, high: int | None, greedy: bool, text: str, at: int
    ) -> Iterator[int]:
        if low == 0 and not greedy:
            yield at
        if high != 0:
            rest = None if high is None else high - 1
            for end in self._ends(body, text, at):
                yield from self._repeated(body, max(low - 1, 0), rest, greedy, text, end)
        if low == 0 and greedy:
            yield at

    def _ask(self, wanted: CharSet, character: str) -> bool:
        return bool(self._probe.members([wanted])[wanted][ord(character)])


def kept(segments: list[Segment], behavior: Behavior) -> list[Span]:
    """What a stage makes of its segments, as the reference describes its behaviors."""
    if behavior is Behavior.ISOLATED:
        return [(s, e) for s, e, _ in segments]
    if behavior is Behavior.REMOVED:
        return [(s, e) for s, e, hit in segments if not hit]
    if behavior is Behavior.MERGED_WITH_NEXT:
        # The mirror image of the other merge: a match joins the gap on its right.
        mirrored = [(-e, -s, hit) for s, e, hit in reversed(segments)]
        back = kept(mirrored, Behavior.MERGED_WITH_PREVIOUS)
        return [(-e, -s) for s, e in reversed(back)]
    joined: list[Span] = []
    previous = False
    for s, e, hit in segments:
        merges = (
            hit and not previous if behavior is Behavior.MERGED_WITH_PREVIOUS else hit == previous
        )
        if merges and joined:
            joined[-1] = (joined[-1][0], e)
        else:
            joined.append((s, e))
        previous = hit
    return joined
