"""Looks for problems, and advises what to do about them. The command line prints the findings."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from redis.exceptions import ConnectionError, NoPermissionError, RedisError, ResponseError, TimeoutError

from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.operations.access import Access, natural
from kombu_redisdelay.operations.app_tasks import import_tasks, queues_of_tasks
from kombu_redisdelay.operations.doctor.finding import Finding, Level, ok, warning, wrong
from kombu_redisdelay.operations.doctor.leases import check_lease, check_worker_names
from kombu_redisdelay.operations.doctor.left_behind import check_leftovers, check_unlisted, old_bindings
from kombu_redisdelay.operations.doctor.limits import check_stock_workers
from kombu_redisdelay.operations.doctor.names import names_of
from kombu_redisdelay.operations.doctor.permissions import check_permissions
from kombu_redisdelay.operations.doctor.queues import check_queues
from kombu_redisdelay.operations.doctor.refusals import check_refusals
from kombu_redisdelay.operations.doctor.server import check_filling, check_replication, check_server, divide
from kombu_redisdelay.operations.doctor.settings import (
    attended,
    check_partitions,
    check_prefetch,
    check_result_backend,
    check_transport_options,
    check_url,
)
from kombu_redisdelay.operations.mending import find_stranded
from kombu_redisdelay.refusals import refusal_of
from kombu_redisdelay.words import first_of, sentence

__all__ = ("Finding", "Level", "examine")

#: Queues that one finding names.
MOST_NAMED = 10

_CONNECTION = "connection"

_START_THEM = "See which of the servers are away, and start them, or wait until their replicas take over."


def examine(access: Access, queues: Sequence[str] = (), *, with_permissions: bool = True) -> list[Finding]:
    """Check the server, the permissions, the options and the queues.

    It leaves nothing behind on the server. The amount of data that it reads is limited by the number of
    queues and consumers, not by the number of messages. Of the keys of the database, it looks at the names of
    a million at most.

    Arguments:
        access: the broker to check.
        queues: names of the queues to check; all known queues if it is empty.
        with_permissions: whether the user of *access* is that of the workers, which needs every permission.

    Raises:
        redis.exceptions.RedisError: the server cannot be reached, or has stopped answering.
    """
    store = access.store
    servers = list(_as_far_as_allowed("server", _check_servers(access)))
    silent = {finding.server for finding in servers if finding.check == _CONNECTION}
    servers += check_refusals([one for one in store.server.servers() if one.address not in silent])
    try:
        return [*servers, *_check_rest(access, queues, silent, with_permissions)]
    except RedisError as exc:
        if not store.server.has_slots:
            raise
        return [*servers, wrong("cluster", f"the rest could not be checked: {exc}", _START_THEM)]


def _check_rest(
    access: Access, queues: Sequence[str], silent: Collection[str], with_permissions: bool
) -> list[Finding]:
    store = access.store
    # What is imported may declare queues.
    not_imported = import_tasks(access.app) if access.app else ""
    names = names_of(access, queues)
    permissions = check_permissions(store, names, silent) if with_permissions else iter(())
    findings = [
        *_as_far_as_allowed("permissions", permissions),
        *check_transport_options(access.unknown_options(), access.is_unverified),
        *check_url(access),
        *check_lease(access.options),
        *(check_result_backend(access.app) if access.app else ()),
        *check_prefetch(access.app),
        *_not_imported(not_imported),
    ]
    declared = {*access.declared_queues, *(queues_of_tasks(access.app) if access.app else ())}
    try:
        used = set(store.queues())
    except NoPermissionError as exc:
        found = f"only those that are named, or that the app declares, are checked: {exc}"
        findings.append(warning("queues", found, "See the permissions."))
        used = set(queues)
    except RedisError as exc:
        if not store.server.has_slots:
            raise
        found = (
            f"only those that are named are checked, because the server with the list of all is away: {exc}"
        )
        findings.append(wrong("queues", found, _START_THEM))
        used = set(queues)
    # What the app declares is known if its tasks are.
    is_known = access.app is not None and not not_imported
    old = old_bindings(store, access.app, declared) if is_known else {}
    used.update(old)
    known = divide(store, sorted(used | declared, key=natural), silent)
    selected = divide(store, queues or attended(store, known.within), silent)
    examined = list(selected.within)
    for queue in queues:
        if queue in examined and not _is_in(queue, used | declared, store) and not store.exists(queue):
            examined.remove(queue)
            findings.append(_unused(queue, access))
    # There are no redis:// workers of a cluster.
    exchanges = {*names.exchanges, *examined}
    stranded = find_stranded(store, examined, store.partitions.all_names(used | declared), exchanges)
    leftovers = iter(()) if store.server.has_slots else check_leftovers(store.server, *access.stock_keys)
    stock_unacked, _ = access.stock_keys
    return [
        *findings,
        *_as_far_as_allowed("redis:// leftovers", leftovers),
        *_as_far_as_allowed("partitions", check_partitions(store, known, queues)),
        *_away(selected.away if queues else known.away),
        *_as_far_as_allowed(
            "queues",
            check_queues(
                store, examined, access.options, access.app, declared if is_known else None, stranded, old
            ),
        ),
        *_as_far_as_allowed(
            "workers", check_worker_names(store, store.partitions.all_names(known.within), access.options)
        ),
        *_as_far_as_allowed("lost keys", check_unlisted(store, examined, declared)),
        *_as_far_as_allowed("what fills Redis", check_filling(access)),
        *_as_far_as_allowed("pauses and limits", check_stock_workers(store, examined, stock_unacked)),
    ]


def _not_imported(why: str) -> Iterator[Finding]:
    if why:
        yield warning(
            "tasks",
            why,
            "A worker imports it when it starts. What depends on the tasks was left out: whether those of a "
            "limited queue are acked before they run.",
        )


def _is_in(queue: str, known: Collection[str], store: Store) -> bool:
    return queue in set(map(store.partitions.queue_of, known)).union(known)


def _unused(queue: str, access: Access) -> Finding:
    found = "nobody has used it yet" + (", and the app does not declare it" if access.app else "")
    return warning(f"queue {queue}", found, "See whether its name is misspelt.")


def _away(queues: Sequence[str]) -> Iterator[Finding]:
    if queues:
        some = first_of(queues, MOST_NAMED)
        found = (
            f"{len(queues)} could not be checked, because no server of the cluster serves them now: {some}"
        )
        yield wrong("queues", found, _START_THEM)


def _check_servers(access: Access) -> Iterator[Finding]:
    servers = sorted(access.store.server.servers(), key=lambda one: natural(one.address))
    for one in servers:
        replication = check_replication(
            one, access.options, has_sentinels=access.fails_over, is_cluster=access.store.server.has_slots
        )
        if len(servers) == 1:
            if access.fails_over:
                yield ok("sentinels", f"they name {one.address} as the primary")
            yield from chain(check_server(one), _as_far_as_allowed("replication", replication))
            continue
        try:
            for finding in chain(check_server(one), _as_far_as_allowed("replication", replication)):
                yield replace(finding, server=one.address)
        except (ConnectionError, TimeoutError) as exc:
            silent = wrong(_CONNECTION, f"it does not answer: {exc}", "Its queues wait until it is back.")
            yield replace(silent, server=one.address)
        except ResponseError as exc:
            refusal = refusal_of(exc)
            if refusal is None or not refusal.is_for_a_while:
                raise
            yield replace(
                wrong(_CONNECTION, f"it refuses: {exc}", sentence(refusal.hint)), server=one.address
            )


def _as_far_as_allowed(check: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    try:
        yield from findings
    except RedisError as exc:
        refusal = refusal_of(exc)
        if refusal is None and not isinstance(exc, ResponseError):
            raise
        hint = "" if refusal is None or refusal.reason == "noperm" else refusal.hint
        advice = sentence(hint) if hint else "See the permissions."
        yield Finding(Level.WRONG, check, f"could not be checked: {exc}", advice)
