"""Base class of objects that own processes or files, for use in a ``with`` block."""

from abc import ABC, abstractmethod
from typing import Self


class Closeable(ABC):
    """Owns resources that `close` releases."""

    @abstractmethod
    def close(self) -> None:
        """Release the resources; a second call does nothing."""

    def __enter__(self) -> Self:
        """Return the object."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()
