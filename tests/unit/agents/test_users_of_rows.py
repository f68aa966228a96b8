import math

import msgspec
import pytest
import torch
from driven_rows import REFUSED, ROWS, TOKENS, USER, VOCAB, Workers, engine, rows, run

from ppojob_trainer.agents.driver import Driver, ToolFailed
from ppojob_trainer.agents.episode import Episode
from ppojob_trainer.rollout.protocol import Finished
from ppojob_trainer.rollout.trajectory import Segment, Trajectory
from ppojob_trainer.rpc.messages.agents import ToolAnswer, ToolCall


def contexts(trajectory: Trajectory, prompt: tuple[int, ...]) -> list[list[Segment]]:
    """The segments of each context, the first with its prompt."""
    found = [[Segment(prompt)]]
    for segment in trajectory.segments:
        if segment.begins_context:
            found.append([])
        found[-1].append(segment)
    return found


def test_a_context_is_drawn_as_if_it_were_all_there_is() -> None:
    episodes = rows(user=USER)
    Driver(engine(), Workers(begins=True), 8).run(episodes)
    model, several = engine()._model, 0
    for number, episode in enumerate(episodes):
        found, figures = episode.trajectory, episode.figures
        each = contexts(found, (1, 2, number % VOCAB))
        several += len(each) > 2
        assert figures.contexts == len(each)
        assert sum(found.context_starts) == len(each) - 1
        for segments in each:
            ids = torch.tensor([[token for one in segments for token in one.tokens]])
            mask = torch.tensor([one.is_trained for one in segments for _ in one.tokens])
            with torch.no_grad():
                logits = model(input_ids=ids).logits[0, :-1]
            said = torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None])[:, 0]
            told = torch.tensor([x for one in segments if one.is_trained for x in one.logprobs])
            torch.testing.assert_close(told, said[mask[1:]], atol=1e-5, rtol=0)
    assert several > 2, "too few rows of three contexts"


def test_a_context_that_does_not_fit_or_is_refused_ends_the_row() -> None:
    def answered(words: str, tokens: int = TOKENS) -> Episode:
        (one,) = rows(user=USER, tokens=tokens)[:1]
        one.add_response(Finished(one.name, (8, 9, 4), (0.0,) * 3, "stop", 0))
        context = msgspec.json.encode([{"role": "user", "content": word} for word in words.split()])
        call = ToolCall("critic", "", to_user=True)
        one.add_answers([call], [ToolAnswer("", context=context)])
        return one

    fits = answered("1 2 3", tokens=9)
    assert (fits.state.contexts, fits.request().sampling.max_tokens) == (2, 1)
    cut = answered("1 2 3 4", tokens=9)
    assert (cut.trajectory.finish_reason, cut.trajectory.tokens) == ("length", [8, 9, 4])
    refused = answered(REFUSED)
    assert refused.state.is_over
    assert refused.trajectory.finish_reason == "stop"
    assert (refused.figures.tool_failures, refused.figures.contexts) == (1, 1)


def test_experts_of_contexts_lie_where_their_tokens_do() -> None:
    """Two bytes a token; of the last token of a context, which no engine has read, none."""
    (one,) = rows(user=USER)[:1]
    one.add_response(Finished(one.name, (8, 9, 4), (0.0,) * 3, "stop", 0, bytes(range(2 * 5))))
    context = msgspec.json.encode([{"role": "user", "content": "7"}])
    one.add_answers([ToolCall("critic", "", to_user=True)], [ToolAnswer("", context=context)])
    assert one.request().prompt == (17, 7, 19)
    one.add_response(Finished(one.name, (4,), (0.0,), "stop", 0, bytes(range(50, 56))))
    assert one.trajectory.experts == bytes(range(10)) + bytes(2) + bytes(range(50, 56))


@pytest.mark.parametrize("delay", [0, 8, math.inf])
def test_a_user_answers_where_no_tool_is_called_and_its_latency_changes_no_bit(delay: float):
    at_once = run(Workers(), delay, user=USER)
    for seed in range(2):
        assert run(Workers(0.02, seed), delay, user=USER) == at_once
    trajectories, figures = at_once
    alone, of_nobody = run(Workers(), delay)
    assert all(own.turn_scores is None for own in of_nobody)
    assert max(len(own.turn_scores) for own in figures) > 2
    for trajectory, own, other in zip(trajectories, figures, alone, strict=True):
        assert trajectory.tokens[: len(other.tokens)] == other.tokens
        spoken = [s for s in trajectory.segments if s.tokens[0] == 11 and not s.is_trained]
        assert len(own.turn_scores) - len(spoken) in (0, 1), "the last words of a user are left out"
        assert own.num_turns >= 2 * len(spoken) + 2
        assert b"turn_scores" in trajectory.figures
        assert trajectory.segments[-1].is_trained


def test_a_user_hears_all_that_was_said_and_when_it_was_asked_before():
    tools = Workers()
    run(tools, 0, user=USER)
    assert all(length > (asked[-1] if asked else 1) for length, asked in tools.asked)
    assert {len(asked) for _, asked in tools.asked} >= {0, 1, 2}
    assert any(length > 2 and not asked for length, asked in tools.asked), "none behind a tool"


def test_a_user_that_fails_is_told_masked_or_ends_the_job():
    refused = frozenset(range(ROWS))
    _, figures = run(Workers(refused=refused), user=USER)
    assert sum(own.tool_failures for own in figures) >= sum(len(o.turn_scores) for o in figures) > 0
    masked, figures = run(Workers(refused=refused), user=USER, tool_failure="mask")
    for trajectory, own in zip(masked, figures, strict=True):
        assert any(trajectory.mask) == (own.tool_failures == 0)
    with pytest.raises(ToolFailed, match=r"a call of \"critic\" failed \(raised\)"):
        run(Workers(refused=refused), fails=True, user=USER)


def test_limits_end_a_row_before_its_user_is_asked():
    tools = Workers()
    _, figures = run(tools, max_assistant_turns=1, user=USER)
    assert tools.asked == []
    assert all(own.turn_scores == [] for own in figures)
    _, figures = run(tools, max_user_turns=1, user=USER)
    assert max(len(own.turn_scores) for own in figures) == 1
