"""Pages: what goes in comes out, nothing is too large, and damage is seen."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toktier_stream.errors import Code, ToktierError
from toktier_stream.session import page
from toktier_stream.session.page import Content, cut, decode, encode
from toktier_stream.wire import digest


class Nothing:
    """A reader that must not be asked."""

    def read(self, number: int, crc: int) -> bytes:
        """See :class:`toktier_stream.session.page.Reader`."""
        raise AssertionError(number)


@st.composite
def contents(draw: st.DrawFn) -> Content:
    """Tokens and text that fit together, with empty and very long tokens."""
    lengths = draw(st.lists(st.sampled_from([0, 1, 2, 5, 254, 255, 600, 9000]), max_size=60))
    n = len(lengths)
    ids = draw(st.lists(st.integers(0, 300_000), min_size=n, max_size=n))
    total = sum(lengths) if n else draw(st.sampled_from([0, 3, 9000]))
    text = (b"abcdefghij" * (total // 10 + 1))[:total]
    return Content(np.array(ids, dtype=np.uint32), np.array(lengths, dtype=np.uint32), text)


def same(left: Content, right: Content) -> bool:
    """Equal ids, lengths and text."""
    return (
        left.ids.tolist() == right.ids.tolist()
        and left.lengths.tolist() == right.lengths.tolist()
        and left.text == right.text
    )


@given(contents(), st.booleans())
def test_cut_pages_are_bounded_and_join_to_the_whole(whole: Content, even: bool) -> None:
    """However long a token is, every page's record is within the limit (unless one character makes
    more tokens than fit), and the pages hold all tokens and all text."""
    parts = list(cut(*whole, even=even))
    assert [i for p in parts for i in p.ids.tolist()] == whole.ids.tolist()
    assert b"".join(p.text for p in parts) == whole.text
    bare = 0
    lengths: list[int] = []
    for part in parts:
        record = encode(part)
        assert same(decode(record), part)
        assert len(record) <= page.PAGE_BYTES or np.count_nonzero(part.lengths) <= 1
        if len(part.ids) == 0:
            bare += len(part.text)
            continue
        own = part.lengths.tolist()
        widest = own.index(max(own))
        own[widest] += bare
        bare = 0
        lengths += own
    if len(whole.ids):
        assert lengths == whole.lengths.tolist()


@given(contents(), st.sampled_from([30, 61, 4070]), st.booleans(), st.integers(0, 99), st.data())
def test_an_end_is_written_as_it_is_cut(
    whole: Content, room: int, wide: bool, least: int, data: st.DataObject
) -> None:
    """Records, counts and digests, all at once, as one by one, where there are such pages; and the
    last place from which on there is the last page and enough."""
    if wide and len(whole.ids):
        whole.ids[len(whole.ids) // 2] = 1 << 24
    lengths = whole.lengths.tolist()
    places = [0, *(i for i in range(1, len(lengths)) if lengths[i - 1])]
    token = data.draw(st.sampled_from(places))
    byte = sum(lengths[:token])
    rest = Content(whole.ids[token:], whole.lengths[token:], whole.text[byte:])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "ROOM", room)
        written = page.write_end(*whole, token, byte, least)
        wanted = list(cut(*rest, even=False))
    if max(rest.lengths.tolist(), default=0) > room // 2 or any(
        len(encode(w)) > room + 10 for w in wanted
    ):
        assert written is None
        return
    if not len(rest.ids):
        assert written is None if rest.text else written == ([], 0, 0)
        return
    assert written is not None
    found, *place = written
    assert len(found) == len(wanted)
    for number, (one, want) in enumerate(zip(found, wanted, strict=True)):
        made = page.Page.written(number, one)
        assert made.number == number
        assert made.record() == encode(want)
        assert made.crc == zlib.crc32(made.record())
        assert (made.tokens, made.bytes) == (len(want.ids), len(want.text))
        assert made.chars == len(want.text)
        assert one[3] == (digest.of(want.ids) if number < len(wanted) - 1 else 0)
        assert made.digest(Nothing()) == digest.of(want.ids)
        assert not made.stored
        assert same(made.peek(Nothing()), want)
    last = len(lengths) - len(wanted[-1].ids)
    fit = [i for i in places if i <= last and sum(lengths[i:]) >= least]
    assert place == [max(fit, default=0), sum(lengths[: max(fit, default=0)])]


def test_no_pages_for_lengths_that_do_not_fit() -> None:
    """One byte more or less than the text has."""
    ids, lengths = np.array([1, 2], dtype=np.uint32), np.array([1, 2], dtype=np.uint32)
    assert page.write_end(ids, lengths, b"abc") is not None
    assert page.write_end(ids, lengths, b"abcd") is None
    assert page.write_end(ids, lengths, b"ab") is None


def test_even_pages_are_of_about_one_size() -> None:
    """In the middle of a session no page is left nearly empty."""
    n = 900
    ids = np.arange(1024, 1024 + n, dtype=np.uint32)
    parts = list(cut(ids, np.full(n, 4, dtype=np.uint32), b"text" * n, even=True))
    sizes = [len(encode(p)) for p in parts]
    assert len(sizes) == 2
    assert max(sizes) - min(sizes) < 32


def test_lengths_must_cover_the_text() -> None:
    """An encoder that breaks its contract is refused before anything is stored."""
    one = np.ones(3, dtype=np.uint32)
    with pytest.raises(ValueError, match="sum to 3"):
        list(cut(one, one, b"four", even=False))


@given(contents().filter(lambda c: len(c.text) < 4000), st.data())
def test_a_record_cut_short_is_refused(content: Content, data: st.DataObject) -> None:
    """Every prefix of a record is recognised as one."""
    record = encode(content)
    size = data.draw(st.integers(0, len(record) - 1))
    with pytest.raises(ToktierError) as caught:
        decode(record[:size])
    assert caught.value.code is Code.STORE_CORRUPT


def test_bytes_per_token() -> None:
    """A full page of ordinary tokens takes at most 6.9 bytes a token with 4 bytes of text each."""
    n = 2000
    ids = np.arange(n, dtype=np.uint32) * 7919 % 200_000
    first = next(cut(ids, np.full(n, 4, dtype=np.uint32), b"text" * n, even=False))
    assert page.PAGE_BYTES - 8 <= len(encode(first)) <= page.PAGE_BYTES
    assert len(encode(first)) / len(first.ids) < 6.9


def test_tokens_that_fit_are_not_taken_apart() -> None:
    """Only a token with more text than a page holds is: runs of long tokens keep their lengths."""
    for size in (100, 128, 254):
        lengths = np.full(500, size, dtype=np.uint32)
        ids = np.arange(500, dtype=np.uint32)
        for part in cut(ids, lengths, b"x" * (500 * size), even=False):
            assert part.lengths.tolist() == [size] * len(part.ids)
            assert len(encode(part)) <= page.PAGE_BYTES
