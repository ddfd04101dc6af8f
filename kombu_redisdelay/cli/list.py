"""``celery delayed list``"""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from kombu_redisdelay.cli.broker import connect
from kombu_redisdelay.cli.choosing import selected, selecting, states_of
from kombu_redisdelay.cli.echo import echo
from kombu_redisdelay.cli.first_rows import Limited, limit_option, rows_to_show
from kombu_redisdelay.cli.messages import message_table
from kombu_redisdelay.cli.options import arguments_option, json_option
from kombu_redisdelay.cli.output import fields_of, show_json, show_pages
from kombu_redisdelay.operations.message import SHORTENED, with_arguments
from kombu_redisdelay.operations.messages import Messages
from kombu_redisdelay.operations.states import STATES


@click.command("list")
@selecting(tuple(STATES))
@limit_option
@click.option(
    "--newest-first",
    is_flag=True,
    help="In each queue the last failed or finished tasks, or dead letters, first; or what is due last.",
)
@arguments_option(SHORTENED)
@json_option
def command(limit: int | None, newest_first: bool, arguments: str, as_json: bool, **options: Any) -> None:
    """List messages, one state after the other.

    Scheduled ones are in the order in which they are due, ready ones queue by queue in the order in which
    they are taken. SINCE is for how long a message has been in its state; ? if another transport has
    published it. POSITION is how many messages are taken before it. Times without an offset are in the app's
    timezone.
    """
    selection, rows = selected(options), rows_to_show(limit, as_json)
    states = states_of(selection)
    if newest_first and not all(state.is_reversible for state in states):
        *some, last = (state.name for state in STATES.values() if state.is_reversible)
        raise click.UsageError(f"--newest-first needs --state {', '.join(some)} or {last}.")
    messages = connect(Messages)
    # One more shows that there are more.
    found = Limited(
        messages.select(selection, limit=None if rows is None else rows + 1, newest_first=newest_first), rows
    )
    if as_json:
        is_any = show_json(fields_of(message, arguments) for message in found)
    else:
        shown = (with_arguments(message, arguments) for message in found)
        is_any = show_pages(shown, message_table(states))
    if not is_any:
        echo(f"No {states[0].described if len(states) == 1 else 'message'}s found.", err=True)
    is_counted = all(map(selection.is_counted, states))
    found.tell(partial(messages.count, selection) if is_counted else None)
