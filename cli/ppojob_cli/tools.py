"""`ppojob tools`: what `spec.agent` is to say of tools and users that are there already."""

from pathlib import Path
from typing import Any

import click

from ppojob_api.manifest import to_yaml
from ppojob_api.problem import shown
from ppojob_cli.input_error import InputError, told
from ppojob_cli.verl_tools import read_verl_agent, wrong_agent


@click.command()
@click.argument("file", metavar="FILE")
def tools(file: str) -> None:
    """Print spec.agent for verl's YAML of tools or interactions, or for functions of Python.

    Of a Python file all public functions are tools, or those that verl's @function_tool marks. What
    a model is told of one is its signature and docstring; nothing of the file is kept.
    """
    if file.endswith((".yaml", ".yml", ".json")):
        found = read_verl_agent(file)
    elif file.endswith(".py"):
        found = {"tools": _of_functions(file)}
    else:
        why = "tools are in YAML or in Python"
        raise InputError(f"FILE: got {shown(file)}: {why}; a name that ends in .yaml or .py")
    if problems := list(wrong_agent(found)):
        raise InputError("\n".join(map(str, problems)))
    click.echo(to_yaml({"agent": found}), nl=False)


def _of_functions(file: str) -> list[dict[str, Any]]:
    """Of each function of a file what a model has to know."""
    import msgspec

    from ppojob_trainer.tools.describe import read_tools

    with told():
        described = read_tools(file)
    return [
        {
            "name": one.name,
            "description": one.description,
            "parameters": msgspec.json.decode(one.parameters),
            "source": {"path": str(Path(file)), "function": one.function},
        }
        for one in described
    ]
