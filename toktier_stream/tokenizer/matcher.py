"""A pre-tokenizer in, its matcher tables out: probe, parse, fuse, derive boundaries, self-test."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from tokenizers import PreTokenizedString, Tokenizer

from toktier_stream.tokenizer import boundaries, classes, fuse, stages
from toktier_stream.tokenizer.artifact import byte_level_alphabet
from toktier_stream.tokenizer.automaton import DEAD, Automaton, compile_pattern
from toktier_stream.tokenizer.classes import Alphabet, Members, Probe
from toktier_stream.tokenizer.glushkov import Positions
from toktier_stream.tokenizer.pattern import CharSet, Unsupported, case_folded_runs, char_sets
from toktier_stream.tokenizer.scanner import StageMachine, explore
from toktier_stream.tokenizer.stages import Behavior, Pipeline, View
from toktier_stream.tokenizer.tables import CODE_POINTS, MatcherTables, Op, Refusal, pieces

SELF_TEST_SEED: Final = 20_240
SELF_TEST_TEXTS: Final = 3000

_STAND_INS: Final = {byte: character for character, byte in byte_level_alphabet().items()}
"""The byte-level alphabet's character of each byte."""


def compile_pre_tokenizer(
    spec: Mapping[str, Any] | None, probe: Probe | None = None
) -> MatcherTables | Refusal:
    """The tables of a tokenizer.json's ``pre_tokenizer`` entry (None: no pre-tokenizer), or why it
    is not admitted. Takes a few seconds, most of it probing; share ``probe`` to probe once."""
    pipeline = stages.read(spec)
    if isinstance(pipeline, Refusal):
        return pipeline
    try:
        tables = _compile(pipeline, probe or Probe())
        _self_test(tables, ReferencePieces(spec))
    except Unsupported as error:
        return Refusal((str(error),))
    return tables


class ReferenceGaveUp(Exception):
    """The reference has no answer for a text: its regex engine stopped at its retry limit."""


class ReferencePieces:
    """The pieces that the reference's own pre-tokenizer makes of a text."""

    def __init__(self, spec: Mapping[str, Any] | None) -> None:
        """Raises Unsupported if the reference refuses the entry."""
        model = {"type": "BPE", "vocab": {}, "merges": []}
        try:
            tokenizer = Tokenizer.from_str(json.dumps({"pre_tokenizer": spec, "model": model}))
        except Exception as error:  # the binding raises bare Exception
            raise Unsupported("the reference refuses the pre-tokenizer") from error
        self._stage = tokenizer.pre_tokenizer

    def __call__(self, text: str) -> list[tuple[str, tuple[int, int]]]:
        """Each piece as its rewritten text and its byte span in the source.

        Raises ReferenceGaveUp where the reference's matcher exceeds its own limit of retries.
        """
        pretokenized = PreTokenizedString(text)
        try:
            if self._stage is not None:
                self._stage.pre_tokenize(pretokenized)
        except BaseException as error:
            # The binding raises Rust panics as a BaseException that it does not export.
            if type(error).__name__ != "PanicException":
                raise
            raise ReferenceGaveUp("the reference gives up on a text") from error
        splits = pretokenized.get_splits(offset_referential="original", offset_type="byte")
        return [(piece, (span[0], span[1])) for piece, span, _ in splits]


@dataclass(frozen=True, slots=True)
class Symbols:
    """What the stages read: classes of characters, and of bytes for stages behind ByteLevel."""

    text: Alphabet
    on_bytes: Alphabet
    bytes_of: tuple[tuple[int, ...], ...]
    """The byte symbols of a character of each class."""
    masks: Mapping[View, Mapping[CharSet, int]]


