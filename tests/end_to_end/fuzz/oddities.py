"""What may be wrong in a Celery message: which field, and with which values."""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import dataclass
from functools import cache
from typing import Any

from tests.end_to_end.fuzz.wellformed import BODY, protocol_1, protocol_2

#: The keys and indices that lead to a field.
Path = tuple[str | int, ...]

#: In place of a value: the field is not there.
MISSING = object()


def nested(depth: int, kind: str) -> Any:
    """A list in a list in a list, or the same of objects."""
    value: Any = "bottom"
    for _ in range(depth):
        value = [value] if kind == "list" else {"a": value}
    return value


#: Wrong nearly everywhere.
ANYTHING: tuple[Any, ...] = (
    MISSING,
    None,
    True,
    False,
    0,
    -1,
    1.5,
    1e308,
    float("nan"),
    float("inf"),
    2**70,
    "",
    "x",
    "5",
    "\x00\x1b]0;title\x07%s%(x)s{0}",
    "half of a pair: \ud800",
    "long " * 40_000,
    [],
    ["x"],
    [[], {}],
    [None, None],
    {},
    {"x": {"y": []}},
    nested(900, "list"),
    nested(900, "object"),
    # What kombu's decoder makes an object of.
    {"__type__": "datetime", "__value__": "2020-01-01T00:00:00"},
    {"__type__": "uuid", "__value__": {"hex": "12345678123456781234567812345678"}},
    {"__type__": "bytes", "__value__": "x"},
    {"__type__": "decimal", "__value__": "not a number"},
)

#: What is nearly a moment.
MOMENTS: tuple[Any, ...] = (
    "yesterday",
    "2020-01-01",
    "2020-01-01T00:00:00",
    "2020-01-01T00:00:00+00:00",
    "2020-01-01T25:00:00",
    "0001-01-01T00:00:00+23:59",
    1e12,
)

#: Far away. Not for the ETA of protocol 1, which no broker reads: Celery would hold the message until then.
LATER: tuple[Any, ...] = (
    "9999-12-31T23:59:59-23:59",
    "9999-12-31T23:59:59",
    "2099-01-01T00:00:00+00:00",
)

#: What is nearly a pair of seconds.
LIMITS: tuple[Any, ...] = (
    [1],
    [1, 2, 3],
    ["x", "y"],
    ["1", "2"],
    [-1, -1],
    [0, 0],
    [1e-9, None],
    [None, 1e-9],
    [1e308, 1e308],
    [10**400, None],
    [[], {}],
    [True, None],
    "ab",
    "abc",
)

CONTENT_TYPES: tuple[Any, ...] = (
    "application/x-python-serialize",
    "application/x-yaml",
    "application/x-msgpack",
    "application/data",
    "text/plain",
    "application/text",
    "json",
)

ENCODINGS: tuple[Any, ...] = ("binary", "utf-16", "base64", "ascii", "rot13", "idna", "us-ascii\x00")

#: A task as it stands in callbacks, a chain or a chord, and what is nearly one.
SIGNATURE: dict[str, Any] = {
    "task": "after",
    "args": [],
    "kwargs": {},
    "options": {},
    "subtask_type": None,
    "immutable": False,
}
SIGNATURES: tuple[Any, ...] = (
    [SIGNATURE],
    [{**SIGNATURE, "task": None}],
    [{**SIGNATURE, "args": "x", "kwargs": []}],
    [{**SIGNATURE, "options": {"eta": "yesterday", "priority": "x", "expires": []}}],
    [{**SIGNATURE, "subtask_type": "chord"}],
    [{**SIGNATURE, "subtask_type": "group"}],
    [{**SIGNATURE, "subtask_type": ["x"]}],
    [SIGNATURE, None, 5],
    SIGNATURE,
    [[SIGNATURE]],
)

