"""What is made of several processes, which end with it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import ExitStack
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # In `typing` from Python 3.11 on.
    from typing_extensions import Self


class Assembly(ABC):
    """Starts in the beginning of a ``with`` block, and ends with it. What was started ends too if the rest
    cannot be."""

    def __init__(self) -> None:
        self._exit = ExitStack()

    @abstractmethod
    def _start(self) -> None:
        """Start all, and have them ended by ``self._exit``."""

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._exit.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._exit.close()
