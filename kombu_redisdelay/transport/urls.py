"""Tells kombu that several broker URLs are one broker: its sentinels, or servers of a cluster."""

from __future__ import annotations

from typing import Any

from kombu_redisdelay.broker.server.nodes import Address
from kombu_redisdelay.urls import LOCAL, SEPARATOR, read

#: What is said once: its name in a URL -> its name in a ``Connection`` of kombu.
_OF_CONNECTION = {"username": "userid", "password": "password", "path": "virtual_host"}


def read_together(client: Any, default_port: int) -> tuple[Address, ...]:
    """The addresses in the URLs of *client*, a ``Connection`` of kombu, each once.

    kombu reads the first URL, and takes each of the others for another broker: when it cannot connect, it
    goes on to the next one, and Celery logs an error for each. Here, all of them are one broker. So
    afterwards, *client* has what any of them says, and is not led to another one.

    Raises:
        ValueError: the URLs contradict each other, or are not joined with ``;``. No password is in the error.
    """
    if not client.alt:
        return (Address(client.hostname or LOCAL, client.port or default_port),)
    once, addresses = read(client.alt, default_port)
    for name, value in once.items():
        setattr(client, _OF_CONNECTION[name], value)
    # One alternate: then kombu waits after each failure, and not only after one for each URL.
    client.alt, client.cycle = [SEPARATOR.join(client.alt)], None
    return tuple(Address(*address) for address in addresses)
