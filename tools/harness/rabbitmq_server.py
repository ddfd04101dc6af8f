"""A private RabbitMQ node, for comparison. A node that already runs on this machine is never touched."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import amqp

from tools.harness.process import ChildProcess
from tools.harness.redis_server import HOST, free_port

#: Debian's commands of the same name on the PATH change the user; these do not.
_COMMANDS = "/usr/lib/rabbitmq/bin"


def rabbitmq_server() -> str | None:
    """The path of the server's command; ``None`` if RabbitMQ is not installed here."""
    return shutil.which("rabbitmq-server", path=os.pathsep.join([_COMMANDS, *os.get_exec_path()]))


class _PortMapper(ChildProcess):
    """Erlang's port mapper. If RabbitMQ started it, it would be a daemon that nobody ends."""

    def __init__(self) -> None:
        super().__init__()
        self.port = free_port()

    def command(self) -> Sequence[str]:
        return ["epmd", "-address", HOST, "-port", str(self.port)]

    def is_ready(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((HOST, self.port)) == 0


class RabbitMQServer(ChildProcess):
    """A node with ports, a cookie, a database and a port mapper of its own."""

    def __init__(self) -> None:
        command = rabbitmq_server()
        if command is None:
            raise RuntimeError("no RabbitMQ server: install rabbitmq-server")
        super().__init__()
        self._command = command
        self._mapper = _PortMapper()
        self._exit = ExitStack()
        self.port = free_port()
        self._distribution_port = free_port()

    def command(self) -> Sequence[str]:
        return [self._command]

    def environment(self) -> Mapping[str, str]:
        home = self.directory
        return {
            **os.environ,
            # Where the cookie is.
            "HOME": str(home),
            "ERL_EPMD_PORT": str(self._mapper.port),
            "RABBITMQ_NODENAME": f"bench{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": HOST,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_MNESIA_BASE": str(home / "mnesia"),
            "RABBITMQ_LOG_BASE": str(home / "logs"),
            "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq"),
            "RABBITMQ_CONF_ENV_FILE": str(home / "rabbitmq-env.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "enabled_plugins"),
        }

    def working_directory(self) -> Path:
        return self.directory

    def is_ready(self) -> bool:
        return self.version() is not None

    def version(self) -> str | None:
        """The version that the server reports; ``None`` while it does not answer."""
        try:
            with amqp.Connection(f"{HOST}:{self.port}", connect_timeout=5) as connection:
                return str(connection.server_properties["version"])
        except OSError:
            return None

    def url(self) -> str:
        return f"pyamqp://guest:guest@{HOST}:{self.port}//"

    def start(self) -> None:
        self._exit.enter_context(self._mapper)
        super().start()

    def _clean_up(self) -> None:
        with self._exit:
            super()._clean_up()
