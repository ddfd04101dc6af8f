"""Replies of a server that are replaced on their way to the client."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Collection

#: What a server in trouble still does: what a connection begins with, and what is no work.
STILL_SERVED = frozenset(
    b"AUTH CLIENT CLUSTER COMMAND HELLO INFO PSUBSCRIBE PUNSUBSCRIBE QUIT READONLY ROLE SELECT SUBSCRIBE "
    b"UNSUBSCRIBE".split()
)


class Replaced:
    """The requests and replies of one connection.

    A command that is to be refused never reaches the server. In its place the server is asked to echo a mark,
    and the mark in what it says is replaced: so all replies keep their order.
    """

    def __init__(self) -> None:
        self._mark = os.urandom(16).hex().encode()
        self._echoed = b"$%d\r\n%s\r\n" % (len(self._mark), self._mark)
        self._asks = b"*2\r\n$4\r\nECHO\r\n" + self._echoed
        #: What stands for the marks that are on their way.
        self._replies: deque[bytes] = deque()
        self._begun = b""
        self._held_back = b""

    def requests(self, data: bytes, said: str, served: Collection[bytes]) -> bytes:
        """What the server is sent in place of *data*.

        Arguments:
            said: the error, such as "LOADING Redis is loading".
            served: the names of commands that it is sent as they are.
        """
        if not self._begun and not data.startswith(b"*"):
            # The rest of a command that was begun before.
            return data
        self._begun += data
        sent = []
        while (end := _end_of_command(self._begun)) is not None:
            command, self._begun = self._begun[:end], self._begun[end:]
            if _name(command) in served:
                sent.append(command)
            else:
                self._replies.append(f"-{said}\r\n".encode())
                sent.append(self._asks)
        return b"".join(sent)

    def rest(self) -> bytes:
        """What was begun and is no whole command yet."""
        begun, self._begun = self._begun, b""
        return begun

    def replies(self, data: bytes) -> bytes:
        """What the client is sent in place of *data*."""
        if not self._replies and not self._held_back:
            return data
        data, self._held_back = self._held_back + data, b""
        told = []
        while self._replies and (found := data.find(self._echoed)) >= 0:
            told += [data[:found], self._replies.popleft()]
            data = data[found + len(self._echoed) :]
        if self._replies:
            # A mark may come in two pieces.
            length = next(n for n in range(len(self._echoed), -1, -1) if data.endswith(self._echoed[:n]))
            data, self._held_back = data[: len(data) - length], data[len(data) - length :]
        return b"".join([*told, data])


def _end_of_command(data: bytes) -> int | None:
    """Where the first command ends; ``None`` if it is not there as a whole."""
    end = data.find(b"\r\n") + 2
    if end < 2:
        return None
    for _ in range(int(data[1 : end - 2])):
        length_ends = data.find(b"\r\n", end)
        if length_ends < 0:
            return None
        end = length_ends + 2 + int(data[end + 1 : length_ends]) + 2
    return end if end <= len(data) else None


def _name(command: bytes) -> bytes:
    return command.split(b"\r\n", 3)[2].upper()
