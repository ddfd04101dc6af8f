"""The page of what the doctor finds."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from kombu_redisdelay.web.site import render, site_of

#: Findings that are shown.
MOST = 500


def doctor(request: Request) -> Response:
    """All findings."""
    findings = site_of(request).findings.get()
    # What is wrong comes first.
    return render(request, "doctor.html", findings=findings.value, most=MOST, examined=findings.moment)
