"""Bounds how many passwords can be tried."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from ipaddress import IPv6Address, IPv6Network, ip_address
from zlib import crc32

#: Wrong passwords that a person may give in a row.
MOST = 10

#: Seconds after which one more may be given.
EVERY_SECONDS = 6.0

#: People that are remembered: memory is bounded. A person that is forgotten begins anew.
MOST_PEOPLE = 10_000

#: People at an address. Beyond that, several names are one person. Otherwise thousands of names from one
#: address could make this forget all others.
MOST_AT_AN_ADDRESS = 256

#: The bits of an IPv6 address that a provider gives a customer. The customer chooses the rest.
_NETWORK_BITS = 64


def person_of(address: str, name: bytes) -> Hashable:
    """The person who gives a password, as far as known: a name, and the network of one customer.

    So guesses at the password of one user do not lock out other users behind the same proxy.
    """
    return _network_of(address), crc32(name) % MOST_AT_AN_ADDRESS


def _network_of(address: str) -> str:
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        # A proxy may pass on anything.
        return address
    if not isinstance(found, IPv6Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(IPv6Network((found, _NETWORK_BITS), strict=False))


class Guesses:
    """Remembers wrong passwords: a token bucket for each person.

    Arguments:
        clock: tells the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # When the bucket of each person is full again. Entries whose bucket is full again are dropped.
        self._full_at: OrderedDict[Hashable, float] = OrderedDict()

    def wait_seconds(self, person: Hashable) -> float:
        """Seconds until a person may try again; 0 if that is now."""
        missing_seconds = self._full_at.get(person, 0.0) - self._clock()
        return max(0.0, missing_seconds - (MOST - 1) * EVERY_SECONDS)

    def was_wrong(self, person: Hashable) -> None:
        """Remember that a person gave a wrong password."""
        now = self._clock()
        self._full_at[person] = max(self._full_at.pop(person, now), now) + EVERY_SECONDS
        if len(self._full_at) > MOST_PEOPLE:
            self._full_at.popitem(last=False)
