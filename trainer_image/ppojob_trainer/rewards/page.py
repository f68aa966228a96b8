"""docs/rewards.md, made of the table of scorers: `python -m ppojob_trainer.rewards.page`."""

import inspect
import sys

from ppojob_trainer.rewards.routing import SCORERS, Scorer

_HEAD = """\
# Rewards that are built in

Made from `ppojob_trainer/rewards/routing.py` by
`python -m ppojob_trainer.rewards.page > docs/rewards.md`.

Without `spec.rewards` and without a reward model the `data_source` of a row chooses its scorer. By
name, as `rewards: [{function: gsm8k}]`, one of them scores every row. A name below is a data
source; `aime*` is every one that begins so, `*countdown*` every one that holds the word. Ground
truths of another form are told before anything starts. How to write a function of one's own, or ask
a model for scores: [data and rewards](data-and-rewards.md).

| function | reads of a response | ground truth |
| --- | --- | --- |
"""
_BEHIND = """
`code` gives the share of the tests that pass, `judge` the share of `best` that a model says,
`http_score` what a service answers, and `majority_vote` 1 for
[the answer of most responses](data-and-rewards.md#without-answers). Each of the others gives
`score` to a right answer, `format_score` to another one and 0 where there is none, but

- `math_dapo` gives `wrong_score` for both,
- `geometry3k` gives `format_score` for the form and the rest of 1 for the answer,
- `search_r1_format` has the arguments of Search-R1's `qa_em_format.py`.

Their `acc` is 1 for a right answer, and their `pred` the answer that was read. The numbers are
those of verl, TinyZero and Search-R1, but where the docstring of a scorer says otherwise. verl's
`prime_math` evaluates a response as Python; its data sources go to `math_verify` here.
Following of instructions (IFEval) is not built in; a function of one's own can score it.

`math_verify` and `geometry3k` compute with what a response says. What is not found equal within
5 s is wrong: such a score depends on the machine. `countdown` calculates in exact fractions and
`multiply` compares integers; those that are left compare texts.
"""
_SHOWN_CHARACTERS = 20


def page() -> str:
    """The whole page."""
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
    told = ", ".join(f"`{source}`" for source in sources) or "none, by name alone"
    return f"\n## {name}\n\n- Data sources: {told}\n- Arguments: {', '.join(arguments) or 'none'}\n"


def _default(argument: inspect.Parameter) -> str:
    if argument.default is argument.empty:
        return "needed"
    if isinstance(argument.default, bool):
        return str(argument.default).lower()
    text = str(argument.default)
    return "a text" if len(text) > _SHOWN_CHARACTERS else text or "none"


if __name__ == "__main__":
    sys.stdout.write(page())
