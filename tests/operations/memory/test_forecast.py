"""When Redis is full."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timezone

import pytest
from celery import Celery

from kombu_redisdelay import Messages, ServerFill
from kombu_redisdelay.operations.history import Counts, Period, QueueHistory
from kombu_redisdelay.operations.memory_report import fill_of
from kombu_redisdelay.operations.server_memory import Growth, growth, server_fills
from tests.operations.kit import send
from tests.transport.kit import Site

#: Bytes that a server has left.
ROOM = 10_000_000


class TestForecast:
    NOW_S = 1_800_000_000.0

    def history(self, queue: str, now_s: float, seconds: float, **counts: int) -> QueueHistory:
        start = datetime.fromtimestamp(now_s - seconds, timezone.utc)
        periods = [Period(start, round(seconds), Counts(**counts))]
        return QueueHistory(queue, Counts(), 0, periods, periods)

    @pytest.mark.parametrize(
        ("counts", "more"),
        [
            ({"published": 3600}, 3600),
            ({"published": 3600, "delivered": 1800}, 1800),
            ({"published": 100, "delivered": 200, "failures": 100}, 0),
            ({"published": 100, "delivered": 100, "failed": 20}, 20),
            ({"delivered": 100}, -100),
        ],
    )
    def test_by_how_much_it_grows(self, counts: Mapping[str, int], more: int) -> None:
        found = growth(self.history("celery", self.NOW_S, 1800, **counts), self.NOW_S)
        assert found is not None
        assert found.rate == pytest.approx(more / 1800)
        assert found.seconds == 1800

    def test_a_short_history_says_nothing(self) -> None:
        assert growth(self.history("celery", self.NOW_S, 800, published=100), self.NOW_S) is None
        assert growth(QueueHistory("celery", Counts(), 0, [], []), self.NOW_S) is None

    def test_a_queue_that_was_idle_in_the_last_hour_does_not_grow(self) -> None:
        old, new = (self.history("celery", self.NOW_S, seconds) for seconds in (7200, 20))
        history = QueueHistory("celery", Counts(), 0, new.minutes, [*old.hours, *new.hours])
        assert growth(history, self.NOW_S) == Growth(0.0, 3600)

    def fill(
        self,
        site: Site,
        messages: Messages,
        monkeypatch: pytest.MonkeyPatch,
        more: Mapping[str, int],
        room: int,
    ) -> ServerFill:
        """How full the server is.

        Arguments:
            more: queue -> by how many messages of 1,000 bytes it has grown in half an hour; 0: nobody knows.
            room: bytes up to maxmemory; 0: it is not set.
        """
        now_s = messages.store.now_ms() / 1000
        monkeypatch.setattr(
            "kombu_redisdelay.operations.server_memory.queue_history",
            lambda store, queues: [
                self.history(queue, now_s, 1800 if more[queue] else 60, published=more[queue])
                for queue in queues
            ],
        )
        used = int(site.redis.info("memory")["used_memory"])
        site.redis.config_set("maxmemory", used + room if room else 0)
        try:
            [server] = server_fills(messages.store, dict.fromkeys(more, (1_000_000, 1000)))
        finally:
            site.redis.config_set("maxmemory", 0)
        return server

    def test_when_it_is_full(self, site: Site, messages: Messages, monkeypatch: pytest.MonkeyPatch) -> None:
        server = self.fill(site, messages, monkeypatch, {"celery": 1800}, ROOM)
        assert (server.is_limited, server.unknown) == (True, [])
        assert server.bytes_per_hour == pytest.approx(3_600_000, rel=0.01)
        assert server.measured == pytest.approx(1800, rel=0.1)
        assert server.full_in == pytest.approx(10_000, rel=0.3)
        assert re.search(
            r"at this rate, 3.4 MiB an hour, measured over 30m\w*, it is full in 2h", fill_of(server)
        )

    def test_without_maxmemory_the_limit_of_the_machine_counts(
        self, site: Site, messages: Messages, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server = self.fill(site, messages, monkeypatch, {"celery": 1800}, room=0)
        assert not server.is_limited
        assert server.bytes_per_hour == pytest.approx(3_600_000, rel=0.01)
        assert (server.full_in is None) == (server.limit == 0)
        assert "maxmemory" in fill_of(server)

    def test_a_large_queue_without_a_history(
        self, site: Site, messages: Messages, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server = self.fill(site, messages, monkeypatch, {"celery": 1800, "imports": 0}, ROOM)
        assert server.unknown == ["imports"]
        assert "at least 3.4 MiB an hour" in fill_of(server)
        assert "at the latest: not counted are imports, which has no history of 15 minutes" in fill_of(server)
        server = self.fill(site, messages, monkeypatch, {"celery": -1800, "imports": 0}, ROOM)
        assert (server.bytes_per_hour, server.full_in) == (None, None)
        assert "nobody knows when it is full, because of queue imports" in fill_of(server)

    def test_a_small_queue_without_a_history_does_not_matter(
        self, site: Site, messages: Messages, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queues = {f"q{number}": 100 for number in range(10)}
        server = self.fill(site, messages, monkeypatch, {**queues, "small": 0}, ROOM)
        assert server.unknown == []
        assert server.bytes_per_hour == pytest.approx(2_000_000, rel=0.1)

    def test_some_queues_foretell_nothing(self, site: Site, app: Celery, messages: Messages) -> None:
        send(app, "a")
        [server] = messages.memory().servers
        assert server.unknown == ["celery"]
        [server] = messages.memory("celery").servers
        assert (server.unknown, server.bytes_per_hour) == ((), None)
        assert "history" not in fill_of(server)

    def test_a_full_server(self) -> None:
        full = ServerFill("a:1", 2**20, 2**20, True, "maxmemory", "allkeys-lru", 5.0, 3600.0, 0.0)
        assert fill_of(full) == (
            "1.0 MiB used of 1.0 MiB; it is full now; maxmemory-policy allkeys-lru: when it is full, queues, "
            "with their messages, may be thrown away"
        )

    def test_a_server_that_may_be_full(self) -> None:
        full = ServerFill("a:1", 2**20 - 1, 2**20, True, "maxmemory", "noeviction", 3600.0, 3600.0, 1.0)
        assert fill_of(full).endswith("measured over 1h, it is full now, or within a minute")
