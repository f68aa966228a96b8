"""What is used in a ``with`` block and closed at its end."""

from abc import ABC, abstractmethod
from typing import Self


class Closeable(ABC):
    """Holds something that must be given back: processes, files."""

    @abstractmethod
    def close(self) -> None:
        """Give it back; called again, it does nothing."""

    def __enter__(self) -> Self:
        """Give the object itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close, whatever happened."""
        self.close()
