import math
import re
from dataclasses import replace

import msgspec
import pytest
import torch
from driven_rows import (
    ENDS,
    PROGRAM,
    ROWS,
    TOKENS,
    USER,
    VOCAB,
    Eager,
    Form,
    Silent,
    Workers,
    engine,
    rows,
    run,
)

from ppojob_trainer.agents.driver import Driver, ToolFailed
from ppojob_trainer.agents.row_state import RowState
from ppojob_trainer.metrics.step_metrics import RowFigures
from ppojob_trainer.rollout.protocol import Finished, RolloutError, StopTexts
from ppojob_trainer.rollout.trajectory import turn_rewards

USERS = [(None, False), (USER, False), (USER, True)]


@pytest.mark.parametrize("delay", [0, 3, 8, math.inf])
def test_latency_changes_no_bit(delay: float) -> None:
    at_once = run(Workers(), delay)
    assert not any(trajectory.tool_seconds for trajectory in at_once[0])
    assert any(len(trajectory.segments) >= 5 for trajectory in at_once[0]), "no row of three turns"
    for seed in range(3):
        late = run(Workers(0.02, seed), delay)
        assert late == at_once
        for trajectory, figures in zip(*late, strict=True):
            assert (trajectory.tool_seconds > 0) == (figures.tool_calls > 0)


def test_what_is_trained_is_what_was_drawn_after_the_very_tokens_of_the_row() -> None:
    episodes = rows()
    model = engine()
    asked: dict[str, tuple[int, ...]] = {}
    drawn: dict[str, list[tuple[int, ...]]] = {}
    submit, step = model.submit, model.step

    def noted_step():
        finished = step()
        for done in finished:
            drawn.setdefault(done.request_id.partition("/")[0], []).append(done.tokens)
        return finished

    def noted_submit(request) -> None:
        asked[request.request_id] = request.prompt
        submit(request)

    model.step, model.submit = noted_step, noted_submit
    Driver(model, Workers(), 2).run(episodes)
    for episode in episodes:
        found = episode.trajectory
        trained = [segment.tokens for segment in found.segments if segment.is_trained]
        assert trained == drawn[episode.name]
        so_far: tuple[int, ...] = episode.prompt
        turn = 0
        for segment in found.segments:
            if segment.is_trained:
                assert asked[f"{episode.name}/{turn}" if turn else episode.name] == so_far
                turn += 1
                assert len(segment.logprobs) == len(segment.tokens)
            so_far += segment.tokens
        assert len(found.tokens) <= TOKENS


def test_log_probabilities_of_later_turns_are_those_of_a_forward_over_the_whole_row() -> None:
    found, _ = run(Workers())
    model = engine()._model
    for number, trajectory in enumerate(found):
        prompt = (1, 2, number % VOCAB)
        ids = torch.tensor([[*prompt, *trajectory.tokens]])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1]
        expected = torch.log_softmax(logits, -1).gather(1, ids[0, len(prompt) :, None])[:, 0]
        mask = torch.tensor(trajectory.mask)
        torch.testing.assert_close(
            torch.tensor(trajectory.logprobs)[mask], expected[mask], atol=1e-5, rtol=0
        )


def test_rows_without_calls_are_those_of_a_single_turn() -> None:
    episodes, alone = rows(form=Silent), rows(form=Silent)
    told: list[int] = []
    Driver(engine(), Workers(), 8, is_enough=lambda _, ended: told.append(ended)).run(episodes)
    assert told == sorted(told)
    assert told[-1] == len(episodes)
    for one in alone:
        Driver(engine(), Workers(), math.inf).run([one])
    assert [e.trajectory.tokens for e in episodes] == [e.trajectory.tokens for e in alone]
    assert all(e.figures == RowFigures(2, 0, 0, [], 0) for e in episodes)


