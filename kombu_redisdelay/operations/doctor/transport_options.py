"""Checks whether each transport option has an effect, and whether those of TLS verify the server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kombu_redisdelay.operations.doctor.finding import Finding, ok, warning


def check_transport_options(unknown: Mapping[str, str | None], is_unverified: bool) -> Iterator[Finding]:
    """
    Arguments:
        is_unverified: whether TLS is used, and any certificate accepted.
        unknown: unknown option -> the known option that it resembles, ``None`` if there is no such option.
    """
    check = "transport options"
    if not unknown:
        yield ok(check, "all are known")
    if is_unverified:
        yield warning(
            "TLS",
            "the certificate of the server is not verified (`ssl_cert_reqs`): a machine between you and "
            "the server can read the password, and every message",
            "Take `ssl_cert_reqs` out. If a private authority has signed the certificate, name it in "
            "`ssl_ca_certs`.",
        )
    for name, nearest in unknown.items():
        advice = (
            "Take it out of broker_transport_options, unless another program reads it there."
            if nearest is None
            else f"Did you mean {nearest!r}?"
        )
        yield warning(check, f"{name!r} is unknown, and has no effect", advice)
