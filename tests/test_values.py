"""Values: equal by their fields, hashable, and without room for anything else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from toktier_stream.wire.messages import Evidence, Timings


def test_values_are_told_by_their_fields():
    """Equal fields make equal objects of one hash, also by way of ``replace``."""
    one = Evidence(window_chars=512, engine="exact-1")
    assert one == replace(Evidence(engine="exact-1"), window_chars=512)
    assert hash(one) == hash(Evidence(window_chars=512, engine="exact-1"))
    assert len({one, Evidence(window_chars=512, engine="exact-1"), Evidence()}) == 2
    assert Timings(1, 2, 3) != Timings(1, 2, 4)


def test_values_have_their_fields_alone():
    """A misspelt field is an error."""
    with pytest.raises(AttributeError):
        Timings().encode = 3