@pytest.mark.parametrize("delay", [0, 3, math.inf])
@pytest.mark.parametrize(
    ("form", "user", "begins"),
    [
        *((form, user, begins) for form in (Form, Eager, Silent) for user, begins in USERS),
        *((Form, PROGRAM, begins) for begins in (False, True)),
    ],
)
def test_rows_go_on_in_later_phases_as_if_in_one(form, user, begins, delay: float) -> None:
    """Greedy rows, which no seed decides, in phases of three steps, from states as of a file."""
    more = {"form": form, "user": user, "temperature": 0.0}
    whole = rows(**more, turn_tokens=5, tool_rewards="add")
    tools = Workers(begins=begins)
    Driver(engine(), tools, delay).run(whole)
    parts, model, phases = rows(**more, turn_tokens=5, tool_rewards="add"), engine(), 0
    while under_way := [one for one in parts if not one.state.is_over]:
        Driver(model, tools, delay, is_enough=lambda steps, _: steps == 3).run(under_way)
        for one in under_way:
            one.state = msgspec.convert(
                msgspec.json.decode(msgspec.json.encode(one.state)), RowState
            )
        phases += 1
    assert phases > 2 or form is Silent
    assert any(one.figures.contexts > 2 for one in whole) == (begins and form is not Eager)
    for one, other in zip(parts, whole, strict=True):
        found, expected = one.trajectory, other.trajectory
        assert (found.tokens, found.mask) == (expected.tokens, expected.mask)
        assert found.context_starts == expected.context_starts
        assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-5)
        assert turn_rewards([found]) == turn_rewards([expected])
        assert (found.finish_reason, one.figures) == (expected.finish_reason, other.figures)


def test_texts_end_a_turn_that_two_phases_draw() -> None:
    """Also one that the first of them has begun."""
    texts = StopTexts(("abc",), lambda tokens: "".join(map(chr, tokens)))
    assert replace(texts, before=(ord("a"), ord("b"))).ends((ord("c"),))
    (one,) = rows()[:1]
    one.sampling = replace(one.sampling, stop_texts=texts)
    assert one.request().sampling.stop_texts == texts
    one.add_response(Finished(one.name, (ord("a"), ord("b")), (0.0, 0.0), "abort", 0))
    assert one.request().sampling.stop_texts.ends((ord("c"),))
    assert not one.request().sampling.stop_texts.ends((ord("b"),))


@pytest.mark.parametrize(
    ("limit", "most", "turns"),
    [("max_assistant_turns", 1, 1), ("max_assistant_turns", 2, 2), ("max_user_turns", 1, 2)],
)
def test_limits_of_turns(limit: str, most: int, turns: int) -> None:
    trajectories, _ = run(Workers(), **{limit: most})
    drawn = [sum(s.is_trained for s in t.segments) for t in trajectories]
    given = [len(t.segments) - n for t, n in zip(trajectories, drawn, strict=True)]
    assert (max(drawn), max(given)) == (turns, turns - 1)


def test_a_turn_that_ran_into_its_limit_makes_no_call() -> None:
    tools = Workers()
    trajectories, _ = run(tools, turn_tokens=1, max_parallel_calls=1)
    reasons = {t.finish_reason for t in trajectories}
    assert reasons == {"stop", "length"}
    for trajectory in trajectories:
        given = sum(not segment.is_trained for segment in trajectory.segments)
        assert len(trajectory.segments) == 2 * given + 1
        assert trajectory.segments[-1].is_trained


def test_a_turn_that_was_cut_may_be_answered_as_any_other() -> None:
    limits = {"turn_tokens": 1, "max_assistant_turns": 3}
    for cut_turns, turns in (("end", {1}), ("go_on", {3})):
        episodes = rows(form=Eager, cut_turns=cut_turns, **limits)
        Driver(engine(), Workers(), 8).run(episodes)
        cut = [one.trajectory for one in episodes if one.trajectory.tokens[0] not in ENDS]
        assert {sum(s.is_trained for s in trajectory.segments) for trajectory in cut} == turns
        assert {len(s.tokens) for t in cut for s in t.segments if s.is_trained} == {1}


