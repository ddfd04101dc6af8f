"""A TCP proxy that harms connections in ways that no signal and no Redis command can."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING

from tools.harness.replaced import STILL_SERVED, Replaced

if TYPE_CHECKING:
    # In `typing` from Python 3.11 on.
    from typing_extensions import Self

HOST = "127.0.0.1"

#: The value of SO_LINGER with which closing a socket sends a reset.
_RESET = struct.pack("ii", 1, 0)


@dataclass
class Trap:
    """Harm that waits for a request.

    Attributes:
        request: what the request contains. It must be short enough to come in one piece.
        reply_bytes: how much of the reply comes through; ``None`` if the request itself is lost.
        silently: whether the connection is left open, and nothing ever comes through it again.
        sprung: set when the harm was done.
    """

    request: bytes
    reply_bytes: int | None = None
    silently: bool = False
    sprung: Event = field(default_factory=Event)


@dataclass(eq=False)
class _Link:
    """The connection of a client, and its connection to the server."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    origin: str
    silent: bool = False
    trap: Trap | None = None
    passed: int = 0
    replaced: Replaced = field(default_factory=Replaced)

    def is_from(self, origins: Collection[str] | None) -> bool:
        """Whether the client has one of these addresses; ``None`` stands for all."""
        return origins is None or self.origin in origins

    def spring(self, trap: Trap) -> None:
        self.trap = None
        if trap.silently:
            self.silent = True
        else:
            self.client.close()
            self.server.close()
        trap.sprung.set()


class Proxy:
    """Passes bytes on between clients and *port* on this machine, from a thread of its own.

    Harm is done to all connections, or to those *of* clients that have some addresses.

    Attributes:
        use: for those who share the proxy, so that only one of them does harm at a time.
    """

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._loop = asyncio.new_event_loop()
        self._links: set[_Link] = set()
        self._silent: Collection[str] | None = ()
        self._delayed: Collection[str] | None = None
        self._delay = 0.0
        self._trap: Trap | None = None
        self._refuses: str | None = None
        self._refused: Collection[str] | None = None
        self._served: Collection[bytes] = ()
        self._server = self._loop.run_until_complete(asyncio.start_server(self._serve, HOST, 0))
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.use = Lock()
        self._thread = Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def url(self, scheme: str = "redisdelay") -> str:
        return f"{scheme}://{HOST}:{self.port}/0"

    def go_silent(self, of: Collection[str] | None = None) -> None:
        """Make connections half-open, also later ones: data that is sent is swallowed."""
        self._do(lambda: self._silence(of))

    def pass_on(self) -> None:
        """Make connections work that are opened from now on. Those that went silent stay silent."""
        self._do(lambda: setattr(self, "_silent", ()))

    def delay(self, seconds: float, of: Collection[str] | None = None) -> None:
        """Delay everything by *seconds*, in both directions."""

        def delay() -> None:
            self._delay, self._delayed = seconds, of

        self._do(delay)

    def reset(self, of: Collection[str] | None = None) -> None:
        """Reset connections, even if data is on its way."""
        self._do(lambda: self._reset(of))

    def refuse(
        self, said: str, of: Collection[str] | None = None, *, but: Collection[bytes] = STILL_SERVED
    ) -> None:
        """Reply to each command with the error *said*, in place of the server. What the server was asked for
        before is done.

        Arguments:
            but: names of commands that are not refused: what a connection begins with.
        """

        def refuse() -> None:
            self._refuses, self._refused, self._served = said, of, but

        self._do(refuse)

    def serve(self) -> None:
        """Refuse nothing any more."""
        self._do(lambda: setattr(self, "_refuses", None))

    def lead_to(self, port: int) -> None:
        """Lead the connections that are opened from now on to another server."""
        self._do(lambda: setattr(self, "_upstream", port))

    def set_trap(self, trap: Trap) -> Trap:
        """Do the harm of *trap* to the next request that matches it, on any connection."""
        self._do(lambda: setattr(self, "_trap", trap))
        return trap

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._do(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._end())
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        self._reset(None)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _do(self, action: Callable[[], object]) -> None:
        """Run *action* in the thread, and wait until it is done."""
        done = Event()

        def act() -> None:
            action()
            done.set()

        self._loop.call_soon_threadsafe(act)
        if not done.wait(10):
            raise TimeoutError("the proxy does not answer")

    def _silence(self, of: Collection[str] | None) -> None:
        self._silent = of
        for link in self._links:
            link.silent = link.silent or link.is_from(of)

    def _reset(self, of: Collection[str] | None) -> None:
        for link in self._links:
            if not link.is_from(of):
                continue
            for writer in (link.client, link.server):
                # The socket is gone already if the other end was faster.
                with suppress(OSError):
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_connection(HOST, self._upstream)
        except OSError:
            # Redis is down.
            writer.close()
            return
        # A client that has gone again has no address.
        origin, *_ = writer.get_extra_info("peername") or ("",)
        link = _Link(writer, server_writer, origin)
        link.silent = link.is_from(self._silent)
        self._links.add(link)
        # At the end, asyncio before Python 3.12 complains of a connection whose task was cancelled.
        with suppress(asyncio.CancelledError):
            await asyncio.gather(
                self._pass_on(reader, link, server_writer, self._request),
                self._pass_on(server_reader, link, writer, self._reply),
            )
        self._links.discard(link)

    async def _pass_on(
        self,
        reader: asyncio.StreamReader,
        link: _Link,
        writer: asyncio.StreamWriter,
        look_at: Callable[[_Link, bytes], bytes],
    ) -> None:
        line: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def arrive() -> None:
            """Write what has been on the way for long enough."""
            while True:
                at, data = await line.get()
                if at > self._loop.time():
                    await asyncio.sleep(at - self._loop.time())
                if not data:
                    return
                if not link.silent:
                    writer.write(look_at(link, data))
                    await writer.drain()

        async def depart() -> None:
            data = b"to begin with"
            while data:
                try:
                    data = await reader.read(65536)
                except OSError:
                    data = b""
                delay = self._delay if link.is_from(self._delayed) else 0
                line.put_nowait((self._loop.time() + delay, data))

        with suppress(OSError):
            await asyncio.gather(depart(), arrive())
        # Neither end of a connection that went silent hears that the other one was closed.
        if not link.silent:
            writer.close()

    def _request(self, link: _Link, data: bytes) -> bytes:
        if self._refuses is not None and link.is_from(self._refused):
            return link.replaced.requests(data, self._refuses, self._served)
        data = link.replaced.rest() + data
        trap = self._trap
        if trap is None or trap.request not in data:
            return data
        self._trap = None
        if trap.reply_bytes is None:
            link.spring(trap)
            return b""
        link.trap, link.passed = trap, 0
        return data

    def _reply(self, link: _Link, data: bytes) -> bytes:
        data = link.replaced.replies(data)
        trap = link.trap
        if trap is None or trap.reply_bytes is None:
            return data
        data = data[: trap.reply_bytes - link.passed]
        link.passed += len(data)
        if link.passed < trap.reply_bytes:
            return data
        # Data that is written now is still sent, whether the connection is closed or goes silent.
        link.client.write(data)
        link.spring(trap)
        return b""
