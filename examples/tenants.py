"""Many tenants on one queue: one uploads thousands of rows, and the others send a task now and then.

Start a Redis on localhost, and then ``python tenants.py``, which starts a worker itself. It takes half a
minute, and prints how long the tasks of the quiet tenants wait: on a plain queue, and then on a fair one.
``python tenants.py 500`` uploads 500 rows.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from celery import Celery

from kombu_redisdelay import Queues, batch, keys

REDIS = "redisdelay://localhost:6379/0"

app = Celery("tenants", broker=REDIS, backend=REDIS)
# What a worker has fetched for later is out of turns, so it fetches nothing for later.
app.conf.update(task_acks_late=True, worker_prefetch_multiplier=1)

PLAIN, FAIR = "tenants-plain", "tenants-fair"

#: How many rows are uploaded, unless the command says it, and how many seconds each takes.
ROWS, ROW_TAKES = 2000, 0.02
#: How many quiet tenants there are. Each sends one task, so many seconds after the one before.
QUIET, PAUSE = 20, 0.1
#: How many tasks run at a time.
CONCURRENCY = 4


def tenant(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    return kwargs.get("tenant")


keys(app, tenant)


@app.task(ignore_result=True)
def import_row(number: int, *, tenant: str) -> None:
    time.sleep(ROW_TAKES)


@app.task
def reset_password(sent_at: float, *, tenant: str) -> float:
    """How many seconds it has waited."""
    return time.time() - sent_at


def waits_on(queue: str, rows: int) -> list[float]:
    """How many seconds each task of a quiet tenant has waited, behind an upload of *rows* rows."""
    with batch(app):
        for number in range(rows):
            import_row.apply_async([number], {"tenant": "noisy"}, queue=queue)
    results = []
    for number in range(QUIET):
        results.append(reset_password.apply_async([time.time()], {"tenant": f"quiet-{number}"}, queue=queue))
        time.sleep(PAUSE)
    waits = [result.get(timeout=600) for result in results]
    with app.connection_for_write() as connection:
        # On the fair queue, rows are left: nobody had to wait for them.
        connection.default_channel.queue_purge(queue)
    return waits


@contextmanager
def worker() -> Iterator[None]:
    command = f"-m celery -q -A tenants worker --pool threads -c {CONCURRENCY} -Q {PLAIN},{FAIR}"
    process = subprocess.Popen([sys.executable, *command.split()], cwd=Path(__file__).parent)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def compare(rows: int) -> dict[str, list[float]]:
    """How long the quiet tenants wait on each of the two queues."""
    with Queues(app) as queues:
        queues.make_fair(FAIR)
    with worker():
        return {"plain": waits_on(PLAIN, rows), "fair": waits_on(FAIR, rows)}


def show(rows: int, waits: Mapping[str, Sequence[float]]) -> None:
    print(f"\n{f'{QUIET} quiet tenants beside {rows:,} rows':<40}{'plain':>10}{'fair':>10}")
    for what, of in (("shortest wait", min), ("half of them wait less than", median), ("longest wait", max)):
        print(f"{what:<40}{of(waits['plain']):>8.2f} s{of(waits['fair']):>8.2f} s")


if __name__ == "__main__":
    number_of_rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    show(number_of_rows, compare(number_of_rows))
