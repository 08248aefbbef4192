"""Kernels that read one UTF-8 character. Text is valid by contract and is not checked again."""

from __future__ import annotations

from typing import Any

import numpy as np

from toktier_stream.tokenizer.jit import Address, Bytes, forced, load_u8

_LOW_SIX = np.uint32(0x3F)
_SIX = np.uint32(6)
_TWELVE = np.uint32(12)
_EIGHTEEN = np.uint32(18)


@forced
def decode(text: Bytes, at: int) -> tuple[Any, int]:
    """Code point and size of the character at ``at``."""
    lead = np.uint32(text[at])
    if lead < 0x80:
        return lead, 1
    second = np.uint32(text[at + 1]) & _LOW_SIX
    if lead < 0xE0:
        return ((lead & np.uint32(0x1F)) << _SIX) | second, 2
    third = np.uint32(text[at + 2]) & _LOW_SIX
    if lead < 0xF0:
        return ((lead & np.uint32(0x0F)) << _TWELVE) | (second << _SIX) | third, 3
    fourth = np.uint32(text[at + 3]) & _LOW_SIX
    high = ((lead & np.uint32(0x07)) << _EIGHTEEN) | (second << _TWELVE)
    return high | (third << _SIX) | fourth, 4


@forced
def character_start(text: Bytes, at: int) -> int:
    """The place of the lead byte of the character that the byte at ``at`` belongs to."""
    while at > 0 and text[at] & 0xC0 == 0x80:
        at -= 1
    return at


@forced
def decode_at(text: Address, at: int) -> tuple[Any, int]:
    """As :func:`decode`, of bytes at an address."""
    lead = np.uint32(load_u8(text, at))
    if lead < 0x80:
        return lead, 1
    second = np.uint32(load_u8(text, at + 1)) & _LOW_SIX
    if lead < 0xE0:
        return ((lead & np.uint32(0x1F)) << _SIX) | second, 2
    third = np.uint32(load_u8(text, at + 2)) & _LOW_SIX
    if lead < 0xF0:
        return ((lead & np.uint32(0x0F)) << _TWELVE) | (second << _SIX) | third, 3
    fourth = np.uint32(load_u8(text, at + 3)) & _LOW_SIX
    high = ((lead & np.uint32(0x07)) << _EIGHTEEN) | (second << _TWELVE)
    return high | (third << _SIX) | fourth, 4
