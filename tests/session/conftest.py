"""Fixtures of the session tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from session_harness import CL100K, QWEN, artifact, build, make_small, spec
from tokenizers import normalizers

from toktier_stream.incremental.families import OnePieceEncoder
from toktier_stream.session.store import Store
from toktier_stream.tokenizer.admission import load_encoder
from toktier_stream.tokenizer.face import Encoder
from toktier_stream.tokenizer.reference import Reference, ReferenceEncoder
from toktier_stream.tokenizer.tables import Refusal

# Kernels compile on first use: that is no sign of a slow test.
settings.register_profile("compiled", deadline=None)
settings.load_profile("compiled")


@pytest.fixture(scope="session")
def oracles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ReferenceEncoder]:
    """References by name: digits one by one with NFC, digits in threes as they are, digits in
    threes with NFKC (which rewrites lengths), and a family whose text is one piece."""
    folder = tmp_path_factory.mktemp("tokenizers")
    made = {
        "nfc": build(folder / "nfc.json", QWEN, normalizers.NFC()),
        "plain": build(folder / "plain.json", CL100K, None),
        "nfkc": build(folder / "nfkc.json", CL100K, normalizers.NFKC()),
        "one piece": artifact(spec()),
    }
    return {name: ReferenceEncoder(Reference(source)) for name, source in made.items()}


@pytest.fixture(scope="session")
def encoders(oracles: dict[str, ReferenceEncoder]) -> dict[str, Encoder]:
    """The exact engines for the same tokenizers."""
    found: dict[str, Encoder] = {}
    for name, oracle in oracles.items():
        source = oracle.reference.artifact
        if name == "one piece":
            found[name] = OnePieceEncoder(source)
            continue
        made = load_encoder(source, reference=oracle.reference)
        assert not isinstance(made, Refusal)
        found[name] = made
    return found


@pytest.fixture(scope="session")
def encoder(encoders: dict[str, Encoder]) -> Encoder:
    """One of them, where any will do."""
    return encoders["plain"]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deep trees and certificates on short texts; see :func:`session_harness.make_small`."""
    make_small(monkeypatch)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty store."""
    with Store.open(tmp_path / "store", map_bytes=64 << 20) as opened:
        yield opened
