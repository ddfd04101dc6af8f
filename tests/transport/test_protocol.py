"""What a Celery worker refuses of a message, and what it leaves to Celery."""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import Any

import pytest
from celery import Celery, chain, chord, group
from kombu.serialization import registry
from kombu.transport import virtual

from kombu_redisdelay.transport.protocol import is_usual, wrong_part
from tests.end_to_end.fuzz.wellformed import BODY, protocol_1, protocol_2, written


class _Channel:
    """As much of a channel as a message needs."""

    decode_body = virtual.Channel.decode_body
    codecs = virtual.Channel.codecs


def message(tree: dict[str, Any]) -> virtual.Message:
    payload = json.loads(written("label", tree))
    payload["properties"]["delivery_tag"] = "1"
    made = virtual.Message(payload, channel=_Channel())
    made.accept = {"application/json"}
    return made


def wrong(protocol: int, *path: Any, value: Any) -> str | None:
    tree = (protocol_2 if protocol == 2 else protocol_1)("label", "work")
    place: Any = tree
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    is_plain = is_usual(message(tree))
    found = wrong_part(message(tree))
    assert not (is_plain and found)
    return found


def test_nearly_all_are_usual() -> None:
    app = Celery(broker="memory://", set_as_current=False)
    sent = app.amqp.as_task_v2("an id", "work", args=["a"], kwargs={"b": 1}, create_sent_event=True)
    made = {**protocol_2("label", "work"), "headers": sent.headers, "body": sent.body}
    assert is_usual(message(made))
    assert is_usual(message(protocol_2("label", "work")))
    assert not is_usual(message(protocol_1("label", "work")))


IN_HEADERS: list[tuple[str, Any, str]] = [
    ("id", [], "header 'id' is not a string"),
    ("id", {"a": 1}, "header 'id' is not a string"),
    ("task", None, "header 'task' is not a string"),
    ("task", ["work"], "header 'task' is not a string"),
    ("shadow", [1], "header 'shadow' is not a string"),
    ("eta", 5, "header 'eta' is not a time"),
    ("eta", "", "header 'eta' is not a time"),
    ("eta", "9999-12-31T23:59:59Z", "header 'eta' is not a time"),
    ("eta", "0001-13-01T00:00:00Z", "header 'eta' is not a time"),
    ("expires", [], "header 'expires' is not a time"),
    ("timelimit", "x", "header 'timelimit' is not two numbers of seconds"),
    ("timelimit", "ab", "header 'timelimit' is not two numbers of seconds"),
    ("timelimit", [1], "header 'timelimit' is not two numbers of seconds"),
    ("timelimit", ["1", "x"], "header 'timelimit' is not two numbers of seconds"),
    ("timelimit", ["1", "nan"], "header 'timelimit' is not two numbers of seconds"),
    ("timelimit", [float("nan"), None], "header 'timelimit' is not two numbers of seconds"),
    ("timelimit", [10**400, None], "header 'timelimit' is not two numbers of seconds"),
    ("retries", "x", "header 'retries' is not a number"),
    ("retries", "inf", "header 'retries' is not a number"),
    ("retries", [1], "header 'retries' is not a number"),
    ("group", {"a": 1}, "header 'group' is not a string"),
    ("stamped_headers", 5, "header 'stamped_headers' is not a list of strings"),
    ("stamped_headers", [[]], "header 'stamped_headers' is not a list of strings"),
    ("stamps", ["x"], "header 'stamps' is not an object"),
]


@pytest.mark.parametrize(("name", "value", "reason"), IN_HEADERS)
def test_wrong_types_in_headers(name: str, value: Any, reason: str) -> None:
    assert wrong(2, "headers", name, value=value) == reason


@pytest.mark.parametrize(("name", "value", "reason"), IN_HEADERS)
def test_they_are_in_the_body_in_version_1(name: str, value: Any, reason: str) -> None:
    if name in ("shadow", "stamped_headers", "stamps"):
        assert wrong(1, BODY, name, value=value) is None, "version 1 does not know it"
    else:
        assert wrong(1, BODY, name, value=value) == reason.replace("header", "body's")


#: What others write, and what it means.
MEANT: list[tuple[str, Any, Any]] = [
    # The zero time of Go, and `datetime.min`, which not every time zone has.
    ("eta", "0001-01-01T00:00:00Z", None),
    ("eta", "0001-01-01T00:00:00+23:59", None),
    ("retries", "0", 0),
    ("retries", "2", 2),
    ("retries", "1.5", 1.5),
    ("retries", "", 0),
    ("retries", [], 0),
    ("timelimit", ["10", "2.5"], [10, 2.5]),
    ("timelimit", [None, "2"], [None, 2]),
    ("group", [], []),
    ("shadow", [], []),
    ("shadow", 5, "5"),
]


