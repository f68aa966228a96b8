"""A manifest as YAML with a comment behind each field that has something to tell."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ppojob_api.manifest import to_yaml
from ppojob_api.problem import printable

Comment = Callable[[str], Iterable[str]]


def commented(tree: dict[str, Any], head: Iterable[str], comment: Comment) -> str:
    """The text; `comment` is asked with the path of each field."""
    lines = [f"# {printable(line)}" for line in head]
    return "\n".join([*lines, *_lines(tree, "", comment)]) + "\n"


def _lines(tree: dict[str, Any], above: str, comment: Comment) -> Iterator[str]:
    for name, value in tree.items():
        path = f"{above}.{name}".lstrip(".")
        told = ", ".join(comment(path))
        is_section = isinstance(value, dict) and value
        first, *rest = [f"{name}:"] if is_section else to_yaml({name: value}).splitlines()
        yield f"{first}  # {printable(told)}" if told else first
        yield from (f"  {line}" for line in (_lines(value, path, comment) if is_section else rest))
