"""What befalls the servers: for each row of :mod:`kombu_redisdelay.refusals` at least one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

from tests.chaos.trouble.sites import SECRET, Sharded, TroubledSite
from tools.harness import trouble
from tools.harness.proxy import HOST

#: Of a site, for so many users, which are all of them or only some.
Begin = Callable[[TroubledSite, Sequence[str]], AbstractContextManager[object]]
ALL = ("single", "sentinel", "cluster")


@dataclass(frozen=True)
class Row:
    """
    Attributes:
        reason: of the row of the table; ``None`` for what is in no row.
        begin: has the servers refuse, in the block that it returns.
        is_for_some: whether some workers may be refused, and others not.
        ends_who_starts: whether a worker that starts meanwhile ends, because it was never served.
    """

    name: str
    reason: str | None
    begin: Begin
    topologies: Sequence[str] = ALL
    is_for_some: bool = False
    ends_who_starts: bool = False


def _all_servers(begin: trouble.Trouble) -> Begin:
    @contextmanager
    def befall(site: TroubledSite, users: Sequence[str]) -> Iterator[None]:
        with ExitStack() as stack:
            for server in site.servers:
                stack.enter_context(begin(server))
            yield

    return befall


def _a_server(begin: trouble.Trouble) -> Begin:
    return lambda site, users: begin(site.servers[0])


def _users(begin: Callable[..., AbstractContextManager[object]], *more: str) -> Begin:
    @contextmanager
    def befall(site: TroubledSite, users: Sequence[str]) -> Iterator[None]:
        with ExitStack() as stack:
            for server in site.servers:
                for user in users:
                    stack.enter_context(begin(server, user, *more))
            yield

    return befall


def _a_node(site: TroubledSite, users: Sequence[str]) -> AbstractContextManager[object]:
    assert isinstance(site, Sharded)
    return trouble.cluster_down(site.nodes[0])


def _by_proxy(said: str) -> Begin:
    """For what no server here can be brought to, or for not so long as we like."""

    @contextmanager
    def befall(site: TroubledSite, users: Sequence[str]) -> Iterator[None]:
        for proxy in site.proxies:
            # Servers, which have other addresses, come this way, too.
            proxy.refuse(said, [HOST])
        try:
            yield
        finally:
            for proxy in site.proxies:
                proxy.serve()

    return befall


ROWS = (
    Row("MISCONF", "misconf", _all_servers(trouble.misconf)),
    Row("BUSY", "busy", _a_server(trouble.busy)),
    Row("OOM", "oom", _all_servers(trouble.full)),
    Row("NOREPLICAS", "noreplicas", _all_servers(trouble.too_few_replicas)),
    Row(
        "NOPERM for commands",
        "noperm",
        _users(trouble.no_permission),
        is_for_some=True,
        ends_who_starts=True,
    ),
    Row(
        "NOPERM for keys",
        "noperm",
        _users(trouble.no_permission, "resetkeys", "~nothing"),
        is_for_some=True,
        ends_who_starts=True,
    ),
    Row(
        "NOPERM for all",
        "noperm",
        _users(trouble.no_permission, "-@all"),
        is_for_some=True,
        ends_who_starts=True,
    ),
    Row(
        "NOPERM for channels",
        "noperm",
        _users(trouble.no_permission, "resetchannels"),
        is_for_some=True,
        ends_who_starts=True,
    ),
    Row(
        "WRONGPASS",
        "noauth",
        _users(trouble.wrong_password, SECRET),
        is_for_some=True,
        ends_who_starts=True,
    ),
    Row("NOAUTH", "noauth", _by_proxy("NOAUTH Authentication required."), ends_who_starts=True),
    Row("LOADING of a restart", "loading", _a_server(trouble.loading)),
    Row("LOADING for long", "loading", _by_proxy("LOADING Redis is loading the dataset in memory")),
    Row("max clients", "maxclients", _all_servers(trouble.too_many_clients)),
    Row("READONLY", "readonly", _all_servers(trouble.read_only), ("single",)),
    Row("MASTERDOWN", "readonly", _all_servers(trouble.without_primary), ("single",)),
    Row(
        "READONLY of one that is not replaced",
        "readonly",
        _by_proxy("READONLY You can't write against a read only replica."),
        ("sentinel", "cluster"),
    ),
    Row("CLUSTERDOWN", "clusterdown", _a_node, ("cluster",)),
    Row(
        "TRYAGAIN",
        "clusterdown",
        _by_proxy("TRYAGAIN Multiple keys request during rehashing of slot"),
        ("cluster",),
    ),
    Row(
        "a quota",
        "quota",
        _by_proxy("ERR max daily request limit exceeded. Limit: 10000, Usage: 10000."),
    ),
    Row("an unknown error", None, _by_proxy("ERR the disks of this service are on strike")),
)


def rows(topology: str) -> list[Row]:
    """Those that can be had there."""
    return [row for row in ROWS if topology in row.topologies]
