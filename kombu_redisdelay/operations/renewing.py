"""What a failed task is when it is requeued: as if it had never been tried."""

from __future__ import annotations

import json
from base64 import b64decode
from datetime import datetime, timezone
from typing import Any

from kombu_redisdelay.broker.message import (
    DELIVERY_COUNT_HEADER,
    ETA_HEADER,
    REDELIVERED_HEADER,
    REQUEUED_HEADER,
)

#: Where the embedded part of a body is, and how many parts a body has.
_EMBEDDED, _PARTS = 2, 3


def renewed(payload: bytes) -> bytes:
    """*payload* as it is requeued: it counts no retries, is due at once, and does not expire. A part of a
    chord leaves its group: the chord has failed, or would count it twice. A header says when that was, by the
    clock of this process.

    All else stays: id, root, parent, priority, time limits, keys, callbacks, and the rest of a chain.
    """
    # The standard library's JSON: kombu's would turn some values into objects.
    try:
        message = json.loads(payload)
        headers = message["headers"]
        for name in (DELIVERY_COUNT_HEADER, REDELIVERED_HEADER):
            headers.pop(name, None)
        if "task" in headers:
            headers.update(dict.fromkeys(headers.keys() & {ETA_HEADER, "expires"}), retries=0)
            if headers.get("group") and _may_be_of_a_chord(message):
                headers.update(group=None, group_index=None)
        headers[REQUEUED_HEADER] = datetime.now(timezone.utc).isoformat()
        return json.dumps(message).encode()
    except Exception:
        # Foreign bytes may make the decoder raise any exception. There is nothing to renew.
        return payload


def _may_be_of_a_chord(message: dict[str, Any]) -> bool:
    """Whether a task is a part of a chord, or its body cannot be read."""
    try:
        body = message["body"]
        if message["properties"].get("body_encoding") == "base64":
            body = b64decode(body)
        parts = json.loads(body)
        embedded = parts[_EMBEDDED]
        return len(parts) != _PARTS or not isinstance(embedded, dict) or bool(embedded.get("chord"))
    except Exception:
        # As above; or it is pickled, and nobody looks into that.
        return True
