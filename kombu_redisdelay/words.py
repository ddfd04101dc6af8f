"""Texts for people: numbers, names and lengths of time in words, and text that is safe to print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import pairwise

#: The longest text of an exception that is kept, in characters.
LONGEST_FAILURE = 200

#: Python may refuse to write larger numbers.
_LARGE = 10**LONGEST_FAILURE


def number_of(count: int, what: str = "message") -> str:
    """A number of things: ``1 message``, ``12 messages``."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def size(count: float) -> str:
    """A number of bytes: 12 B, 3.4 KiB, 120 MiB, 1.5 GiB."""
    units = ["B", "KiB", "MiB", "GiB"]
    while count >= 1023.5 and len(units) > 1:
        count /= 1024
        del units[0]
    return f"{count:.1f} {units[0]}" if count < 9.95 and units[0] != "B" else f"{count:,.0f} {units[0]}"


def percent(share: float) -> str:
    """A part of a whole: 0 %, under 1 %, 12 %; or more than the whole: 2,002 %."""
    return "under 1 %" if 0 < share < 0.01 else f"{100 * share:,.0f} %"


def first_of(names: Sequence[str], most: int) -> str:
    """Some names: ``a, b``, or the first ones of too many, ``a, b, ...``."""
    return f"{', '.join(names[:most])}{', ...' if len(names) > most else ''}"


