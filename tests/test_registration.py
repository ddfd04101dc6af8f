"""The URL schemes, in an interpreter that has imported nothing yet."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

TRANSPORT = "<class 'kombu_redisdelay.Transport'>"
SECURE = "<class 'kombu_redisdelay.transport.transports.SecureTransport'>"
SENTINEL = "<class 'kombu_redisdelay.transport.sentinel.SentinelTransport'>"
SECURE_SENTINEL = "<class 'kombu_redisdelay.transport.sentinel.SecureSentinelTransport'>"

SCHEMES = {
    "redisdelay": TRANSPORT,
    "redisdelays": SECURE,
    "redisdelay-sentinel": SENTINEL,
    "redisdelays-sentinel": SECURE_SENTINEL,
}


def run(program: str, **variables: str) -> str:
    result = start(program, **variables)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def start(program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, **variables}
    )


def test_with_celery_alone() -> None:
    pytest.importorskip("celery")
    program = (
        "import celery\n"
        f"for scheme in {[*SCHEMES]}:\n"
        "    app = celery.Celery(broker=f'{scheme}://localhost:6379/0')\n"
        "    print(app.connection_for_write().get_transport_cls())"
    )
    assert run(program).splitlines() == [*SCHEMES.values()]


@pytest.mark.parametrize("first", ["import kombu_redisdelay, kombu", "import kombu, kombu_redisdelay"])
def test_with_plain_kombu(first: str) -> None:
    program = (
        f"{first}\n"
        f"for scheme in {[*SCHEMES]}:\n"
        "    print(kombu.Connection(f'{scheme}://localhost').get_transport_cls())"
    )
    assert run(program).splitlines() == [*SCHEMES.values()]


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


TAKEN_OVER = {"redis": TRANSPORT, "rediss": SECURE, "sentinel": SENTINEL}
STOCK = "<class 'kombu.transport.redis.Transport'>"


class TestRedisUrls:
    """kombu's own schemes are ours if a process wants it so."""

    def test_by_the_environment(self) -> None:
        pytest.importorskip("celery")
        program = (
            "import celery\n"
            f"for scheme in {[*TAKEN_OVER]}:\n"
            "    app = celery.Celery(broker=f'{scheme}://localhost:6379/0', backend='redis://localhost:6379/0')\n"
            "    print(app.connection_for_write().get_transport_cls())\n"
            "    print(type(app.backend).__module__)"
        )
        told = run(program, KOMBU_REDISDELAY="redis").splitlines()
        assert (told[::2], {*told[1::2]}) == ([*TAKEN_OVER.values()], {"celery.backends.redis"})

    def test_by_a_call(self) -> None:
        program = (
            "import celery, kombu_redisdelay\n"
            "app = celery.Celery(broker='redis://localhost:6379/0')\n"
            "early = app.connection_for_write()\n"
            "print(early.get_transport_cls())\n"
            "kombu_redisdelay.use_for_redis_urls()\n"
            "print(type(early.transport))\n"
            "print(app.connection_for_write().get_transport_cls())"
        )
        assert run(program, KOMBU_REDISDELAY="").splitlines() == [STOCK, TRANSPORT, TRANSPORT]

    def test_a_call_that_comes_late_is_told(self) -> None:
        program = (
            "import celery, kombu_redisdelay\n"
            "celery.Celery(broker='redis://localhost:6379/0').connection_for_write().transport\n"
            "kombu_redisdelay.use_for_redis_urls()"
        )
        assert "redis:// was used before it became kombu-redisdelay's" in start(program).stderr

    def test_another_value_is_an_error(self) -> None:
        result = start("import celery; celery.Celery(broker='redis://').connection()", KOMBU_REDISDELAY="1")
        assert result.returncode == 1
        assert "KOMBU_REDISDELAY may be 'redis' or empty, not '1'" in result.stderr