def symbols_of(pipeline: Pipeline, probe: Probe) -> Symbols:
    """Probe every set of every stage and reduce to classes. Raises Unsupported."""
    wanted = {view: set[CharSet]() for view in View}
    for stage in pipeline.stages:
        wanted[stage.view] |= char_sets(stage.pattern)
        if probe.single_character_for(case_folded_runs(stage.pattern)):
            raise Unsupported("a text under (?i:) that the reference matches with one character")
    members = probe.members(sorted(set().union(*wanted.values()), key=lambda s: (s.source, s.text)))
    seen = {
        View.TEXT: {s: members[s] for s in wanted[View.TEXT]},
        View.MARKED: {s: _marked(members[s], pipeline) for s in wanted[View.MARKED]},
        View.BYTES: {s: _on_bytes(members[s]) for s in wanted[View.BYTES]},
    }
    on_bytes = classes.reduce(list(seen[View.BYTES].values()), points=256)
    rows: list[npt.NDArray[Any]] = [*seen[View.TEXT].values(), *seen[View.MARKED].values()]
    if seen[View.BYTES]:
        rows.append(_signatures(on_bytes))
    text = classes.reduce(rows)
    return Symbols(
        text,
        on_bytes,
        tuple(tuple(int(on_bytes.class_of[b]) for b in chr(c).encode()) for c in text.smallest),
        {
            view: {s: (on_bytes if view is View.BYTES else text).mask(m) for s, m in sets.items()}
            for view, sets in seen.items()
        },
    )


def _marked(members: Members, pipeline: Pipeline) -> Members:
    out = members.copy()
    out[ord(" ")] = members[ord(pipeline.space_marker)]
    return out


def _on_bytes(members: Members) -> Members:
    out = np.zeros(256, dtype=np.bool_)
    for byte, character in _STAND_INS.items():
        out[byte] = members[ord(character)]
    return out


def _signatures(on_bytes: Alphabet) -> npt.NDArray[np.int64]:
    """A number per code point that tells its sequence of byte classes."""
    point = np.arange(CODE_POINTS)
    tail = [0x80 | (point >> shift & 0x3F) for shift in (18, 12, 6, 0)]
    two, three, four = 0xC0 | point >> 6 & 0x1F, 0xE0 | point >> 12 & 0xF, 0xF0 | point >> 18 & 7
    widths = [
        (point < 0x80, [point]),
        (point < 0x800, [two, tail[3]]),
        (point < 0x10000, [three, tail[2], tail[3]]),
        (point < CODE_POINTS, [four, tail[1], tail[2], tail[3]]),
    ]
    out = np.full(CODE_POINTS, -1, dtype=np.int64)
    for below, encoded in widths:
        number = np.zeros(CODE_POINTS, dtype=np.int64)
        for byte in encoded:
            number = number * (on_bytes.size + 1) + on_bytes.class_of[byte & 0xFF] + 1
        out = np.where((out < 0) & below, number, out)
    return out


def stage_machines(
    pipeline: Pipeline, symbols: Symbols
) -> list[tuple[StageMachine, Positions | None]]:
    """Each stage as its automaton and, for the second opinion, its positions."""
    machines: list[tuple[StageMachine, Positions | None]] = []
    for stage in pipeline.stages:
        on_bytes = stage.view is View.BYTES
        masks = symbols.masks[stage.view]
        size = (symbols.on_bytes if on_bytes else symbols.text).size
        automaton = compile_pattern(stage.pattern, masks, size)
        machine = StageMachine(automaton, stage.behavior, stage.invert, on_bytes)
        machines.append((machine, Positions(stage.pattern, masks, size)))
    if not machines:
        # No stage cuts: one that never matches leaves the text whole.
        columns = symbols.text.size + 1
        never = Automaton(symbols.text.size, ((False,) * columns,), ((DEAD,) * columns,))
        machines.append((StageMachine(never, Behavior.ISOLATED, False, False), None))
    return machines


