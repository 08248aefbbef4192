"""What the exact engine admits, what it refuses and why, and what it keeps on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_samples import GPT2_SPLIT, WHOLE, FamilyFile, artifact_of, assert_same, bpe_spec

from toktier_stream.tokenizer import admission, cache, paths
from toktier_stream.tokenizer.admission import compile_encoder, load_encoder
from toktier_stream.tokenizer.artifact import Artifact
from toktier_stream.tokenizer.encoder import FastEncoder
from toktier_stream.tokenizer.face import Tokens
from toktier_stream.tokenizer.reference import Reference
from toktier_stream.tokenizer.tables import Refusal


def spec_of(**changes: Any) -> dict[str, Any]:
    return {**bpe_spec([(b"a", b"b")], pre_tokenizer=GPT2_SPLIT), **changes}


def refused(spec: dict[str, Any], tmp_path: Path) -> tuple[str, ...]:
    artifact = artifact_of(spec)
    result = load_encoder(artifact, cache_dir=tmp_path)
    assert isinstance(result, Refusal)
    again = load_encoder(artifact, cache_dir=tmp_path)
    assert isinstance(again, Refusal)
    assert again.reasons == result.reasons
    return result.reasons


def test_admitted_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second load reads the tables and compiles nothing; the answers are the same."""
    artifact = artifact_of(spec_of())
    told: list[str] = []
    first = load_encoder(artifact, cache_dir=tmp_path, progress=told.append)
    assert isinstance(first, FastEncoder)
    assert any("compiling" in message for message in told)
    monkeypatch.delattr(admission, "compile_encoder")
    second = load_encoder(artifact, cache_dir=tmp_path)
    assert isinstance(second, FastEncoder)
    assert second.fingerprint == first.fingerprint
    text = "ab c <ab> 中\n".encode()
    assert second.encode(text).ids.tolist() == first.encode(text).ids.tolist()
    assert_same(second, Reference(artifact), text.decode())


def test_damaged_tables_are_compiled_again(tmp_path: Path) -> None:
    """Corruption costs time only."""
    artifact = artifact_of(spec_of())
    assert isinstance(load_encoder(artifact, cache_dir=tmp_path), FastEncoder)
    (file,) = tmp_path.iterdir()
    sound = file.read_bytes()
    file.write_bytes(sound[:-1000] + bytes(1000))
    told: list[str] = []
    again = load_encoder(artifact, cache_dir=tmp_path, progress=told.append)
    assert isinstance(again, FastEncoder)
    assert told
    assert file.read_bytes() == sound


def test_tables_of_another_layout_are_compiled_again(tmp_path: Path) -> None:
    """A sound file without the arrays that this code needs is not half used."""
    artifact = artifact_of(spec_of())
    load_encoder(artifact, cache_dir=tmp_path)
    (file,) = tmp_path.iterdir()
    key = admission.table_key(artifact)
    arrays = cache.load(tmp_path, key)
    assert arrays is not None
    del arrays["merges.spans"]
    cache.store(tmp_path, key, arrays)
    assert isinstance(load_encoder(artifact, cache_dir=tmp_path), FastEncoder)
    assert "merges.spans" in (cache.load(tmp_path, key) or {})
    assert file.exists()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """The encoder is there all the same, and somebody is told."""
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    told: list[str] = []
    result = load_encoder(artifact_of(spec_of()), cache_dir=blocked, progress=told.append)
    assert isinstance(result, FastEncoder)
    assert any("not kept" in message for message in told)


def test_every_obstacle_is_named(tmp_path: Path) -> None:
    """One refusal lists what stands against the normalizer, the tokens, the model and the
    pre-tokenizer at once."""
    spec = bpe_spec(
        [(b"a", b"b")],
        pre_tokenizer={"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"},
        normalizer={"type": "Lowercase"},
        added=[{"content": "<x>", "lstrip": True}],
        continuing_subword_prefix="##",
    )
    # The reference itself would refuse merges that do not fit the prefix.
    spec["model"]["merges"] = []
    reasons = " / ".join(refused(spec, tmp_path))
    for word in ("Lowercase", "lstrip", "continuing_subword_prefix"):
        assert word in reasons


@pytest.mark.parametrize(
    ("pre_tokenizer", "reason"),
    [
        (None, "byte-level"),
        ({"type": "Whitespace"}, "byte-level"),
        ({**WHOLE, "add_prefix_space": True}, "prefix"),
        ({"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, WHOLE]}, "removes"),
    ],
)
def test_pre_tokenizers_refused(pre_tokenizer: Any, reason: str, tmp_path: Path) -> None:
    """Pieces must be byte-level, and cover the text."""
    reasons = refused(spec_of(pre_tokenizer=pre_tokenizer), tmp_path)
    assert any(reason in r for r in reasons), reasons


def test_a_wrong_encoder_is_not_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """If compiled tables disagreed with the reference, the self-test would say so."""
    artifact = artifact_of(spec_of())
    right = FastEncoder.encode

    def wrong(self: FastEncoder, text: bytes) -> Tokens:
        tokens = right(self, text)
        return Tokens(
            np.where(tokens.ids == ord("b"), np.uint32(ord("c")), tokens.ids), tokens.lengths
        )

    monkeypatch.setattr(FastEncoder, "encode", wrong)
    result = compile_encoder(artifact, Reference(artifact))
    assert isinstance(result, Refusal)
    assert "self-test" in str(result)


def test_where_tables_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """TOKTIER_CACHE, else the user's cache folder."""
    monkeypatch.setenv("TOKTIER_CACHE", str(tmp_path))
    assert admission.table_folder() == tmp_path / "tables"
    monkeypatch.delenv("TOKTIER_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert paths.cache_root() == tmp_path / "toktier-stream"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert paths.cache_root() == Path.home() / ".cache" / "toktier-stream"


@pytest.mark.families
@pytest.mark.parametrize("name", ["gemma3", "llama2", "bert"])
def test_families_of_other_kinds(name: str, family_file: FamilyFile, tmp_path: Path) -> None:
    """Families without byte-level pieces are for other rooms; the reasons say why."""
    result = load_encoder(Artifact.load(family_file(name)), cache_dir=tmp_path)
    assert isinstance(result, Refusal)
    assert result.reasons
