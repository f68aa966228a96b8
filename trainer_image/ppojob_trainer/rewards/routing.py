"""Scorer routing by data source: the rules of verl, TinyZero and Search-R1."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ppojob_trainer import http_calls
from ppojob_trainer.errors import BadInput
from ppojob_trainer.json_value import Json
from ppojob_trainer.rewards import (
    addition,
    countdown,
    environment,
    geometry3k,
    gsm8k,
    judge,
    majority_vote,
    math_dapo,
    math_reward,
    math_verify,
    multiply,
    search_r1,
    unit_tests,
)
from ppojob_trainer.rewards.records import text_problem


@dataclass(frozen=True, slots=True)
class Scorer:
    """A built-in scorer."""

    # (response, ground truth, **arguments) -> result of a reward function, usually a
    # `records.Verdict`.
    score: Callable[..., object]
    # Ground truth -> what is allowed, if it is not of the right form.
    ground_truth_problem: Callable[[Json], str | None]
    reads: str  # the part of a response that it scores, for the docs
    # Values of ``data_source`` that it scores, besides those with one of the `prefixes` or `words`.
    data_sources: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    # Imports slow libraries, outside the time limit of a call.
    prepare: Callable[[], object] = lambda: None
    runs_code: bool = False  # whether ``score`` runs code of responses, and takes a `Sandbox`
    takes_row: bool = False  # whether ``score`` takes a `Row` after the ground truth
    # Whether ``score`` takes all responses to a prompt, and returns a list.
    takes_group: bool = False
    # Arguments of the right types -> their problem, if any.
    arguments_problem: Callable[[Mapping[str, Json]], BadInput | None] = lambda _: None
    # (time limit of a program, arguments) -> time of a call in addition to the limit of the
    # function.
    seconds: Callable[[float, Mapping[str, Json]], float] = lambda *_: 0.0


SCORERS: dict[str, Scorer] = {
    "gsm8k": Scorer(
        gsm8k.gsm8k, gsm8k.ground_truth_problem, "the last `#### n`", ("openai/gsm8k",)
    ),
    "addition": Scorer(
        addition.addition, addition.ground_truth_problem, "the last `#### n`", ("ppojob/addition",)
    ),
    "countdown": Scorer(
        countdown.countdown,
        countdown.ground_truth_problem,
        "the equation in the last `<answer>`",
        words=("countdown",),
    ),
    "multiply": Scorer(
        multiply.multiply,
        multiply.ground_truth_problem,
        "the integer in the last `<answer>`",
        words=("multiply", "arithmetic"),
    ),
    "math_reward": Scorer(
        math_reward.math_reward,
        text_problem,
        r"the last `\boxed{}`, by its text",
        ("lighteval/MATH", "DigitalLearningGmbH/MATH-lighteval", "HuggingFaceH4/MATH-500"),
    ),
    "math_dapo": Scorer(
        math_dapo.math_dapo,
        text_problem,
        "the last `Answer: ...`, by its text",
        ("math_dapo", "math", "math_dapo_reasoning"),
        prefixes=("aime",),
    ),
    "math_verify": Scorer(
        math_verify.math_verify,
        text_problem,
        "a box, LaTeX or a number, by its value",
        (
            *("numina_aops_forum", "numina_synthetic_math", "numina_amc_aime"),
            *("numina_synthetic_amc", "numina_cn_k12", "numina_olympiads"),
        ),
        prepare=math_verify.load,
    ),
    "geometry3k": Scorer(
        geometry3k.geometry3k,
        text_problem,
        r"the last `\boxed{}`, by its value, and the form",
        ("hiyouga/geometry3k",),
        prepare=math_verify.load,
    ),
    "search_r1": Scorer(
        search_r1.search_r1,
        search_r1.ground_truth_problem,
        "the last `<answer>`, by its words",
        (
            *("searchR1_nq", "searchR1_triviaqa", "searchR1_popqa", "searchR1_hotpotqa"),
            *("searchR1_2wikimultihopqa", "searchR1_musique", "searchR1_bamboogle"),
            "searchR1_facts",
            *("nq", "triviaqa", "popqa", "web_questions", "hotpotqa", "2wikimultihopqa"),
            *("musique", "bamboogle", "strategyqa"),
        ),
    ),
    "search_r1_format": Scorer(
        search_r1.search_r1_format,
        search_r1.ground_truth_problem,
        "the same, the order of its tags and `<information>`",
    ),
    "majority_vote": Scorer(
        majority_vote.majority_vote,
        majority_vote.truth_problem,
        "the answer, and whether most responses to the prompt have it",
        prepare=math_verify.load,
        takes_group=True,
    ),
    "environment_score": Scorer(
        environment.environment_score,
        judge.no_truth_needed,
        "nothing: the state in which it has left its environment",
        takes_row=True,
    ),
    "judge": Scorer(
        judge.judge,
        judge.no_truth_needed,
        "all of it, by a model behind an HTTP interface",
        takes_row=True,
        arguments_problem=judge.judge_problem,
        seconds=http_calls.longest_seconds,
    ),
    "http_score": Scorer(
        judge.http_score,
        judge.no_truth_needed,
        "all of it, by your own service",
        takes_row=True,
        arguments_problem=judge.service_problem,
        seconds=http_calls.longest_seconds,
    ),
    "code": Scorer(
        unit_tests.code,
        unit_tests.ground_truth_problem,
        "the last block of Python, by unit tests",
        ("codecontests", "apps", "codeforces", "taco"),
        runs_code=True,
        seconds=lambda program_seconds, _: unit_tests.longest_seconds(program_seconds),
    ),
}


def route(data_source: str) -> str | None:
    """Return the scorer of a data source: by an exact match, a prefix, then a word in it."""
    rules: tuple[Callable[[Scorer], bool], ...] = (
        lambda scorer: data_source in scorer.data_sources,
        lambda scorer: data_source.startswith(scorer.prefixes),
        lambda scorer: any(word in data_source for word in scorer.words),
    )
    found = (name for rule in rules for name, scorer in SCORERS.items() if rule(scorer))
    return next(found, None)
