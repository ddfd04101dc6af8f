"""One digest for each customer when nothing has happened for a while, instead of a mail for each event.

The endpoints are written with ``def``, because publishing and cancelling wait for Redis: FastAPI runs them in
threads, and its event loop goes on.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime

import redis
from celery import Celery
from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel

from kombu_redisdelay import Messages, web

celery = Celery("digest", broker=os.environ.get("BROKER_URL", "redisdelay://localhost:6379/0"))
# What happened to whom. redis-py does not know the scheme of the broker: see docs/install.rst.
news = redis.Redis.from_url(os.environ.get("NEWS_URL", "redis://localhost:6379/1"), decode_responses=True)

#: Seconds.
QUIET_TIME = float(os.environ.get("DIGEST_QUIET_TIME", "600"))


class Event(BaseModel):
    text: str


class Digest(BaseModel):
    due: datetime
    events: int


@celery.task(acks_late=True)
def send_digest(customer: str) -> None:
    """If its worker is killed half-way, it runs again. So it forgets the events when they have been sent, and
    of those that were added meanwhile it forgets none."""
    events = news.lrange(_key(customer), 0, -1)
    if events:
        print(f"To {customer}: {'; '.join(events)}")
        news.ltrim(_key(customer), len(events), -1)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Messages]]:
    with Messages(celery) as messages:
        yield {"messages": messages}


app = FastAPI(lifespan=lifespan)
# All queues, in the browser. Without users it answers only to the names of this machine: see docs/web.rst.
app.mount("/queues", web.create(celery, read_only=True, hosts=["localhost", "127.0.0.1"]))


@app.post("/customers/{customer}/events", status_code=202)
def add_event(customer: str, event: Event) -> None:
    news.rpush(_key(customer), event.text)
    # A digest that waits already is put off: there is one message for an id.
    send_digest.apply_async(
        [customer],
        task_id=_task_id(customer),
        countdown=QUIET_TIME,
        headers={"x-delay-on-conflict": "replace"},
    )


@app.get("/customers/{customer}/digest")
def next_digest(customer: str, request: Request) -> Digest:
    message = request.state.messages.get(_task_id(customer))
    if message is None:
        raise HTTPException(404, "no digest waits")
    return Digest(due=message.due, events=news.llen(_key(customer)))


@app.delete("/customers/{customer}/digest")
def cancel_digest(customer: str, request: Request) -> dict[str, bool]:
    return {"cancelled": bool(request.state.messages.cancel(ids=[_task_id(customer)]))}


def _key(customer: str) -> str:
    return f"news:{customer}"


def _task_id(customer: str) -> str:
    return f"digest-{customer}"
