"""Whether tasks are kept that fail again after a requeue."""

from __future__ import annotations

from kombu_redisdelay.operations.access import Access
from kombu_redisdelay.operations.selection import Selection
from kombu_redisdelay.operations.states import FAILED

#: What is said if they are not.
LOST_AGAIN = (
    "By keep_failed of this app, its workers keep no failed tasks: a task that fails again is lost, with its "
    "message."
)


def loses_what_fails_again(access: Access, selection: Selection) -> bool:
    """Whether *selection* may have failed tasks, and the options of the app say that none are kept. Workers
    of another app may have other options."""
    return access.options.kept_failed is None and FAILED in (selection.state or (FAILED,))