TASK_NAMES: tuple[Any, ...] = (
    "nobody.knows.me",
    "celery.chord",
    "celery.group",
    "celery.chunks",
    "celery.map",
    "celery.accumulate",
    "celery.backend_cleanup",
    ["work"],
    {"work": "work"},
)

ARGUMENTS: tuple[Any, ...] = (
    [1, 2, 3, 4, 5, 6, 7],
    {"label": "x"},
    {"no such argument": 1},
    {"": 1},
    {"self": 1},
    "label",
)

#: Instead of the encoded body.
BODIES: tuple[Any, ...] = (
    *ANYTHING,
    "x" * 4,
    "A",
    "====",
    "AAAA",
    "/" * 400,
    *(
        b64encode(text).decode()
        for text in (
            b"",
            b"null",
            b"5",
            b'"x"',
            b"[]",
            b"{}",
            b"[[], {}]",
            b"[[], {}, {}, {}]",
            b"[[], {}, null]",
            b"[null, null, null]",
            b"[5, 5, 5]",
            b'"abc"',
            b'{"a": 1, "b": 2, "c": 3}',
            b"[[], {}, {}",
            b"NaN",
            b"\xff\xfe\x00",
            b"\x80\x04N.",
            b"[" * 900 + b"]" * 900,
            b"[" * 100_000,
            json.dumps([["x" * 500_000], {}, {}]).encode(),
        )
    ),
)

#: What cannot be the key of a fair queue, with some that can, and what cannot be its weight.
KEYS: tuple[Any, ...] = (
    "tenant",
    "a" * 64,
    "é" * 32,
    "a" * 65,
    "é" * 33,
    'a"b',
    "a\\b",
    "a\nb",
    "a\x7f",
    "\u2028}:{ 1",
    " ",
    "x" * 2_000_000,
    {"x-key": "tenant"},
    '", "x-key": "tenant',
)
WEIGHTS: tuple[Any, ...] = (0.001, 1000, 0, -0.0, 1001, 1e-300, 10**400, float("-inf"), "2", [2])

#: What is wrong in one field in particular, by its name.
SPECIAL: dict[str, tuple[Any, ...]] = {
    "eta": MOMENTS,
    "expires": MOMENTS,
    "timelimit": LIMITS,
    "content-type": CONTENT_TYPES,
    "content-encoding": ENCODINGS,
    "body_encoding": ENCODINGS,
    "task": TASK_NAMES,
    "args": ARGUMENTS,
    "kwargs": ARGUMENTS,
    "callbacks": SIGNATURES,
    "errbacks": SIGNATURES,
    "chain": SIGNATURES,
    "chord": SIGNATURES,
    "stamps": ({"x": ["y"]}, {"x": nested(900, "list")}),
    "stamped_headers": (["stamp"], ["task", "id"], [[]], [{}], "task"),
    "compression": ("application/x-gzip", "zlib", "no such"),
    "x-delay": (1000, 1e300, "soon", -5),
    "x-delay-on-conflict": ("keep", "replace", "x"),
    "x-delivery-count": (1, 3, 10**9, "x"),
    "redisdelay-deliveries": (1, "x", 10**30, 10**400, 1e23),
    "redisdelay-lost": (1, "x", 10**30, 10**400, 1e23),
    "redisdelay-due": (1, "x", 10**30, 10**400, 1e23),
    "redisdelay-unknown": (1, "x", 10**30, 10**400, 1e23),
    "x-key": KEYS,
    "x-key-weight": WEIGHTS,
    "redisdelay-key": (
        "1 tenant",
        "1 ",
        " tenant",
        "tenant",
        "0 tenant",
        "1..2 x",
        "1 " + "x" * 100,
        "1 a\\b",
    ),
    "consumer_tag": (["x"], {}),
}

