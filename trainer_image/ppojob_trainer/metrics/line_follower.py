"""Follows a file of lines that another process writes, and reads only new lines."""

from pathlib import Path
from typing import BinaryIO


class LineFollower:
    """Follows a file that is appended to, and truncated on a rewind.

    Attributes:
        is_anew: whether the last read began at the file's first line: at first, and after a cut.
    """

    def __init__(self, path: Path) -> None:
        self.is_anew = True
        self._path = path
        self._end = 0
        self._last_line = b""

    def read(self) -> list[bytes]:
        """Return the lines completed since the last read, with their newlines."""
        self.is_anew = self._end == 0
        try:
            with self._path.open("rb") as file:
                return self._read(file)
        except OSError:
            self._begin_anew()
            return []

    def _read(self, file: BinaryIO) -> list[bytes]:
        file.seek(self._end - len(self._last_line))
        # A line that was written anew has another time, so a cut is seen even behind new lines.
        if file.read(len(self._last_line)) != self._last_line:
            self._begin_anew()
            file.seek(0)
        data = file.read()
        # What has no newline yet is being written, or was torn and will be cut.
        lines = data[: data.rfind(b"\n") + 1].splitlines(keepends=True)
        if lines:
            self._end += sum(map(len, lines))
            self._last_line = lines[-1]
        return lines

    def _begin_anew(self) -> None:
        self.is_anew = True
        self._end = 0
        self._last_line = b""
