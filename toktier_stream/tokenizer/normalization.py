"""Normalization with work local to its cause.

Almost no text is changed by NFC or NFKC. One table, probed from the reference, says of each
character whether it can ever change, combine or move; text without such characters is its own
normal form. Around the others a segment is cut out: the character before them and the whole run.
A segment ends where a *safe starter* stands: a character that is unchanged alone, has combining
class 0 and composes with nothing on its left, so norm(left ∥ right) = norm(left) ∥ norm(right).
Only segments go through the reference's normalizer, each distinct one once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from toktier_stream.tokenizer import runs
from toktier_stream.tokenizer.merges import PADDING
from toktier_stream.tokenizer.tables import CODE_POINTS, Refusal

FORMS: Final = {"NFC": "NFD", "NFD": "NFD", "NFKC": "NFKD", "NFKD": "NFKD"}
"""The forms we know, each with the decomposition that tells what a character is made of."""

REMEMBERED: Final = 1 << 15
"""Distinct segments whose normal form is kept; the memory is then started anew."""
REMEMBERED_BYTES: Final = 64
"""Longer segments are not kept."""

_SEPARATOR: Final = "\n"
_HIGHEST_CLASS, _LOWEST_CLASS = "\u0345", "\u0334"


def form_of(normalizer: Any) -> str | Refusal:
    """The one form that a ``normalizer`` of tokenizer.json applies; empty: none."""
    steps = _flatten(normalizer)
    unknown = sorted({s for s in steps if s not in FORMS})
    if unknown:
        return Refusal((f"the normalizer is not a Unicode form: {', '.join(unknown)[:80]}",))
    if len(set(steps)) > 1:
        return Refusal(("the normalizer applies several Unicode forms",))
    return steps[0] if steps else ""


def _flatten(normalizer: Any) -> list[str]:
    if normalizer is None:
        return []
    if normalizer.get("type") == "Sequence":
        return [s for part in normalizer["normalizers"] for s in _flatten(part)]
    return [str(normalizer.get("type"))]


def _normalizer(form: str) -> Any:
    make: Callable[[], Any] = getattr(normalizers, form)
    return make()


def probe(form: str) -> npt.NDArray[np.uint8]:
    """uint8[0x110000]: what :mod:`runs` needs to know of each character, asked of the reference.

    SAFE: a safe starter, unchanged by the form. ORDERED + k: a mark that never changes or
    composes; k orders combining classes. OTHER: anything else.
    """
    characters = [chr(c) for c in range(CODE_POINTS) if not 0xD800 <= c < 0xE000]
    characters.remove(_SEPARATOR)

    def each(which: str, before: str = "", after: str = "") -> list[str]:
        joined = _SEPARATOR.join(before + c + after for c in characters)
        parts: list[str] = _normalizer(which).normalize_str(joined).split(_SEPARATOR)
        return parts

    canonical = each("NFD")
    # Whatever composes with something on its left ends a canonical decomposition.
    seconds = {c for d in canonical for c in d[1:]}
    # A character of a non-zero class moves before one of the highest class, or behind one of
    # the lowest.
    moved = each("NFD", before="a" + _HIGHEST_CLASS)
    marks = {
        c
        for c, d, m in zip(characters, canonical, moved, strict=True)
        if m != "a" + _HIGHEST_CLASS + d
    } | {
        c
        for c, d, m in zip(characters, canonical, each("NFD", "a", _LOWEST_CLASS), strict=True)
        if d == c and m != "a" + c + _LOWEST_CLASS
    }
    unsafe = marks | seconds
    kinds = np.zeros(CODE_POINTS, dtype=np.uint8)
    ordered = []
    for c, alone, parts in zip(characters, each(form), each(FORMS[form]), strict=True):
        if alone != c or c in unsafe or parts[0] in unsafe:
            kinds[ord(c)] = runs.OTHER
            if alone == c == parts and c in marks and c not in seconds:
                ordered.append(c)
    for c, rank in zip(ordered, _class_ranks(ordered), strict=True):
        kinds[ord(c)] = runs.ORDERED + rank
    return kinds


def _class_ranks(marks: list[str]) -> list[int]:
    """Ranks of the marks' combining classes: m moves behind r iff its class is higher."""
    joined = _SEPARATOR.join("a" + m + r for m in marks for r in marks)
    pairs = normalizers.NFD().normalize_str(joined).split(_SEPARATOR)
    below = [
        sum(pairs[i * len(marks) + j] != "a" + m + r for j, r in enumerate(marks))
        for i, m in enumerate(marks)
    ]
    order = {count: rank for rank, count in enumerate(sorted(set(below)))}
    return [order[count] for count in below]


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The normal form of one segment, where it differs."""

    form: bytes
    origin: npt.NDArray[np.int64]
    """int64[len(form)]: by byte, the place in the segment of the character that the reference
    says it comes from."""


@dataclass(frozen=True, slots=True, eq=False)
class Normalized:
    """A text with its changed segments rewritten."""

    text: npt.NDArray[np.uint8]
    """The normalized text, padded as kernels want it."""
    segments: npt.NDArray[np.int64]
    """The segments of :func:`literals.split`, in places of the normalized text."""
    changes: npt.NDArray[np.int64]
    """int64[k, 5]: start and end in the normalized text, start and end in the source, place in
    ``origin``."""
    origin: npt.NDArray[np.int64]
    """The origins of all changes: by byte, the place in the source of its character."""


class Normalizer:
    """One Unicode form of the reference. Thread-safe, and safe to fork."""

    def __init__(self, form: str, kinds: npt.NDArray[np.uint8]) -> None:
        """``kinds`` is what :func:`probe` returned for this form."""
        self.form = form
        self.kinds = kinds
        self._known: dict[bytes, Rewritten | None] = {}
        self._normalizer = _normalizer(form)
        # Offsets by character of the normal form: one token for each.
        self._aligner = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
        self._aligner.normalizer = self._normalizer
        self._aligner.pre_tokenizer = pre_tokenizers.Split(Regex(r"(?m:.)"), "isolated")

    def normalize(self, text: str) -> str:
        """The form of a text, by the reference."""
        form: str = self._normalizer.normalize_str(text)
        return form

    def apply(
        self,
        source: bytes | memoryview,
        text: npt.NDArray[np.uint8],
        segments: npt.NDArray[np.int64],
        spare: npt.NDArray[np.uint8] | None = None,
    ) -> Normalized | None:
        """The normalized text, each segment that is no added token by itself; None: unchanged.

        ``text`` is a padded copy of ``source``; the normalized text is written into ``spare`` if it
        fits.
        """
        found = runs.find(text, segments, self.kinds)
        if not len(found):
            return None
        known, changes = self._known, []
        for start, end in found.tolist():
            run = bytes(source[start:end])
            rewritten = known.get(run, _UNKNOWN)
            if rewritten is _UNKNOWN:
                rewritten = self._rewrite(run)
            if rewritten is not None:
                changes.append((start, end, rewritten))
        return _rewrite_text(text, len(source), segments, changes, spare) if changes else None

    def _rewrite(self, source: bytes) -> Rewritten | None:
        string = source.decode()
        form = self._normalizer.normalize_str(string)
        result = None
        if form != string:
            places = np.cumsum([0] + [len(c.encode()) for c in string])
            offsets = self._aligner.encode(string, add_special_tokens=False).offsets
            sizes = [len(c.encode()) for c in form]
            origin = np.repeat(places[[start for start, _ in offsets]], sizes)
            result = Rewritten(form.encode(), origin.astype(np.int64))
        if len(source) <= REMEMBERED_BYTES:
            if len(self._known) >= REMEMBERED:
                self._known = {}
            self._known[source] = result
        return result


class _Unknown(Rewritten):
    """Marks a segment that was not seen before."""


_UNKNOWN: Final = _Unknown(b"", np.zeros(0, dtype=np.int64))


def _rewrite_text(
    source: npt.NDArray[np.uint8],
    size: int,
    segments: npt.NDArray[np.int64],
    changes: list[tuple[int, int, Rewritten]],
    spare: npt.NDArray[np.uint8] | None,
) -> Normalized:
    """``source`` is padded and holds ``size`` bytes of text."""
    spans = np.array([(start, end, len(new.form)) for start, end, new in changes], dtype=np.int64)
    forms = np.frombuffer(b"".join([new.form for _, _, new in changes]), dtype=np.uint8)
    origin = np.concatenate([new.origin for _, _, new in changes])
    padded = size + len(forms) - int((spans[:, 1] - spans[:, 0]).sum()) + PADDING
    if spare is None or padded > len(spare):
        spare = np.empty(padded, dtype=np.uint8)
    text = spare[:padded]
    moved = segments.copy()
    places = np.empty((len(changes), 5), dtype=np.int64)
    runs.rewrite(source, size, spans, forms, text, moved, places, origin)
    return Normalized(text, moved, places, origin)


def to_arrays(form: str, kinds: npt.NDArray[np.uint8]) -> dict[str, npt.NDArray[Any]]:
    """Plain arrays for the cache on disk; inverse of :func:`from_arrays`."""
    return {"form": np.frombuffer(form.encode(), dtype=np.uint8), "kinds": kinds}


def from_arrays(arrays: Mapping[str, npt.NDArray[Any]]) -> Normalizer | None:
    """The normalizer, or None where the tokenizer has none. Raises KeyError."""
    form = arrays["form"].tobytes().decode()
    return Normalizer(form, arrays["kinds"]) if form else None
