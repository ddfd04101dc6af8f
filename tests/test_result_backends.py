"""What Celery's backends are told by our URLs, and by the settings of the broker. Nothing is connected."""

from __future__ import annotations

import pickle
import ssl
import subprocess
import sys
from typing import Any

import pytest
from redis.exceptions import (
    BusyLoadingError,
    ConnectionError,
    MasterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

celery = pytest.importorskip("celery")
redis = pytest.importorskip("celery.backends.redis")

SENTINELS = "{0}://a:1;{0}://u:p%3B%40@b:2/3"
OF_BROKER = {"master_name": "m", "sentinel_kwargs": {"password": "z"}, "global_keyprefix": "k"}


def backend(url: str, broker: str | None = None, **settings: Any) -> Any:
    app = celery.Celery("shop", broker=broker or url, backend=url, set_as_current=False)
    app.conf.update(settings)
    return app.backend


def parameters(url: str, broker: str | None = None, **settings: Any) -> dict[str, Any]:
    return dict(backend(url, broker, **settings).connparams)


def is_tls(params: dict[str, Any]) -> bool:
    return "connection_class" in params and issubclass(params["connection_class"], redis.redis.SSLConnection)


def test_a_url() -> None:
    params = parameters("redisdelay://u:p%40%2Fss@h:1/2?socket_timeout=3")
    expected = {"host": "h", "port": 1, "db": 2, "username": "u", "password": "p@/ss", "socket_timeout": 3}
    assert params.items() >= expected.items()
    assert not is_tls(params)


@pytest.mark.parametrize("url", ["redisdelay://", "redisdelays://", "redisdelay", "redisdelays"])
def test_a_scheme_alone(url: str) -> None:
    params = parameters(url, "redisdelay://")
    assert params.items() >= {"host": "127.0.0.1", "port": 6379, "db": 0}.items()
    assert is_tls(params) == url.startswith("redisdelays")


def test_a_socket() -> None:
    params = parameters("redisdelay+socket:///run/redis.sock?virtual_host=3", broker_use_ssl=True)
    assert params.items() >= {"path": "/run/redis.sock", "db": 3}.items()
    assert not is_tls(params)


def test_tls_verifies() -> None:
    params = parameters("redisdelays://h:1/2?ssl_ca_certs=%2Fca.pem")
    assert is_tls(params)
    expected = {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_check_hostname": True, "ssl_ca_certs": "/ca.pem"}
    assert params.items() >= expected.items()
    unsafe = parameters("redisdelays://h:1/2?ssl_cert_reqs=none")
    assert unsafe.items() >= {"ssl_cert_reqs": ssl.CERT_NONE, "ssl_check_hostname": False}.items()


def test_tls_of_the_broker_is_for_its_server() -> None:
    options = {"ssl_ca_certs": "/ca.pem"}
    same = parameters("redisdelay://h:1/2", "redisdelay://:x@h:1/0", broker_use_ssl=options)
    assert is_tls(same)
    assert same.items() >= {**options, "ssl_cert_reqs": ssl.CERT_REQUIRED}.items()
    assert is_tls(parameters("redisdelay://h:1/2", broker_use_ssl=True))
    own = parameters(
        "redisdelay://h:1/2", redis_backend_use_ssl={"ssl_certfile": "/own.pem"}, broker_use_ssl=options
    )
    assert is_tls(own)
    assert own["ssl_certfile"] == "/own.pem"
    assert "ssl_ca_certs" not in own
    for broker in ("redisdelay://other:1/2", "amqp://h:1/2", "redisdelay://h:2/2"):
        assert not is_tls(parameters("redisdelay://h:1/2", broker, broker_use_ssl=options))


def test_sentinels() -> None:
    url = SENTINELS.format("redisdelay-sentinel")
    of_url = backend(url, broker_transport_options=OF_BROKER)
    params = of_url.connparams
    assert [(host["host"], host["port"]) for host in params["hosts"]] == [("a", 1), ("b", 2)]
    assert params.items() >= {"db": 3, "username": "u", "password": "p;@"}.items()
    assert of_url._transport_options == {"master_name": "m", "sentinel_kwargs": {"password": "z"}}
    assert "p;@" not in of_url.as_uri()
    assert not is_tls(params)
    # The broker's options are for its sentinels, and those of results come first.
    own: dict[str, Any] = {
        "result_backend_transport_options": {"master_name": "own"},
        "broker_transport_options": OF_BROKER,
    }
    assert backend(url, **own)._transport_options["master_name"] == "own"
    assert backend(url, "redisdelay-sentinel://c", **own)._transport_options == {"master_name": "own"}


@pytest.mark.parametrize("scheme", ["redisdelay-sentinel", "redisdelays-sentinel"])
def test_tls_of_sentinels(scheme: str) -> None:
    options: dict[str, Any] = {
        "broker_transport_options": OF_BROKER,
        "broker_use_ssl": {"ssl_ca_certs": "/ca.pem"},
    }
    of_url = backend(SENTINELS.format(scheme), **options)
    assert is_tls(of_url.connparams)
    assert of_url.connparams["ssl_ca_certs"] == "/ca.pem"
    kwargs = of_url._transport_options["sentinel_kwargs"]
    assert kwargs["password"] == "z"
    assert kwargs.get("ssl_ca_certs") == ("/ca.pem" if scheme == "redisdelays-sentinel" else None)


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("redisdelays+socket:///s3cret", r"no such URL scheme: redisdelays\+socket://"),
        ("redisdelay+sentinel://:s3cret@h", r"no such URL scheme: redisdelay\+sentinel://"),
        ("redisdelay://:s3cret@a:1;redisdelay://b:2", "results are kept in one place"),
        ("redisdelay://:s3cret@a:1,b:2", "not with a comma"),
        ("redisdelay://:s3cret/w@b:2", "as escapes"),
        ("redisdelays://:s3cret@h?ssl_cert_reqs=nope", "ssl_cert_reqs cannot be 'nope'"),
        ("redisdelay-sentinel://:s3cret@a:1", "set result_backend_transport_options"),
        (
            "redisdelay-sentinel://:s3cret@a:1;sentinel://b",
            "each sentinel begins with redisdelay-sentinel://",
        ),
        ("redisdelay-sentinel://:s3cret@a:1/0;redisdelay-sentinel://b/1", "more than one database"),
        ("redisdelay-cluster://:s3cret@a:1", "set result_backend to a Redis without cluster"),
        ("redisdelays-cluster://:s3cret@a:1", "set result_backend to a Redis without cluster"),
    ],
)
def test_errors(url: str, error: str) -> None:
    with pytest.raises(celery.exceptions.ImproperlyConfigured, match=f"(?i){error}") as raised:
        backend(url, "memory://")
    assert "s3cret" not in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("error", "is_tried_again"),
    [
        (ResponseError("MISCONF Redis is configured to save RDB snapshots"), True),
        (ResponseError("BUSY Redis is busy running a script."), True),
        (BusyLoadingError("Redis is loading the dataset in memory"), True),
        (ReadOnlyError("You can't write against a read only replica."), True),
        (MasterDownError("Link with MASTER is down"), True),
        (ResponseError("NOREPLICAS Not enough good replicas to write."), True),
        (ConnectionError("Connection closed by server."), True),
        # Each place of the pool would wait, and a full Redis would not drain.
        (OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), False),
        (NoPermissionError("this user has no permissions to run the 'setex' command"), False),
        (ResponseError("max daily request limit exceeded. Limit: 10000, Usage: 10000."), False),
        (ResponseError("string exceeds maximum allowed size (proto-max-bulk-len)"), False),
        (ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value"), False),
    ],
    ids=str,
)
def test_which_results_are_stored_again(error: RedisError, is_tried_again: bool) -> None:
    """With ``result_backend_always_retry``."""
    assert backend("redisdelay://h:1/2").exception_safe_to_retry(error) is is_tried_again


@pytest.mark.parametrize("url", ["redisdelays://h:1/2", "redisdelay+socket:///run/redis.sock"])
def test_copies(url: str) -> None:
    """Celery makes a new one from what it pickles, and tells it the app."""
    first = backend(url)
    _, told = first.__reduce__()
    make, args, kwargs = pickle.loads(pickle.dumps(told))
    again = make(*args, app=first.app, **kwargs)
    assert again.connparams == first.connparams


def test_a_process_that_reads_results_loads_no_transport() -> None:
    program = (
        "import sys, celery\n"
        "celery.Celery(broker='redisdelay://h', backend='redisdelay://h').backend\n"
        "print(*sorted(name for name in sys.modules if name.startswith('kombu_redisdelay.')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [
        f"kombu_redisdelay.{name}" for name in ("refusals", "registration", "result_backends", "urls")
    ]
