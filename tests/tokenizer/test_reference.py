"""The judge where it has no answer: a clear error, and everybody goes on."""

from __future__ import annotations

import pytest

from toktier_stream.errors import Code, ToktierError
from toktier_stream.session.engines import open_tokenizer
from toktier_stream.tokenizer.reference import ReferenceEncoder
from toktier_stream.tokenizer.shipped import shipped_path

# Its pattern matcher retries ten million times at most.
ENDLESS = " " * 11_000_000 + "x"


def test_a_text_beyond_the_reference_is_refused_by_code():
    """The engine's panic becomes REFERENCE_GAVE_UP, and the next text is served."""
    reference = open_tokenizer(shipped_path()).reference
    with pytest.raises(ToktierError) as gave_up:
        reference.ids(ENDLESS)
    assert gave_up.value.code is Code.REFERENCE_GAVE_UP
    with pytest.raises(ToktierError):
        ReferenceEncoder(reference).encode(ENDLESS.encode())
    assert reference.ids("and on").tolist() == reference.ids("and on").tolist() != []
