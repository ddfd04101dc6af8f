"""Plans: what is sent to publish a plain message, but for the message, is made once for each ready list.

A plain message asks nothing of the broker but to be delivered, at once or at its time. A plan is made of
names of keys only, and they never change. What may change, as a bound or limits, is looked at for each
message, here or by the scripts.
"""

from __future__ import annotations

from dataclasses import dataclass

from kombu_redisdelay.broker.keys import RedisKeys
from kombu_redisdelay.broker.message import KEEP
from kombu_redisdelay.broker.publish_calls import PUSH, token
from kombu_redisdelay.broker.server.scripts import SCHEDULE
from kombu_redisdelay.broker.server.wire import pack, without_last

#: How many commands a push is.
COMMANDS_OF_PUSH = 3

#: The arguments of ``schedule.lua`` for a plain message, but for the last four.
_SCHEDULING = (0, KEEP, 1)


@dataclass(frozen=True, slots=True)
class Plan:
    """How to publish plain messages to one ready list.

    Attributes:
        keys: of ``schedule.lua``. The first two are those of a push.
        before, after: what is sent before and after a message that is pushed.
        before_scheduled: what is sent before the id of one that is scheduled.
    """

    step: int
    keys: tuple[str, ...]
    before: bytes
    after: bytes
    before_scheduled: bytes

    def pushing(self, text: str) -> bytes:
        """The commands that push a message, as they are sent."""
        data = text.encode()
        return b"%b$%d\r\n%b\r\n%b" % (self.before, len(data), data, self.after)

    def scheduling(self, text: str, at_ms: float, message_id: str) -> bytes:
        """The command that schedules a message for *at_ms*, ms since the epoch, as it is sent."""
        return self.before_scheduled + pack(*self._scheduled(text, at_ms, message_id))[len(b"*4\r\n") :]

    def arguments(self, text: str, at_ms: float, message_id: str) -> tuple[str | float, ...]:
        """The arguments of ``schedule.lua`` for the same."""
        return (*_SCHEDULING, *self._scheduled(text, at_ms, message_id))

    def _scheduled(self, text: str, at_ms: float, message_id: str) -> tuple[str | float, ...]:
        return message_id, at_ms, 0, f"{self.step}:{text}"


def plan(keys: RedisKeys, step: int) -> Plan:
    """The plan for the ready list of a priority *step*."""
    ready_key, wake_key = used = keys.ready_at(step), keys.wake
    scheduling = (ready_key, wake_key, keys.schedule, keys.messages, keys.duplicates)
    return Plan(
        step,
        scheduling,
        without_last(PUSH.command(used, ("",))),
        b"".join(pack(*command) for command in token(wake_key)),
        without_last(SCHEDULE.command(scheduling, (*_SCHEDULING, "", "", "", "")), 4),
    )
