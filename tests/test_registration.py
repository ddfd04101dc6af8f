"""The URL schemes, in an interpreter that has imported nothing yet."""

from __future__ import annotations

import subprocess
import sys

import pytest

TRANSPORT = "<class 'kombu_redisdelay.Transport'>"
SECURE = "<class 'kombu_redisdelay.transport.transports.SecureTransport'>"
SENTINEL = "<class 'kombu_redisdelay.transport.sentinel.SentinelTransport'>"
SECURE_SENTINEL = "<class 'kombu_redisdelay.transport.sentinel.SecureSentinelTransport'>"

SCHEMES = [
    ("redisdelay", TRANSPORT),
    ("redisdelays", SECURE),
    ("redisdelay-sentinel", SENTINEL),
    ("redisdelays-sentinel", SECURE_SENTINEL),
]


def run(program: str) -> str:
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.mark.parametrize(("scheme", "transport"), SCHEMES)
def test_with_celery_alone(scheme: str, transport: str) -> None:
    pytest.importorskip("celery")
    program = (
        "import celery\n"
        f"app = celery.Celery(broker='{scheme}://localhost:6379/0')\n"
        "print(app.connection_for_write().get_transport_cls())"
    )
    assert run(program) == transport


@pytest.mark.parametrize(("scheme", "transport"), SCHEMES)
@pytest.mark.parametrize("first", ["import kombu_redisdelay, kombu", "import kombu, kombu_redisdelay"])
def test_with_plain_kombu(first: str, scheme: str, transport: str) -> None:
    program = f"{first}\nprint(kombu.Connection('{scheme}://localhost').get_transport_cls())"
    assert run(program) == transport


def test_named_by_its_class() -> None:
    pytest.importorskip("celery")
    program = (
        "import celery\n"
        "app = celery.Celery(broker='redis://localhost:6379/0')\n"
        "app.conf.broker_transport = 'kombu_redisdelay:Transport'\n"
        "print(app.connection_for_write().get_transport_cls())"
    )
    assert run(program) == TRANSPORT


def test_the_hook_leaves_kombus_serializers_alone() -> None:
    program = (
        "from kombu.serialization import registry, dumps, loads\n"
        "kind, encoding, body = dumps({'a': 1}, 'json')\n"
        "print(loads(body, kind, encoding, accept=[kind]), 'redisdelay' in registry._encoders)"
    )
    assert run(program) == "{'a': 1} False"
