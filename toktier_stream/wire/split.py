"""Cutting an event or update that is larger than one record into numbered parts."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from toktier_stream.errors import Code
from toktier_stream.wire.codec import MAX_PARTS
from toktier_stream.wire.messages import AppendEvent, Close, Edit, Operation, Reset, TokenUpdate
from toktier_stream.wire.refusal import WireError

ENVELOPE_BYTES: Final = 4096
"""A protobuf value is at most this much larger than the text or ids in it."""

_TOKEN_BYTES = 4


def split_event(event: AppendEvent, part_bytes: int) -> tuple[AppendEvent, ...]:
    """The event itself, or parts of at most ``part_bytes`` bytes of text each.

    In protobuf a part's value has at most ``part_bytes + ENVELOPE_BYTES`` bytes; in JSON escapes
    come on top. Texts are cut between characters where ``part_bytes`` is at least 4 (a receiver
    must not rely on it). Raises ``PARTS_TOO_LARGE`` if it takes more than ``MAX_PARTS`` parts.
    """
    op = event.op
    if isinstance(op, Close) or len(op.text) <= part_bytes:
        return (event,)
    cuts = _text_cuts(op.text, part_bytes)
    parts = _checked(len(cuts) - 1, event.session_id, event.revision)
    out = []
    for part in range(parts):
        text = op.text[cuts[part] : cuts[part + 1]]
        body: Operation = Reset(text) if isinstance(op, Reset) else Edit(text, op.start, op.end)
        if part == 0:
            out.append(replace(event, op=body, part=0, parts=parts))
        else:
            out.append(AppendEvent(event.session_id, event.revision, body, part=part, parts=parts))
    return tuple(out)


def split_update(update: TokenUpdate, part_bytes: int) -> tuple[TokenUpdate, ...]:
    """The update itself, or parts of at most ``part_bytes`` bytes of ids each, in whole tokens.

    Raises ``PARTS_TOO_LARGE`` if it takes more than ``MAX_PARTS`` parts.
    """
    ids = update.token_ids
    if len(ids) <= part_bytes:
        return (update,)
    step = max(part_bytes // _TOKEN_BYTES, 1) * _TOKEN_BYTES
    parts = _checked(-(-len(ids) // step), update.session_id, update.revision)
    return (
        replace(update, token_ids=ids[:step], part=0, parts=parts),
        *(
            TokenUpdate(
                session_id=update.session_id,
                revision=update.revision,
                status=update.status,
                token_ids=ids[part * step : (part + 1) * step],
                part=part,
                parts=parts,
            )
            for part in range(1, parts)
        ),
    )


def _text_cuts(text: bytes, part_bytes: int) -> list[int]:
    cuts = [0]
    while len(text) - cuts[-1] > part_bytes:
        end = cuts[-1] + part_bytes
        back = end
        while back > cuts[-1] and end - back < 4 and text[back] & 0xC0 == 0x80:
            back -= 1
        # Four continuation bytes in a row are no UTF-8: then any cut is as good.
        cuts.append(back if back > cuts[-1] and text[back] & 0xC0 != 0x80 else end)
    cuts.append(len(text))
    return cuts


def _checked(parts: int, session_id: str, revision: int) -> int:
    if parts > MAX_PARTS:
        raise WireError(
            Code.PARTS_TOO_LARGE,
            f"{parts} parts, the limit is {MAX_PARTS}",
            session_id=session_id,
            revision=revision,
        )
    return parts
