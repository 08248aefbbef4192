"""The ``toktier`` package, given a tokenizer.json without its fetching anything."""

from __future__ import annotations

import hashlib
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from toktier_stream.tokenizer.artifact import Artifact

_SIDECARS: Final = ("tokenizer_config.json", "config.json", "chat_template.jinja")


def open_toktier(artifact: Artifact, stack: ExitStack, device: str = "cpu") -> Any:
    """Its tokenizer of these bytes. ``device``: ``cpu``, or ``cuda`` to demand its GPU route.

    Raises ``ImportError`` where it is not installed, ``ValueError`` if it knows no such file or
    has no such route.
    """
    import toktier
    from toktier.artifacts.manifest import ArtifactManifest
    from toktier.artifacts.sources import LocalDirectorySource
    from toktier.artifacts.store import ArtifactStore
    from toktier.artifacts.tables import ARTIFACT_MANIFEST

    digest = hashlib.sha256(artifact.data).hexdigest()
    known = ArtifactManifest.load(ARTIFACT_MANIFEST).entries
    families = [
        name
        for name, entry in known.items()
        if any(f.name == "tokenizer.json" and f.sha256 == digest for f in entry.files)
    ]
    if not families:
        raise ValueError("toktier: an unknown tokenizer.json")
    # It fetches what it loads from the hub; here it is told that its cache has it.
    folder = artifact.path.parent
    files = [f for f in ("tokenizer.json", *_SIDECARS) if (folder / f).is_file()]
    manifest = ArtifactManifest.from_mapping(
        {
            families[0]: {
                "repo_id": "local/local",
                "revision": "local",
                "local_dir": str(folder),
                "files": {f: {"sha256": _sha256(folder / f)} for f in files},
            }
        }
    )
    cache = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="toktier-bench-")))
    config = toktier.Config(cache_dir=cache)
    try:
        ArtifactStore(manifest, config=config, source=LocalDirectorySource()).ensure(families[0])
        return toktier.load(families[0], device=device, manifest=manifest, config=config)
    except toktier.ToktierError as error:
        raise ValueError(f"toktier: {error}") from error


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
