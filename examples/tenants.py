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
from typing import Any, NamedTuple

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


class Measured(NamedTuple):
    """What was measured on a queue.

    Attributes:
        waits: how many seconds each task of a quiet tenant has waited.
        rows_left: how many rows were not begun when the last of these tasks had run.
    """

    waits: Sequence[float]
    rows_left: int


def measure(queue: str, rows: int) -> Measured:
    """Upload *rows* rows, and then have each quiet tenant send a task."""
    with batch(app):
        for number in range(rows):
            import_row.apply_async([number], {"tenant": "noisy"}, queue=queue)
    results = []
    for number in range(QUIET):
        results.append(reset_password.apply_async([time.time()], {"tenant": f"quiet-{number}"}, queue=queue))
        time.sleep(PAUSE)
    waits = [result.get(timeout=600) for result in results]
    with app.connection_for_write() as connection:
        return Measured(waits, connection.default_channel.queue_purge(queue))


@contextmanager
def worker() -> Iterator[None]:
    command = f"-m celery -q -A tenants worker --pool threads -c {CONCURRENCY} -Q {PLAIN},{FAIR}"
    process = subprocess.Popen([sys.executable, *command.split()], cwd=Path(__file__).parent)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def compare(rows: int) -> tuple[Measured, Measured]:
    """Measure a plain queue, and then a fair one."""
    with Queues(app) as queues:
        queues.make_fair(FAIR)
    with worker():
        return measure(PLAIN, rows), measure(FAIR, rows)


def show(rows: int, plain: Measured, fair: Measured) -> None:
    print(f"\n{f'{QUIET} quiet tenants beside {rows:,} rows':<40}{'plain':>10}{'fair':>10}")
    for what, of in (("shortest wait", min), ("half of them wait less than", median), ("longest wait", max)):
        print(f"{what:<40}{of(plain.waits):>8.2f} s{of(fair.waits):>8.2f} s")
    print(f"{'rows that they did not wait for':<40}{plain.rows_left:>10,}{fair.rows_left:>10,}")


if __name__ == "__main__":
    number_of_rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    show(number_of_rows, *compare(number_of_rows))
