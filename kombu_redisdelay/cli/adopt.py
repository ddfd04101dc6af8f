"""``celery delayed adopt``"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import click

from kombu_redisdelay.cli.broker import connect
from kombu_redisdelay.cli.echo import as_called, confirm, echo
from kombu_redisdelay.cli.options import dry_run_option, json_option, yes_option
from kombu_redisdelay.cli.output import busy, counting, show_json
from kombu_redisdelay.operations.adoption import MOST_NAMED, Adopted, Adoption
from kombu_redisdelay.operations.reverse_adoption import GivenBack, ReverseAdoption
from kombu_redisdelay.operations.transfer import InUse, Transfer
from kombu_redisdelay.words import first_of, number_of

CountT = TypeVar("CountT", Adopted, GivenBack)
TransferT = TypeVar("TransferT", bound=Transfer)


@click.command("adopt")
@click.option("--reverse", is_flag=True, help="Give back to redis:// workers what they do not see.")
@click.option(
    "--force",
    is_flag=True,
    help="Go on although workers of the side that is left are connected. What they hold runs twice.",
)
@click.option(
    "--ignore",
    "ignored",
    metavar="ADDRESS",
    multiple=True,
    help="A client of redis:// that is no worker, such as Flower. May be given several times.",
)
@yes_option
@dry_run_option
@json_option
def command(
    reverse: bool, force: bool, ignored: tuple[str, ...], yes: bool, dry_run: bool, as_json: bool
) -> None:
    """Adopt the messages that workers of redis:// have left.

    Messages that these workers had taken go into the schedule if they are due later, else to the head of
    their queue. Countdown tasks on ready lists go into the schedule. If a producer with another `sep` or
    other `priority_steps` has put messages where no worker looks, they go to the list that all workers look
    at. You can stop the command at any time, and run it again. The exit status is 1 if a message had to stay
    where it is.
    """
    if reverse:
        if ignored:
            raise click.UsageError("Give --ignore without --reverse: it is about clients of redis://.")
        back = _connected(ReverseAdoption)
        _check(force, back.check_not_in_use)
        _give_back(back, yes, dry_run, as_json)
    else:
        adoption = _connected(Adoption)
        _check(force, lambda: adoption.check_not_in_use(ignored))
        _adopt(adoption, yes, dry_run, as_json)


def _connected(kind: type[TransferT]) -> TransferT:
    transfer = connect(kind)
    # In the wrong database there is nothing to adopt, which would look like success.
    echo(f"The broker is {transfer.address}", err=True)
    return transfer


def _check(force: bool, check: Callable[[], None]) -> None:
    if not force:
        try:
            check()
        except InUse as exc:
            raise click.ClickException(f"{exc}. {exc.advice}. Or use --force: {exc.forced}") from exc


def _adopt(adoption: Adoption, yes: bool, dry_run: bool, as_json: bool) -> None:
    if adoption.passed_over:
        unacked, _ = adoption.stock_keys
        them = first_of(list(map(str, adoption.passed_over)), MOST_NAMED)
        echo(
            f"These may be workers of redis:// without room, or something else that has once read there: "
            f"{them}. So this run leaves {unacked!r} alone, which is empty now, whatever comes into it. Say "
            "by --ignore ADDRESS that one is no worker.",
            err=True,
        )
    with busy("Counting"):
        found = adoption.look()
    passed_over = [each.address for each in adoption.passed_over]
    if dry_run:
        _show("would_adopt", f"Would adopt {_described(found)}.", found, passed_over, as_json)
    else:
        if found.messages and not yes:
            confirm(f"Adopt {_described(found)}?")
        found = _watch("Adopting", adoption.adopt, found.messages)
        _show("adopted", f"Adopted {_described(found)}.", found, passed_over, as_json)
    if found.stay:
        raise click.exceptions.Exit(1)


def _give_back(adoption: ReverseAdoption, yes: bool, dry_run: bool, as_json: bool) -> None:
    with busy("Counting"):
        found = adoption.look()
    if found.unknown:
        echo(f"{_unknown(found)}. Cancel what must not be lost so, and publish it again later.", err=True)
    if dry_run:
        _show_back("would_give_back", f"Would give back {_described_back(found)}.", found, as_json)
        return
    if found.messages and not yes:
        confirm(f"Give back {_described_back(found)}?")
    found = _watch("Giving back", adoption.give_back, found.messages)
    _show_back("given_back", f"Gave back {_described_back(found)}.", found, as_json)


def _watch(what: str, do: Callable[[], Iterator[CountT]], total: int) -> CountT:
    """Run *do* with a progress bar. Returns the last count."""
    with counting(what, total) as show:
        for done in do():
            show(done.messages)
    return done


def _described(found: Adopted) -> str:
    also = f", and {found.copies:,} more because several queues are bound" if found.copies else ""
    stranded = f", {found.stranded:,} where no worker looks ({_lists(found)})" if found.stranded else ""
    return (
        f"{number_of(found.messages)}: {found.scheduled:,} due later and {found.ready:,} due now that "
        f"redis:// workers held, {found.parked:,} due later on ready lists{stranded}{also}"
    )


def _lists(found: Adopted) -> str:
    return first_of([repr(key) for key in found.lists], MOST_NAMED)


def _described_back(found: GivenBack) -> str:
    of_lost = f"{found.unacked:,} of lost workers"
    of_fair = f", {found.sorted_by_key:,} of fair queues" if found.sorted_by_key else ""
    return f"{number_of(found.messages)}: {found.scheduled:,} scheduled, {of_lost}{of_fair}"


def _unknown(found: GivenBack) -> str:
    waits = "waits for a worker that knows its" if found.unknown == 1 else "wait for workers that know their"
    return f"{number_of(found.unknown)} {waits} task, and redis:// discards what a worker does not know"


def _show(done: str, text: str, found: Adopted, passed_over: list[str], as_json: bool) -> None:
    if as_json:
        counts = {
            "scheduled": found.scheduled,
            "to_run": found.ready,
            "ready_early": found.parked,
            "stranded": found.stranded,
        }
        rest = {
            "copies": found.copies,
            "stay": found.stay,
            "why": found.why,
            "passed_over": passed_over,
        }
        show_json([{done: found.messages, **counts, **rest}])
        return
    echo(text)
    if found.stay:
        echo(
            f"{number_of(found.stay)} cannot be moved, and {'stay' if found.stay > 1 else 'stays'}:", err=True
        )
    for tag, why in found.why.items():
        echo(f"  {tag}: {why}", err=True)
    if found.stay > len(found.why):
        echo(f"  and {found.stay - len(found.why):,} more", err=True)


def _show_back(done: str, text: str, found: GivenBack, as_json: bool) -> None:
    if as_json:
        counts = {"scheduled": found.scheduled, "unacked": found.unacked, "sorted_in": found.sorted_by_key}
        of_scheduled = {"at_once": found.at_once, "unknown": found.unknown}
        show_json([{done: found.messages, **counts, **of_scheduled, "dead": found.dead}])
        return
    echo(text)
    if found.at_once:
        echo(f"{number_of(found.at_once)} without an eta, which redis:// delivers at once.", err=True)
    if found.dead:
        left = number_of(found.dead, "dead letter")
        echo(as_called(f"{left} left: see `celery delayed list --state dead`."), err=True)
