"""Somebody who looks at the page without a browser: reads it, fills in its forms, presses buttons."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote, urlencode

from celery import Celery
from httpx import Response
from starlette.testclient import TestClient

from kombu_redisdelay.web import create


@dataclass
class Form:
    """A form of a page.

    Attributes:
        fields: the names and values that are sent in any case.
        boxes: value -> name of what can be ticked.
        buttons: what a button says -> its name and value.
    """

    method: str
    action: str
    fields: list[tuple[str, str]] = field(default_factory=list)
    boxes: dict[str, str] = field(default_factory=dict)
    buttons: dict[str, tuple[str, str]] = field(default_factory=dict)


class Page(HTMLParser):
    """What a page has.

    Attributes:
        text: what is to be read on it.
        heading: its first heading.
        address: where it is, after what it was sent on to.
        elements: the names of all its elements.
    """

    def __init__(self, response: Response) -> None:
        super().__init__()
        self.status = response.status_code
        self.source = response.text
        self.headers = response.headers
        self.address = str(response.url)
        self.forms: list[Form] = []
        self.links: dict[str, str] = {}
        self.text = ""
        self.heading = ""
        self.elements: list[str] = []
        self._open: list[tuple[str, dict[str, str]]] = []
        self._said = ""
        self.feed(response.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        its = {name: value or "" for name, value in attrs}
        self.elements.append(tag)
        if tag == "form":
            self.forms.append(Form(its.get("method", "get"), its["action"]))
        if tag == "input" and its.get("type") == "checkbox":
            # That of a script has no name.
            if "name" in its:
                self.forms[-1].boxes[its["value"]] = its["name"]
        elif tag == "input":
            self.forms[-1].fields.append((its["name"], its.get("value", "")))
        if tag in ("a", "button", "h1"):
            self._open.append((tag, its))
            self._said = ""

    def handle_data(self, data: str) -> None:
        self.text += data
        self._said += data

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open[-1][0] != tag:
            return
        _, its = self._open.pop()
        said = " ".join(self._said.split())
        if tag == "a":
            self.links[said] = its["href"]
        elif tag == "h1":
            self.heading = self.heading or said
        elif "name" in its:
            self.forms[-1].buttons[said] = its["name"], its["value"]

    @property
    def buttons(self) -> set[str]:
        return {button for form in self.forms for button in form.buttons}

    @property
    def ids(self) -> list[str]:
        """The messages of a list."""
        return [
            box.partition(" ")[0] for form in self.forms for box, name in form.boxes.items() if name == "id"
        ]


class Viewer:
    """One person and a page of an app's broker. The arguments are those of ``create``."""

    def __init__(self, app: Celery, **options: Any) -> None:
        self.app = create(app, **options)
        self.client = TestClient(self.app)
        self.at: Page

    def close(self) -> None:
        self.client.close()
        self.app.state.site.close()

    def open(self, path: str, **query: str) -> Page:
        address = f"{path}?{urlencode(query, errors='surrogatepass')}" if query else path
        self.at = Page(self.client.get(address))
        return self.at

    def press(self, button: str, ids: Collection[str] = (), **fields: str) -> Page:
        """Press a button of the page, with messages ticked and fields filled in."""
        [form] = [form for form in self.at.forms if button in form.buttons]
        assert fields.keys() <= dict(form.fields).keys(), "this form has other fields"
        pairs = [pair for pair in form.fields if pair[0] not in fields]
        pairs += fields.items()
        wanted = {quote(id, errors="surrogatepass") for id in ids}
        ticked = [box for box in form.boxes if box.partition(" ")[0] in wanted]
        assert {box.partition(" ")[0] for box in ticked} == wanted, "there are no such messages"
        pairs += [("id", box) for box in ticked]
        pairs.append(form.buttons[button])
        return self.send(form.action, pairs)

    def send(self, action: str, pairs: Collection[tuple[str, str]], **headers: str) -> Page:
        body = urlencode([*pairs], errors="surrogatepass").encode()
        headers = {"Content-Type": "application/x-www-form-urlencoded", **headers}
        self.at = Page(self.client.post(action, content=body, headers=headers))
        return self.at