def _compile(pipeline: Pipeline, probe: Probe) -> MatcherTables:
    symbols = symbols_of(pipeline, probe)
    machines = stage_machines(pipeline, symbols)
    scanner = explore([m for m, _ in machines], symbols.text.size, symbols.bytes_of)
    machine = fuse.fuse(scanner)
    found = theorem(machines, symbols)
    if not boundaries.contained(found, boundaries.from_machine(machine)):
        raise Unsupported("a derived boundary that the fused machine does not confirm")
    arrays = fuse.as_arrays(machine)
    ops = arrays.program[:, 0]
    class_words = classes.describe(symbols.text)
    return MatcherTables(
        class_of=symbols.text.class_of,
        classes=symbols.text.size,
        next_state=arrays.next_state,
        action=arrays.action,
        program_start=arrays.program_start,
        program=arrays.program,
        registers=machine.registers,
        two_sided=found.two_sided,
        one_sided=found.one_sided,
        byte_level=pipeline.byte_level,
        inside_characters=bool((arrays.program[:, 3] > 0).any()),
        drops=bool(np.isin(ops, (Op.DROP, Op.DROP_REG)).any()),
        space_marker=pipeline.space_marker,
        class_words=class_words,
        stage_words=tuple(stages.describe(pipeline)),
        boundary_words=boundaries.words(found, class_words),
    )


def theorem(
    machines: Sequence[tuple[StageMachine, Positions | None]], symbols: Symbols
) -> boundaries.Boundaries:
    """The boundary tables by the theorem. Raises Unsupported where its derivations disagree."""
    whole = tuple((c,) for c in range(symbols.text.size))
    derived = []
    for machine, positions in machines:
        read = symbols.bytes_of if machine.on_bytes else whole
        relations = boundaries.from_automaton(machine)
        if positions is not None:
            relations = boundaries.agreed(relations, boundaries.from_positions(machine, positions))
        derived.append((relations, [s[-1] for s in read], [s[0] for s in read]))
    return boundaries.combine(derived)


def sample_members(tables: MatcherTables, each: int = 8) -> list[str]:
    """For each class some of its characters: the first and last, and others at random."""
    chooser = random.Random(SELF_TEST_SEED)
    samples = []
    for c in range(tables.classes):
        members = np.flatnonzero(tables.class_of == c)
        members = members[(members < 0xD800) | (members >= 0xE000)].tolist()
        chosen = {members[0], members[-1], *chooser.choices(members, k=each)}
        samples.append("".join(chr(m) for m in sorted(chosen)))
    return samples


def _self_test(tables: MatcherTables, reference: ReferencePieces) -> None:
    """Hold the tables to the reference on pairs of classes and on random texts.

    Raises Unsupported on any difference: a misread pattern must not pass for an exact one.
    """
    samples = sample_members(tables)
    chooser = random.Random(SELF_TEST_SEED)
    pick = chooser.choice
    pairs = [(x, y) for x in samples for y in samples]
    pairs = chooser.sample(pairs, min(len(pairs), SELF_TEST_TEXTS))
    texts = [pick(x) * chooser.choice((1, 1, 2, 4)) + pick(y) for x, y in pairs]
    for _ in range(SELF_TEST_TEXTS):
        few = chooser.sample(samples, min(len(samples), chooser.randint(1, 6)))
        texts.append("".join(pick(pick(few)) for _ in range(chooser.randint(1, 32))))
    try:
        same = all(same_pieces(tables, reference, text) for text in texts)
    except ReferenceGaveUp as error:
        raise Unsupported("a pattern on which the reference itself gives up") from error
    if not same:
        raise Unsupported("the derived matcher differs from the reference on its self-test")


def same_pieces(tables: MatcherTables, reference: ReferencePieces, text: str) -> bool:
    """Whether tables and reference cut ``text`` alike."""
    data = text.encode()
    spans = pieces(tables, text)
    expected = reference(text)
    if tables.byte_level:
        # Spans of pieces that start inside a character are not told; their bytes are.
        # Latin-1 maps each byte to the code point of its number, which translate then replaces.
        ours = [data[s:e].decode("latin-1").translate(_STAND_INS) for s, e in spans]
        return ours == [piece for piece, _ in expected]
    return spans == [span for _, span in expected]
