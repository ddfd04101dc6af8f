"""The page of what the doctor finds."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from kombu_redisdelay.operations.states import STATES
from kombu_redisdelay.web.actions import actions
from kombu_redisdelay.web.choice import Choice
from kombu_redisdelay.web.site import render, site_of

#: Findings that are shown.
MOST_FINDINGS = 500


def doctor(request: Request) -> Response:
    """All findings, each with its remedy."""
    findings = site_of(request).findings.get()
    return render(
        request,
        "doctor.html",
        # What is wrong comes first.
        findings=findings.value,
        most=MOST_FINDINGS,
        examined=findings.moment,
        actions=actions(),
        states=STATES,
        choice_of=lambda queue: Choice(queue=queue),
    )
