"""How the parts of a lease depend on each other. ``docs/leases.rst`` has them as a table."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import pytest

import kombu_redisdelay
from kombu_redisdelay.broker import lease_policy
from kombu_redisdelay.broker.lease_policy import LeasePolicy

PACKAGE = Path(kombu_redisdelay.__file__).parent
DOCS = PACKAGE.parent / "docs" / "leases.rst"

#: A lease, or ``visibility_timeout``, that is multiplied or divided, but for the conversion to ms.
ARITHMETIC = re.compile(r"(lease[\w.]*|visibility_timeout)\)? [*/]+ (?!1000\b)|[*/] \(?[\w.]*lease")


@pytest.fixture(params=[4_000, 60_000, 3_600_000])
def policy(request: pytest.FixtureRequest) -> LeasePolicy:
    """Of a short lease, of the default, and of a long one."""
    return LeasePolicy(request.param)


def ms(seconds: float) -> float:
    return seconds * 1000


def test_a_lease_that_is_renewed_in_time_is_never_watched(policy: LeasePolicy) -> None:
    left_ms = policy.lease_ms - ms(policy.renewal_interval())
    assert left_ms > policy.unrenewed_ms


def test_a_consumer_that_takes_is_never_watched(policy: LeasePolicy) -> None:
    assert policy.fresh_ms > policy.unrenewed_ms


def test_a_take_renews_only_what_the_heartbeat_should_have_renewed(policy: LeasePolicy) -> None:
    assert policy.fresh_ms == pytest.approx(policy.lease_ms - ms(policy.renewal_interval()), abs=1)


def test_a_living_consumer_renews_its_lease_while_it_is_watched(policy: LeasePolicy) -> None:
    """After a jump of the clock, when its lease has ended. Also if a look of its heartbeat hangs."""
    assert policy.renewal_interval() < policy.watch_time
    hanging = policy.renewal_interval(beside_looks=True) + policy.reply_limit
    assert hanging <= policy.watch_time + 1e-9


def test_who_has_watched_from_the_beginning_has_seen_enough_when_the_lease_ends(policy: LeasePolicy) -> None:
    assert ms(policy.watch_time) <= policy.unrenewed_ms


def test_an_unrenewed_lease_is_looked_at_before_it_ends(policy: LeasePolicy) -> None:
    assert ms(policy.look_interval) < policy.unrenewed_ms


def test_a_renewal_without_a_reply_leaves_time_for_another(policy: LeasePolicy) -> None:
    renewed_after = policy.renewal_interval() + policy.reply_limit + policy.retry_interval()
    assert ms(renewed_after) < policy.lease_ms


def test_a_look_that_hangs_leaves_time_for_a_renewal(policy: LeasePolicy) -> None:
    looked_until = policy.renewal_interval(beside_looks=True) + policy.reply_limit
    assert ms(looked_until + policy.reply_limit) < policy.lease_ms


def test_what_a_dead_consumer_holds_is_there_until_others_have_noticed(policy: LeasePolicy) -> None:
    """Also if they come when its lease ends, and have not watched it before."""
    noticed_ms = policy.lease_ms + ms(policy.watch_time + policy.look_interval)
    assert noticed_ms < policy.unacked_ttl_ms(1)
    assert policy.unacked_ttl_ms(0) == 0


def test_a_failed_message_returns_as_soon_as_that_of_a_dead_consumer(policy: LeasePolicy) -> None:
    assert ms(policy.failed_kept) == policy.lease_ms


def test_a_queue_that_expires_sooner_than_the_lease_is_kept_alive(policy: LeasePolicy) -> None:
    """One lost renewal does not end it."""
    assert ms(2 * policy.renewal_interval([1_000])) < 1_000
    assert policy.renewal_interval([10**10]) == policy.renewal_interval()
    assert policy.retry_interval([1_000]) <= policy.renewal_interval([1_000])


def test_the_default() -> None:
    policy = LeasePolicy(60_000)
    assert (policy.renewal_interval(), policy.renewal_interval(beside_looks=True)) == (20, 10)
    assert (policy.reply_limit, policy.retry_interval()) == (20, 1)
    assert (policy.fresh_ms, policy.unrenewed_ms, policy.unacked_ttl_ms(1_000)) == (40_000, 36_000, 121_000)
    assert (policy.watch_time, policy.look_interval, policy.failed_kept) == (30, 10, 60)


def test_the_shortest_lease_does_not_keep_the_heartbeat_busy() -> None:
    assert LeasePolicy(1).renewal_interval(beside_looks=True) == 0.05


def test_nobody_else_makes_shares_of_a_lease() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}: {line.strip()}"
        for path in [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.lua")]
        if path.name != "lease_policy.py"
        for line in path.read_text().splitlines()
        if ARITHMETIC.search(line)
    ]
    assert found == []


def test_the_table_of_the_docs_has_these_shares() -> None:
    _, _, table = DOCS.read_text().partition(".. _lease-shares:")
    rows = re.findall(r"^   \* - .+\n     - ([\d/]+)", table, re.MULTILINE)
    shares = [value for value in vars(lease_policy).values() if isinstance(value, Fraction)]
    assert rows == [str(share) for share in shares]
    [look] = re.findall(r"^     - 1/3, but (.+)$", table, re.MULTILINE)
    longest, watched = lease_policy.LONGEST_LOOK_INTERVAL, lease_policy.LONGEST_WATCHED_LOOK_INTERVAL
    assert look == f"{longest:g} seconds at most, and {watched:g} seconds while any is watched"