#: Fields that a whole message need not have, or that are more than one.
_OTHERS: tuple[Path, ...] = (
    ("headers",),
    ("headers", "compression"),
    ("headers", "x-delay"),
    ("headers", "x-delay-on-conflict"),
    ("headers", "x-key"),
    ("headers", "x-key-weight"),
    ("headers", "x-delivery-count"),
    ("headers", "redelivered"),
    ("headers", "args"),
    ("headers", "delivery_info"),
    ("headers", "stamp"),
    ("properties",),
    ("headers", "kwargs"),
    ("headers", "properties"),
    ("headers", "reply_to"),
    ("headers", "correlation_id"),
    ("headers", "hostname"),
    ("headers", "callbacks"),
    ("headers", "errbacks"),
    ("headers", "chain"),
    ("headers", "chord"),
    ("properties", "consumer_tag"),
    ("properties", "delivery_info"),
    ("properties", "delivery_info", "consumer_tag"),
    ("properties", "delivery_info", "redelivered"),
    ("properties", "message_id"),
    ("properties", "headers"),
    ("redisdelay-deliveries",),
    ("redisdelay-lost",),
    ("redisdelay-due",),
    ("redisdelay-unknown",),
    ("redisdelay-key",),
    (BODY,),
)


@dataclass(frozen=True)
class Change:
    """*value* in the place of what stands at *path*."""

    path: Path
    value: Any

    def apply(self, tree: dict[str, Any]) -> None:
        """Make the change, if there still is such a place in *tree*."""
        *way, last = self.path
        place: Any = tree
        for step in way:
            if not _has(place, step):
                return
            place = place[step]
        if self.value is MISSING:
            if _has(place, last):
                del place[last]
        elif isinstance(place, dict) or _has(place, last):
            # A copy: another change may be made inside it.
            place[last] = json.loads(json.dumps(self.value))

    @property
    def names(self) -> tuple[str, ...]:
        """What a reason may call the part, in lower case. Some values cannot even be read (`__type__`), and
        what the body is written in shows when it is read."""
        parts = {str(step) for step in self.path} | {"json"}
        shows_in_body = {BODY, "body", "content-type", "content-encoding", "body_encoding", "compression"}
        if parts & shows_in_body or self.path == ("properties",):
            parts |= {"body", "decoded", "content"}
        if "kwargs" in parts:
            parts.add("keyword arguments")
        return tuple(part.lower() for part in parts)

    def __str__(self) -> str:
        value = "missing" if self.value is MISSING else repr(self.value)
        return f"{'.'.join(map(str, self.path))}: {value[:60]}"


@cache
def changes(protocol: int) -> tuple[Change, ...]:
    """Every change of one field that we know, for messages of a *protocol*."""
    tree = protocol_2("x", "work") if protocol == 2 else protocol_1("x", "work")
    every = [Change(path, value) for path in (*_fields(tree), *_OTHERS) for value in _values(path)]
    return (*every, *(Change(("body",), value) for value in BODIES))


def _fields(tree: Any, way: Path = ()) -> list[Path]:
    """The ways to everything in *tree* that holds nothing else."""
    if isinstance(tree, dict):
        steps: list[str | int] = list(tree)
    elif isinstance(tree, list) and way[-1] != "timelimit":
        steps = list(range(len(tree)))
    else:
        return [way]
    inner = [field for step in steps for field in _fields(tree[step], (*way, step))]
    # Empty ones, and those in the body, are changed as a whole, too.
    is_part_of_body = way[:1] == (BODY,) and len(way) == 2
    return [*inner, way] if is_part_of_body or not steps else inner


def _values(path: Path) -> tuple[Any, ...]:
    names: dict[Path, str] = {(BODY, 0): "args", (BODY, 1): "kwargs"}
    later = LATER if path in (("headers", "eta"), ("headers", "expires")) else ()
    return (*ANYTHING, *later, *SPECIAL.get(names.get(path, str(path[-1])), ()))


def _has(place: Any, step: str | int) -> bool:
    if isinstance(place, list):
        return isinstance(step, int) and step < len(place)
    return isinstance(place, dict) and step in place
