from functools import partial

import pytest
from queue_link import QueueLink, Queues, all_at_once

from ppojob_trainer.controller.batch import spread
from ppojob_trainer.rollout.trajectory import Segment, Trajectory
from ppojob_trainer.rpc.messages.rollout import Interaction, PromptTokens, TransferRows
from ppojob_trainer.rpc.messages.rows import BatchName
from ppojob_trainer.workers.row_channels import GeneratedRows, receive_rows, send_rows

SAMPLES = {"train": 2, "greedy": 1}


def prompt_of(number: int) -> PromptTokens:
    user = Interaction("gsm8k", b"{}", b"[]") if number % 2 else None
    return PromptTokens(number, [number, 1], {"t": b"{}"}, ["t"], user, "tool_agent")


def row(number: int, sample: int) -> Trajectory:
    drawn = Segment((number, sample), (-1 / 3, -0.1), policy_version=4, reward=0.5)
    given = Segment((7,))
    return Trajectory((drawn, given), "length" if sample else "stop", b'{"turns": 2}', 1.5)


def made(purpose: str, first: int, last: int) -> GeneratedRows:
    numbers, samples = range(first, last), SAMPLES[purpose]
    rows = [row(number, sample) for number in numbers for sample in range(samples)]
    return GeneratedRows(first, [prompt_of(number) for number in numbers], samples, rows)


@pytest.mark.parametrize("makers", [1, 2, 5])
@pytest.mark.parametrize("owners", [1, 2, 4])
@pytest.mark.parametrize("prompts", [2, 12])
def test_every_owner_gets_its_rows(makers: int, owners: int, prompts: int) -> None:
    runs = spread(prompts, makers)
    names = [BatchName(0, 1, purpose) for purpose in SAMPLES]
    request = TransferRows("", names, runs, spread(prompts, owners))

    def take(link: QueueLink) -> list[GeneratedRows]:
        return receive_rows(link, request, link.member, first_sender=owners)

    def give(mine: list[GeneratedRows], link: QueueLink) -> None:
        send_rows(link, request, mine)

    givers = [partial(give, [made(p, *run) for p in SAMPLES]) for run in runs]
    arrived = all_at_once(Queues(owners + makers), *[take] * owners, *givers)[:owners]
    for run, of_owner in zip(request.owners, arrived, strict=True):
        for purpose, rows in zip(SAMPLES, of_owner, strict=True):
            own = made(purpose, *run)
            assert (rows.first, rows.prompts, rows.trajectories) == (
                run[0],
                own.prompts,
                own.trajectories,
            )


def test_a_rank_of_an_engine_keeps_its_run_or_nothing() -> None:
    of_engine = made("train", 4, 7)
    assert of_engine.within((5, 7)) == made("train", 5, 7)
    assert of_engine.within((7, 7)) == made("train", 7, 7)
