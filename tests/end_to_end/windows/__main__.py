"""What a user does there: publishes, and calls each command. Prints what has failed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from urllib.request import urlopen

from celery.bin.base import CLIContext
from click.testing import CliRunner

from kombu_redisdelay.cli import delayed
from tests.end_to_end.app import app
from tools.harness.redis_server import free_port

QUEUE = "celery"
#: The commands that end, those that need a terminal left out.
COMMANDS = (
    "list",
    "show later",
    "count --by task",
    "stats",
    "timeline",
    "history",
    "memory",
    "keys -Q celery",
    "doctor",
    "mend",
    "adopt",
    "pause -Q celery",
    "resume -Q celery",
    "limit -Q celery --concurrency 3",
    "reschedule later --countdown 60 --yes",
    "deliver-now later --yes",
    "revoke --all --yes",
    "cancel --state ready --all --yes",
    "requeue --state dead --all --yes",
    "remove --state dead --all --yes",
    "adopt --reverse --yes",
)


def run(words: str, until: Callable[[], object] | None = None) -> None:
    """Run a command. One that does not end is interrupted as soon as a condition holds."""
    if until is not None:
        Thread(target=_interrupt, args=(until,), daemon=True).start()
    context = CLIContext(app, False, None)
    # As Windows prints to a file.
    done = CliRunner(charset="cp1252").invoke(delayed, words.split(), obj=context, prog_name="celery delayed")
    # 1: doctor has remarks.
    if done.exit_code not in (0, words == "doctor") or "Traceback" in done.output:
        print(f"{words}: {done.exit_code} {done.output[-300:]} {done.exception!r}")


def _interrupt(until: Callable[[], object]) -> None:
    while not until():
        time.sleep(0.05)
    signal.raise_signal(signal.SIGINT)


def _answers(port: int, path: str) -> bool:
    with suppress(OSError):
        return bool(urlopen(f"http://127.0.0.1:{port}/{path}", timeout=5).status == 200)
    return False


def _forwarded() -> bool:
    with app.connection_for_read() as connection:
        return bool(connection.channel().client.llen(QUEUE))


assert not hasattr(os, "register_at_fork"), "this is no Windows"
app.send_task("work", ["scheduled"], task_id="later", countdown=600)
for each in COMMANDS:
    run(each)
app.send_task("work", ["forwarded"], countdown=0.1)
run("forward", _forwarded)
for command, path in (("exporter", "metrics"), ("web", "healthz")):
    port = free_port()
    run(f"{command} --port {port}", lambda port=port, path=path: _answers(port, path))  # type: ignore[misc]
