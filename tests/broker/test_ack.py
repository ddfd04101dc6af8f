"""Acks over a connection that fails."""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import ConnectionError, TimeoutError

from tests.broker.rig import Rig, payload, taken


class Failure:
    """Makes the client lose the connection at every HDEL, before or after the server has done it."""

    def __init__(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch, error: type[Exception], after: bool
    ) -> None:
        self.over = False
        execute = rig.client.execute_command

        def execute_command(*args: Any, **options: Any) -> Any:
            if args[0] != "HDEL" or self.over:
                return execute(*args, **options)
            if after:
                execute(*args, **options)
            raise error("lost")

        monkeypatch.setattr(rig.client, "execute_command", execute_command)


@pytest.mark.parametrize("error", [ConnectionError, TimeoutError])
@pytest.mark.parametrize("after", [False, True], ids=["not received", "reply lost"])
def test_is_sent_again(
    rig: Rig,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: type[Exception],
    after: bool,
) -> None:
    rig.put("q", *(payload(str(n)) for n in range(3)))
    me = rig.consumer()
    first, second, third = taken(me, "q")
    failure = Failure(rig, monkeypatch, error, after)
    assert me.ack("q", first.tag)
    assert me.ack("q", second.tag)
    assert "will be sent again" in caplog.text
    failure.over = True
    assert taken(me, "q") == []
    assert list(rig.unacked("q")) == [third.tag]


def test_comes_before_giving_back(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.put("q", payload("acked"), payload("held"))
    me = rig.consumer()
    acked, _ = taken(me, "q")
    failure = Failure(rig, monkeypatch, ConnectionError, after=False)
    me.ack("q", acked.tag)
    failure.over = True
    assert me.give_back_all()
    [again] = taken(rig.consumer("other"), "q")
    assert b'"held"' in again.payload
