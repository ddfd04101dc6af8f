"""The links of the README. PyPI shows it, too, where a link to a file of the repository leads nowhere."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

#: ``](address)`` of a link or a picture.
_LINK = re.compile(r"\]\(([^)\s]+)\)")

#: What GitHub puts between the repository and the path of a file: of a page about it, and of the file itself.
_FILE = re.compile(r"/(?:blob|raw)/main/(.+)")

#: What Read the Docs puts between the site and the page.
_PAGE = re.compile(r"/en/latest/([\w-]+)\.html")


def links(text: str) -> list[str]:
    return _LINK.findall(text)


def broken_links(text: str, urls: Mapping[str, str], root: Path) -> Iterable[str]:
    """What is wrong with the links of *text*, in a line each.

    Arguments:
        urls: the project's, by their names in ``setup.cfg``. A link into one of these must lead to something
            that is here.
        root: of the repository.
    """
    for link in links(text):
        address = link.partition("#")[0]
        source, documentation = urls["Source"], urls["Documentation"]
        if not address.startswith("https://"):
            yield f"{link} leads nowhere on PyPI"
        elif address.startswith(f"{source}/"):
            file = _FILE.fullmatch(address.removeprefix(source))
            if file and not (root / file[1]).exists():
                yield f"{link}: there is no {file[1]}"
        elif address.startswith(f"{documentation}/"):
            page = _PAGE.fullmatch(address.removeprefix(documentation))
            if not page or not (root / "docs" / f"{page[1]}.rst").exists():
                yield f"{link}: there is no such page in docs"
