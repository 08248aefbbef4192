"""A full text encoded ahead of its reset: everything about it that costs O(text) and needs no
session, so that it can be made in another thread, or by a device, and put in place in O(pages)."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from toktier_stream.incremental.families import OnePieceEncoder
from toktier_stream.session import growing, kernels
from toktier_stream.session.page import Content, Utf8, Written, cut, write_end
from toktier_stream.tokenizer.encoder import FastEncoder
from toktier_stream.tokenizer.face import Encoder, Ids, Tokens
from toktier_stream.wire import digest
from toktier_stream.wire.messages import Evidence, Route

_NONE: Ids = np.zeros(0, dtype=np.uint32)


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """What :meth:`Session.reset` puts in place. Belongs to one text and one encoder."""

    text: Utf8
    fingerprint: str
    tokens: Tokens
    marks: growing.Marks
    pages: tuple[Content | Written, ...]
    digest: int
    route: Route
    evidence: Evidence
    elapsed_ns: int

    def belongs(self, encoder: Encoder, text: Utf8) -> bool:
        """Whether this is the encoding of that very text by that encoder."""
        return self.text is text and self.fingerprint == encoder.fingerprint


def prepare(
    encoder: Encoder,
    text: Utf8,
    *,
    tokens: Tokens | None = None,
    route: Route = Route.CPU,
    threads: int = 1,
) -> Prepared:
    """Encode a text in full and make its pages' records. Safe in any thread.

    ``tokens``: ids and byte lengths where somebody has computed them (then ``encoder`` only names
    the fingerprint). ``threads``: how many may share the work, where the encoder can divide it.
    Raises ``ValueError`` if ``tokens`` do not cover the text, and what the encoder raises.
    """
    started = time.perf_counter_ns()
    encoded = tokens is None or route is not Route.CPU
    chars = kernels.characters(text) if encoded else 0
    marks: growing.Marks = ()
    if tokens is None:
        if isinstance(encoder, OnePieceEncoder):
            tokens, marks = growing.begin(encoder, text)
        elif not text:
            tokens = Tokens(_NONE, _NONE)
        elif threads > 1 and isinstance(encoder, FastEncoder):
            tokens = encoder.encode_parallel(text, threads)
        else:
            tokens = encoder.encode(text)
    return Prepared(
        text=text,
        fingerprint=encoder.fingerprint,
        tokens=tokens,
        marks=marks,
        pages=_pages(tokens, text),
        digest=kernels.extend(digest.EMPTY, tokens.ids),
        route=route,
        evidence=Evidence(engine=encoder.engine, chars_encoded=chars),
        elapsed_ns=time.perf_counter_ns() - started,
    )


def _pages(tokens: Tokens, text: Utf8) -> tuple[Content | Written, ...]:
    written = write_end(tokens.ids, tokens.lengths, text) if len(tokens.ids) else None
    return tuple(written[0] if written else cut(tokens.ids, tokens.lengths, text, even=False))
