"""The node's processes as this machine sees them."""

from collections.abc import Iterator
from pathlib import Path


def of_pod(uid: str) -> list[tuple[int, list[str]]]:
    """The processes of a pod with their arguments, by the control group that they are in."""
    found = []
    for number, argv in _running():
        try:
            group = Path("/proc", str(number), "cgroup").read_text()
        except OSError:  # it ended between the two looks
            continue
        if f"pod{uid}" in group:
            found.append((number, argv))
    return found


def _running() -> Iterator[tuple[int, list[str]]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:  # it ended between the two looks
                continue
            yield int(folder.name), words
