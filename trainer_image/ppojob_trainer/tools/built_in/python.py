"""Python interpreter in the sandbox; every call starts a new process."""

from typing import Final

from ppojob_trainer.sandbox.process import Program
from ppojob_trainer.tools.built_in.tool import STOPPED, BuiltIn, Call, parameters


def python(call: Call) -> str:
    """Return the output of a program, its errors last."""
    outcome = call.sandbox().run(Program(str(call.arguments["code"])))
    parts = [outcome.stdout] if outcome.is_well else [outcome.stdout, outcome.errors]
    texts = [part.decode("utf-8", errors="backslashreplace").rstrip("\n") for part in parts]
    if not outcome.is_well:
        texts.append(STOPPED.get(outcome.stopped, ""))
    return "\n".join(filter(None, texts))


TOOL: Final = BuiltIn(
    python,
    "Runs a Python program and gives what it prints.",
    parameters(code="The program; it has no files and no network."),
    runs_code=True,
)
