"""What a child prints, on its way to the log: cut at a limit, and made harmless."""

import logging

from ppojob_api.problem import printable

_KEPT_BYTES = 16 * 1024
_LINE_CHARACTERS = 1024


class OutputLog:
    """Collects the output of one call and logs its beginning.

    A reward function that prints a gigabyte costs a few kilobytes here: the rest is counted and
    dropped. Characters that a terminal would act on are escaped.
    """

    def __init__(self, log: logging.Logger, label: str) -> None:
        self._log = log
        self._label = label
        self._kept = bytearray()
        self._dropped = 0

    def feed(self, piece: bytes) -> None:
        """Add what was read."""
        room = _KEPT_BYTES - len(self._kept)
        self._kept += piece[:room]
        self._dropped += max(0, len(piece) - room)

    @property
    def last_line(self) -> str:
        """The last line kept so far: of a process that ended, usually why."""
        lines = self._kept.decode("utf-8", errors="backslashreplace").splitlines()
        return printable(lines[-1], 200) if lines else ""

    def flush(self) -> None:
        """Log what was collected, and begin anew."""
        for line in self._kept.decode("utf-8", errors="backslashreplace").splitlines():
            self._log.info("%s %s", self._label, printable(line, _LINE_CHARACTERS))
        if self._dropped:
            self._log.info("%s ... %d more bytes of output dropped", self._label, self._dropped)
        self._kept.clear()
        self._dropped = 0
