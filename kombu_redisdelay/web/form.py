"""Reads the forms that ask for an action."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any, NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from kombu_redisdelay.operations.fair import written_key
from kombu_redisdelay.operations.parameters import Parameter
from kombu_redisdelay.web.choice import Choice, of_query, quoted, unquoted, well_formed
from kombu_redisdelay.web.csrf import comes_from_here, is_ours

#: The largest form that is read, in bytes: a page of a list with long ids.
LARGEST = 1024 * 1024

#: Seconds that a form may take to arrive.
PATIENCE = 20

#: The messages that are selected, each by its id and its queue, with a space between them. This field may be
#: there many times. So may keys of a queue, without a queue.
ID = "id"

#: A key that a person has written.
KEY = "key"

#: How the page is sorted and searched that the form is on, and whether it is the page of failed tasks. The
#: viewer goes back to it.
BACK = "back"
VIEW = ("sort", "search", BACK)

#: The largest number of fields that is read.
MOST_FIELDS = 10_000

#: The list that the form is on, or the queue.
CHOICE = "choice"


class Selected(NamedTuple):
    """A message that is selected. Two queues may have messages with the same id. Or a key of a queue.

    Attributes:
        queue: empty for all queues, and for a key.
    """

    id: str
    queue: str

    @classmethod
    def of(cls, value: str) -> Selected:
        id, _, queue = value.partition(" ")
        return cls(unquoted(id), well_formed(unquoted(queue)))

    @property
    def value(self) -> str:
        """What makes the same selection again."""
        return f"{quoted(self.id)} {quoted(self.queue)}"


@dataclass(frozen=True)
class Form:
    """What was sent.

    Attributes:
        fields: name -> value, of all fields but those of what is selected.
        selected: these.
        choice: the list, or the queue, that the action acts on.
    """

    fields: Mapping[str, str]
    selected: Sequence[Selected]
    choice: Choice

    @property
    def view(self) -> dict[str, str]:
        """The fields of :data:`VIEW` that are filled in."""
        return {name: self.text(name) for name in VIEW if self.text(name)}

    def text(self, name: str) -> str:
        """What a person wrote into a field; empty if it is not there."""
        return self.fields.get(name, "").strip()

    def arguments(self, parameters: Iterable[Parameter], zone: tzinfo) -> dict[str, Any]:
        """What a person wrote into the fields of *parameters*, as arguments in Python. An empty field
        is ``None``.

        Arguments:
            zone: the time zone of a moment without an offset.

        Raises:
            ValueError: one is filled in wrongly.
        """
        found: dict[str, Any] = {}
        for each in parameters:
            text = self.text(each.name)
            try:
                value = each.type.read(text, zone) if text or each.is_required else None
            except ValueError as exc:
                raise ValueError(f"{each.label}: {exc}") from exc
            if each.least is not None and isinstance(value, str):
                name = each.name.replace("_", " ").capitalize()
                raise ValueError(f"{name} must be a whole number from {each.least}, not {text!r}")
            found |= each.given(value)
        return found


async def read_ours(request: Request) -> Form:
    """Read the form of a request, which must be from one of our pages.

    Raises:
        HTTPException: it is not, or it is too large.
    """
    # Forms from other sites must not keep us busy.
    form = await _read(request) if comes_from_here(request) else None
    if form is None or not is_ours(request, form.fields):
        raise HTTPException(
            403, "This form is not from a page of ours, or it is too old. Go back, and load the page again."
        )
    return form


async def _read(request: Request) -> Form:
    """Read the form of a request.

    Raises:
        HTTPException: it is too large, has too many fields, or comes too slowly.
    """
    try:
        body = await asyncio.wait_for(_body(request), PATIENCE)
    except asyncio.TimeoutError as exc:
        raise HTTPException(408, "The form came too slowly.") from exc
    except ClientDisconnect as exc:
        raise HTTPException(400, "The form did not arrive completely.") from exc
    try:
        pairs = of_query(body.decode("utf-8", "replace"), MOST_FIELDS)
    except ValueError as exc:
        raise HTTPException(413, "The form has too many fields.") from exc
    selected = [Selected.of(value) for name, value in pairs if name == ID]
    written = (value.strip() for name, value in pairs if name == KEY)
    selected += [Selected(written_key(key), "") for key in written if key]
    fields = {name: value for name, value in pairs if name not in (ID, KEY)}
    return Form(fields, list(dict.fromkeys(selected)), Choice.of(dict(of_query(fields.get(CHOICE, "")))))


async def _body(request: Request) -> bytearray:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST:
            raise HTTPException(413, "The form is too large.")
    return body
