"""``celery delayed web``"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import stat
from datetime import datetime, timezone
from ipaddress import ip_address
from logging.handlers import WatchedFileHandler
from pathlib import Path

import click

from kombu_redisdelay.cli.broker import connect
from kombu_redisdelay.cli.echo import echo
from kombu_redisdelay.cli.options import arguments_option
from kombu_redisdelay.operations.access import Access
from kombu_redisdelay.operations.message import SHORTENED
from kombu_redisdelay.operations.viewers import BROKER_ERRORS, may_pass, why

#: The environment variable with the password of :data:`USER`.
PASSWORD = "REDISDELAY_WEB_PASSWORD"

#: The user whose password the environment has.
USER = "admin"

#: Seconds that requests get to end when the command is told to stop.
_PATIENCE = 5


@click.command("web")
@click.option("--port", type=click.IntRange(0, 65535), default=9809, show_default=True)
@click.option("--address", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option("--read-only", is_flag=True, help="Show everything, change nothing.")
@arguments_option(SHORTENED)
@click.option(
    "--users-file",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Who may look and act: a line name:password for each.",
)
@click.option(
    "--viewers-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Who may look and change nothing: a line name:password for each.",
)
@click.option(
    "--audit-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Append to this file who did what, a line of JSON for each action.",
)
@click.option("--prefix", default="", help="The path below which a reverse proxy has the page.")
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="A name that requests may ask for, if no password is needed. May be given more than once.",
)
@click.option("--insecure", is_flag=True, help="Ask for no password, whatever the address.")
def command(
    port: int,
    address: str,
    read_only: bool,
    arguments: str,
    file: Path | None,
    viewers_file: Path | None,
    audit_file: Path | None,
    prefix: str,
    hosts: tuple[str, ...],
    insecure: bool,
) -> None:
    """Show the queues in a browser, and act on them. Runs until it is told to stop.

    Passwords come from --users-file and --viewers-file, or from the environment: REDISDELAY_WEB_PASSWORD is
    that of the user admin. Without a password, it only listens on this machine, unless --insecure is given,
    and answers only to the names of this machine, its --address, and each --host.
    """
    users = {} if insecure else _users(file)
    viewers = _read(viewers_file) if viewers_file else {}
    if insecure and (file or viewers_file or os.environ.get(PASSWORD)):
        raise click.UsageError("--insecure asks for no password. Give either that or passwords.")
    if not users and not viewers and not insecure and not _is_loopback(address):
        raise click.UsageError(
            f"Others can reach {address}. Give passwords with --users-file or {PASSWORD}, or --insecure."
        )
    if prefix and not prefix.startswith("/"):
        raise click.UsageError(f"The prefix must begin with a slash, not {prefix!r}.")
    # Not at the top, because help needs no uvicorn.
    import uvicorn

    from kombu_redisdelay.web import create

    app = click.get_current_context().obj.app
    try:
        # Report wrong settings of the broker now, and not only on the page.
        connect(Access)
    except BROKER_ERRORS as exc:
        if not may_pass(exc):
            raise
        # Redis may start later, or serve again.
        echo(f"Redis does not serve the page yet, as it says until then: {why(exc)}", err=True)
    # Another site can let any name refer to this machine, and so make a browser act here.
    names = ["*"] if users or viewers else ["localhost", "127.0.0.1", "[::1]", "::1", address, *hosts]
    if users.keys() & viewers.keys():
        both = ", ".join(sorted(users.keys() & viewers.keys()))
        raise click.UsageError(f"Both files have {both}: a user who may act may also look.")
    page = create(app, users=users, viewers=viewers, hosts=names, read_only=read_only, arguments=arguments)
    listener = _listen(address, port)
    _log_actions(audit_file)
    for number in (signal.SIGTERM, signal.SIGINT):
        # uvicorn stops at these, and then passes them on to the handler that was there before.
        signal.signal(number, lambda *_: None)
    server = uvicorn.Server(
        uvicorn.Config(
            page,
            root_path=prefix.rstrip("/"),
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=_PATIENCE,
        )
    )
    host = f"[{address}]" if ":" in address else address
    echo(f"The queues are on http://{host}:{listener.getsockname()[1]}/")
    server.run(sockets=[listener])


def _users(file: Path | None) -> dict[str, str]:
    """Name -> password of the users."""
    password = os.environ.get(PASSWORD)
    if password == "":
        raise click.UsageError(f"{PASSWORD} is empty. Give a password, or unset it.")
    users = {USER: password} if password else {}
    return {**users, **_read(file)} if file else users


def _read(file: Path) -> dict[str, str]:
    """Name -> password of those in a file."""
    # Windows has other permissions, which this does not tell.
    if os.name == "posix" and file.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH):
        echo(
            f"Others on this machine may read or change {file}, which has passwords: chmod o-rw it.", err=True
        )
    try:
        # Some editors of Windows begin a file with a mark, which is not part of the first name.
        lines = file.read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        raise click.ClickException(f"Cannot read {file}: {exc}.") from exc
    found = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            name, _, its = line.partition(":")
            if not name or not its:
                raise click.ClickException(f"Line {number} of {file} is not of the form name:password.")
            found[name] = its
    if not found:
        raise click.ClickException(f"There is no user in {file}.")
    return found


def _is_loopback(address: str) -> bool:
    """Whether only programs on this machine can reach *address*."""
    try:
        found = socket.getaddrinfo(address or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as exc:
        raise click.ClickException(f"Cannot listen on {address}: {exc.strerror}.") from exc
    return all(ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)


def _listen(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    # If the protocol is named, asyncio sets TCP_NODELAY. Else answers on a kept connection wait for 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
        listener.listen()
    except OSError as exc:
        listener.close()
        raise click.ClickException(f"Cannot listen on {address}:{port}: {exc.strerror}.") from exc
    return listener


def _log_actions(audit: Path | None) -> None:
    """Write actions and errors to standard error.

    Arguments:
        audit: a file for what is done, as JSON.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger = logging.getLogger("kombu_redisdelay.web")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    if audit is not None:
        try:
            logger.addHandler(audit_handler(audit))
        except OSError as exc:
            raise click.ClickException(f"Cannot write to {audit}: {exc.strerror}.") from exc


def audit_handler(path: Path) -> logging.Handler:
    """A handler that appends to a file what the page logs of actions. The file may be renamed while it is
    used, as logrotate does.

    Raises:
        OSError: it cannot be written to.
    """
    handler = WatchedFileHandler(path, encoding="utf-8")
    handler.addFilter(lambda record: hasattr(record, "audit"))
    handler.setFormatter(_JsonLine())
    return handler


class _JsonLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        return json.dumps({"time": time, **record.__dict__["audit"]})
