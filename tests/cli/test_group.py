"""What all commands have in common: how they are found, and how they fail."""

from __future__ import annotations

import re
from importlib.metadata import entry_points

import pytest
from celery import Celery
from click import Context

from kombu_redisdelay.cli import delayed
from tests.cli.site import Site

COMMANDS = delayed.list_commands(Context(delayed))

#: With what each command, that ends by itself, can be called.
CALLS = {
    "stats": (),
    "list": (),
    "show": ("id",),
    "cancel": ("id",),
    "reschedule": ("id", "--countdown", "60"),
    "deliver-now": ("id",),
    "timeline": (),
    "history": (),
    "requeue": ("--all", "--yes", "--state", "failed"),
    "remove": ("--all", "--yes", "--state", "failed"),
    "doctor": (),
    "mend": (),
    "forward": (),
    "exporter": ("--port", "0"),
    "web": ("--port", "0"),
}


def test_celery_finds_the_group() -> None:
    [entry] = entry_points(group="celery.commands", name="delayed")
    assert entry.load() is delayed


def test_help_lists_every_command(site: Site) -> None:
    listed = site.text("--help").partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in listed] == COMMANDS
    assert "..." not in "".join(listed)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(site: Site, name: str) -> None:
    assert site.text(name, "--help").startswith(f"Usage: celery delayed {name} ")


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - {"top", "exporter", "web"}))
def test_every_command_that_prints_has_json(site: Site, name: str) -> None:
    assert "--json" in site.text(name, "--help")


def test_an_unknown_command_is_a_usage_error(site: Site) -> None:
    assert site.run("nothing").exit_code == 2
    result = site.run("lst")
    assert result.exit_code == 2
    assert "No such command 'lst'. Did you mean 'list'?" in result.stderr


@pytest.mark.parametrize("name", ["stats", "remove", "doctor", "forward", "exporter"])
def test_a_broker_that_cannot_be_reached_is_one_line(site: Site, name: str) -> None:
    # Nothing listens there.
    result = site.run(
        name, *CALLS[name], app=Celery(broker="redisdelay://127.0.0.1:1/0", set_as_current=False)
    )
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: Redis: failed connecting to 127.0.0.1:1")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    "broker", ["redis://localhost:6379/0", "memory://", "amqp://guest:secret@localhost//"]
)
def test_an_app_on_another_transport_is_one_line(site: Site, name: str, broker: str) -> None:
    result = site.run(name, *CALLS[name], app=Celery(broker=broker, set_as_current=False))
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: Not a redisdelay:// broker: ")
    assert len(result.stderr.splitlines()) == 1
    assert "secret" not in result.stderr
    assert "Have the app's broker_url begin with redisdelay://" in result.stderr


def test_a_database_or_an_option_that_makes_no_sense_is_one_line(site: Site) -> None:
    broker = site.app.conf.broker_url
    app = Celery(broker=broker.rpartition("/")[0] + "/orders", set_as_current=False)
    result = site.run("stats", app=app)
    assert (result.exit_code, len(result.stderr.splitlines())) == (1, 1)
    assert "not orders" in result.stderr
    app = Celery(broker=broker, set_as_current=False)
    app.conf.broker_transport_options = {"delivery_limit": "many"}
    result = site.run("stats", app=app)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: Transport option 'delivery_limit' must be ")


def test_a_server_without_tls_is_one_line(site: Site) -> None:
    broker = site.app.conf.broker_url.replace("redisdelay://", "redisdelays://")
    app = Celery(broker=broker, set_as_current=False)
    app.conf.broker_transport_options = {"socket_connect_timeout": 0.3}
    result = site.run("stats", app=app)
    assert result.exit_code == 1
    assert re.match(r"Error: Redis: 127.0.0.1:\d+ looks like a server without TLS", result.stderr)
    assert len(result.stderr.splitlines()) == 1


def test_a_scheme_that_there_is_not_is_one_line(site: Site) -> None:
    result = site.run("stats", app=Celery(broker="redisdelay+sentinel://localhost", set_as_current=False))
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: No such URL scheme: redisdelay+sentinel://. There are ")
    assert len(result.stderr.splitlines()) == 1


def test_a_wrong_password_is_one_line(site: Site) -> None:
    broker = site.app.conf.broker_url.replace("://", "://nobody:wrong@")
    result = site.run("stats", app=Celery(broker=broker, set_as_current=False))
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: Redis asks for another user or password (")
    assert len(result.stderr.splitlines()) == 1


def test_top_needs_a_terminal(site: Site) -> None:
    result = site.run("top")
    assert result.exit_code == 2
    assert "`top` needs a terminal." in result.stderr
