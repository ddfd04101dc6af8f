"""``celery delayed forward``"""

from __future__ import annotations

import signal
from time import monotonic

import click

from kombu_redisdelay.broker import waits
from kombu_redisdelay.cli.broker import connect_when_served, queue_names
from kombu_redisdelay.cli.echo import echo
from kombu_redisdelay.cli.options import json_option, queues_option
from kombu_redisdelay.cli.output import show_json
from kombu_redisdelay.cli.serving import serve_health
from kombu_redisdelay.operations.access import Access
from kombu_redisdelay.operations.forwarder import Forwarded, Forwarder
from kombu_redisdelay.words import number_of, span

#: Seconds without a successful round after which the health check fails. While Redis answers, a round takes
#: about a second.
UNHEALTHY_AFTER = 10.0


@click.command("forward")
@queues_option
@click.option("--health-port", type=click.IntRange(0, 65535), help="Serve a health check at /healthz here.")
@click.option("--health-address", default="127.0.0.1", show_default=True, help="Where to listen for it.")
@json_option
def command(queues: tuple[str, ...], health_port: int | None, health_address: str, as_json: bool) -> None:
    """Move due messages to their queues while no worker is there. Runs until it is told to stop.

    Use it if an autoscaler may scale the workers to zero: an autoscaler watches the length of the queues, and
    would never see a scheduled task. Any number of forwarders may run, also beside workers. Workers need no
    forwarder.

    With --health-port, GET /healthz answers 200 while this works, and 503 while Redis is away or refuses.
    """
    access = connect_when_served(Access)

    def tell(forwarded: Forwarded) -> None:
        if as_json:
            show_json([forwarded])
        else:
            late = span(forwarded.lateness)
            echo(f"{forwarded.queue}: moved {number_of(forwarded.messages)}, due {late} ago")

    def problem() -> str | None:
        for wait in waits.current().values():
            return f"For {span(monotonic() - wait.since)}, Redis has refused {wait.said}"
        seconds = forwarder.failing_for
        if seconds < UNHEALTHY_AFTER:
            return None
        return f"No round has succeeded for {span(seconds)}. The log says why."

    forwarder = Forwarder(access.store, lambda: queue_names(access, queues), tell)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: forwarder.stop())
    # Standard output is for what is forwarded, if a program reads it.
    which = f"queue {', '.join(dict.fromkeys(queues))}" if queues else "all queues"
    echo(f"Forwarding what is due in {which} of {access.address}", err=as_json)
    if health_port is not None:
        url = serve_health(health_address, health_port, problem)
        echo(f"Serving a health check on {url}", err=as_json)
    forwarder.run()
