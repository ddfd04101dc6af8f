"""The memory that a message takes, by its length."""

from __future__ import annotations

import random

import pytest

from kombu_redisdelay import Messages
from kombu_redisdelay.operations.estimate import NODE_BYTES, Allocator, allocator_of
from tests.transport.kit import Site

#: Mixtures of lengths.
LENGTHS = {
    "short": [300],
    "usual": [700],
    "few in a node": [2500],
    "mixed": [700] * 9 + [1600],
    "some in nodes of their own": [700] * 9 + [20_000],
    "large": [133_500],
}


@pytest.mark.parametrize(
    ("size", "piece"),
    [
        (1, 8),
        (41, 48),
        (64, 64),
        (65, 80),
        (112, 112),
        (113, 128),
        (129, 160),
        (1025, 1280),
        (133_510, 163_840),
    ],
)
def test_jemalloc_has_pieces_of_certain_sizes(size: int, piece: int) -> None:
    assert Allocator().allocated(size) == piece
    assert Allocator(rounds=False).allocated(size) == size


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_it_is_what_redis_counts(site: Site, messages: Messages, lengths: list[int]) -> None:
    chosen = random.Random(1)
    some = [int(chosen.choice(lengths) * chosen.uniform(0.97, 1.03)) for _ in range(2000)]
    with site.redis.pipeline(transaction=False) as pipe:
        for number, length in enumerate(some):
            pipe.lpush("a list", "x" * length)
            pipe.hset("a hash", f"{number:036}", "x" * length)
        pipe.execute()
    allocator = allocator_of(messages.store)
    in_list = [allocator.of_list_entry(length) for length in some]
    small = [size for size in in_list if size <= NODE_BYTES]
    expected = sum(in_list) + (allocator.of_nodes(small) - 1) * sum(small)
    assert expected == pytest.approx(site.redis.memory_usage("a list", samples=0), rel=0.02)
    in_hash = sum(allocator.of_hash_entry(36, length) for length in some)
    assert in_hash == pytest.approx(site.redis.memory_usage("a hash", samples=0), rel=0.03)


def test_nothing() -> None:
    assert Allocator().of_nodes([]) == 1
