"""The page of what the doctor finds."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from kombu_redisdelay.web.site import render, site_of


def doctor(request: Request) -> Response:
    """All findings."""
    findings = site_of(request).findings.get()
    return render(request, "doctor.html", findings=findings.value, examined=findings.moment)
