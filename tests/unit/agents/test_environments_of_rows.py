from collections.abc import Sequence

import pytest
from driven_rows import TOKENS, Eager, Workers, engine, rows

from ppojob_api.v1alpha1.agent import ToolSpec
from ppojob_trainer.agents.driver import Driver, ToolFailed
from ppojob_trainer.rpc.messages.agents import ToolAnswer, ToolCall

SUM = ToolSpec.model_validate(
    {
        "name": "sum",
        "description": "d",
        "parameters": {"type": "object"},
        "source": {"path": "/sums.py", "function": "Sums.sum"},
    }
)


@pytest.mark.parametrize("steps", [3, TOKENS])
def test_an_environment_has_the_calls_of_its_row_and_ends_with_it(steps: int) -> None:
    """`Workers` compares the earlier calls at each turn, and scores a row by their number."""
    episodes = rows(tools=(SUM,), temperature=0.0, tool_rewards="add")
    tools = Workers()
    while under_way := [one for one in episodes if not one.state.is_over]:
        # Workers know rows by their numbers, which would be others in a later phase.
        tools.acted = {n: list(one.state.acted) for n, one in enumerate(under_way)}
        Driver(engine(), tools, 3, is_enough=lambda now, _: now == steps).run(under_way)
    acted = [one.state.acted for one in episodes]
    assert len(tools.ended) == len(episodes)
    assert sum(map(bool, acted)) > 2
    assert max(map(len, acted)) > 2
    for one, calls in zip(episodes, acted, strict=True):
        assert one.figures.environment_score == (len(calls) or None)
        given = sum(segment.reward for segment in one.trajectory.segments)
        assert given == sum(one.figures.tool_rewards) + len(calls)
        assert not any(s.reward for s in one.trajectory.segments if not s.is_trained)
    plain = rows(temperature=0.0)
    Driver(engine(), Workers(), 3).run(plain)
    assert not any(one.state.acted for one in plain)


def test_a_row_that_its_last_reply_ends_is_scored_too() -> None:
    tools = Workers()
    episodes = rows(form=Eager, tools=(SUM,), tokens=12)
    Driver(engine(), tools, 3).run(episodes)
    assert sorted(tools.ended) == list(range(len(episodes)))


def test_a_score_that_fails_is_a_failed_call() -> None:
    class Unscored(Workers):
        def _act(self, number: int, calls: Sequence[ToolCall]) -> list[ToolAnswer]:
            return [ToolAnswer("4")] * len(calls)

    refused = Unscored(refused=frozenset(range(99)))
    episodes = rows(tools=(SUM,), temperature=0.0)
    Driver(engine(), refused, 3).run(episodes)
    assert all(
        (one.figures.environment_score is None) == (one.figures.tool_failures == 0)
        for one in episodes
    )
    assert {one.figures.tool_failures for one in episodes} == {0, 1}
    with pytest.raises(ToolFailed, match=r"the score of its environment failed \(raised\)"):
        Driver(engine(), refused, 3, fails=True).run(rows(tools=(SUM,), temperature=0.0))
