"""The connection breaks, or goes silent, in the middle of a take, an ack or a heartbeat."""

from __future__ import annotations

import logging
import time

import pytest

from kombu_redisdelay.broker.server.scripts import RENEW, TAKE
from kombu_redisdelay.transport.channel import Channel
from tests.faults.application import running
from tests.transport.kit import PATIENCE, Inbox, Site, drain, publish
from tools.harness.process import wait_until
from tools.harness.proxy import Proxy, Trap

BODIES = [str(number) for number in range(5)]

HARM = {
    "request lost": (None, False),
    "reply lost": (0, False),
    "reply cut in its header": (3, False),
    "request lost in silence": (None, True),
    "reply lost in silence": (0, True),
}
#: For a reply long enough to be cut in the middle of a message.
HARM_TO_LONG_REPLIES = {
    **HARM,
    "reply cut in a message": (150, False),
    "reply cut in the last message": (900, False),
    "reply cut in a message, then silence": (150, True),
}


@pytest.fixture
def _silence_is_noticed_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Channel, "silence_limit", 0.5)


def all_settled(site: Site) -> None:
    wait_until(lambda: (site.ready(), site.unacked()) == (0, 0), PATIENCE, "messages are left")
    assert site.dead() == []


@pytest.mark.usefixtures("_silence_is_noticed_soon")
@pytest.mark.parametrize("harm", HARM_TO_LONG_REPLIES)
def test_take(site: Site, proxy: Proxy, harm: str) -> None:
    publish(site.channel(), *BODIES)
    trap = proxy.set_trap(Trap(TAKE.sha.encode(), *HARM_TO_LONG_REPLIES[harm]))
    with running(proxy.url()) as application:
        application.wait_received(*BODIES)
        all_settled(site)
    assert trap.sprung.is_set()
    assert sorted(application.received) == BODIES


@pytest.mark.usefixtures("_silence_is_noticed_soon")
@pytest.mark.parametrize("harm", HARM)
def test_ack(site: Site, proxy: Proxy, harm: str, caplog: pytest.LogCaptureFixture) -> None:
    publish(site.channel(), *BODIES)
    with running(proxy.url(), visibility_timeout=1000) as application:
        trap = proxy.set_trap(Trap(b"HDEL", *HARM[harm]))
        application.wait_received(*BODIES)
        all_settled(site)
    assert trap.sprung.is_set()
    assert sorted(application.received) == BODIES
    assert "was lost" not in caplog.text


@pytest.mark.parametrize("harm", ["reply cut in its header", "reply lost in silence"])
def test_heartbeat(site: Site, proxy: Proxy, harm: str, caplog: pytest.LogCaptureFixture) -> None:
    lease = 2.0
    publish(site.channel(), "held")
    connection = site.connect(proxy.url(), visibility_timeout=lease)
    inbox = Inbox(connection.channel())
    drain(connection, lambda: len(inbox) == 1)
    trap = proxy.set_trap(Trap(RENEW.sha.encode(), *HARM[harm]))
    assert trap.sprung.wait(PATIENCE)

    # In a callback for so long; only the heartbeat keeps the lease, while somebody waits for its end.
    with running(site.url, visibility_timeout=lease) as other:
        time.sleep(1.5 * lease)
        assert other.received == []
        inbox.messages[0].ack()
        all_settled(site)
    assert "was lost" not in caplog.text
    lines = [r for r in caplog.records if "Could not renew the lease" in r.getMessage()]
    assert [line.levelno for line in lines] in ([], [logging.WARNING])
