"""Makes text safe to print."""

from __future__ import annotations


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
