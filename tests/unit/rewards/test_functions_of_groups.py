import itertools
import logging
from collections import Counter

import pytest
from reward_functions import Source

from ppojob_api.v1alpha1.rollout import RewardSpec
from ppojob_trainer.errors import ConfigError, RewardFailed
from ppojob_trainer.rewards.majority_vote import READERS, majority_vote
from ppojob_trainer.rewards.math_verify import math_verify
from ppojob_trainer.rewards.process import ScoringPool
from ppojob_trainer.rewards.records import RewardItem
from ppojob_trainer.rewards.row_checks import RowChecks

GROUPS = """
def score(data_source, solution_strs, ground_truth, extra_infos, response_tokens, factor=1):
    assert len(extra_infos) == len(response_tokens) == len(solution_strs)
    return [
        {
            "score": factor * solution_strs.count(text),
            "of": f"{data_source} {ground_truth} {info['row']} {tokens}",
        }
        for text, info, tokens in zip(solution_strs, extra_infos, response_tokens)
    ]
"""


def rows(*prompts: str) -> list[RewardItem]:
    """A row a letter, of a prompt a word; its truth is the prompt's number."""
    texts = [(prompt, text) for prompt, word in enumerate(prompts) for text in word]
    return [
        RewardItem(n, f"s{prompt}", text, prompt, {"row": n}, response_tokens=n, prompt=10 * prompt)
        for n, (prompt, text) in enumerate(texts)
    ]


@pytest.mark.processes
def test_a_call_has_all_responses_to_a_prompt_and_no_other(source: Source) -> None:
    together = source(GROUPS, whole=True, arguments={"factor": 2})
    alone = source("return {'score': 1, 'text': solution_str}", weight=3.0)
    items = rows("aab", "a", "bb")
    with ScoringPool([together], processes=2) as pool:
        results = pool.score(items)
        reordered = pool.score([items[n] for n in (5, 0, 3, 1, 4, 2)])
    assert [result.score for result in results] == [4.0, 4.0, 2.0, 2.0, 4.0, 4.0]
    assert results[4].extras["of"] == "s2 2 4 4"
    assert reordered == [results[n] for n in (5, 0, 3, 1, 4, 2)]
    with ScoringPool([alone, together]) as pool:
        both = pool.score(items)
    assert [result.score for result in both] == [7.0, 7.0, 5.0, 5.0, 7.0, 7.0]
    assert [result.extras["score/text"] for result in both] == list("aababb")


@pytest.mark.processes
def test_a_group_is_one_call_and_has_the_time_of_its_rows(source: Source, caplog) -> None:
    code = """
        import time
        def score(solution_strs, ground_truth, **of_rows):
            time.sleep(1.0 if "slow" in solution_strs else 0.0)
            return [1.0 / ("bad" not in solution_strs)] * len(solution_strs)
        """
    items = [
        RewardItem(n, "mine", text, None, prompt=n // 3)
        for n, text in enumerate(["slow", "x", "x", "x", "bad", "x"])
    ]
    failing = source(code, whole=True, seconds=0.5)
    with (
        ScoringPool([failing]) as pool,
        pytest.raises(RewardFailed, match="rows 3 to 5: RewardRaised"),
    ):
        pool.score(items)
    failing = source(code, whole=True, seconds=0.5, errorScore=-1.0)
    with ScoringPool([failing]) as pool, caplog.at_level(logging.WARNING):
        found = pool.score(items)
    assert [result.score for result in found] == [1.0] * 3 + [-1.0] * 3


@pytest.mark.processes
def test_a_signature_that_cannot_be_called_is_told(source: Source) -> None:
    code = "def score(solution_strs, ground_truth): return [0.0]"
    with pytest.raises(ConfigError) as refused, ScoringPool([source(code, whole=True)]):
        pass
    told = str(refused.value)
    assert "with data_source, extra_infos, ground_truth, solution_strs: " in told
    assert "def score(data_source, solution_strs, ground_truth, extra_infos, **arguments)" in told


def literal_vote(answers: list[str | None]) -> list[float]:
    """What TTRL's code gives, by a count of each answer's equals: of equally many the first."""
    best = None
    for answer in answers:
        if answer is not None and (best is None or answers.count(answer) > answers.count(best)):
            best = answer
    return [float(answer is not None and answer == best) for answer in answers]


def test_the_vote_is_that_of_a_literal_count_in_all_groups_of_five() -> None:
    texts = {"1": "#### 1", "2": "so #### 2", "3": "#### 3", None: "I do not know"}
    for answers in itertools.product(texts, repeat=5):
        found = majority_vote([texts[answer] for answer in answers], "2", scorer="gsm8k")
        assert [one["score"] for one in found] == literal_vote(list(answers))
        assert [one["acc"] for one in found] == [float(answer == "2") for answer in answers]
        votes = Counter(answer for answer in answers if answer is not None)
        most = max(votes.values(), default=0)
        assert {one["majority_ratio"] for one in found} == {most / 5}
        first = next((one for one in answers if one and votes[one] == most), None)
        assert {one["label_accuracy"] for one in found} == {float(first == "2")}


def test_answers_are_compared_as_the_scorer_does() -> None:
    half = [r"\boxed{\frac{1}{2}}", r"\boxed{\frac{1}{2}}", r"\boxed{2/4}", r"\boxed{2}", "none"]
    found = majority_vote(half, None)
    assert [one["score"] for one in found] == [1.0, 1.0, 1.0, 0.0, 0.0]
    assert [set(one) for one in found] == [{"score", "pred", "majority_ratio"}] * 5
    assert found[0]["majority_ratio"] == 0.4  # votes are counted by text
    assert [one["acc"] for one in majority_vote(half, "2")] == [0.0, 0.0, 0.0, 1.0, 0.0]
    label = str(found[0]["pred"])
    assert [math_verify(text, label)["acc"] for text in half[:4]] == [1.0, 1.0, 1.0, 0.0]


@pytest.mark.parametrize("scorer", READERS)
def test_who_gives_the_answer_of_most_gives_it_in_every_form(scorer) -> None:
    texts = [f"{n}: \\boxed{{x=\\frac12}} Answer: $\\frac12$ #### 12" for n in (1, 2)]
    assert [one["score"] for one in majority_vote(texts, None, scorer=scorer)] == [1.0, 1.0]
    assert [one["score"] for one in majority_vote(["?", "?"], "1", scorer=scorer)] == [0.0, 0.0]


@pytest.mark.parametrize("scorer", ["math_dapo", "math_reward", "math_verify"])
def test_an_empty_answer_has_no_vote(scorer) -> None:
    texts = [r"\boxed{} Answer: ", r"\boxed{} Answer: ", r"\boxed{7} Answer: 7"]
    found = majority_vote(texts, None, scorer=scorer)
    assert [one["score"] for one in found] == [0.0, 0.0, 1.0]
    assert {one["majority_ratio"] for one in found} == {1 / 3}


@pytest.mark.processes
def test_it_needs_no_truth_and_takes_arguments() -> None:
    checks = RowChecks(("majority_vote",))
    assert checks.ground_truth_problem("mine", None) is None
    assert checks.ground_truth_problem("mine", "7") is None
    assert checks.ground_truth_problem("mine", 7) is not None
    spec = {"function": "majority_vote", "arguments": {"scorer": "addition"}}
    items = [
        RewardItem(n, "mine", f"#### {answer}", None, prompt=n // 3)
        for n, answer in enumerate([1, 2, 2, 2, 1, 1])
    ]
    with ScoringPool([RewardSpec.model_validate(spec)]) as pool:
        results = pool.score(items)
    assert [result.score for result in results] == [0.0, 1.0, 1.0, 0.0, 1.0, 1.0]
    refused = RewardSpec.model_validate(spec | {"arguments": {"scorer": "code"}})
    with pytest.raises(ConfigError, match=r"majority_vote with scorer "), ScoringPool([refused]):
        pass
