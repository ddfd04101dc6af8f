"""Reads the forms that ask for an action."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.requests import Request

from kombu_redisdelay.web.choice import Choice
from kombu_redisdelay.web.fields import of_query, unquoted

#: The largest form that is read, in bytes: a page of a list with long ids.
LARGEST = 1024 * 1024

#: The messages that are selected, each by its id. This field may be there many times.
ID = "id"

#: The list that the form is on, or the queue.
CHOICE = "choice"


@dataclass(frozen=True)
class Form:
    """What was sent.

    Attributes:
        fields: name -> value, of all fields but those of the messages that are selected.
        ids: the ids of these.
        choice: the list, or the queue, that the action is about.
    """

    fields: Mapping[str, str]
    ids: Sequence[str]
    choice: Choice

    def text(self, name: str) -> str:
        """What a person wrote into a field; empty if it is not there."""
        return self.fields.get(name, "").strip()


async def read_form(request: Request) -> Form:
    """Read the form of a request.

    Raises:
        HTTPException: it is too large.
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST:
            raise HTTPException(413, "The form is too large.")
    pairs = of_query(body.decode("utf-8", "replace"))
    ids = dict.fromkeys(unquoted(value) for name, value in pairs if name == ID)
    fields = {name: value for name, value in pairs if name != ID}
    return Form(fields, list(ids), Choice.of(dict(of_query(fields.get(CHOICE, "")))))
