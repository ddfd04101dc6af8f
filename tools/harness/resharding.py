"""Slots of a cluster on their way from one node to another, in the steps that redis-cli takes as well.

First the target is told that it imports the slot, and the source that it migrates it. Then MIGRATE takes the
keys over, some at a time. At last SETSLOT NODE makes the target the owner. In between, a key is at the source
until it is moved; what is not at the source is looked for at the target, and new keys are made there. This
is what clients get meanwhile. It was tried with Redis 6.2, 7.0 and 8.2 and with Valkey 8.1 and 9.1, which
all do the same but where it is said; tests/harness/test_moving_slot.py holds it.

- The source replies ASK if it has none of a command's keys. If it has some of them, it replies TRYAGAIN, and
  ASK on Redis 6.2. If it has all, it does the command. A script is a command with the keys that it declares.
- The target replies MOVED, unless ASKING came first. After ASKING, it replies TRYAGAIN to a command with two
  or more different keys if it lacks one of them, and does all others: a key of one is taken for a new key.
  It does so from IMPORTING on. If the source has that key as well, MIGRATE ends with BUSYKEY later.
- So a script that declares, beside other keys, one of the slot that never exists is done by neither of them,
  however many keys are moved. Such a key alone does not suffice: the target does commands with one key. Both
  look at the keys before they look for the script, so NOSCRIPT comes after the move at the earliest. In
  MULTI, EVALSHA gets that error, and on Valkey 9.1 EXEC does.
- A script that is done may touch keys of its slot that it has not declared. But at the source, a key that is
  not there is an error within the script ("non local key"), whether it was declared or not, even if the
  script has just removed it. What was done before that is not undone.
- Who waits in BLPOP at the source keeps waiting there while others push at the target. It gets MOVED at the
  end. BLPOP is a command like others for those that come later: with several keys, it may get TRYAGAIN.

The key that never exists does not help where a node knows nothing of the move, or no longer:

- If the source fails on Redis, the replica that takes over does as if it had all of the slot. For the target,
  the slot remains that of the dead node until SETSLOT NODE says otherwise, so that it replies CLUSTERDOWN to
  everything. Valkey tells replicas of the move: the one that takes over goes on with it.
- If the move is broken off (SETSLOT STABLE) with some keys moved, those are out of reach at the target.

A slot that is moved back at once can end up with nobody: each of the two takes the other one for its owner,
because news of the first move arrive after the second. Therefore `Cluster` waits until all nodes agree on the
epochs too. A move by CLUSTER MIGRATESLOTS (from Valkey 9.0 on) has none of this: all is done at the source
until it is MOVED.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence

from tools.harness.cluster_node import Node
from tools.harness.cluster_view import SLOTS
from tools.harness.redis_server import HOST

#: Keys that one command moves. Source and target do nothing else meanwhile.
_KEYS_AT_ONCE = 100

#: How long the source waits for the target, in ms.
_MIGRATE_TIMEOUT = 10_000


#: So many slots are moved together. The keys of each of them are meanwhile in two places.
_SLOTS_AT_ONCE = 256


class Move:
    """Slots that go from *source* to *target*.

    To go on after one of them was replaced, assign the replica that took over, and `begin` again.

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
        owner = self.target.known()[self.source.id]
        # After a failover of the source it may be news to the target whose slots they are.
        self._set_slots(self.target, "NODE", self.source, [s for s in self.slots if not owner.serves(s)])
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

    def _set_slots(self, node: Node, state: str, other: Node, slots: Sequence[int] | None = None) -> None:
        slots = self.slots if slots is None else slots
        node.call_all([("CLUSTER", "SETSLOT", slot, state, other.id) for slot in slots])


def evened(slots: Mapping[Node, Sequence[int]]) -> Iterator[tuple[list[int], Node, Node]]:
    """What to move from where to where, so that each of these primaries has as many *slots*, or one more."""
    least, most = SLOTS // len(slots), -(-SLOTS // len(slots))
    surplus = {node: list(owned[most:]) for node, owned in slots.items()}
    for target, owned in slots.items():
        lack = least - len(owned)
        for source, left in surplus.items():
            while lack > 0 and left:
                batch = left[: min(lack, _SLOTS_AT_ONCE)]
                del left[: len(batch)]
                lack -= len(batch)
                yield batch, source, target
