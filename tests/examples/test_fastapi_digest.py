"""The FastAPI application, with a real web server and a real worker."""

from __future__ import annotations

from datetime import datetime

import httpx

from tests.examples.site import EXAMPLES, PATIENCE, Program, environment
from tools.harness.celery_worker import CeleryWorker
from tools.harness.process import wait_until
from tools.harness.redis_server import RedisServer

HERE = EXAMPLES / "fastapi_digest"


def test_one_digest_when_nothing_has_happened_for_a_while(server: RedisServer) -> None:
    variables = environment(
        HERE, BROKER_URL=server.url(), NEWS_URL=server.url("redis", db=1), DIGEST_QUIET_TIME="3"
    )
    worker = CeleryWorker("digest:celery", pool="solo", env=variables, cwd=HERE)
    web = Program(
        *("uvicorn", "digest:app", "--port", "PORT"),
        directory=HERE,
        environment=variables,
        ready="/queues/healthz",
    )
    with worker, web:
        due = []
        for text in ("one", "two", "three"):
            _add(web, "Ada", text)
            digest = web.get("/customers/Ada/digest")
            due.append(datetime.fromisoformat(digest["due"]))
        assert digest["events"] == 3
        assert sorted(set(due)) == due
        _add(web, "Bob", "one")
        assert web.delete("/customers/Bob/digest") == {"cancelled": True}
        assert web.delete("/customers/Bob/digest") == {"cancelled": False}
        assert "celery" in httpx.get(f"{web.url}/queues/", timeout=PATIENCE).text
        wait_until(lambda: "To Ada: one; two; three" in worker.log(), 20, "the digest for Ada")
        assert httpx.get(f"{web.url}/customers/Ada/digest", timeout=PATIENCE).status_code == 404
        assert worker.log().count("To Ada") == 1
        assert "To Bob" not in worker.log()
        _add(web, "Bob", "two")
        wait_until(lambda: "To Bob: one; two" in worker.log(), 20, "the digest for Bob")


def _add(web: Program, customer: str, text: str) -> None:
    answer = httpx.post(f"{web.url}/customers/{customer}/events", json={"text": text}, timeout=PATIENCE)
    assert answer.status_code == 202, web.log()
