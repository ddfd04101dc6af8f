"""What the URL of a broker asks for: one broker of several URLs, and this transport where it says ``redis://``."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from kombu.utils.scheduling import cycle_by_name
from kombu.utils.url import as_url

from kombu_redisdelay import registration
from kombu_redisdelay.broker.options import SECONDS, OptionKind, Options, whole
from kombu_redisdelay.broker.server.nodes import Address
from kombu_redisdelay.public import public
from kombu_redisdelay.urls import LOCAL, read

logger = logging.getLogger(__name__)

#: What is said once: its name in a URL -> its name in a ``Connection`` of kombu.
_OF_CONNECTION = {"username": "userid", "password": "password", "path": "virtual_host"}

#: The schemes that the log has named.
_told: set[str] = set()


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


@public
def use_for_redis_urls() -> None:
    """Use this transport for the brokers of this process whose URLs begin with ``redis://``, ``rediss://`` or
    ``sentinel://``. Result backends are not touched. The environment variable ``KOMBU_REDISDELAY=redis`` does
    the same.

    Call it before the first connection, in every process: next to the app is a good place. Connections that
    are open stay what they are. Calling it again changes nothing.
    """
    registration.take_over()


def is_taken_over(client: Any) -> bool:
    """Whether *client*, a ``Connection`` of kombu, has such a URL."""
    return client.transport_cls in registration.TAKEN_OVER


def _is_order(value: object) -> bool:
    try:
        return callable(cycle_by_name(value))
    except (ImportError, AttributeError, ValueError, TypeError):
        return False


#: Options of kombu that it does not check. A wrong one shows where it is used, in words that do not name it,
#: or not at all.
_OF_KOMBU = {
    "sep": OptionKind(
        "a text with one character at least", lambda value: isinstance(value, str) and value != ""
    ),
    "global_keyprefix": OptionKind("a text", lambda value: isinstance(value, str)),
    "priority_steps": OptionKind(
        "a list of whole numbers from 0",
        lambda value: isinstance(value, (list, tuple)) and all(map(whole(0).is_right, value)),
    ),
    "queue_order_strategy": OptionKind("round_robin, priority, sorted, or the path of a class", _is_order),
    "socket_timeout": SECONDS.optional(),
    "socket_connect_timeout": SECONDS.optional(),
}


def options_of(client: Any) -> Options:
    """Our transport options of *client*. If its URL says ``redis://``, a ``visibility_timeout`` that is
    longer than our default does not count: it was chosen for kombu's transport, where it must be longer than
    any task and any countdown. Here it would only delay the recovery from a crash.

    Raises:
        ValueError: an option, ours or kombu's, has the wrong type or is out of range.
    """
    given = client.transport_options
    for name, kind in _OF_KOMBU.items():
        if name in given:
            kind.check(name, given[name])
    options = Options.of(given)
    if not is_taken_over(client):
        return options
    return replace(options, visibility_timeout=min(options.visibility_timeout, Options().visibility_timeout))


def tell_once(client: Any) -> None:
    """Log that *client* is taken over, once in each process."""
    if is_taken_over(client) and client.transport_cls not in _told:
        _told.add(client.transport_cls)
        logger.info(
            "Brokers with a %s:// URL use kombu-redisdelay in this process (KOMBU_REDISDELAY, or "
            "use_for_redis_urls).",
            client.transport_cls,
        )


def _after_each(retries: int) -> bool:
    """Whether kombu waits after a failure, whose number is *retries*. Of several brokers, it waits only after
    one for each of them."""
    return True
