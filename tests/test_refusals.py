"""What a refusal means, by what servers really say: asked from the server of this environment, and held as
data for the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from threading import Thread

import pytest
from redis.exceptions import (
    ConnectionError,
    NoPermissionError,
    RedisError,
    ResponseError,
    TimeoutError,
)

from kombu_redisdelay.broker.server.connections import PlainConnection
from kombu_redisdelay.refusals import REFUSALS, Then, refusal_of
from tools.harness import trouble
from tools.harness.cluster import Cluster
from tools.harness.process import wait_until
from tools.harness.redis_server import HOST, RedisServer

WRITES = "return redis.call('SET', KEYS[1], 'value')"


def reason_of(error: BaseException) -> str | None:
    refusal = refusal_of(error)
    return refusal and refusal.reason


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """One that may be harmed."""
    with RedisServer(args=(*trouble.WITH_USER, *trouble.SLOW_TO_LOAD)) as server:
        yield server


def errors(server: RedisServer, *asked: str) -> dict[str, RedisError]:
    """What the server says to each of these, where it refuses."""
    with trouble.asking(server, username=trouble.USER, password=trouble.PASSWORD) as client:

        def pipeline() -> None:
            with client.pipeline(transaction=False) as pipe:
                pipe.execute_command("SET", "key", "value")
                pipe.execute()

        ways: dict[str, Callable[[], object]] = {
            "PING": client.ping,
            "GET": lambda: client.get("key"),
            "SET": lambda: client.set("key", "value"),
            "script": lambda: client.eval(WRITES, 1, "key"),
            "wait": lambda: client.bzpopmin("wake", 0.01),
            "pipeline": pipeline,
        }
        found = {}
        for name in asked or ways:
            try:
                ways[name]()
            except RedisError as error:
                found[name] = error
        return found


Troubles = dict[str, tuple[str, Callable[[RedisServer], AbstractContextManager[object]], str]]

#: What is wrong -> the row, how it comes, and what is refused then, in words.
TROUBLES: Troubles = {
    "misconf": ("misconf", trouble.misconf, "PING SET script wait pipeline"),
    "busy": ("busy", trouble.busy, "PING GET SET script wait pipeline"),
    "a command": (
        "noperm",
        lambda server: trouble.no_permission(server, trouble.USER, "-set"),
        "SET script pipeline",
    ),
    "a key": (
        "noperm",
        lambda server: trouble.no_permission(server, trouble.USER, "resetkeys", "~another"),
        "GET SET script wait pipeline",
    ),
    "all commands": (
        "noperm",
        lambda server: trouble.no_permission(server, trouble.USER, "-@all"),
        "PING GET SET script wait pipeline",
    ),
    "full": ("oom", trouble.full, "SET script pipeline"),
    "too many clients": ("maxclients", trouble.too_many_clients, "PING GET SET script wait pipeline"),
    "wrong password": (
        "noauth",
        lambda server: trouble.wrong_password(server, trouble.USER, trouble.PASSWORD),
        "PING GET SET script wait pipeline",
    ),
    "read-only": ("readonly", trouble.read_only, "SET script wait pipeline"),
    "no primary": ("readonly", trouble.without_primary, "GET SET script wait pipeline"),
    "too few replicas": ("noreplicas", trouble.too_few_replicas, "SET script wait pipeline"),
}


@pytest.mark.parametrize(("reason", "begin", "refused"), TROUBLES.values(), ids=TROUBLES)
def test_what_the_server_says(
    server: RedisServer,
    reason: str,
    begin: Callable[[RedisServer], AbstractContextManager[object]],
    refused: str,
) -> None:
    with begin(server):
        said = errors(server)
    # Some releases refuse a PING, too.
    assert set(refused.split()) <= set(said)
    assert {way: reason_of(error) for way, error in said.items()} == dict.fromkeys(said, reason), said
    assert errors(server) == {}


def test_what_it_says_while_it_loads(server: RedisServer) -> None:
    with trouble.loading(server):
        # Each command waits for the next look at clients, so that it might have loaded before the last one.
        said = errors(server, "SET")
    assert {way: reason_of(error) for way, error in said.items()} == {"SET": "loading"}


def test_what_it_says_to_one_that_has_not_logged_in() -> None:
    with RedisServer(requirepass="secret") as server:
        for login in ({"password": ""}, {"password": "wrong"}):
            with trouble.asking(server, **login) as client, pytest.raises(RedisError) as caught:
                client.get("key")
            assert reason_of(caught.value) == "noauth"


def test_a_script_that_somebody_has_ended_and_a_wait_that_the_server_has_ended(server: RedisServer) -> None:
    said: list[RedisError] = []

    def ask(*command: str) -> None:
        with trouble.asking(server) as client:
            try:
                client.execute_command(*command)
            except RedisError as error:
                said.append(error)

    with server.client() as client:
        client.config_set("lua-time-limit", 50)
        thread = Thread(target=ask, args=("EVAL", "while true do end", "0"))
        thread.start()
        wait_until(lambda: _is_ended(server), 20, "that it is ended")
        thread.join()
        assert reason_of(said.pop()) == "busy"

        thread = Thread(target=ask, args=("BZPOPMIN", "wake", "20"))
        thread.start()
        wait_until(lambda: client.info("clients")["blocked_clients"] == 1, 20, "that it waits")
        with trouble.read_only(server):
            thread.join()
        assert reason_of(said.pop()) == "readonly"


def _is_ended(server: RedisServer) -> bool:
    with trouble.asking(server) as client:
        try:
            client.script_kill()
        except RedisError:
            # It has not begun yet.
            return False
    return True


#: What no server in trouble says.
FAULTS: dict[str, tuple[str, ...]] = {
    "wrong type": ("LPUSH", "string", "x"),
    "wrong type in a script": ("EVAL", "return redis.call('LPUSH', KEYS[1], 'x')", "1", "string"),
    "unknown command": ("NOSUCH", "string"),
    "unknown command in a script": ("EVAL", "return redis.call('NOSUCH', KEYS[1])", "1", "string"),
    "arity": ("GET",),
    "arity in a script": ("EVAL", "return redis.call('GET')", "0"),
    "Lua": ("EVAL", "return nil .. 1", "0"),
    "an error of a script": ("EVAL", "error('BUSY as if')", "0"),
    "no Lua": ("EVAL", "return (", "0"),
    "no number": ("INCR", "string"),
    "syntax": ("SET", "a", "b", "c"),
    "database": ("SELECT", "99"),
}


@pytest.mark.parametrize("command", FAULTS.values(), ids=FAULTS)
def test_what_waiting_does_not_cure(server: RedisServer, command: tuple[str, ...]) -> None:
    with server.client() as client:
        client.set("string", "x")
        with pytest.raises(ResponseError) as caught:
            client.execute_command(*command)
    refusal = refusal_of(caught.value)
    assert refusal is not None, caught.value
    is_of_the_url = command[0] in ("NOSUCH", "SELECT")
    assert refusal.then is (Then.ENDS if is_of_the_url else Then.RAISES), caught.value


def test_what_a_cluster_says(cluster: Cluster) -> None:
    node = cluster.node_of("key")

    def said(*command: str) -> str | None:
        with pytest.raises(RedisError) as caught, trouble.asking(node) as client:
            client.execute_command(*command)
        return reason_of(caught.value)

    assert said("DEL", "key", "another") == "fault"
    elsewhere = next(name for name in map(str, range(1000)) if cluster.node_of(name) is not node)
    assert said("EVAL", f"return redis.call('GET', '{elsewhere}')", "1", "key") == "fault"
    # Valkey 9 has databases there, too.
    if cluster.binary.product != "Valkey":
        assert said("SELECT", "1") == "unusable"
    with trouble.cluster_down(node):
        assert said("SET", "key", "value") == "clusterdown"
        assert said("EVAL", WRITES, "1", "key") == "clusterdown"

    def connect() -> None:
        # Some releases of redis-py read over what is said then, and find that they cannot write.
        connection = PlainConnection(host=HOST, port=node.port)
        connection.send_command("PING")
        connection.read_response()

    with trouble.too_many_clients(node), pytest.raises(ConnectionError, match="max number") as caught:
        connect()
    assert reason_of(caught.value) == "maxclients"
    assert "primary" not in str(caught.value)
    cluster.wait_until_ok()


_SHA = "f_694a5fe1ddb97a4c6a1bf299d9537c7d3d0f84e7"
_CALL = f"Error running script (call to {_SHA}): @user_script:1:"

#: Row -> what is said by servers that are in none or few of the environments. redis-py takes the first word
#: away from some of it.
SAID: dict[str | None, tuple[str, ...]] = {
    "misconf": (
        "MISCONF Errors writing to the AOF file: No space left on device",
        # Redis 6.2, in a script.
        f"{_CALL} @user_script: 1: -MISCONF Redis is "
        "configured to save RDB snapshots, but it is currently not able to persist on disk.",
        "@user_script: 1: -MISCONF Redis is configured to save RDB snapshots",
    ),
    "busy": (
        "BUSY Redis is busy running a script. You can only call FUNCTION KILL or SHUTDOWN NOSAVE.",
        "BUSY Valkey is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
        f"{_CALL} Script killed by user with SCRIPT KILL...",
        f"Script killed by user with SCRIPT KILL... script: {_SHA}, on @user_script:1.",
    ),
    "noperm": (
        f"{_CALL} @user_script: 1: The user executing the script can't run this command or subcommand",
        "@user_script: 1: The user executing the script can't access at least one of the keys mentioned in "
        "the command arguments",
        f"The user executing the script can't run this command or subcommand script: {_SHA}, on "
        "@user_script:1.",
        "ACL failure in script: User of-a-worker has no permissions to run the 'set' command script: "
        f"{_SHA}, on @user_script:1.",
    ),
    "oom": (
        f"{_CALL} @user_script: 1: -OOM command not allowed when used memory > 'maxmemory'.",
        "OOM command not allowed under OOM prevention.",
    ),
    "readonly": (
        f"{_CALL} @user_script: 1: -READONLY You can't write against a read only replica.",
        "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
    ),
    "noreplicas": (f"{_CALL} @user_script: 1: -NOREPLICAS Not enough good replicas to write.",),
    "maxclients": ("max number of clients + cluster connections reached",),
    "clusterdown": (
        "CLUSTERDOWN Hash slot not served",
        "TRYAGAIN Multiple keys request during rehashing of slot",
    ),
    "quota": (
        # Upstash.
        "max daily request limit exceeded. Limit: 10000, Usage: 10000.",
        "max requests limit exceeded. Limit: 500000, Usage: 500000. See https://upstash.com/docs/redis",
        "max concurrent connections exceeded",
        "DB capacity quota exceeded",
    ),
    "noscript": ("NOSCRIPT No matching script. Please use EVAL.",),
    "fault": (
        "Script attempted to access a non local key in a cluster node",
        "NOPROTO unsupported protocol version",
    ),
    "undeclared": (
        # Dragonfly; newer releases name the key.
        "script tried accessing undeclared key",
        "Error running script (call to 5c4d62f4): @user_script:2: script tried accessing undeclared key, key",
        # Of others.
        "Script attempted to access undeclared key",
    ),
    "unusable": (
        "SELECT is not allowed in cluster mode",
        "unknown command `EVALSHA`, with args beginning with: ",
        "unknown subcommand 'LOAD'. Try SCRIPT HELP.",
    ),
    None: (
        "the disks of this service are on strike",
        # Of one message, which would be tried again for ever.
        "max request size exceeded. Limit: 1048576 bytes, Actual: 2000000 bytes.",
    ),
}


@pytest.mark.parametrize(
    ("reason", "said"), [(reason, text) for reason, texts in SAID.items() for text in texts]
)
def test_what_others_say(reason: str | None, said: str) -> None:
    assert reason_of(ResponseError(said)) == reason


def test_a_command_of_a_pipeline_may_contain_anything() -> None:
    command = "Command # 1 (SET key MISCONF : -OOM quota exceeded) of pipeline caused error: "
    assert reason_of(ResponseError(f"{command}BUSY Redis is busy running a script.")) == "busy"
    assert reason_of(ResponseError(f"{command}the disks of this service are on strike")) is None
    assert reason_of(NoPermissionError(f"{command}this user has no permissions")) == "noperm"


def test_what_is_no_refusal() -> None:
    for error in (
        ConnectionError("Connection closed by server: MISCONF : -OOM"),
        TimeoutError("BUSY quota exceeded"),
        OSError("LOADING "),
        ValueError("BUSY "),
    ):
        assert refusal_of(error) is None


def test_each_row_was_seen() -> None:
    seen = {reason for reason, _, _ in TROUBLES.values()} | {"loading"} | {*SAID}
    assert seen - {None} == {row.reason for row in REFUSALS}
