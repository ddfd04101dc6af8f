"""Celery messages as they should be, as trees that can be changed.

A tree holds what kombu writes, but for the body: under ``BODY`` that is what Celery would encode.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from typing import Any

#: Where the tree keeps the body before it is encoded.
BODY = "decoded body"

#: Where the name of a case stands. Nothing else of an entry looks like it.
_LABEL = re.compile(rb'"case": "([^"]*)"')

#: The members that are ours, as `members.lua` knows them.
_MEMBERS = re.compile(
    rb'^\{(?:"redisdelay-(?:deliveries|lost|due|unknown)": \d+, |"redisdelay-key": "[\d.]+ [^"]*", )+'
)

TASKS = ("work", "work_late")


def protocol_2(label: str, task: str) -> dict[str, Any]:
    """A message in today's format. The headers describe the task."""
    return _message(
        label,
        headers={
            "lang": "py",
            "task": task,
            "id": label,
            "shadow": None,
            "eta": None,
            "expires": None,
            "group": None,
            "group_index": None,
            "retries": 0,
            "timelimit": [None, None],
            "root_id": label,
            "parent_id": None,
            "argsrepr": repr((label,)),
            "kwargsrepr": "{}",
            "origin": "gen1@here",
            "ignore_result": False,
            "replaced_task_nesting": 0,
            "stamped_headers": None,
            "stamps": {},
        },
        body=[[label], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}],
    )


def protocol_1(label: str, task: str) -> dict[str, Any]:
    """A message in the format of Celery 3. The body describes the task."""
    return _message(
        label,
        headers={},
        body={
            "task": task,
            "id": label,
            "args": [label],
            "kwargs": {},
            "group": None,
            "retries": 0,
            "eta": None,
            "expires": None,
            "utc": True,
            "callbacks": None,
            "errbacks": None,
            "timelimit": [None, None],
            "taskset": None,
            "chord": None,
        },
    )


def written(label: str, tree: dict[str, Any]) -> bytes:
    """The entry of a queue for *tree*. The name of the case stands in front, where nothing changes it, but
    behind the members that are ours: the scripts look for these at the very front."""
    tree = dict(tree)
    if BODY in tree:
        tree["body"] = b64encode(json.dumps(tree.pop(BODY)).encode()).decode()
    ours = {name: tree.pop(name) for name in list(tree) if name.startswith("redisdelay-")}
    return json.dumps({**ours, "case": label, **tree}).encode()


def end_of_mark(entry: bytes) -> int:
    """Where the part of *entry* ends that tells which case it belongs to."""
    found = _LABEL.search(entry)
    assert found is not None
    return found.end()


def label_of(entry: bytes) -> str | None:
    """The name of the case that *entry* belongs to."""
    found = _LABEL.search(entry)
    return found[1].decode() if found else None


def without_members(entry: bytes) -> bytes:
    """*entry* without the members that our scripts write, change and remove."""
    return _MEMBERS.sub(b"{", entry)


def _message(label: str, headers: dict[str, Any], body: Any) -> dict[str, Any]:
    return {
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": headers,
        "properties": {
            "body_encoding": "base64",
            "correlation_id": label,
            "delivery_info": {"exchange": "", "routing_key": "celery"},
            "delivery_mode": 2,
            "delivery_tag": label,
            "priority": 0,
            "reply_to": "nobody",
        },
        BODY: body,
    }
