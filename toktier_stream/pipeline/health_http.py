"""Answers ``/livez``, ``/readyz`` and ``/metrics`` over HTTP, from a thread of its own.

Its own thread and loop, so that the worker's loop may hang and is still told to hang. It reads a
request line and headers of bounded size within a bounded time, answers, and closes; bodies are not
read. More connections at once than :data:`CONNECTIONS` are turned away.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from toktier_stream import telemetry
from toktier_stream.errors import Code, ToktierError
from toktier_stream.pipeline.health import Report

_LOG = telemetry.logger(__name__)

CONNECTIONS: Final = 32
HEAD_BYTES: Final = 8192
TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"

_REQUEST: Final = re.compile(rb"([A-Z]{1,16}) (\S{1,2048}) HTTP/1\.[01]")


@dataclass(frozen=True, slots=True)
class Page:
    """What a route answers with."""

    status: HTTPStatus
    content_type: str
    body: bytes


Routes = Mapping[str, Callable[[], Page]]


class HealthServer:
    """``start`` binds and returns; the routes are called on the server's thread."""

    def __init__(self, listen: str, routes: Routes, *, request_s: float = 5.0) -> None:
        self._listen = listen
        self._routes = routes
        self._request_s = request_s
        self._open = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = asyncio.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> tuple[str, int]:
        """Bind and serve; returns the address. Raises ``CONFIG_INVALID`` if it cannot be had."""
        bound: Future[tuple[str, int]] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(bound)), name="health", daemon=True
        )
        self._thread.start()
        try:
            address = bound.result()
        except OSError as error:
            self._thread.join()
            raise ToktierError(
                Code.CONFIG_INVALID, f"health_listen {self._listen}: {error.strerror or error}"
            ) from error
        _LOG.info("health_listening", host=address[0], port=address[1])
        return address

    def stop(self) -> None:
        """Stop serving. May be called again."""
        if self._loop is not None and self._thread is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._ended.set)
            self._thread.join()

    async def _serve(self, bound: Future[tuple[str, int]]) -> None:
        host, _, port = self._listen.rpartition(":")
        try:
            server = await asyncio.start_server(
                self._connection, host.strip("[]"), int(port), limit=HEAD_BYTES
            )
        except OSError as error:
            bound.set_exception(error)
            return
        self._loop = asyncio.get_running_loop()
        name = server.sockets[0].getsockname()
        bound.set_result((name[0], name[1]))
        try:
            await self._ended.wait()
        finally:
            server.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            async with asyncio.timeout(self._request_s):
                await self._exchange(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # who asks slowly, or hangs up, is not answered
        finally:
            self._open -= 1
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._open > CONNECTIONS:
            page, body = _plain(HTTPStatus.SERVICE_UNAVAILABLE), True
        else:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.LimitOverrunError:
                page, body = _plain(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE), True
            else:
                page, body = self._answer(head)
        lines = [
            f"HTTP/1.1 {page.status.value} {page.status.phrase}",
            f"Content-Type: {page.content_type}",
            f"Content-Length: {len(page.body)}",
            "Cache-Control: no-store",
            "Connection: close",
        ]
        if page.status is HTTPStatus.METHOD_NOT_ALLOWED:
            lines.append("Allow: GET, HEAD")
        writer.write("\r\n".join([*lines, "", ""]).encode("ascii"))
        if body:
            writer.write(page.body)
        await writer.drain()

    def _answer(self, head: bytes) -> tuple[Page, bool]:
        """The page, and whether its body is sent."""
        request = _REQUEST.fullmatch(head.partition(b"\r\n")[0])
        if request is None:
            return _plain(HTTPStatus.BAD_REQUEST), True
        method = request[1]
        try:
            path = urlsplit(request[2].decode("ascii")).path
        except ValueError:
            return _plain(HTTPStatus.BAD_REQUEST), True
        route = self._routes.get(path)
        if route is None:
            return _plain(HTTPStatus.NOT_FOUND), method != b"HEAD"
        if method not in (b"GET", b"HEAD"):
            return _plain(HTTPStatus.METHOD_NOT_ALLOWED), True
        try:
            return route(), method == b"GET"
        except Exception as error:  # noqa: BLE001 - one page that fails must not end the others
            _LOG.error("health_page_failed", path=path, error=type(error).__name__)
            return _plain(HTTPStatus.INTERNAL_SERVER_ERROR), method == b"GET"


def probe(ask: Callable[[], Report]) -> Callable[[], Page]:
    """A route that answers 200 or 503 with a report."""

    def page() -> Page:
        report = ask()
        status = HTTPStatus.OK if report.ok else HTTPStatus.SERVICE_UNAVAILABLE
        return Page(status, JSON, report.body)

    return page


def _plain(status: HTTPStatus) -> Page:
    return Page(status, TEXT, f"{status.phrase}\n".encode())
