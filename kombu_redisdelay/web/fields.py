"""Writes texts into addresses and forms, and reads them. Texts from Redis come back unchanged, even those
that UTF-8 cannot carry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import parse_qsl, quote, unquote, urlencode

#: How lone surrogates are written and read.
_SURROGATES = "surrogatepass"


def quoted(text: str) -> str:
    """*text* as plain ASCII, for a field of a form or a cookie."""
    return quote(text, errors=_SURROGATES)


def unquoted(text: str) -> str:
    """The text from which :func:`quoted` made *text*."""
    try:
        return unquote(text, errors=_SURROGATES)
    except UnicodeDecodeError:
        return unquote(text, errors="replace")


def to_query(fields: Mapping[str, str] | Iterable[tuple[str, str]]) -> str:
    """The query of an address. Fields that are empty are left out."""
    pairs = fields.items() if isinstance(fields, Mapping) else fields
    return urlencode([(name, value) for name, value in pairs if value], errors=_SURROGATES)


def of_query(query: str, most: int | None = None) -> list[tuple[str, str]]:
    """The fields of a query, or of a form. Bytes that are no UTF-8 are replaced.

    Raises:
        ValueError: there are more than *most*.
    """
    try:
        return parse_qsl(query, keep_blank_values=True, errors=_SURROGATES, max_num_fields=most)
    except UnicodeDecodeError:
        return parse_qsl(query, keep_blank_values=True, errors="replace", max_num_fields=most)


def well_formed(text: str) -> str:
    """*text*, with a mark in place of what UTF-8 cannot carry. No queue has a name with that."""
    return text.encode(errors=_SURROGATES).decode(errors="replace")
