"""Certified splices: the tokens of an edited text from the old tokens and a re-encoded window.

The old text is ``A = P·M·Q``, an edit makes it ``N = P·T·Q`` (an append: M and Q are empty). The
steps are the paper's (sections 3.1 to 3.3), on both sides of the edit:

1. the window W is the last w characters of P, then T, then the first w characters of Q (w = 512);
2. find safe cuts in the old part on each side (below), encode W;
3. the longest run of tokens around the cut that old and fresh tokens share, by position and id;
4. accept a side if its run holds at least two tokens and more characters than the longest token
   of the vocabulary; else double that side's window, five times at most;
5. keep the old tokens up to the end of the left run, take fresh ones to the start of the right
   run, keep the old ones from there. A side that cannot be accepted reaches to the text's edge:
   then that side needs no certificate, because nothing is left out there.

Why this is exact
-----------------
A position is a *safe cut* of a text (tokenizer/face.py) if the text's tokens are some that end
there, then exactly the tokens of what follows it, whatever the text's left part is. Safety is a
local property: the classes of the two characters at the cut, no occurrence of a literal over it,
no normalization across it. A literal or a normalization reaches at most ``literal_reach`` bytes or
to the next safe cut, so a probe that extends that far decides safety in the whole text.

*Lemma (left side).* Let b < b' be safe cuts of two texts that agree up to b'. Then their tokens
left of b agree. Proof: matching goes from left to right; what it does left of b depends on the
text there and on what stands at b: a literal's edge or a character's class after normalization.
Literals that begin at b and normalization of what follows b end at or before b', since b' is safe;
so both are functions of the common text up to b'. The end of a text counts as a safe cut.

*Left certificate.* b < b' in P, safe in N and in A. By the lemma the tokens of N left of b are
those of A. By safety of b, what follows in N are the tokens of N[b:], and W has the same ones from
b on (as far as the right side allows). For an append only N is probed: an occurrence of a literal
in A is one in N too, the characters at the cut are the same, and A ends at or after b'. (The second
cut is what "at least one character of A to the right of the boundary" becomes when that character
may itself begin a literal or combine with what is appended.)

*Right certificate.* c < c' in Q, safe in N and in A. By safety of c, the tokens of N from c on are
those of Q from c on, and so are A's: they agree, with no word about the left. What is left of c in
N is what W has there: apply the lemma to W[b:] and N[b:] with c and c'.

*The run.* Old and fresh tokens agree on it, so splicing at its end equals splicing at the cut
(corollary A.6). It adds nothing to the proof for sound encoders and sound records; it costs a
comparison and stops a damaged record or a broken encoder before it spreads.

*Probing.* A literal that begins left of the window could cover a cut unseen: cuts keep
``literal_reach`` bytes from the window's left edge, unless that is the text's start, and probes
extend as far beyond the old part on the right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from toktier_stream.session import appending, kernels
from toktier_stream.session.appending import appender_of
from toktier_stream.session.attempt import MARGIN, Attempt, Side, trimmed
from toktier_stream.session.spliced import Splice, Stored, View
from toktier_stream.tokenizer.encoder import FastEncoder, behind
from toktier_stream.tokenizer.face import Encoder
from toktier_stream.wire.messages import Evidence, Route

__all__ = ["FIRST_WINDOW", "Splice", "Stored", "View", "splice"]

FIRST_WINDOW: Final = 512
"""Characters of old text on each side of an edit that are encoded again at first."""


def splice(
    old: Stored,
    encoder: Encoder,
    start: int,
    end: int,
    text: bytes,
    instead: Callable[[], Splice | None] | None = None,
) -> Splice:
    """The tokens after the bytes ``[start, end)`` of the old text were replaced by ``text``.

    ``instead``: another way to them, asked once, when the first windows do not do.
    """
    longest = encoder.longest_token
    first = max(FIRST_WINDOW, 2 * longest)
    if start == old.bytes and encoder.splices:
        found = _append(old, encoder, text, first, longest)
        if found is not None:
            return found
    left, right = Side(first), Side(first)
    if not encoder.splices or old.tokens == 0:
        left.at_edge = right.at_edge = True
    attempt = Attempt(old, encoder, start, end, text)
    while True:
        done = attempt.run(left, right)
        if done is None and instead is not None:
            done, instead = instead(), None
        if done is not None:
            return done


def _append(
    old: Stored, encoder: Encoder, text: bytes, window_chars: int, longest: int
) -> Splice | None:
    """The first window's splice of an append: what :class:`Attempt` does, with less ado, where
    text is left over on the left. None: no certificate, or a small text."""
    size = old.bytes
    view = old.view(max(0, size - window_chars), size)
    if isinstance(encoder, FastEncoder) and len(text) <= appending.MOST:
        found = appender_of(encoder).splice(size, old.digest, view, text, window_chars)
        if found is not None:
            return found
    return behind_window(old, view, encoder, text, window_chars, longest)


def behind_window(
    old: Stored, view: View, encoder: Encoder, text: bytes, window_chars: int, longest: int
) -> Splice | None:
    """The same by single steps, for any encoder and text (appending.py has its twin)."""
    size = old.bytes
    inner = view.text[-window_chars:]
    if not inner.isascii():
        wide = view.text[-4 * window_chars :]
        inner = wide[int(kernels.left_offset(np.frombuffer(wide, np.uint8), window_chars)) :]
        if len(inner) == len(wide) < 4 * window_chars:
            return None
    edge = size - len(inner)
    if edge <= 0:
        return None
    reach = encoder.literal_reach
    seen = inner + trimmed(text[: reach + MARGIN])
    if isinstance(encoder, FastEncoder):
        cut = encoder.second_cut(seen, reach, len(inner))
    else:
        witness = encoder.last_cut(seen, reach, len(inner))
        cut = encoder.last_cut(seen, reach, witness - 1) if witness > 0 else -1
    if cut < 0:
        return None
    # A large text is copied once here, and its tokens once: where the session will have them.
    whole, start, room = view.text + text, edge - view.byte, len(view.ids)
    if isinstance(encoder, FastEncoder):
        fresh = encoder.encode_behind(whole, start, room)
    else:
        fresh = behind(encoder.encode(whole[start:]), room)
    tokens, run, keep, first, right_bytes, value, covered, chars = kernels.match_end(
        view.ids, view.lengths, start + cut, fresh.ids, fresh.lengths, room, cut, cut,
        len(inner) - cut, old.digest, np.frombuffer(whole, np.uint8, -1, start),
    )  # fmt: skip
    if tokens < 2 or run <= longest or covered != len(whole) - start:
        return None
    begin, head = edge + cut + right_bytes, room + first - keep
    return Splice(
        keep=view.token + keep,
        ids=fresh.ids[room + first :],
        lengths=fresh.lengths[room + first :],
        tail=0,
        begin=begin,
        stop=size,
        text=memoryview(whole)[begin - view.byte :],
        route=Route.SPLICE,
        evidence=Evidence(
            window_chars=window_chars,
            boundary_byte=edge + cut,
            run_tokens=tokens,
            run_chars=run,
            chars_encoded=chars,
            engine=encoder.engine,
        ),
        digest=value,
        grown=chars - window_chars,
        end=View(view.byte, view.token, fresh.ids[head:], fresh.lengths[head:], whole),
    )
