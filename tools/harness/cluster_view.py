"""What the nodes of a Redis Cluster say of one another, and what is wrong with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import redis
from redis.crc import key_slot

if TYPE_CHECKING:
    from tools.harness.cluster_node import Node

#: So many slots every cluster has.
SLOTS = 16384


@dataclass(frozen=True)
class Known:
    """What a node says of a node: a line of ``CLUSTER NODES``.

    Attributes:
        flags: such as "master", "myself", "fail?" (one node's suspicion), "fail" (a majority's verdict).
        primary: the id of the node that it replicates; ``None`` for a primary.
        epoch: of its slots, or of its primary's. Where two nodes claim a slot, the later epoch wins.
        linked: whether there is a connection to it.
        ranges: the slots that it serves.
    """

    flags: frozenset[str]
    primary: str | None
    epoch: int
    linked: bool
    ranges: tuple[range, ...]

    @property
    def sound(self) -> bool:
        return self.linked and self.flags.isdisjoint({"fail", "fail?", "handshake", "noaddr"})

    @property
    def slots(self) -> list[int]:
        return [slot for slots in self.ranges for slot in slots]

    def serves(self, slot: int) -> bool:
        return any(slot in slots for slots in self.ranges)


class View:
    """What these nodes say now.

    Attributes:
        selves: what each says of itself.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._said = {node: node.known() for node in nodes}
        self.selves = {node: known[node.id] for node, known in self._said.items()}

    def strangers(self) -> str | None:
        """Who has no connection to whom, in words; None if all have."""
        for viewer, known in self._said.items():
            for node in self._said:
                if node.id not in known:
                    return f"{viewer} does not know {node}"
                if not known[node.id].sound:
                    return f"{viewer} cannot reach {node}, which is {','.join(known[node.id].flags)}"
        return None

    def unserved(self, *, without: Node | None = None) -> str | None:
        """How many slots nobody claims but *without*, in words; None if there is none."""
        claimed = {slot for node, known in self.selves.items() if node is not without for slot in known.slots}
        return (
            f"{SLOTS - len(claimed)} slots are served by no node that is up" if len(claimed) < SLOTS else None
        )

    def unheard(self) -> str | None:
        """Who has not heard that a node is a primary now, or a replica; None if all have."""
        for viewer, known in self._said.items():
            for node, itself in self.selves.items():
                if (known[node.id].primary, known[node.id].epoch) != (itself.primary, itself.epoch):
                    return f"{viewer} has not heard what {node} has become"
        return None

    def contested(self) -> str | None:
        """Who does not agree to the slots that a node claims; None if all do."""
        for viewer, known in self._said.items():
            for node, itself in self.selves.items():
                if known[node.id].ranges != itself.ranges:
                    return f"{viewer} and {node} do not agree which slots {node} serves"
        return None


def trouble(nodes: Iterable[Node]) -> str | None:
    """What keeps the cluster of these nodes from working, in words; None if nothing does."""
    view = View(nodes)
    if said := view.strangers() or view.unserved() or view.unheard() or view.contested():
        return said
    for node, itself in view.selves.items():
        if (state := node.state()) != "ok":
            return f"for {node} the cluster's state is {state}"
        if itself.primary and node.info("replication")["master_link_status"] != "up":
            return f"{node} has no connection to its primary"
    return None


def wait_while(wrong: Callable[[], str | None], timeout: float) -> None:
    """Return as soon as nothing is *wrong*.

    Raises:
        TimeoutError: something is after *timeout* seconds. The error says what.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            found = wrong()
        except redis.RedisError as error:
            found = str(error)
        if found is None:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {timeout:g} s: {found}")
        time.sleep(0.02)


def slot_of(key: str | bytes) -> int:
    return key_slot(key.encode() if isinstance(key, str) else key)


def parsed(nodes: str) -> dict[str, Known]:
    """The reply to ``CLUSTER NODES``, by the nodes' ids."""
    return dict(map(_line, nodes.splitlines()))


def _line(line: str) -> tuple[str, Known]:
    id_, _, flags, primary, _, _, epoch, link, *slots = line.split()
    return id_, Known(
        flags=frozenset(flags.split(",")),
        primary=None if primary == "-" else primary,
        epoch=int(epoch),
        linked=link == "connected",
        # A slot that is being moved is told once more, in brackets.
        ranges=tuple(_range(slot) for slot in slots if not slot.startswith("[")),
    )


def _range(text: str) -> range:
    """The slots of "5" or "0-5460"."""
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)
