"""Reads the new lines of a file that another process appends to."""

from pathlib import Path
from typing import BinaryIO


class LineFollower:
    """Follows a file that is appended to, and truncated on a rewind.

    Attributes:
        is_restarted: whether the last read began at the first line: initially and after a cut.
    """

    def __init__(self, path: Path) -> None:
        self.is_restarted = True
        self._path = path
        self._end = 0
        self._last_line = b""

    def read(self) -> list[bytes]:
        """Return the new complete lines, with their newlines."""
        self.is_restarted = self._end == 0
        try:
            with self._path.open("rb") as file:
                return self._read(file)
        except OSError:
            self._restart()
            return []

    def _read(self, file: BinaryIO) -> list[bytes]:
        file.seek(self._end - len(self._last_line))
        # A rewritten line has another time, so this also detects a cut followed by new lines.
        if file.read(len(self._last_line)) != self._last_line:
            self._restart()
            file.seek(0)
        data = file.read()
        # A line without newline is incomplete.
        lines = data[: data.rfind(b"\n") + 1].splitlines(keepends=True)
        if lines:
            self._end += sum(map(len, lines))
            self._last_line = lines[-1]
        return lines

    def _restart(self) -> None:
        self.is_restarted = True
        self._end = 0
        self._last_line = b""
