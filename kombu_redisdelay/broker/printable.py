"""Text that is safe to print, whatever it was made of."""

from __future__ import annotations


def printable(text: str) -> str:
    """*text*, with each character that is not printable as its Python escape, such as ``\\x1b``.

    Whoever may publish a message chooses its task name, its arguments and its id. A terminal obeys control
    characters in them, and other invisible characters change what a reader takes the text for. What is
    printable is what ``repr`` leaves as it is.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )
