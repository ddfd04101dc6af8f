"""A fork after use: the child shares no socket with its parent, and leaves its messages alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable

import pytest

from tests.transport.kit import Site

HEAD = """
import os, sys
from kombu import Connection
from tests.transport.kit import Inbox, drain, publish
"""

#: One case after the other in one process, because to start it costs more than all of them.
CASE = """
connection = Connection(sys.argv[1])
channel = connection.channel()
publish(channel, "before", "held")
inbox = Inbox(channel, prefetch=2)
drain(connection, lambda: len(inbox) == 2)

def child():
    {child}

{start}
{then}
connection.release()
ended = Connection(sys.argv[1])
assert ended.channel().queue_purge("q") == 0
ended.release()
print({name!r})
"""

STILL_HOLDS = """
assert channel.queue_purge("q") == 1, "what the child published, and nothing of ours"
for message in inbox:
    message.ack()
"""

CONSUMES_ON = """
inbox.messages[0].ack()
channel.basic_qos(0, 0, False)
publish(channel, "parent")
drain(connection, lambda: {"parent", "child"} <= set(inbox.bodies), timeout=30)
assert len(inbox) == 4, inbox.bodies
for message in inbox.messages[1:]:
    message.ack()
"""

IS_WOKEN = """
from threading import Thread
from kombu_redisdelay.transport import poller
poller.LONGEST_POLL = 60
publish(channel, "parent")
is_polling = channel.connection.cycle.poller
poll = is_polling.poll
thread = Thread(target=inbox.messages[0].ack)
def polls(timeout):
    if timeout and not thread.ident:
        thread.start()
    return poll(timeout)
is_polling.poll = polls
drain(connection, lambda: len(inbox) > 2, timeout=30, each=30)
thread.join()
channel.basic_qos(0, 0, False)
drain(connection, lambda: len(inbox) == 4, timeout=30)
for message in inbox.messages[1:]:
    message.ack()
"""

CHILDREN = {
    "publishes through it": 'publish(channel, "child")',
    "closes it": 'publish(channel, "child"); connection.release()',
    "collects it": 'connection.collect(); publish(connection.channel(), "child")',
}

STARTS = {
    "os.fork": """pid = os.fork()
if not pid:
    try:
        child()
    except BaseException:
        import traceback; traceback.print_exc()
        os._exit(1)
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0, "the child failed" """,
    "multiprocessing": """import multiprocessing
process = multiprocessing.get_context("fork").Process(target=child)
process.start(); process.join()
assert process.exitcode == 0, "the child failed" """,
}


@pytest.mark.parametrize(
    ("starts", "then"),
    [
        pytest.param(STARTS, STILL_HOLDS, id="the parent still holds its messages"),
        pytest.param(STARTS, CONSUMES_ON, id="the parent consumes on"),
        pytest.param(["os.fork"], IS_WOKEN, id="a thread of the parent still ends its poll"),
    ],
)
def test_a_fork_after_use(site: Site, starts: Iterable[str], then: str) -> None:
    cases = {f"{start}, and the child {child}": (start, child) for start in starts for child in CHILDREN}
    program = HEAD + "".join(
        CASE.format(start=STARTS[start], child=CHILDREN[child], then=then, name=name)
        for name, (start, child) in cases.items()
    )
    result = subprocess.run(
        [sys.executable, "-c", program, site.url], capture_output=True, text=True, timeout=120, check=False
    )
    # What was printed tells in which case it failed.
    assert (result.stdout.splitlines(), result.returncode) == ([*cases], 0), result.stderr
    assert "lost" not in result.stderr
    assert (site.ready(), site.unacked()) == (0, 0)


PRELOADED = """
import os, sys
from celery import Celery

app = Celery("site", broker=sys.argv[1], set_as_current=False)
app.send_task("t", ["before"])
children = []
for name in ("one", "two", "three"):
    pid = os.fork()
    if not pid:
        for number in range(100):
            app.send_task("t", [f"{name} {number}"])
        os._exit(0)
    children.append(pid)
for number in range(100):
    app.send_task("t", [f"parent {number}"])
assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0, 0]
"""


def test_publishers_that_were_forked_after_use(site: Site) -> None:
    """As gunicorn does with ``--preload``: the application has published before its workers are forked."""
    result = subprocess.run(
        [sys.executable, "-c", PRELOADED, site.url], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    expected = {f"{name} {number}" for name in ("one", "two", "three", "parent") for number in range(100)}
    messages = [json.loads(entry) for entry in site.redis.lrange(site.keys("celery").ready, 0, -1)]
    published = [message["headers"]["argsrepr"][2:-2] for message in messages]
    assert sorted(published) == sorted({"before", *expected})
