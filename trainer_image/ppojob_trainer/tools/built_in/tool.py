"""Interface of built-in tools and user simulators."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ppojob_trainer.json_value import Json
from ppojob_trainer.rpc.messages.agents import SeenImage
from ppojob_trainer.sandbox.executor import Runner
from ppojob_trainer.tools.custom import User

STOPPED: Final = {
    "time": "Error: it took too long.",
    "output": "Error: it wrote too much.",
    "threads": "Error: it started too many threads.",
    "memory": "Error: it used too much memory.",
    "descriptors": "Error: it opened too many files.",
    "files": "Error: its files are too large. Delete some.",
}
"""The model's message for code that exceeded a limit of the sandbox."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool."""

    arguments: Mapping[str, Json]
    created: Mapping[str, Json]  # constructor arguments in the row
    config: Mapping[str, Json]
    # Returns the sandbox for model-written code; the same for all calls.
    sandbox: Callable[[], Runner]
    images: Sequence[SeenImage] = ()


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A built-in tool."""

    # Returns a value for `answers.read_answer`, for a `Call`, or for an environment and the
    # arguments by name. Mistakes of the model are answers too; an exception is an error of the tool
    # or of the data.
    answer: Callable[..., object]
    description: str  # default description for the model
    parameters: Mapping[str, Json]  # default JSON schema of the arguments
    runs_code: bool = False
    shows: bool = False
    # Validates and opens its settings; None without settings. It raises `ConfigError`, with a place
    # relative to the tool (``config.index``).
    opens: Callable[[Mapping[str, Json]], None] | None = None
    # Returns what creates the environment of a row, from the row's name as `row` and its
    # constructor arguments; raises `SandboxRefused`. None: calls share nothing.
    environment: Callable[[Runner, Mapping[str, Json]], Callable[..., object]] | None = None


@dataclass(frozen=True, slots=True)
class BuiltInUser:
    """A built-in user simulator: answers a turn, and checks the arguments of a row.

    `problem` returns the invalid entry and what is allowed, or None.
    """

    answer: User
    problem: Callable[[Mapping[str, Json]], tuple[str, str] | None]


def parameters(**properties: str) -> Mapping[str, Json]:
    """Build the schema of required text arguments, from their descriptions by name."""
    return {
        "type": "object",
        "properties": {
            name: {"type": "string", "description": text} for name, text in properties.items()
        },
        "required": list(properties),
    }
