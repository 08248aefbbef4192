"""Other tokenizers given a context and an append, in the best way that each of them offers.

Those without sessions encode the whole text again, with an instance that has encoded the context
before (so its memories are full). ``toktier`` keeps sessions: its public one, and the store below
it, which is not public and is measured because it is the faster of the two.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from toktier_stream.bench import peers
from toktier_stream.bench.peers_toktier import open_toktier
from toktier_stream.tokenizer.artifact import Artifact
from toktier_stream.tokenizer.face import Ids

TOKTIER: Final = "toktier session"
TOKTIER_STORE: Final = "toktier store"


class Appender(Protocol):
    """A peer that knows one context."""

    def append(self, text: str) -> Callable[[], Callable[[], Ids]]:
        """Prepare one append to the context as it was first given.

        Returns the work to be timed, which returns what tells the ids of the whole text.
        """
        ...


Make = Callable[[str], Appender]
"""An appender of a context. Raises ``ValueError`` or ``RuntimeError`` if the peer cannot."""


@dataclass(frozen=True)
class Opened:
    """The peers that serve one tokenizer, and the versions of all that are installed."""

    make: Mapping[str, Make]
    versions: Mapping[str, str]


def opened(artifact: Artifact, stack: ExitStack) -> Opened:
    """Every installed peer, the reference and tiktoken (slower than the others here) apart."""
    make: dict[str, Make] = {}
    versions: dict[str, str] = {}
    for peer in peers.installed():
        if peer.name in ("tokenizers", "tiktoken"):
            continue
        versions[peer.name] = peer.version
        try:
            make[peer.name] = _again(peer.make(artifact))
        except ValueError as error:
            make[peer.name] = _refusing(error)
    if importlib.util.find_spec("toktier") is not None:
        versions["toktier"] = importlib.metadata.version("toktier")
        try:
            make |= _toktier(artifact, stack)
        except (ImportError, ValueError) as error:
            make[TOKTIER] = _refusing(error)
    return Opened(make, versions)


def _refusing(error: Exception) -> Make:
    """A peer that cannot serve this tokenizer says so for every context."""
    message = type(error).__name__

    def make(context: str) -> Appender:
        raise ValueError(message)

    return make


def _again(encode: peers.Encode) -> Make:
    def make(context: str) -> Appender:
        encode(context)
        return _Again(encode, context)

    return make


class _Again:
    """Encodes everything again."""

    def __init__(self, encode: peers.Encode, context: str) -> None:
        self._encode = encode
        self._context = context

    def append(self, text: str) -> Callable[[], Callable[[], Ids]]:
        whole = self._context + text

        def work() -> Callable[[], Ids]:
            answer = self._encode(whole)
            return lambda: _ids(answer)

        return work


def _toktier(artifact: Artifact, stack: ExitStack) -> dict[str, Make]:
    """Both ways of toktier. Raises ``ValueError`` if it knows no tokenizer.json of these bytes."""
    tokenizer = open_toktier(artifact, stack)
    made: dict[str, Make] = {TOKTIER: lambda context: _ToktierSession(tokenizer, context)}
    store = _ToktierStore.of(tokenizer)
    if store is not None:
        found = store
        made[TOKTIER_STORE] = lambda context: found.holding(context)
    return made


class _ToktierSession:
    """The public session: every append gets one that has just been given the context."""

    def __init__(self, tokenizer: Any, context: str) -> None:
        self._tokenizer = tokenizer
        self._context = context

    def append(self, text: str) -> Callable[[], Callable[[], Ids]]:
        stack = ExitStack()
        session = stack.enter_context(self._tokenizer.session(text=self._context))

        def work() -> Callable[[], Ids]:
            session.append(text)

            def answer() -> Ids:
                with stack:
                    return _ids(session.ids)

            return answer

        return work


class _ToktierStore:
    """The native store under its sessions; every append goes to a fork of the context."""

    def __init__(self, store: Any, encoder: Any, key: int) -> None:
        self._store, self._encoder, self._key = store, encoder, key
        self._handle: int | None = None

    @classmethod
    def of(cls, tokenizer: Any) -> _ToktierStore | None:
        """None where this version's inner parts have other names."""
        if not hasattr(tokenizer, "_store"):
            return None
        entries = tokenizer._store()
        if not (hasattr(entries, "_backend") and hasattr(entries, "_key_id")):
            return None
        store, encoder = entries._backend()
        return cls(store, encoder, entries._key_id)

    def holding(self, context: str) -> _ToktierStore:
        """The same, holding this context instead of the last one."""
        if self._handle is not None:
            self._store.evict(self._handle)
        self._handle, _, _ = self._store.put(self._key, context, self._encoder)
        return self

    def append(self, text: str) -> Callable[[], Callable[[], Ids]]:
        store, encoder = self._store, self._encoder
        fork = store.fork(self._handle)
        revision = store.revision(fork)

        def work() -> Callable[[], Ids]:
            store.append(fork, text, revision, encoder)

            def answer() -> Ids:
                ids = np.frombuffer(store.ids_bytes(fork), dtype=np.uint32)
                store.evict(fork)
                return ids

            return answer

        return work


def _ids(answer: Sequence[int]) -> Ids:
    return np.asarray(answer, dtype=np.uint32)
