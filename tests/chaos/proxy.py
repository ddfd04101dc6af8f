"""A TCP proxy in front of Redis, for harm to connections that no signal and no command can do."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from threading import Thread
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # In `typing` from Python 3.11 on.
    from typing_extensions import Self

HOST = "127.0.0.1"
#: Closing a socket with it sends a reset, and drops what was not sent yet.
_RESET = struct.pack("ii", 1, 0)


class Proxy:
    """Passes bytes on between clients and *port* on this machine, from a thread of its own."""

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._loop = asyncio.new_event_loop()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._delay = 0.0
        self._writers: set[asyncio.StreamWriter] = set()
        self._server = self._loop.run_until_complete(asyncio.start_server(self._serve, HOST, 0))
        self.port: int = self._server.sockets[0].getsockname()[1]
        self._thread = Thread(target=self._loop.run_forever, name="chaos-proxy", daemon=True)

    def reset(self) -> None:
        """Break all connections, whatever is on its way."""
        self._do(self._abort_all)

    def be_silent(self) -> None:
        """Pass nothing on, and close nothing, until `recover`."""
        self._do(self._flowing.clear)

    def strand(self) -> None:
        """Pass nothing on over the connections that there are, and do not close them: they are half-open.
        New ones work."""
        self._do(self._strand)

    def be_slow(self, seconds: float) -> None:
        """Pass everything on later, until `recover`."""
        self._do(lambda: self._set_delay(seconds))

    def recover(self) -> None:
        """Pass on what was held back, and everything else at once from now on."""
        self._do(lambda: self._set_delay(0))
        self._do(self._flowing.set)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._do(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, action: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(action)

    def _set_delay(self, seconds: float) -> None:
        self._delay = seconds

    def _strand(self) -> None:
        self._flowing.clear()
        self._flowing = asyncio.Event()
        self._flowing.set()

    def _abort_all(self) -> None:
        for writer in list(self._writers):
            # Gone already, if the other end was faster.
            with contextlib.suppress(OSError):
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()

    async def _end(self) -> None:
        self._server.close()
        self._abort_all()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            server_reader, server_writer = await asyncio.open_connection(HOST, self._upstream)
        except OSError:
            # Redis is down.
            self._close(writer)
            return
        self._writers.add(server_writer)
        flowing = self._flowing
        try:
            await asyncio.gather(
                self._pass_on(reader, server_writer, flowing), self._pass_on(server_reader, writer, flowing)
            )
        finally:
            self._close(writer)
            self._close(server_writer)

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flowing: asyncio.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await flowing.wait()
                if self._delay:
                    await asyncio.sleep(self._delay)
                writer.write(data)
                await writer.drain()
        writer.close()

    def _close(self, writer: asyncio.StreamWriter) -> None:
        self._writers.discard(writer)
        writer.close()
