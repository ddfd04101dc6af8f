"""The states of a message: what there is to know of each. Command line, page, Python and docs read this."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from kombu_redisdelay.broker import keys
from kombu_redisdelay.operations.archive_reader import ArchiveReader, FinishedReader
from kombu_redisdelay.operations.readers import Reader, ReadyReader, ScheduledReader, UnackedReader
from kombu_redisdelay.words import number_of

SCHEDULED, READY, UNACKED = "scheduled", "ready", "unacked"
FAILED, DEAD, FINISHED = keys.FAILED, keys.DEAD, "finished"

#: Those of messages that are over, and in the archive.
ARCHIVED = keys.ARCHIVED


@dataclass(frozen=True, slots=True)
class State:
    """A state of messages. Their ``reason`` says why they are in it.

    Attributes:
        name: as it is everywhere: in options, columns, JSON and addresses.
        reader: reads them.
        columns: the names of the columns of its lists.
        order: says how a list is sorted.
        reverse_order: the same for the other order; empty if there is one order only.
        is_ahead: whether the moment of a message, its due time, may be ahead. If not, it is since when the
            message is in this state, and distances such as "10m" are back from now.
        counts_span: whether the messages between two times are counted without reading them.
        finds_ids: whether messages are found by their ids without a search.
        noun: what one of its messages is called.
        style: how a number of them is shown on a terminal: a style of rich.
        is_rare: whether a table of queues leaves its numbers out where all of them are 0.
        is_past: whether it has no messages any more, but what is told of them. It is looked at only where it
            is named, or by ids, or with a filter that nothing else may match.
    """

    name: str
    reader: Reader
    columns: tuple[str, ...]
    order: str
    reverse_order: str = ""
    is_ahead: bool = False
    counts_span: bool = False
    finds_ids: bool = False
    noun: str = "message"
    style: str = ""
    is_rare: bool = False
    is_past: bool = False

    @property
    def described(self) -> str:
        """What one of its messages is called beside those in other states, such as "ready message"."""
        return f"{self.name} {self.noun}" if self.noun == "message" else self.noun

    @property
    def is_reversible(self) -> bool:
        """Whether its lists have another order, too."""
        return bool(self.reverse_order)

    @property
    def since(self) -> str:
        """What stands before the moment of a message in a sentence, such as "ready since"."""
        return "due" if self.is_ahead else f"{self.name} since"


#: Name -> state, in the order in which a message passes through them. All are read in this order, so that a
#: message which moves on meanwhile is not missed.
STATES = {
    state.name: state
    for state in (
        State(
            SCHEDULED,
            ScheduledReader(),
            ("due", "expires", "priority", "key", "unique", "id", "queue", "failures", "reason", "task"),
            "The first one first.",
            "The last one first.",
            is_ahead=True,
            counts_span=True,
            finds_ids=True,
            style="cyan",
        ),
        State(
            READY,
            ReadyReader(),
            ("position", "since", "expires", "priority", "key", "unique", "id", "queue", "task"),
            "In the order in which workers take them.",
            style="yellow",
        ),
        State(
            UNACKED,
            UnackedReader(),
            ("since", "expires", "key", "unique", "id", "worker", "queue", "task"),
            "Worker by worker.",
            style="magenta",
        ),
        State(
            FAILED,
            ArchiveReader(FAILED),
            ("since", "key", "unique", "id", "queue", "tries", "error", "returned", "task"),
            "The oldest one first.",
            "The newest one first.",
            counts_span=True,
            finds_ids=True,
            noun="failed task",
            style="red",
            is_rare=True,
        ),
        State(
            DEAD,
            ArchiveReader(DEAD),
            ("since", "key", "unique", "id", "queue", "failures", "reason", "task"),
            "The oldest one first.",
            "The newest one first.",
            counts_span=True,
            finds_ids=True,
            noun="dead letter",
            style="red",
        ),
        State(
            FINISHED,
            FinishedReader(),
            (
                "since",
                "outcome",
                "waited",
                "ran",
                "id",
                "queue",
                "tries",
                "error",
                "worker name",
                "task name",
            ),
            "The oldest one first.",
            "The newest one first.",
            noun="finished task",
            style="green",
            is_rare=True,
            is_past=True,
        ),
    )
}


def how_many(names: Iterable[str]) -> str:
    """How many there are, by the *names* of their states: ``1 message and 2 finished tasks``."""
    nouns = Counter(STATES[name].noun if STATES[name].is_past else "message" for name in names)
    return " and ".join(number_of(count, noun) for noun, count in nouns.items())
