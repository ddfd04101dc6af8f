"""Which of several servers answer, asked all at once: one that is silent is not waited for."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from errno import EINPROGRESS, EWOULDBLOCK
from selectors import EVENT_READ, EVENT_WRITE, DefaultSelector, SelectorKey
from time import monotonic
from typing import TypeVar

#: Seconds that the others have after the first one has answered.
GRACE = 0.05

#: In plain text, which needs no login. Any reply counts as an answer, also a refusal.
_PING = b"PING\r\n"

#: Host and port.
Address = TypeVar("Address", bound=tuple[str, int])


def answering(addresses: Sequence[Address], within: float, *, over_tls: bool = False) -> list[Address]:
    """Those of *addresses* where a server answers now.

    What is limited is the time of the servers. In a process that others keep busy, as greenlets do, the time
    may have passed before this looks for the first time; so it looks once more after that.

    Arguments:
        within: seconds that a connection may take, and then the answer, until the first has come. The others
            have :data:`GRACE` after that.
        over_tls: whether TLS is spoken there. Then it counts as an answer that a connection was accepted.
    """
    found: dict[Address, None] = {}
    with ExitStack() as probes, DefaultSelector() as selector:
        for address in addresses:
            for probe in _connecting(address):
                selector.register(probes.enter_context(probe), EVENT_WRITE, address)
        # Only now: to look up the names takes time, in which others have their turn.
        until = monotonic() + within
        while selector.get_map() and len(found) < len(addresses):
            events = selector.select(max(0.0, until - monotonic()))
            if not events and monotonic() >= until:
                break
            for key, _ in events:
                if key.events == EVENT_WRITE and not over_tls and _asks(key):
                    selector.modify(key.fileobj, EVENT_READ, key.data)
                    until = until if found else monotonic() + within
                    continue
                if _has_answered(key, over_tls):
                    until = until if found else monotonic() + GRACE
                    found[key.data] = None
                selector.unregister(key.fileobj)
    return list(found)


def _connecting(address: tuple[str, int]) -> Iterator[socket.socket]:
    """Sockets that are about to be connected, one for each way to *address*."""
    with suppress(OSError):
        for family, kind, protocol, _, where in socket.getaddrinfo(*address, type=socket.SOCK_STREAM):
            probe = socket.socket(family, kind, protocol)
            probe.setblocking(False)
            # The last one is said by Windows.
            if probe.connect_ex(where) in (0, EINPROGRESS, EWOULDBLOCK):
                yield probe
            else:
                probe.close()


def _asks(key: SelectorKey) -> bool:
    """Whether what was connected could be asked."""
    with suppress(OSError):
        return _socket(key).send(_PING) == len(_PING)
    return False


def _has_answered(key: SelectorKey, over_tls: bool) -> bool:
    probe = _socket(key)
    if key.events == EVENT_WRITE:
        # What could not be asked was not connected.
        return over_tls and not probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    with suppress(OSError):
        return bool(probe.recv(1))
    return False


def _socket(key: SelectorKey) -> socket.socket:
    assert isinstance(key.fileobj, socket.socket)
    return key.fileobj
