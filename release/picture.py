"""Draws the terminal of the README: real commands, with a real server and a real worker.

    python -m release.picture docs/_static/terminal.svg
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.text import Text

from harness.celery_worker import CeleryWorker
from harness.process import wait_until
from harness.redis_server import RedisServer

WIDTH = 96

SHOP = """
import time
from celery import Celery

app = Celery("shop")

@app.task
def send(customer):
    time.sleep(60)

@app.task
def close_order(number):
    pass

@app.task
def remind(customer):
    pass
"""

#: What waits, and what runs.
FILL = """
from kombu_redisdelay import batch
from shop import app, close_order, remind, send

with batch(app):
    for number in range(1840):
        remind.apply_async([f"customer {number}"], countdown=60 + number % 900 * 30)
    for number, minutes in ((4711, 4), (4712, 9), (4715, 17)):
        close_order.apply_async([number], task_id=f"close-order-{number}", countdown=60 * minutes, queue="orders")
    for number in range(260):
        send.apply_async([f"customer {number}"], queue="emails")
"""

COMMANDS = (
    "celery -A shop delayed stats",
    "celery -A shop delayed list -Q orders",
    "celery -A shop delayed cancel close-order-4712",
    "celery -A shop delayed limit -Q emails --rate 100/m --concurrency 20",
    "celery -A shop delayed stats -Q emails",
)


def main(target: Path) -> None:
    with RedisServer() as server, TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "shop.py").write_text(SHOP)
        environment = {
            **os.environ,
            "CELERY_BROKER_URL": server.url(),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(directory), os.environ.get("PYTHONPATH")))),
            "FORCE_COLOR": "1",
            "COLUMNS": str(WIDTH),
        }
        worker = CeleryWorker(
            "shop",
            pool="threads",
            concurrency=4,
            queues=["celery", "orders", "emails"],
            env=environment,
            cwd=directory,
        )
        with worker:
            subprocess.run([sys.executable, "-c", FILL], env=environment, cwd=directory, check=True)
            wait_until(lambda: worker.log().count("shop.send") >= 4, 20, "that the worker has work")
            screen = Console(record=True, width=WIDTH, file=open(os.devnull, "w"), force_terminal=True)
            for command in COMMANDS:
                screen.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
                screen.print(Text.from_ansi(output(command, environment, directory).rstrip("\n")))
                screen.print()
    drawing = screen.export_svg(title="celery delayed")
    # The fonts would come from another host; a browser has some of its own.
    target.write_text(re.sub(r"@font-face \{.*?\}\s*", "", drawing, flags=re.DOTALL), "utf-8")


def output(command: str, environment: dict[str, str], directory: Path) -> str:
    words = [sys.executable, "-m", *command.split()]
    return subprocess.run(
        words, env=environment, cwd=directory, check=True, capture_output=True, text=True
    ).stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]))
