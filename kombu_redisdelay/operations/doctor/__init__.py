"""Looks for problems, and advises what to do about them. The command line prints the findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

from redis.exceptions import ConnectionError, ResponseError, TimeoutError

from kombu_redisdelay.broker.server.errors import NotThePrimary
from kombu_redisdelay.operations.access import Access, natural
from kombu_redisdelay.operations.doctor.control import check_controls
from kombu_redisdelay.operations.doctor.finding import Finding, Level, ok, wrong
from kombu_redisdelay.operations.doctor.lease import check_lease
from kombu_redisdelay.operations.doctor.leftovers import check_leftovers
from kombu_redisdelay.operations.doctor.names import names_of
from kombu_redisdelay.operations.doctor.partitions import attended, check_partitions
from kombu_redisdelay.operations.doctor.permissions import check_permissions
from kombu_redisdelay.operations.doctor.queues import check_queues
from kombu_redisdelay.operations.doctor.replication import check_replication
from kombu_redisdelay.operations.doctor.server import check_server
from kombu_redisdelay.operations.doctor.transport_options import check_transport_options

__all__ = ("Finding", "Level", "examine")


def examine(access: Access, queues: Sequence[str] = ()) -> list[Finding]:
    """Check the server, the permissions, the options and the queues.

    It leaves nothing behind on the server. The amount of data that it reads is limited by the number of
    queues and consumers, not by the number of messages.

    Arguments:
        access: the broker to check.
        queues: names of the queues to check; all known queues if it is empty.

    Raises:
        redis.exceptions.RedisError: the server cannot be reached, or has stopped answering.
    """
    store = access.store
    servers = list(_as_far_as_allowed("server", _check_servers(access)))
    try:
        return [*servers, *_check_rest(access, queues)]
    except NotThePrimary as exc:
        advice = "Have the broker URL name the primary."
        return [*servers, wrong("the rest", f"could not be checked: {exc}", advice)]
    except (ConnectionError, TimeoutError) as exc:
        if not store.server.has_slots:
            raise
        advice = "See which of the servers are away, and start them, or wait until their replicas take over."
        return [*servers, wrong("cluster", f"the rest could not be checked: {exc}", advice)]


def _check_rest(access: Access, queues: Sequence[str]) -> list[Finding]:
    store = access.store
    names = names_of(access, queues)
    known = list(_known(access))
    # There are no redis:// workers of a cluster.
    leftovers = iter(()) if store.server.has_slots else check_leftovers(store.server, *access.stock_keys)
    examined = list(queues or attended(store, known))
    stock_unacked, _ = access.stock_keys
    return [
        *check_permissions(store, names),
        *check_transport_options(access.unknown_options()),
        *check_lease(access.options),
        *_as_far_as_allowed("redis:// leftovers", leftovers),
        *_as_far_as_allowed("partitions", check_partitions(store, known, queues)),
        *_as_far_as_allowed("queues", check_queues(store, examined, access.options)),
        *_as_far_as_allowed("pauses and limits", check_controls(store, examined, access.app, stock_unacked)),
    ]


def _check_servers(access: Access) -> Iterator[Finding]:
    servers = sorted(access.store.server.servers(), key=lambda one: natural(one.address))
    for one in servers:
        replication = check_replication(one, access.options, fails_over=access.fails_over)
        if len(servers) == 1:
            if access.fails_over:
                yield ok("sentinels", f"they name {one.address} as the primary")
            yield from chain(check_server(one), _as_far_as_allowed("replication", replication))
            continue
        try:
            for finding in chain(check_server(one), _as_far_as_allowed("replication", replication)):
                yield replace(finding, server=one.address)
        except (ConnectionError, TimeoutError) as exc:
            silent = wrong("connection", f"it does not answer: {exc}", "Its queues wait until it is back.")
            yield replace(silent, server=one.address)


def _known(access: Access) -> Iterator[str]:
    """The names of the queues that Redis knows of or that the app declares, in natural order."""
    declared = access.app.amqp.queues if access.app else ()
    yield from sorted({*access.store.queues(), *declared}, key=natural)


def _as_far_as_allowed(check: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    try:
        yield from findings
    except ResponseError as exc:
        yield Finding(Level.WRONG, check, f"could not be checked: {exc}", "See the permissions.")
