"""Makes text safe to print."""

from __future__ import annotations

#: The longest text of an exception that is kept, in characters.
LONGEST_FAILURE = 200

#: Python may refuse to write larger numbers.
_LARGE = 10**LONGEST_FAILURE


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
