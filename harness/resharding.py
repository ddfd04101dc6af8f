"""Slots of a cluster on their way from one node to another, in the steps that redis-cli takes as well."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from harness.cluster_node import Node
from harness.redis_server import HOST

#: Keys that one command moves. Source and target do nothing else meanwhile.
_KEYS_AT_ONCE = 100

#: How long the source waits for the target, in ms.
_MIGRATE_TIMEOUT = 10_000


class Move:
    """Slots that go from *source* to *target*.

    Attributes:
        slots: the slots.
        source: the primary that serves them until the end.
        target: the primary that is asked (ASKING) for what the source no longer has.
        others: the other primaries, which are told at the end.
    """

    def __init__(self, slots: Sequence[int], source: Node, target: Node, others: Sequence[Node]) -> None:
        self.slots = slots
        self.source = source
        self.target = target
        self.others = others

    def begin(self) -> None:
        """Tell both nodes, the target first, so that it expects whom the source sends. Nothing is moved."""
        # This is news only after a failover of the source.
        self._set_slots(self.target, "NODE", self.source)
        self._set_slots(self.target, "IMPORTING", self.source)
        self._set_slots(self.source, "MIGRATING", self.target)

    def move_keys(self, count: int | None = None) -> int:
        """Move *count* keys, or all that are left if it is None. Returns how many were moved."""
        moved, limit = 0, sys.maxsize if count is None else count
        for slot in self._filled():
            while keys := self._keys(slot, min(_KEYS_AT_ONCE, limit - moved)):
                self.move(*keys)
                moved += len(keys)
        return moved

    def move(self, *keys: str | bytes) -> None:
        """Move these keys. Those that do not exist are passed over."""
        password = self.target.password
        auth = () if password is None else ("AUTH", password)
        self.source.call(*("MIGRATE", HOST, self.target.port, "", 0, _MIGRATE_TIMEOUT, *auth, "KEYS", *keys))

    def finish(self) -> None:
        """Move what is left, and make the target the owner."""
        self.move_keys()
        # The target first: if it were told last, nobody would own the slots in between.
        for node in (self.target, self.source, *self.others):
            if node.live:
                self._set_slots(node, "NODE", self.target)

    def _filled(self) -> list[int]:
        """The slots that have keys at the source."""
        counts = self.source.call_all([("CLUSTER", "COUNTKEYSINSLOT", slot) for slot in self.slots])
        return [slot for slot, count in zip(self.slots, counts, strict=True) if count]

    def _keys(self, slot: int, count: int) -> list[bytes]:
        """At most so many keys that are still at the source."""
        keys: list[bytes] = self.source.call("CLUSTER", "GETKEYSINSLOT", slot, count)
        return keys

    def _set_slots(self, node: Node, state: str, other: Node) -> None:
        node.call_all([("CLUSTER", "SETSLOT", slot, state, other.id) for slot in self.slots])