def span(seconds: float) -> str:
    """A length of time in its two largest units, rounded: 850ms, 4.6s, 3m20s, 2h5m, 27d3h."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    rest = round(seconds)
    for (name, length), (next_name, next_length) in pairwise(
        (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1))
    ):
        if rest >= length:
            rounded = (rest + next_length // 2) // next_length * next_length
            if rounded != rest:
                # It may have a larger unit then: a day, not 24h.
                return span(rounded)
            whole, below = divmod(rest, length)
            part = below // next_length
            return f"{whole}{name}{part}{next_name}" if part else f"{whole}{name}"
    return f"{rest}s"


def when(moment: datetime, now: datetime) -> str:
    """Return the distance of *moment* from *now*, such as ``in 5m`` or ``5m ago``."""
    seconds = (moment - now).total_seconds()
    return f"in {span(seconds)}" if seconds >= 0 else f"{span(-seconds)} ago"


def stay(noun: str, count: int, holders: Mapping[str, str]) -> str:
    """Says how many messages stay as they are because others hold their unique keys; empty if none do.

    Arguments:
        holders: id of some -> id of the message that holds its key.
    """
    if not count:
        return ""
    verb, key = ("stays", "its unique key") if count == 1 else ("stay", "their unique keys")
    each = [f"{holder} holds that of {id}" for id, holder in holders.items()]
    said = f": {'; '.join(each)}{'; ...' if len(each) < count else ''}" if each else ""
    return f"{number_of(count, noun)} {verb}, because another one holds {key}{said}"


def without_message(noun: str, count: int) -> str:
    """Says how many stay as they are because their messages are not there; empty if none do."""
    if not count:
        return ""
    stay, were = ("stays", "it was kept without its message, which is")
    if count > 1:
        stay, were = ("stay", "they were kept without their messages, which are")
    return f"{number_of(count, noun)} {stay}: {were} too large, or lost"


#: What became of a task that is known to have returned, by what was lost.
LOST = {
    "continuation": "what follows it was not sent, or not all of it",
    "result": "its result was lost",
    "hook": "what ran afterwards has raised an error",
}

#: Said where a message was not found that may belong to a task that runs.
ACKED_EARLY = (
    "A task that is acked before it runs, as by default, is no message any more while it runs. "
    "`celery inspect active` names such tasks, and `celery control terminate SIGTERM ID` ends one."
)


def returned(lost: str) -> str:
    """Says what became of a task that is known to have returned."""
    more = ", and its result was lost" if lost == "continuation" else ""
    return f"its work is done: {LOST[lost]}{more}. Celery may have stored FAILURE, and called link_error"


def have_returned(count: int) -> str:
    """Says how many tasks stay because they are known to have returned; empty if none do."""
    if not count:
        return ""
    stay, its = ("stays", "its") if count == 1 else ("stay", "their")
    return f"{number_of(count, 'task')} that returned {stay}: {its} work is done"


def run_again(count: int) -> str:
    """Says how many of the tasks that are requeued are known to have returned, and what they do again; empty
    if none are."""
    if not count:
        return ""
    has, do, work, them = ("has", "does", "its work", "it")
    if count > 1:
        has, do, work, them = ("have", "do", "their work", "them")
    return (
        f"{count:,} {has} returned before, and {do} {work} once more. What follows {them}, such as the rest "
        "of a chain, is sent again"
    )


def untold(count: int) -> str:
    """Says how many expired tasks were not cancelled, because their chords could not be told."""
    verb, they_are, their = (
        ("stays", "it may be a part", "its body")
        if count == 1
        else ("stay", "they may be parts", "their bodies")
    )
    return (
        f"{number_of(count, 'expired task')} {verb} for a worker: {they_are} of a chord, which cannot be "
        f"told, because {their} cannot be read"
    )


def chord_parts(count: int) -> str:
    """Says how many tasks that were requeued leave their chords; empty if none do."""
    if not count:
        return ""
    are, of_these = ("is a part of a chord", "the body of this chord")
    if count > 1:
        are, of_these = ("are parts of chords", "the bodies of these chords")
    return f"{count:,} {are}, or may be: {of_these} will not run because of {'it' if count == 1 else 'them'}"


def rest(noun: str, left: int, failed_again: int, waiting: int, unknown: int, stopped: str) -> str:
    """Says what became of tasks that were requeued at a rate, and what is left.

    Arguments:
        waiting: how many wait in queues that no worker consumes from.
        unknown: how many of the last ones may still run.
        stopped: why it has stopped: "failing", "asked", or empty.
    """
    why = {"failing": "Stopped, because too many fail again. ", "asked": "Stopped. "}.get(stopped, "")
    wait = ""
    if waiting:
        verb = "waits in a queue" if waiting == 1 else "wait in queues"
        wait = f"{number_of(waiting, noun)} {verb} that no worker consumes from. "
    again, have = f"{failed_again:,}" if failed_again else "None", "has" if failed_again == 1 else "have"
    are = "is" if left == 1 else "are"
    end = f", and {number_of(left, noun)} {are} left" if left else ". All that it began with were sent"
    last = f". The last {number_of(unknown, noun) if unknown > 1 else noun} may still run" if unknown else ""
    return f"{why}{wait}{again} {have} failed again so far{end}{last}"


def blocked(count: int) -> str:
    """Says how many messages have no due time because they wait for their unique keys."""
    verb, key, have = (
        ("waits", "its unique key", "has") if count == 1 else ("wait", "their unique keys", "have")
    )
    return f"{number_of(count)} {verb} for {key}, and {have} no due time"


def with_object(verb: str, what: str) -> str:
    """A verb and what it is done to: "deliver now" and "3 messages" make "deliver 3 messages now"."""
    first, *rest = verb.split()
    return " ".join((first, what, *rest))


def not_sorted(count: int) -> str:
    """Says how many messages of a fair queue workers have not sorted by key yet; empty if they have."""
    return f"{number_of(count)} {'is' if count == 1 else 'are'} not sorted by key yet" if count else ""


def will_run(keys: int, ready: int) -> str:
    """Says of paused keys that their messages run when the queue is not fair any more; empty without keys.

    Arguments:
        ready: how many ready messages they have, 0 if that is unknown.
    """
    if not keys:
        return ""
    are, their = ("is", "its") if keys == 1 else ("are", "their")
    messages = number_of(ready, "ready message") if ready else "messages"
    return f"{number_of(keys, 'key')} {are} paused: {their} {messages} will run"


def made(before: str, after: str) -> str:
    """What was done to a queue that was made fair or plain.

    Arguments:
        before: its state before: "on" if it was fair, "off" if workers moved its messages back, else empty.
        after: its state after that.
    """
    # A worker may have moved the last message back meanwhile.
    return _MADE.get((before, after), _MADE["", ""])


_MADE = {
    ("", "on"): "is fair now",
    ("on", "on"): "is fair already",
    ("off", "on"): "is fair again",
    ("", ""): "is not fair",
    ("on", "off"): "will not be fair: workers move its messages back",
    ("on", ""): "is not fair any more",
    ("off", ""): "is not fair any more",
    ("off", "off"): "will not be fair: workers are moving its messages back",
}


def sentence(message: str) -> str:
    """An error of the Python API as a sentence. A name, such as that of a host, stays as it is."""
    end = "" if message.endswith((".", "!", "?")) else "."
    first = message.partition(" ")[0]
    return f"{message[:1].upper() if first.rstrip(',;:').isalpha() else message[:1]}{message[1:]}{end}"


def printable(text: str) -> str:
    """*text*, with each character that is not printable as its Python escape, such as ``\\x1b``.

    Anybody who may publish a message chooses its task name, its arguments and its id. A terminal obeys
    control characters in them, and other invisible characters can mislead the reader. A character is
    printable if ``repr`` leaves it as it is.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def shortened(value: object) -> str:
    """The ``repr`` of *value*, which may be long, for an error."""
    return cut(repr(value) if not isinstance(value, int) or abs(value) < _LARGE else "a very large number")


def cut(text: str, longest: int = LONGEST_FAILURE) -> str:
    """*text*, or its beginning and ``...`` if it has more than *longest* characters."""
    return text if len(text) <= longest else f"{text[:longest]}..."


def in_a_line(error: BaseException) -> str:
    """What *error* is and says, in a line of bounded length."""
    try:
        text = " ".join(cut(f"{type(error).__name__}: {error}".rstrip(": ")).split())
    except Exception:
        # It cannot be made a text.
        text = type(error).__name__
    return printable(text)
