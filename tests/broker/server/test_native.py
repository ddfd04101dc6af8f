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
from kombu_redisdelay.broker.processes import NativeEvent, Lock, Thread

def use_socket():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(0.01)
        try:
            ours.recv(1)
        except socket.timeout:
            pass
"""


RUNS_WHILE_THE_THREAD_THAT_STARTED_IT_IS_BLOCKED = """
lock = Lock()
lock.acquire()

def release():
    use_socket()
    lock.release()

thread = Thread(release)
print(lock.acquire(timeout=10))
thread.join(10)
"""

WAITS_FOR_AN_EVENT_AND_IS_WAITED_FOR = """
event, seen = NativeEvent(), []
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

LEAVES_NOTHING_OPEN = """
def open_files():
    for _ in range(5):
        Thread(use_socket).join(10)
    gc.collect()
    return len(os.listdir("/proc/self/fd"))

first = open_files()
print(open_files() - first)
"""


@pytest.mark.parametrize("patch", PATCH.values(), ids=PATCH)
def test_a_thread_that_runs_while_greenlets_cannot(patch: str) -> None:
    scripts = [RUNS_WHILE_THE_THREAD_THAT_STARTED_IT_IS_BLOCKED, WAITS_FOR_AN_EVENT_AND_IS_WAITED_FOR]
    if sys.platform == "linux":
        # It counts what is in /proc.
        scripts.append(LEAVES_NOTHING_OPEN)
    command = [sys.executable, "-W", "ignore", "-c", "".join([patch, USE_SOCKET, *scripts])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert (done.stderr, done.stdout.split()) == ("", ["True", "[True]", "0"][: len(scripts)])
