"""Whether a server has answered is asked of the socket, however busy this process is."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from typing import Any

import pytest
from redis.exceptions import TimeoutError

from kombu_redisdelay.broker.server import connections
from kombu_redisdelay.broker.server.connections import PlainConnection
from tools.harness.redis_server import HOST, RedisServer

#: A greenlet gets its turn from the sockets, and keeps the process until the reply is there and the time is
#: over. eventlet then looks at its timers before it looks at the sockets again.
BUSY = """
import select, sys, time
really_select, block = select.select, time.sleep
import {library}
{patch}
import socket
from kombu_redisdelay.broker.server.connections import PlainConnection

host, port = sys.argv[1], int(sys.argv[2])
connection = PlainConnection(host=host, port=port, socket_timeout=0.3)
connection.connect()
mine, others = socket.socketpair()

def occupy():
    others.recv(1)
    block(0.5)
    assert really_select([connection._sock.fileno()], [], [], 30)[0], "no reply"

{library}.spawn(occupy)
{library}.sleep(0)
mine.send(b"1")
# The reply comes when the greenlet has begun.
connection.send_command("BLPOP", "nothing", "0.1")
assert connection.read_response() is None
assert connection._sock is not None
connection.send_command("PING")
assert connection.read_response() == b"PONG"
"""


@pytest.mark.parametrize(
    ("library", "patch"),
    [
        ("eventlet", "eventlet.monkey_patch()"),
        # It looks at the sockets first.
        pytest.param("gevent", "from gevent import monkey; monkey.patch_all()", marks=pytest.mark.thorough),
    ],
)
def test_a_reply_that_has_come_is_read_after_the_time(
    shared_server: RedisServer, library: str, patch: str
) -> None:
    script = BUSY.format(library=library, patch=patch)
    command = [sys.executable, "-c", script, HOST, str(shared_server.port)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("closes", [True, False])
def test_a_server_that_is_silent(closes: bool) -> None:
    with socket.create_server((HOST, 0)) as silent:
        connection: Any = PlainConnection(host=HOST, port=silent.getsockname()[1], socket_timeout=0.1)
        connection._sock = socket.create_connection(silent.getsockname())
        connection._sock.settimeout(0.1)
        connection._parser.on_connect(connection)
        with pytest.raises(TimeoutError, match="no reply from"):
            connection.read_response(disconnect_on_error=closes)
        assert (connection._sock is None) == closes
        connection.disconnect()


class TestAtTheEndOfTheProgram:
    """A server that is silent is waited for once, not for each of the last acks and give backs."""

    @pytest.fixture(autouse=True)
    def end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(connections, "_end", connections._End())

    def test_all_connections_hurry(self, shared_server: RedisServer) -> None:
        first, second = (PlainConnection(host=HOST, port=shared_server.port, socket_timeout=5) for _ in "12")
        second.connect()
        self.ask_in_vain(first)
        assert second.socket_timeout == 5, "the program goes on"
        connections.begin_end()
        assert second.socket_timeout == 5, "no server is silent"
        self.ask_in_vain(first)
        later = PlainConnection(host=HOST, port=shared_server.port, socket_timeout=5)
        later.connect()
        for each in (second, later):
            assert each._sock is not None
            assert each._sock.gettimeout() == each.socket_timeout == connections.LAST_PATIENCE
            each.send_command("PING")
            assert each.read_response() == b"PONG"
            each.disconnect()

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    def test_a_child_does_not_wait_for_a_thread_of_its_parent(self, shared_server: RedisServer) -> None:
        with connections._end._lock:
            if not (child := os.fork()):
                # It ends the child: the handler of pytest-timeout would go on with the tests there.
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(10)
                PlainConnection(host=HOST, port=shared_server.port).connect()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0

    def ask_in_vain(self, connection: Any) -> None:
        connection.connect()
        connection._sock.settimeout(0.05)
        connection.send_command("BLPOP", "nothing", "0")
        with pytest.raises(TimeoutError):
            connection.read_response()
