"""The way to the server: replies belong to those who asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
from redis.exceptions import ResponseError

from kombu_redisdelay.broker.server.line import Ack
from kombu_redisdelay.broker.server.single import Pool, SingleServer
from kombu_redisdelay.broker.server.wire import PackedKeys
from tests.broker.rig import Rig

pytestmark = pytest.mark.one_server


class SoftTimeLimit(BaseException):
    """Raised by a signal, anywhere."""


@pytest.fixture
def single(rig: Rig) -> Iterator[SingleServer]:
    # Of one who may do anything.
    single = SingleServer(Pool.like(rig.client.connection_pool))
    single.call("SET", "a", "1")
    single.call("SET", "b", "2")
    yield single
    single.disconnect()


def test_the_replies_come_in_order(single: SingleServer) -> None:
    assert single.call_all(("GET", "a"), ("GET", "none"), ("GET", "b")) == [b"1", None, b"2"]


@pytest.mark.parametrize("in_use", [False, True])
def test_an_error_is_the_reply_of_its_command(single: SingleServer, in_use: bool) -> None:
    # By another thread: then it goes over a further connection.
    with single.line._lock if in_use else nullcontext():
        first, refused, last = single.call_all(("GET", "a"), ("LPUSH", "b", "1"), ("GET", "b"))
    assert (first, last) == (b"1", b"2")
    assert isinstance(refused, ResponseError)


#: What is read, from keys of each type.
READ = """TIME|SCAN 0 COUNT 100|PING|EXISTS a b|PTTL a|TYPE a|TYPE list|TYPE hash|TYPE zset|TYPE set
LRANGE list 0 -1|LINDEX list 0|LLEN list|HSCAN hash 0|HKEYS hash|HMGET hash f none|HGET hash f|HGETALL hash
HRANDFIELD hash -2|HRANDFIELD hash 1 WITHVALUES|HEXISTS hash f|HLEN hash|HSTRLEN hash f|ZSCAN zset 0
ZRANGE zset 0 -1 WITHSCORES|ZMSCORE zset m none|ZSCORE zset m|ZRANGEBYSCORE zset 0 9|ZRANDMEMBER zset
ZCARD zset|ZCOUNT zset 0 9|SMEMBERS set|SISMEMBER set m|SCRIPT LOAD return|SCRIPT EXISTS none
EVAL return{1,'a',{}} 0""".replace("\n", "|").split("|")


@pytest.mark.parametrize("command", READ)
def test_a_reply_is_the_same_while_another_thread_uses_the_line(single: SingleServer, command: str) -> None:
    """redis-py would make a dictionary, a set or a number of it, for one of the two ways only."""
    single.call_all(("RPUSH", "list", "1", "2"), ("HSET", "hash", "f", "1"))
    single.call_all(("ZADD", "zset", 1.5, "m"), ("SADD", "set", "m"))
    [alone] = single.call_all(tuple(command.split()))
    with single.line._lock:
        [beside] = single.call_all(tuple(command.split()))
    if command == "TIME":
        alone, beside = map(type, alone), map(type, beside)
        assert list(alone) == list(beside)
    else:
        assert (type(beside), beside) == (type(alone), alone)


@pytest.mark.parametrize("in_use", [False, True])
def test_keys_that_were_packed_ahead(single: SingleServer, in_use: bool) -> None:
    with single.line._lock if in_use else nullcontext():
        assert single.call("MGET", PackedKeys(("a", "b")).packed) == [b"1", b"2"]


@pytest.mark.parametrize("replies_read", [0, 1])
def test_an_interrupted_call_leaves_no_reply_to_the_next(
    single: SingleServer, monkeypatch: pytest.MonkeyPatch, replies_read: int
) -> None:
    own = single.line.connection
    read_response, count = own.read_response, iter(range(replies_read))

    def interrupted() -> object:
        if next(count, None) is None:
            raise SoftTimeLimit
        return read_response()

    with monkeypatch.context() as patch:
        patch.setattr(own, "read_response", interrupted)
        with pytest.raises(SoftTimeLimit):
            single.call_all(("GET", "a"), ("GET", "a"))
    assert single.call("GET", "b") == b"2"


def test_a_connection_that_is_lent_and_comes_back_is_kept(single: SingleServer) -> None:
    before = single.line.connection
    assert single.call_apart("PING")
    assert single.line.connection is before


def test_one_that_never_comes_back_stops_nobody(single: SingleServer) -> None:
    """A signal may raise between getting a connection and using it."""
    lent = single._pool.get_connection("_")
    assert single.call("GET", "a") == b"1"
    single.line.call("GET", "b")
    single.line.ack(Ack("q", "tag", ("HDEL", "a hash", "tag")))
    single.confirm_acks()
    kept = single.line.connection
    single._pool.release(lent)
    assert single.line.connection is kept, "the one in use stays"
    assert single.call("GET", "b") == b"2"


def test_doubt_takes_no_connection_away_from_its_user(single: SingleServer) -> None:
    """The reply may be on its way that says whether something was done."""
    pool = single._pool
    lent, another = pool.get_connection("_"), pool.get_connection("_")
    sockets = [each._sock for each in (lent, another)]
    single.doubt()
    assert [each._sock for each in (lent, another)] == sockets
    pool.release(another)
    pool.release(lent)
    again = [pool.get_connection("_") for _ in range(2)]
    assert not {id(each._sock) for each in again} & {id(each) for each in sockets}
    for each in again:
        pool.release(each)
    assert single.call_all(("GET", "a"), ("GET", "b")) == [b"1", b"2"]
