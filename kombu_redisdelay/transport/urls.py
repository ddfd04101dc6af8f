"""Tells kombu that several broker URLs are one broker: its sentinels, or servers of a cluster."""

from __future__ import annotations

from typing import Any

from kombu.utils.url import as_url

from kombu_redisdelay.broker.server.nodes import Address
from kombu_redisdelay.urls import LOCAL, read

#: What is said once: its name in a URL -> its name in a ``Connection`` of kombu.
_OF_CONNECTION = {"username": "userid", "password": "password", "path": "virtual_host"}


def read_together(client: Any, default_port: int) -> tuple[Address, ...]:
    """The addresses in the URLs of *client*, a ``Connection`` of kombu, each once.

    kombu reads the first URL, and takes each of the others for another broker: when it cannot connect, it
    goes on to the next one, and Celery logs an error for each. Here, all of them are one broker. So
    afterwards, *client* has what any of them says, and does not go on to another one. Its alternates are for
    programs that read them, such as ``celery inspect stats``, and for its clones: one URL for each address,
    and nothing else in it, because not every Celery takes a password out of them.

    Raises:
        ValueError: the URLs contradict each other, or are not joined with ``;``. No password is in the error.
    """
    if not client.alt:
        return (Address(client.hostname or LOCAL, client.port or default_port),)
    once, addresses = read(client.alt, default_port)
    for name, value in once.items():
        setattr(client, _OF_CONNECTION[name], value)
    found = tuple(Address(*address) for address in addresses)
    scheme = client.alt[0].partition("://")[0]
    client.alt, client.cycle = [as_url(scheme, *address) for address in found], None
    client.completes_cycle = _after_each
    return found


def _after_each(retries: int) -> bool:
    """Whether kombu waits after a failure, whose number is *retries*. Of several brokers, it waits only after
    one for each of them."""
    return True
