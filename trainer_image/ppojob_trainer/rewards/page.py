"""Generates docs/rewards.md from the table of scorers: `python -m ppojob_trainer.rewards.page`."""

import inspect
import sys

from ppojob_trainer.rewards.routing import SCORERS, Scorer

_HEAD = """\
# Built-in reward functions

This page lists the built-in reward functions, their ground truths, data sources and arguments. Use
it to choose one for your data; [data and rewards](data-and-rewards.md) describes custom reward
functions and models as judges. It is generated from `ppojob_trainer/rewards/routing.py` by
`python -m ppojob_trainer.rewards.page > docs/rewards.md`.

- Without `spec.rewards` and without a reward model, the `data_source` of a row selects its reward
  function. In a data source, `aime*` is every name with that prefix, and `*countdown*` every name
  with that word.
- `rewards: [{function: gsm8k}]` scores every row with one of them, by name.
- Ground truths of another form are reported before anything starts.

| function | reads of a response | ground truth |
| --- | --- | --- |
"""
_BEHIND = """
| function | score |
| --- | --- |
| `code` | the share of passed tests |
| `judge` | the model's number, as a share of `best` |
| `http_score` | the answer of the service |
| `environment_score` | that of [environments](agents.md#scores-of-environments) or an agent loop |
| `majority_vote` | 1 for the [majority answer](data-and-rewards.md#rewards-without-ground-truth) |
| the others | `score` for a right answer, `format_score` for a wrong one, 0 without an answer |
| `math_dapo` | as the others, but `wrong_score` for a wrong or missing answer |
| `geometry3k` | `format_score` for the form, and the rest of 1 for the answer |
| `search_r1_format` | by the arguments of Search-R1's `qa_em_format.py` |

`acc` of the others is 1 for a right answer, and `pred` is the answer that was read. The numbers are
those of verl, TinyZero and Search-R1, except where the docstring of a function says otherwise.

Limits:

- `math_verify` and `geometry3k` evaluate the expression in a response. An answer that is not found
  equal within 5 s is wrong, so such a score depends on the machine.
- `countdown` calculates in exact fractions and `multiply` compares integers. The others compare
  texts.
- verl's `prime_math` evaluates a response as Python. Its data sources go to `math_verify` here.
- Instruction following (IFEval) is not built in; a custom function can score it.
"""
_SHOWN_CHARACTERS = 20


def page() -> str:
    """Return the page."""
    rows = "".join(
        f"| `{name}` | {scorer.reads} | {scorer.ground_truth_problem(None) or 'any, or none'} |\n"
        for name, scorer in SCORERS.items()
    )
    sections = "".join(_section(name, scorer) for name, scorer in SCORERS.items())
    return f"{_HEAD}{rows}{_BEHIND}{sections}"


def _section(name: str, scorer: Scorer) -> str:
    sources = [
        *scorer.data_sources,
        *(f"{prefix}*" for prefix in scorer.prefixes),
        *(f"*{word}*" for word in scorer.words),
    ]
    parameters = inspect.signature(scorer.score).parameters.values()
    arguments = [
        f"`{one.name}` ({_default(one)})" for one in parameters if one.kind is one.KEYWORD_ONLY
    ]
    listed = ", ".join(f"`{source}`" for source in sources) or "none, only by name"
    return (
        f"\n## {name}\n\n- Data sources: {listed}\n- Arguments: {', '.join(arguments) or 'none'}\n"
    )


def _default(argument: inspect.Parameter) -> str:
    if argument.default is argument.empty:
        return "needed"
    if isinstance(argument.default, bool):
        return str(argument.default).lower()
    text = str(argument.default)
    return "a text" if len(text) > _SHOWN_CHARACTERS else text or "none"


if __name__ == "__main__":
    sys.stdout.write(page())
