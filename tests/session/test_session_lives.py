"""Whole lives of sessions in a store, at random, against plain strings and the reference.

``TOKTIER_TEST_EXAMPLES`` runs as many random lives (default 25).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from session_harness import (
    Changelog,
    applied,
    check_session,
    dump,
    long_texts,
    make_small,
    record_name,
    texts,
)

from toktier_stream.errors import Code, ToktierError
from toktier_stream.session.store import Store
from toktier_stream.tokenizer.face import Encoder

_NAMES = st.sampled_from([b"a", b"b", b"session with a longer name"])


class Lives(RuleBasedStateMachine):
    """Events in batches, commits and aborts, evictions, restarts, damage, rebuilt stores."""

    encoder: Encoder
    oracle: Encoder

    @initialize(hot=st.sampled_from([0, 6_000, 1 << 20]), kept=st.sampled_from([0, 1, 2, 7]))
    def start(self, hot: int, kept: int) -> None:
        """An empty store with much, little or no memory for live sessions, and headers that have
        more or less of the index."""
        self.patch = pytest.MonkeyPatch()
        make_small(self.patch, kept)
        self.folder = Path(tempfile.mkdtemp(prefix="toktier-lives-"))
        self.hot = hot
        self.store = self._open()
        self.log = Changelog()
        self.committed: dict[bytes, str] = {}
        self.damaged: set[bytes] = set()
        self._begin()

    def _open(self) -> Store:
        return Store.open(self.folder / "store", map_bytes=32 << 20, hot_bytes=self.hot)

    def _begin(self) -> None:
        self.batch = self.store.begin()
        self.texts = dict(self.committed)
        self.healed: set[bytes] = set()

    def teardown(self) -> None:
        """Close and clear away."""
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.folder)
            self.patch.undo()

    @rule(name=_NAMES, text=st.one_of(texts, long_texts))
    def reset(self, name: bytes, text: str) -> None:
        """A full text, also over a damaged session."""
        session = self.batch.create(name)
        session.reset(self.encoder, text.encode())
        check_session(session, self.oracle, text.encode())
        self.texts[name] = text
        self.healed.add(name)

    @rule(name=_NAMES, text=texts, data=st.data(), append=st.booleans())
    def edit(self, name: bytes, text: str, data: st.DataObject, append: bool) -> None:
        """An append or an edit; on a damaged session an error, and then it is dropped."""
        old = self.texts.get(name)
        try:
            session = self.batch.session(name)
            if session is None:
                assert old is None
                return
            assert old is not None
            size = len(old)
            first = size if append else data.draw(st.integers(0, size))
            few = st.integers(first, min(first + 9, size))
            last = data.draw(st.one_of(few, few, st.integers(first, size)))
            start, end = len(old[:first].encode()), len(old[:last].encode())
            before = session.ids()
            change = session.edit(self.encoder, start, end, text.encode())
            self.texts[name] = old[:first] + text + old[last:]
            check_session(session, self.oracle, self.texts[name].encode())
            assert applied(before, change) == session.ids().tolist()
        except ToktierError as error:
            if error.code is not Code.STORE_CORRUPT or name not in self.damaged - self.healed:
                raise
            self.remove(name)

    @rule(name=_NAMES)
    def remove(self, name: bytes) -> None:
        """An eviction."""
        self.batch.remove(name)
        self.texts.pop(name, None)
        self.healed.add(name)

    @rule()
    def commit(self) -> None:
        """Publish, then store; sometimes nothing has changed."""
        changes = self.batch.changes()
        self.log.append(changes)
        self.store.commit(self.batch, changelog_offset=self.log.offset)
        self.committed = self.texts
        self.damaged -= self.healed
        self._begin()

    @rule(sealed=st.booleans())
    def abort(self, sealed: bool) -> None:
        """The transaction failed: before or after the changes were taken."""
        before = dump(self.store)
        if sealed:
            self.batch.changes()
        self.batch.discard()
        assert dump(self.store) == before
        self._begin()

    @rule()
    def restart(self) -> None:
        """Close and open; what was not committed is gone."""
        self.store.close()
        self.store = self._open()
        assert self.store.changelog_offset == self.log.offset
        self._begin()

    @precondition(lambda self: not self.damaged)
    @rule()
    def rebuild(self) -> None:
        """A new disk: the compacted changelog gives the same store, and work goes on with it."""
        want = dump(self.store)
        self.store.close()
        shutil.rmtree(self.folder / "store")
        self.store = self._open()
        self.store.restore(list(self.log.values.items()), self.log.offset)
        assert dump(self.store) == want
        self._begin()

    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        """A bit of a stored record turns."""
        self.batch.discard()
        stored = [(n, k) for n in self.committed for k in self.store.numbers(n)]
        if stored:
            name, number = data.draw(st.sampled_from(stored))
            key = record_name(name, number)
            with self.store._env.begin(write=True) as txn:
                record = bytearray(txn.get(key, db=self.store._pages))
                record[data.draw(st.integers(0, len(record) - 1))] ^= 0x10
                txn.put(key, bytes(record), db=self.store._pages)
            self.damaged.add(name)
            self.store._hot.clear()
        self._begin()

    @invariant()
    def agrees(self) -> None:
        """Every committed session that was not damaged is the reference's, from the disk up."""
        if not hasattr(self, "store"):
            return
        report = self.store.check()
        assert set(report.damaged) <= self.damaged
        if not report.damaged:
            assert report.orphans == 0
        assert set(self.store.session_ids()) == set(self.committed)
        for name, text in self.committed.items():
            if name not in self.damaged:
                session = self.store.load(name)
                assert session is not None
                check_session(session, self.oracle, text.encode())


@pytest.mark.parametrize("name", ["nfc", "plain", "nfkc", "one piece"])
def test_lives(encoders: dict[str, Encoder], oracles: dict[str, Encoder], name: str) -> None:
    """See the module; for each kind of tokenizer."""
    machine = type("Lives", (Lives,), {"encoder": encoders[name], "oracle": oracles[name]})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=int(os.environ.get("TOKTIER_TEST_EXAMPLES", "25")),
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