@pytest.mark.parametrize(("name", "value", "meant"), MEANT)
@pytest.mark.parametrize("protocol", [1, 2])
def test_celery_gets_what_is_meant(protocol: int, name: str, value: Any, meant: Any) -> None:
    tree = (protocol_2 if protocol == 2 else protocol_1)("label", "work")
    tree["headers" if protocol == 2 else BODY][name] = value
    made = message(tree)
    assert wrong_part(made) is None
    parts = made.headers if protocol == 2 else made.payload
    found = parts[name]
    if (protocol, name) != (1, "shadow"):
        assert (found, type(found)) == (meant, type(meant))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ([], "body is not a list of arguments, keyword arguments, and what else belongs to the task"),
        ({}, "body is not a list of arguments, keyword arguments, and what else belongs to the task"),
        ("abc", "body is not a list of arguments, keyword arguments, and what else belongs to the task"),
        (
            {"a": 1, "b": 2, "c": 3},
            "body is not a list of arguments, keyword arguments, and what else belongs to the task",
        ),
        (["x", {}, {}], "body's arguments are not a list"),
        ([[], [], {}], "body's keyword arguments are not an object"),
        ([[], {}, 5], "body's third part is not an object"),
        ([[], {}, {"chain": "x"}], "body's 'chain' is not a list of signatures of tasks"),
        ([[], {}, {"callbacks": [None]}], "body's 'callbacks' is not a list of signatures of tasks"),
        ([[], {}, {"chord": {"task": None}}], "body's 'chord' is not a signature of a task"),
        ([[], {}, {}], None),
        ([[], {}, None], None),
        ({"args": [], "kwargs": {}}, None),
        ({"args": [], "kwargs": {}, "timelimit": "x"}, "body's 'timelimit' is not two numbers of seconds"),
    ],
    ids=str,
)
def test_bodies_of_version_2(body: Any, reason: str | None) -> None:
    assert wrong(2, BODY, value=body) == reason


@pytest.mark.parametrize("protocol", [1, 2])
def test_a_task_needs_an_id(protocol: int) -> None:
    tree = (protocol_2 if protocol == 2 else protocol_1)("label", "work")
    del tree["headers" if protocol == 2 else BODY]["id"]
    assert wrong_part(message(tree)) == (
        "header 'id' is missing" if protocol == 2 else "body's 'id' is missing"
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("id", 5),
        ("eta", "2020-01-01T00:00:00"),
        ("expires", "9999-12-31T23:59:59-23:59"),
        ("retries", None),
        ("timelimit", []),
        ("timelimit", [1, 2.5]),
        ("stamped_headers", ["x"]),
        ("argsrepr", 5),
        ("kwargsrepr", []),
        ("origin", {}),
        ("lang", 7),
        ("ignore_result", "x"),
        ("root_id", 5),
        ("parent_id", []),
        ("replaced_task_nesting", "x"),
        ("group_index", "x"),
        ("of the application", {"a": [1]}),
    ],
)
def test_what_celery_takes_is_left_alone(name: str, value: Any) -> None:
    """It runs with ``redis://``, too."""
    assert wrong(2, "headers", name, value=value) is None


@pytest.mark.parametrize(
    "tree",
    [
        {"headers": {}, BODY: "text"},
        {"headers": {}, BODY: {"of": "the application"}},
        {"headers": {"id": [], "timelimit": "x"}, BODY: ["x"]},
    ],
    ids=str,
)
def test_what_is_no_task_is_left_to_celery(tree: dict[str, Any]) -> None:
    assert wrong_part(message({**protocol_2("label", "work"), **tree})) is None


def test_what_cannot_be_decoded_is_left_to_celery() -> None:
    made = message({**protocol_2("label", "work"), "content-type": "application/x-yaml"})
    assert wrong_part(made) is None


class Text(str):
    """As a framework may have it, and pickle keeps it."""

    __slots__ = ()


@pytest.mark.parametrize("serializer", ["json", "pickle"])
@pytest.mark.parametrize("version", [1, 2])
def test_what_celery_sends_is_right(version: int, serializer: str) -> None:
    app = Celery("app", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.update(task_protocol=version, task_serializer=serializer)

    @app.task(name="work")
    def work(*args: Any, **kwargs: Any) -> None: ...

    signatures = [
        work.s(1),
        work.s(1).set(countdown=5, expires=60, time_limit=5, soft_time_limit=4.5, shadow="x", priority=3),
        work.s(1).set(link=work.s(), link_error=[work.s(), work.s()]),
        chain(work.s(1), work.s(2), group(work.s(3), work.s(4))),
        chord([work.s(1), chain(work.s(2), work.s(3))], work.s()),
        group(work.s(1), work.s(2)),
    ]
    if serializer == "pickle":
        signatures.append(work.signature((1,), OrderedDict(x=1)).set(task_id=Text("id")))
    signatures[0].stamp(stamp="value")
    sent: list[virtual.Message] = []
    with app.connection() as connection, connection.channel() as channel:
        for signature in signatures:
            signature.apply_async(connection=connection)
        while (got := channel.basic_get("celery", no_ack=True)) is not None:
            got.accept = {registry.name_to_type[serializer]}
            sent.append(got)
    app.close()
    assert len(sent) >= len(signatures)
    assert [wrong_part(message) for message in sent] == [None] * len(sent)
