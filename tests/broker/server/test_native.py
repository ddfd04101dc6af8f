"""Threads that run while greenlets cannot, each case in an interpreter of its own: to patch is for good."""

from __future__ import annotations

import subprocess
import sys

import pytest

PATCH = {
    "nothing": "",
    "gevent": "from gevent import monkey; monkey.patch_all()",
    "eventlet": "import eventlet; eventlet.monkey_patch()",
    # As a worker with the one pool, where something imports the other.
    "gevent beside eventlet": "import eventlet.patcher; from gevent import monkey; monkey.patch_all()",
    "eventlet beside gevent": "import gevent.monkey; import eventlet; eventlet.monkey_patch()",
}

#: What all scripts begin with. To wait for a socket needs an event loop where it is patched.
USE_SOCKET = """
import gc, os, socket
from kombu_redisdelay.broker.server.native import Event, Lock, Thread

def use_socket():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(0.01)
        try:
            ours.recv(1)
        except socket.timeout:
            pass
"""


@pytest.fixture(params=PATCH)
def patch(request: pytest.FixtureRequest) -> str:
    return PATCH[request.param]


def run(patch: str, script: str) -> str:
    """What a script prints that is run with the patch."""
    command = [sys.executable, "-W", "ignore", "-c", patch + USE_SOCKET + script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.stderr == ""
    return done.stdout


def test_runs_while_the_thread_that_started_it_is_blocked(patch: str) -> None:
    script = """
lock = Lock()
lock.acquire()

def release():
    use_socket()
    lock.release()

thread = Thread(release)
print(lock.acquire(timeout=10))
thread.join(10)
"""
    assert run(patch, script) == "True\n"


def test_waits_for_an_event_and_is_waited_for(patch: str) -> None:
    script = """
event, seen = Event(), []
event.wait(0)
assert not event.is_set()

def wait():
    use_socket()
    event.wait(10)
    seen.append(event.is_set())

thread = Thread(wait)
event.set()
event.set()
thread.join(10)
print(seen)
"""
    assert run(patch, script) == "[True]\n"


@pytest.mark.skipif(sys.platform != "linux", reason="counts what is in /proc")
def test_leaves_nothing_open(patch: str) -> None:
    script = """
def open_files():
    for _ in range(5):
        Thread(use_socket).join(10)
    gc.collect()
    return len(os.listdir("/proc/self/fd"))

first = open_files()
print(open_files() - first)
"""
    assert run(patch, script) == "0\n"
