"""Which names of kombu and redis-py we use that are not public.

A new release of theirs may rename any of them. Then this file fails first, and says which name of which
class is gone, and which of our files use it. `test_seams` holds what we override, and what the names mean.
"""

from __future__ import annotations

import ast
import inspect
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from threading import RLock

import celery
import pytest
import redis.connection
from billiard.pool import ApplyResult
from billiard.process import BaseProcess
from celery import Celery
from celery.app.amqp import AMQP
from celery.backends.rpc import RPCBackend
from celery.concurrency.asynpool import AsynPool
from celery.concurrency.gevent import TaskPool
from celery.worker.request import Request
from gevent.pool import Pool as GeventPool
from kombu.transport import redis as kombu_redis
from kombu.transport import virtual
from redis.connection import BlockingConnectionPool, Connection, ConnectionPool

import kombu_redisdelay

# To read all sources takes a second: one process of xdist does it.
pytestmark = pytest.mark.xdist_group("sources")

PACKAGE = Path(kombu_redisdelay.__file__).parent


def python_parser() -> type:
    """redis-py's parser that is written in Python. It has had three names."""
    names = ("PythonParser", "_RESP2Parser")
    found: type = next(getattr(redis.connection, each) for each in names if hasattr(redis.connection, each))
    return found


#: Name -> the class that has it.
PRIVATE: dict[str, type] = {
    "_accept_callback": ApplyResult,
    "_active_queues": kombu_redis.Channel,
    "_accepted": ApplyResult,
    "_active_writers": AsynPool,
    "_active_writes": AsynPool,
    "_already_revoked": Request,
    "_avail_channels": virtual.Transport,
    "_busy_workers": AsynPool,
    "_buffer": python_parser(),
    "_cache": AsynPool,
    "_chan_to_sock": kombu_redis.MultiChannelPoller,
    "_channels": kombu_redis.MultiChannelPoller,
    "_checkpid": ConnectionPool,
    "_client_registered": kombu_redis.MultiChannelPoller,
    "_close_clients": kombu_redis.Channel,
    "_connections": BlockingConnectionPool,
    "_delivered": virtual.QoS,
    "_dirty": virtual.QoS,
    "_event_dispatcher": AMQP,
    "_fanout_queues": kombu_redis.Channel,
    "_finalize_mutex": Celery,
    "_fd_to_chan": kombu_redis.MultiChannelPoller,
    "_get_message_priority": virtual.Channel,
    "_fileno_to_inq": AsynPool,
    "_fileno_to_outq": AsynPool,
    "_fileno_to_synq": AsynPool,
    "_flush_writer": AsynPool,
    "_inplace_augment_message": virtual.Channel,
    "_is_alive": BaseProcess,
    "_is_owned": type(RLock()),
    "_message": Request,
    "_on_collect": virtual.QoS,
    "_parser": Connection,
    "_pool_map": TaskPool,
    "_quick_ack": virtual.QoS,
    "_queue_cycle": kombu_redis.Channel,
    "_raw": virtual.Message,
    "_register": kombu_redis.MultiChannelPoller,
    "_register_LISTEN": kombu_redis.MultiChannelPoller,
    "_semaphore": GeventPool,
    "_sock": Connection,
    "_tag_to_queue": virtual.Channel,
    "_to_result": RPCBackend,
    "_track_child_process": AsynPool,
    "_write_to": ApplyResult,
}

#: Those of named tuples are public, in spite of their names. The last one is ours, set by its name.
OTHERS = {"_asdict", "_fields", "_replace", "_redisdelay_is_guarded"}

#: New in Celery 5.7, and used only if it is there.
_NEW = {"_eta_timer_entry"}
if celery.VERSION >= (5, 7):
    PRIVATE |= dict.fromkeys(sorted(_NEW), Request)
else:
    OTHERS |= _NEW


#: The same in kombu 5.7.
_NEW_IN_KOMBU = "_get_publish_topics"
if hasattr(kombu_redis.Channel, _NEW_IN_KOMBU):
    PRIVATE[_NEW_IN_KOMBU] = kombu_redis.Channel
else:
    OTHERS.add(_NEW_IN_KOMBU)


@cache
def used() -> dict[str, set[str]]:
    """Private names that we use and do not define -> the files that do."""
    defined: set[str] = set()
    found: dict[str, set[str]] = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            defined.update(_defined_by(node))
            if isinstance(node, ast.Attribute) and node.attr.startswith("_") and node.attr[1] != "_":
                found[node.attr].add(path.relative_to(PACKAGE).as_posix())
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "extend":
                # Of what is extended, the name is given as a text.
                name = ast.unparse(node.args[1]).strip("'")
                if name.startswith("_"):
                    found[name].add(path.relative_to(PACKAGE).as_posix())
    return {name: files for name, files in found.items() if name not in defined}


def _defined_by(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif (
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and ast.unparse(node.value) == "self"
    ):
        yield node.attr


def test_all_of_them_are_listed() -> None:
    new = {
        name: sorted(files) for name, files in used().items() if name not in OTHERS and name not in PRIVATE
    }
    assert new == {}, "not public, and neither ours nor in PRIVATE"


def test_none_is_listed_in_vain() -> None:
    assert (PRIVATE.keys() | OTHERS) - used().keys() == set()


@pytest.mark.parametrize("name", PRIVATE)
def test_it_is_there(name: str) -> None:
    owner = PRIVATE[name]
    files = ", ".join(sorted(used()[name]))
    if not _has(owner, name):
        pytest.fail(f"{owner.__module__}.{owner.__qualname__} has no {name} any more; {files} uses it", False)


def test_a_name_that_is_gone_is_noticed() -> None:
    assert not _has(kombu_redis.Channel, "_active_queue")


def _has(owner: type, name: str) -> bool:
    """Whether it is an attribute of the class, or of its instances."""
    if hasattr(owner, name):
        return True
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == name
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        for cls in owner.__mro__[:-1]
        for node in ast.walk(ast.parse(inspect.cleandoc("\n" + inspect.getsource(cls))))
    )
