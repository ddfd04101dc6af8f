"""Converts between datetimes and times in Redis: ms since the epoch, with the microseconds as a fraction."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MS = timedelta(milliseconds=1)

#: The end of the year 9999, beyond which there is no datetime.
LATEST_MS = (datetime.max.replace(tzinfo=timezone.utc) - _EPOCH) // _MS


def to_ms(moment: datetime) -> float:
    """*moment* in ms since the epoch. A naive time is in UTC, as Celery's worker reads it."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return (moment - _EPOCH) / _MS


def from_ms(ms: float) -> datetime:
    """*ms* since the epoch as a time in UTC, to the microsecond. A time before 1970 or after the year 9999
    becomes the nearest time between."""
    return _EPOCH + min(max(0, ms), LATEST_MS) * _MS
