"""Several URLs of one broker, and what kombu makes of them."""

from __future__ import annotations

import pytest
from celery import Celery
from kombu.connection import Connection
from kombu.exceptions import OperationalError
from kombu.utils.url import maybe_sanitize_url, url_to_parts

from kombu_redisdelay import batch
from kombu_redisdelay.transport.outbox import block_for
from tools.harness.redis_server import RedisServer

OPTIONS = {"master_name": "mymaster"}


def joined(scheme: str, *addresses: str) -> str:
    return ";".join(f"{scheme}://{address}" for address in addresses)


@pytest.mark.parametrize("scheme", ["redisdelay-cluster", "redisdelay-sentinel"])
class TestJoined:
    def test_they_are_one_broker_that_is_tried_at_intervals(self, scheme: str) -> None:
        """kombu tries each of several brokers at once, and Celery logs an error for each."""
        errors: list[float] = []
        url = joined(scheme, "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")
        with Connection(url, transport_options=OPTIONS) as connection, pytest.raises(OperationalError):
            connection.ensure_connection(
                errback=lambda exc, interval: errors.append(interval),
                max_retries=2,
                interval_start=0.01,
                interval_step=0.01,
            )
        assert errors == [0.01, 0.02]

    def test_any_of_them_has_the_login(self, scheme: str) -> None:
        url = joined(scheme, "h1:1", "shop:s3cret@h2:2", "h1:1", "h3")
        with Connection(url) as connection, connection.clone() as clone:
            for each in (connection, clone):
                addresses = [tuple(address) for address in each.transport.addresses]
                assert addresses == [("h1", 1), ("h2", 2), ("h3", each.transport.default_port)]
                assert (each.userid, each.password) == ("shop", "s3cret")
            assert "s3cret" not in clone.as_uri()

    def test_who_reads_the_addresses_reads_no_password(self, scheme: str) -> None:
        """As ``celery inspect stats``. Some versions of Celery send each alternate as it is, and others take
        the password out of it, as of a single URL."""
        url = joined(scheme, "shop:s3cret@h1:1", "h2", "shop:s3cret@h3:3/0")
        with Connection(url) as connection, connection.clone() as clone:
            info = clone.info()
            assert info.pop("password") == "s3cret"
            assert "s3cret" not in str(info)
            told = [url_to_parts(maybe_sanitize_url(url)) for url in info["alternates"]]
            assert [(each.scheme, each.hostname, each.port) for each in told] == [
                (scheme, *address) for address in clone.transport.addresses
            ]

    def test_a_batch_is_for_all_connections_to_them(self, scheme: str) -> None:
        url = joined(scheme, "h1:1", "h2:2")
        app = Celery("urls", broker=url, set_as_current=False)
        other = joined(scheme, "h1:1", "h3:2")
        with batch(app), Connection(url) as connection, Connection(other) as another:
            assert block_for(connection) is not None
            assert connection.transport.addresses
            assert block_for(connection) is not None
            assert block_for(another) is None

    @pytest.mark.parametrize(
        "url",
        ["{0}://h1,h2", "{0}://h1,{0}://h2:2", "{0}://h1:1;{0}://h2:2,h3:3", "{0}://h1;{0}://h2,{0}://h3"],
    )
    def test_by_a_comma(self, scheme: str, url: str) -> None:
        with pytest.raises(ValueError, match="joined with ';', not with a comma"):
            _ = Connection(url.format(scheme)).transport

    def test_without_the_scheme(self, scheme: str) -> None:
        with pytest.raises(ValueError, match=f"begins with the same {scheme}://") as raised:
            _ = Connection(f"{scheme}://h1:1;:s3cret@h2:2").transport
        assert "s3cret" not in str(raised.value)

    def test_a_password_may_have_a_comma(self, scheme: str) -> None:
        assert Connection(joined(scheme, ":a,b@h1:1", "h2:2")).transport.client.password == "a,b"


def test_hosts_of_a_single_server() -> None:
    with pytest.raises(ValueError, match="joined with ';'"):
        _ = Connection("redisdelay://h1,h2").transport


def test_a_database_that_is_not_there(server: RedisServer) -> None:
    with Connection(server.url(db=99)) as connection, pytest.raises(ValueError, match="no such database"):
        connection.ensure_connection()
