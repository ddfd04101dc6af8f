"""A Celery worker and a producer for it, with the peer's broker between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from celery import Celery

from tools.benchmarks.app import READY, new_app, variables
from tools.benchmarks.postbox import Postbox
from tools.benchmarks.site import Site, batch
from tools.harness.celery_worker import CeleryWorker

ROOT = Path(__file__).parents[2]

#: Seconds after which what did not happen is not awaited any more.
PATIENCE = 120.0


class _Worker(CeleryWorker):
    """Says that it is ready by a letter, because it logs warnings only, as by default."""

    def is_ready(self) -> bool:
        return True


class CelerySite:
    """Made by `open_site`."""

    def __init__(self, site: Site, postbox: Postbox) -> None:
        self.postbox = postbox
        self.app: Celery = new_app(site)
        self._site = site

    def send(self, *tasks: tuple[str, Sequence[object]], **options: object) -> None:
        """Publish tasks, given by name and arguments; together if the transport knows how to."""
        with self.app.producer_or_acquire() as producer, batch(producer):
            for name, args in tasks:
                self.app.send_task(name, args, producer=producer, **options)

    @contextmanager
    def worker(
        self,
        pool: str,
        # Celery's own default would be the number of cores.
        concurrency: int = 2,
        prefetch_multiplier: int | None = None,
        queues: Sequence[str] = (),
        **settings: Any,
    ) -> Iterator[CeleryWorker]:
        """A worker that is ready, with default settings but for *settings* of Celery; killed at the end. It
        consumes from *queues*, or from the queue of the measurement."""
        worker = _Worker(
            "tools.benchmarks.app",
            pool=pool,
            concurrency=concurrency,
            prefetch_multiplier=prefetch_multiplier,
            queues=queues,
            # Mingling is a second of waiting for other workers, at the start. What costs while the worker
            # works stays on.
            args=("--without-mingle", "-l", "WARNING"),
            env=variables(self._site, str(self.postbox.path), settings),
            cwd=ROOT,
        )
        with worker:
            try:
                self.postbox.wait(READY, PATIENCE)
                yield worker
            except TimeoutError as error:
                raise TimeoutError(f"{error}\n{worker.log()}") from None


@contextmanager
def open_site(site: Site) -> Iterator[CelerySite]:
    """A place to send tasks to, and to start a worker at."""
    with (
        TemporaryDirectory(prefix="redisdelay-") as directory,
        closing(Postbox(Path(directory) / "box")) as postbox,
    ):
        celery_site = CelerySite(site, postbox)
        with closing(celery_site.app):
            yield celery_site
