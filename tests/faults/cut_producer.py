"""Publishes ten messages a second through Celery, until it is killed, and notes each in a file.

``cut_producer.py URL OPTIONS FILE QUEUE...``: a line of the file has the id of the message, when that was
begun, how long it took, and its error.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import count, cycle

from celery import Celery

INTERVAL = 0.1


def main(url: str, options: str, path: str, *queues: str) -> None:
    app = Celery(broker=url)
    app.conf.broker_transport_options = json.loads(options)
    with open(path, "w", buffering=1, encoding="utf-8") as notes:
        for number, queue in zip(count(), cycle(queues)):
            began = time.time()
            error = ""
            try:
                app.send_task("task", [number], queue=queue, task_id=f"{path}-{number}")
            except Exception as exc:
                error = repr(exc)
            took = time.time() - began
            notes.write(json.dumps([f"{path}-{number}", began, took, error]) + "\n")
            time.sleep(max(0.0, INTERVAL - took))


if __name__ == "__main__":
    main(*sys.argv[1:])
