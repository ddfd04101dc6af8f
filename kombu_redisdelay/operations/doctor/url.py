"""Says if the broker's URL is one of ``redis://`` although this transport is used."""

from __future__ import annotations

from collections.abc import Iterator

from kombu_redisdelay.operations.access import Access
from kombu_redisdelay.operations.doctor.finding import Finding, ok
from kombu_redisdelay.registration import TAKEN_OVER


def check_url(access: Access) -> Iterator[Finding]:
    scheme = access.scheme
    if scheme not in TAKEN_OVER:
        return
    found = f"{scheme}:// uses this transport in this process (KOMBU_REDISDELAY, or use_for_redis_urls)"
    given, used = access.transport_options.get("visibility_timeout"), access.options.visibility_timeout
    if given is not None and given != used:
        found += f"; the visibility_timeout of {given:g} seconds is meant for kombu's, and does not count"
    yield ok("broker URL", found)
