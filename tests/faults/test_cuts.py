"""The network is cut: nothing is refused, and nothing comes through.

Workers in such cuts are in ``sentinel/test_workers.py`` and ``cluster/test_workers.py``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from kombu_redisdelay.transport.patience import PATIENCE
from kombu_redisdelay.transport.publishing import UNSURE
from tests.faults.cut_sites import OfACluster, WithSentinels
from tools.harness import network
from tools.harness.process import wait_until

pytestmark = [
    pytest.mark.skipif(not network.are_allowed(), reason="takes root and network namespaces"),
    pytest.mark.timeout(240),
]

#: Seconds.
BEFORE, CUT, AFTER = 3.0, 20.0, 8.0

#: Seconds that a reply is waited for.
REPLY = 3.0

#: Seconds by which a busy machine is later.
SLACK = 6.0


class Published(NamedTuple):
    id: str
    began: float
    took: float
    error: str

    @property
    def ended(self) -> float:
        return self.began + self.took


def notes(path: Path) -> list[Published]:
    return [Published(*json.loads(line)) for line in path.read_text().splitlines()]


def _latest(paths: Mapping[str, Path]) -> float:
    """When the latest message was begun, of the producer that is behind."""
    return min(notes(path)[-1].began for path in paths.values())


@pytest.mark.parametrize("kind", [WithSentinels, OfACluster])
def test_a_primary_is_cut_off_with_a_client(
    kind: type[WithSentinels] | type[OfACluster], tmp_path: Path
) -> None:
    """Who can reach the next primary publishes without an error, and nothing twice. Who cannot gets an error
    in the time that the docs say, and goes on afterwards."""
    paths = {host: tmp_path / host for host in "ab"}
    with ExitStack() as stack:
        site = kind(stack, tmp_path)
        for host, path in paths.items():
            site.produce(host, path)
        wait_until(lambda: all(map(notes, paths.values())), 60, "the producers begin")
        time.sleep(BEFORE)
        began = time.time()
        site.network.cut_off(site.minority)
        wait_until(site.has_failed_over, CUT, "no failover")
        failover = time.time() - began
        time.sleep(max(0.0, began + CUT - time.time()))
        site.network.heal()
        healed = time.time()
        wait_until(lambda: site.roles()["n1"]["role"] == "slave", 60, "the old primary follows")
        wait_until(lambda: _latest(paths) > healed + AFTER, 60, "the producers go on")
        cut, whole = notes(paths["a"]), notes(paths["b"])
        there = site.there()
    # Nobody can know of one that was on its way.
    unsure = [each for each in (*whole, *cut) if UNSURE in each.error]
    assert [each for each in unsure if each.began > began + 1] == []
    assert [each for each in whole if each.error and each not in unsure] == []
    assert [id for id, count in there.items() if count > 1] == []
    assert max(each.took for each in whole) < max(REPLY, failover) + 2 + SLACK
    # What a replica had not got yet when the cut began may be lost without confirm_replicas.
    sure = [each.id for each in whole if each.ended < began - 0.5 or each.began > began + 1]
    assert [id for id in sure if there[id] != 1] == []
    assert max(each.took for each in cut) < REPLY + PATIENCE + 2 + SLACK
    errors = [each for each in cut if each.error]
    assert errors
    assert all("OperationalError" in each.error or "NotReplicated" in each.error for each in errors)
    afterwards = [each for each in cut if each.began > healed + 3]
    assert afterwards
    assert [each for each in afterwards if each.error or there[each.id] != 1] == []
