"""Which records of a changelog count: against a twin that knows the whole log before compaction."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from toktier_stream.broker.port import OutRecord, Record
from toktier_stream.pipeline.changelog import Follower
from toktier_stream.pipeline.ownership import Lineage, StaleStore, claim_record, read_stamp, stamped
from toktier_stream.session.batch import SESSION
from toktier_stream.session.store import Store
from toktier_stream.tokenizer.artifact import Artifact
from toktier_stream.tokenizer.reference import Reference, ReferenceEncoder
from toktier_stream.tokenizer.shipped import shipped_path


def log_of(random_: random.Random, owners: int, writes: int) -> list[Record]:
    """Owners one after the other. Each replaced one may still write, as one that wakes up does;
    offsets that its claim's marker takes are left out."""
    log: list[Record] = []
    claims: list[int] = []
    offset = 0
    for _ in range(owners):
        claim = claim_record("t", 0)
        log.append(Record("t", 0, offset, claim.key, claim.value, (), 0))
        claims.append(offset)
        offset += 2
        for _ in range(random_.randrange(writes)):
            owner = claims[-1] if random_.random() < 0.8 else random_.choice(claims)
            key = SESSION + b"%d" % random_.randrange(6)
            value = None if random_.random() < 0.1 else b"%d by %d" % (offset, owner)
            (out,) = stamped([claim_record("t", 0)], owner, offset)
            log.append(Record("t", 0, offset, key, value, out.headers, 0))
            offset += 1
    return log


def truth(log: list[Record], end: int) -> dict[bytes, bytes]:
    """The state at an offset, from every record that was ever written."""
    state: dict[bytes, bytes] = {}
    newest = -1
    for record in log:
        if record.offset >= end:
            break
        owner, _ = read_stamp(record)
        if record.key[:1] != SESSION:
            newest = record.offset
        elif owner == newest:
            state[record.key] = record.value
    return {key: value for key, value in state.items() if value is not None}


def compacted(log: list[Record], dirty: int, *, forget_tombstones: bool) -> list[Record]:
    """What is left after compaction of everything below ``dirty``."""
    last = {r.key: r.offset for r in log if r.offset < dirty}
    return [
        r for r in log
        if r.offset >= dirty
        or (last[r.key] == r.offset and not (forget_tombstones and r.value is None))
    ]  # fmt: skip


def apply(state: dict[bytes, bytes], lineage: Lineage, records: list[Record]) -> None:
    """Do what a store does."""
    for record in records:
        change = lineage.take(record)
        if change is None:
            continue
        key, value = change
        if value is None:
            state.pop(key, None)
        else:
            state[key] = value


@pytest.mark.parametrize("seed", range(120))
def test_a_restored_state_is_the_true_one_or_lacks_keys(seed):
    """From an empty store or an older one, of a log compacted up to anywhere: what is restored is
    right, or missing; without compaction nothing is missing. Tombstones outlive whoever is away
    for less than delete.retention.ms, so only an empty store meets a log without them."""
    random_ = random.Random(seed)
    log = log_of(random_, random_.randrange(1, 6), 30)
    end = log[-1].offset + 1
    wanted = truth(log, end)
    for start in (0, random_.randrange(end)):
        dirty = random_.choice((0, random_.randrange(end), end))
        left = compacted(log, dirty, forget_tombstones=start == 0)
        before = truth(log, start)
        owner = max(
            (r.offset for r in log if r.offset < start and r.key[:1] != SESSION), default=-1
        )
        lineage = Lineage(start, owner, 0)
        apply(before, lineage, [r for r in left if r.offset >= start])
        assert before.items() <= wanted.items()
        if dirty <= start:
            assert before == wanted
            last = {r.key: read_stamp(r)[0] for r in log if r.key[:1] == SESSION}
            foreign_last = {
                r.key for r in log
                if r.offset >= start and r.key[:1] == SESSION
                and read_stamp(r)[0] != truth_owner(log, r.offset)
                and not any(x.key == r.key and x.offset > r.offset for x in log)
            }  # fmt: skip
            assert lineage.shadowed == foreign_last
            assert foreign_last <= last.keys()
        assert lineage.owner == max(r.offset for r in log if r.key[:1] != SESSION)


def truth_owner(log: list[Record], offset: int) -> int:
    """Who owned the partition at an offset."""
    return max(r.offset for r in log if r.offset < offset and r.key[:1] != SESSION)


def test_a_store_that_passed_a_claim_unseen_is_not_continued():
    """Its owner was replaced at 7 and went on to 20: what it holds is another history."""
    lineage = Lineage(20, 3, 0)
    (out,) = stamped([claim_record("t", 0)], 7, 0)
    with pytest.raises(StaleStore):
        lineage.take(Record("t", 0, 21, SESSION + b"s", b"x", out.headers, 0))


def test_records_from_before_claims_count_until_the_first_claim():
    """A changelog of an earlier release is read as before."""
    lineage = Lineage(0, -1, 0)
    old = Record("t", 0, 0, SESSION + b"s", b"x", (), 0)
    claim = claim_record("t", 0)
    assert lineage.take(old) == (SESSION + b"s", b"x")
    assert lineage.take(Record("t", 0, 1, claim.key, claim.value, (), 0)) is None
    assert lineage.take(Record("t", 0, 3, SESSION + b"s", b"y", (), 0)) is None
    assert lineage.foreign == 1


def test_claims_have_keys_of_their_own():
    """Compaction must not remove one: the records behind it would count again."""
    assert len({claim_record("t", 0).key for _ in range(1000)}) == 1000


@pytest.mark.parametrize("value", [b"of another history", None])
async def test_a_session_whose_header_a_replaced_owner_wrote_over_leaves_nothing(
    tmp_path: Path, value: bytes | None
) -> None:
    """Compaction kept the replaced owner's header, or its removal, in the place of the owner's: the
    session is forgotten, and its pages, applied before and by another process, are found."""

    def records(offset: int, owner: int, *changes: tuple[bytes, bytes | None]) -> list[Record]:
        out = stamped([OutRecord("t", key, v, (), 0) for key, v in changes], owner, 0)
        return [Record("t", 0, offset + i, r.key, r.value, r.headers, 0) for i, r in enumerate(out)]

    def claim(offset: int) -> Record:
        made = claim_record("t", 0)
        return Record("t", 0, offset, made.key, made.value, (), 0)

    async def now(call):
        call()

    encoder = ReferenceEncoder(Reference(Artifact.load(shipped_path())))
    with Store.open(tmp_path / "made", map_bytes=1 << 26) as made:
        batch = made.begin()
        for name in (b"kept", b"lost"):
            batch.create(name).reset(encoder, b"some words of a session that has pages. " * 400)
        changes = batch.changes()
    first = [claim(0), *records(2, 0, *changes)]
    end = first[-1].offset + 1
    with Store.open(tmp_path / "store", map_bytes=1 << 26) as store:
        await Follower(store, now).apply(first)
        assert store.check().sessions == 2
    with Store.open(tmp_path / "store", map_bytes=1 << 26) as store:
        # The next owner's header of "lost" stood between the claim and this.
        foreign = records(end + 4, 0, (SESSION + b"lost", value))
        await Follower(store, now).apply([claim(end), *foreign])
        assert list(store.session_ids()) == [b"kept"]
        found = store.orphans()
        assert found
        store.remove_orphans(found)
        report = store.check()
        assert (report.damaged, report.orphans) == ((), 0)
        assert store.load(b"kept").text()