def test_an_answer_that_does_not_fit_ends_the_row() -> None:
    trajectories, _ = run(Workers(), tokens=12)
    assert all(len(t.tokens) <= 12 for t in trajectories)
    ended = [t for t in trajectories if t.finish_reason == "length" and t.tokens[-1] % 8 == 0]
    assert ended, "no row ended by its answer"
    assert all(t.segments[-1].is_trained for t in ended)


def test_failures_are_told_masked_or_end_the_job() -> None:
    refused = frozenset({n for n, t in enumerate(run(Workers())[0]) if len(t.segments) > 1})
    first = min(refused)
    told, figures = run(Workers(refused=frozenset({first})))
    assert any(s.is_trained for s in told[first].segments)
    assert figures[first].tool_failures > 0
    masked, _ = run(Workers(refused=frozenset({first})), tool_failure="mask")
    assert masked[first].tokens == told[first].tokens
    assert not any(masked[first].mask)
    assert masked[:first] + masked[first + 1 :] == told[:first] + told[first + 1 :]
    tools = Workers(refused=refused)
    with pytest.raises(ToolFailed) as failure:
        run(tools, fails=True)
    words = r'got fail: turn 1 of r(\d+): a call of "sum" failed \(raised\): \d+'
    found = re.fullmatch(f"spec.agent.toolFailure: {words}", str(failure.value))
    assert found
    assert int(found[1]) in refused


def test_a_phase_that_fails_leaves_an_idle_engine_and_no_call() -> None:
    model, tools = engine(), Workers()

    class Broken(Form):
        def encode_answers(self, *_: object) -> list[int]:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Driver(model, tools, 4).run(rows(form=Broken))
    assert not model.has_work()
    assert tools.given_up > 0
    Driver(model, Workers(), 4).run(rows())
    model.submit(rows()[0].request())
    with pytest.raises(RolloutError, match="still holds requests"):
        Driver(model, Workers(), 4).run(rows())


@pytest.mark.timeout(60)
def test_an_engine_that_loses_a_row_is_not_waited_for() -> None:
    model = engine()
    step = model.step
    model.step = lambda: [one for one in step() if one.request_id.partition("/")[0] != "3"]
    with pytest.raises(RolloutError, match="the engine lost 1 requests, first '3'"):
        Driver(model, Workers(), 4).run(rows())


@pytest.mark.parametrize("user", [None, USER])
def test_rewards_are_told_and_where_it_is_asked_for_on_their_turn(user):
    told, figures = run(Workers(), user=user)
    added, _ = run(Workers(), user=user, tool_rewards="add")
    assert not any(segment.reward for trajectory in told for segment in trajectory.segments)
    for trajectory, other, own in zip(added, told, figures, strict=True):
        assert trajectory.tokens == other.tokens
        rewards = [segment.reward for segment in trajectory.segments if segment.is_trained]
        assert sum(rewards) == sum(own.tool_rewards) + sum(own.turn_scores or [])
        assert user or set(rewards) <= {0.0, 1.0}
    assert any(own.tool_rewards for own in figures)
    assert user is None or any(sum(own.turn_scores) for own in figures)


def test_rows_of_several_agents_share_a_batch():
    users, forms, turns = (None, USER, USER), (Form, Silent), (None, 1)
    mixed = [
        rows(users[n % 3], forms[n % 2], max_assistant_turns=turns[n % 2])[n] for n in range(ROWS)
    ]
    Driver(engine(), Workers(0.02), 4).run(mixed)
    for n, episode in enumerate(mixed):
        assert episode.figures.num_turns == 2 or n % 2 == 0
        assert (episode.figures.turn_scores is None) == (n % 3 == 0)
    assert max(episode.figures.tool_calls for episode in mixed) > 0
