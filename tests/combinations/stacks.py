"""What a process does at the moment: the stacks of its threads and greenlets, into its log."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import traceback
from types import FrameType
from typing import Any

#: What asks for it.
SIGNAL = signal.SIGUSR2
#: The last line.
END = "-- all stacks --"


def tell_when_asked() -> None:
    """From now on, :data:`SIGNAL` has the main thread write the stacks to standard error."""
    signal.signal(SIGNAL, _tell)


def _tell(number: int, frame: FrameType | None) -> None:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, of_thread in sys._current_frames().items():
        _write(f"thread {names.get(ident, ident)}", of_thread)
    greenlet: Any = sys.modules.get("greenlet")
    if greenlet is not None:
        for each in gc.get_objects():
            # A proxy may raise if it is asked for its class. Without a frame, it runs or has ended.
            if issubclass(type(each), greenlet.greenlet) and each.gr_frame is not None:
                _write(f"greenlet {each!r}", each.gr_frame)
    print(END, file=sys.stderr, flush=True)


def _write(name: str, frame: FrameType) -> None:
    print(f"-- {name}", file=sys.stderr)
    traceback.print_stack(frame, file=sys.stderr)
