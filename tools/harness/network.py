"""Hosts whose connections can be cut, as by pulling a cable: nothing is refused, and nothing comes through.

Each host is a network namespace of Linux, which takes root and ``ip`` of iproute2.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

from tools.harness.assembly import Assembly
from tools.harness.process import ChildProcess

#: A hardware address that nobody has.
_NOBODY = "02:00:00:00:00:99"


def are_allowed() -> bool:
    """Whether there can be namespaces here."""
    if shutil.which("ip") is None:
        return False
    name = f"rd{os.getpid()}try"
    try:
        _ip("netns", "add", name)
        _ip("netns", "del", name)
    except (subprocess.CalledProcessError, OSError):
        return False
    return True


class Network(Assembly):
    """Hosts that reach each other through a switch.

    Attributes:
        addresses: of the hosts, by name.
    """

    def __init__(self, hosts: Sequence[str]) -> None:
        super().__init__()
        self.addresses = {host: f"10.77.1.{number}" for number, host in enumerate(hosts, 10)}
        self._is_cut: set[tuple[str, str]] = set()

    def command(self, host: str, *command: str) -> list[str]:
        """What runs *command* at *host*."""
        return ["ip", "netns", "exec", self._name(host), *command]

    def cut_off(self, hosts: Collection[str]) -> None:
        """Let nothing through between *hosts* and the others, from now on."""
        others = self.addresses.keys() - set(hosts)
        self._is_cut |= {pair for one in hosts for two in others for pair in ((one, two), (two, one))}
        for at, to in self._is_cut:
            self._neighbour("replace", at, to, "lladdr", _NOBODY, "nud", "permanent")

    def heal(self) -> None:
        """Let everything through again."""
        for at, to in self._is_cut:
            self._neighbour("del", at, to)
        self._is_cut.clear()

    def _name(self, host: str) -> str:
        return f"rd{os.getpid()}{host}"

    def _neighbour(self, verb: str, at: str, to: str, *rest: str) -> None:
        _ip("-n", self._name(at), "neigh", verb, self.addresses[to], *rest, "dev", "eth0")

    def _add(self, host: str) -> str:
        name = self._name(host)
        _ip("netns", "add", name)
        self._exit.callback(_ip, "netns", "del", name)
        _ip("-n", name, "link", "set", "lo", "up")
        return name

    def _start(self) -> None:
        switch = self._add("switch")
        _ip("-n", switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", switch, "link", "set", "br0", "up")
        for host, address in self.addresses.items():
            name, port = self._add(host), f"to-{host}"
            _ip("-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", switch)
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", switch, "link", "set", port, "master", "br0", "up")


class AtHost(ChildProcess):
    """A command at a host of a network.

    Arguments:
        is_ready: tells whether it does its work, from its process.
    """

    def __init__(
        self,
        network: Network,
        host: str,
        command: Callable[[AtHost], Sequence[str]],
        is_ready: Callable[[AtHost], bool],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self._prefix = network.command(host)
        self._of = command
        self._is_ready = is_ready
        self._environment = {**os.environ, **(environment or {})}

    def command(self) -> Sequence[str]:
        return [*self._prefix, *self._of(self)]

    def is_ready(self) -> bool:
        with suppress(OSError):
            return self._is_ready(self)
        return False

    def environment(self) -> Mapping[str, str]:
        return self._environment


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
