"""The resolver's answer is read right. What it answers, ``tox -e applications`` asks."""

from __future__ import annotations

from tools.release.applications import APPLICATIONS, versions_in


def test_versions() -> None:
    lines = ["celery==5.6.3", "kombu-redisdelay @ file:///src", "pretix==2026.8.0 ; python_version < '4'"]
    assert versions_in(lines) == {"celery": "5.6.3", "pretix": "2026.8.0"}


def test_there_are_ten() -> None:
    assert len(set(APPLICATIONS)) == 10
