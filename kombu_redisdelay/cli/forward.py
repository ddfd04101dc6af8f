"""``celery delayed forward``"""

from __future__ import annotations

import signal

import click

from kombu_redisdelay.cli.broker import connect, queue_names
from kombu_redisdelay.cli.echo import echo
from kombu_redisdelay.cli.options import json_option, queues_option
from kombu_redisdelay.cli.output import show_json, span
from kombu_redisdelay.operations.access import Access
from kombu_redisdelay.operations.forwarder import Forwarded, Forwarder


@click.command("forward")
@queues_option
@json_option
def command(queues: tuple[str, ...], as_json: bool) -> None:
    """Move due messages to their queues while no worker is there. Runs until it is told to stop.

    Use it if an autoscaler may scale the workers to zero: an autoscaler watches the length of the queues, and
    would never see a scheduled task. Any number of forwarders may run, also beside workers. Workers need no
    forwarder.
    """
    access = connect(Access)

    def tell(forwarded: Forwarded) -> None:
        if as_json:
            show_json([forwarded])
        else:
            late = span(forwarded.lateness)
            echo(f"{forwarded.queue}: moved {forwarded.messages} message(s), due {late} ago")

    forwarder = Forwarder(access.store, lambda: queue_names(access, queues), tell)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: forwarder.stop())
    forwarder.run()
