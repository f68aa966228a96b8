"""Interface of built-in tools and user simulators."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ppojob_trainer.json_value import Json
from ppojob_trainer.rpc.messages.agents import SeenPicture
from ppojob_trainer.sandbox.executor import Runner
from ppojob_trainer.tools.custom import User


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool.

    Attributes:
        arguments: valid by the schema.
        created: the row's constructor arguments of the tool.
        sandbox: opens the sandbox for model-written code; the same for all calls.
        pictures: of the row so far.
    """

    arguments: Mapping[str, Json]
    created: Mapping[str, Json]
    config: Mapping[str, Json]
    sandbox: Callable[[], Runner]
    pictures: Sequence[SeenPicture] = ()


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A tool that is built in.

    Attributes:
        answer: what `answers.read_answer` takes. What a model did
            wrong is text too; an exception is a mistake of ours, or of the data.
        description: for the model, where the job has no other; so is `parameters`, a JSON schema.
        runs_code: whether it needs a sandbox.
        shows: whether it answers with pictures.
        opens: checks its settings and prepares what they name; None where it has none. It raises
            `ConfigError`, whose place is in the tool (``config.index``).
    """

    answer: Callable[[Call], object]
    description: str
    parameters: Mapping[str, Json]
    runs_code: bool = False
    shows: bool = False
    opens: Callable[[Mapping[str, Json]], None] | None = None


@dataclass(frozen=True, slots=True)
class BuiltInUser:
    """A user that is built in.

    Attributes:
        problem: says what is wrong with what a row tells it, before anything is started: the
            entry, and what is allowed. None where nothing is.
    """

    answer: User
    problem: Callable[[Mapping[str, Json]], tuple[str, str] | None]


def parameters(**properties: str) -> Mapping[str, Json]:
    """The schema of arguments that are all text and all required: their descriptions by name."""
    return {
        "type": "object",
        "properties": {
            name: {"type": "string", "description": text} for name, text in properties.items()
        },
        "required": list(properties),
    }
