"""Says what a task is called with, as far as that may be seen."""

from __future__ import annotations

from kombu_redisdelay.operations.message import MessageInfo
from kombu_redisdelay.web.site import NO_ARGUMENTS, Site


def call_of(site: Site, message: MessageInfo) -> str:
    """A task with its arguments, as far as they may be seen."""
    if message.task is None:
        return "-"
    if site.arguments == NO_ARGUMENTS:
        return f"{message.task}(…)"
    if not (message.args or message.kwargs):
        # Clients in other languages do not write it.
        return f"{message.task}(?)"
    args = message.args[1:-1].rstrip(",")
    kwargs = f"**{message.kwargs}" if message.kwargs not in ("", "{}") else ""
    return f"{message.task}({', '.join(filter(None, (args, kwargs)))})"
