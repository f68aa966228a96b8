"""Answer probability: the policy's probability of the known answer after a response's reasoning.

The reward of RLPR (arXiv:2506.18254). The answer of each response is replaced by the ground truth,
and one more forward pass over these rows gives the probability of each of its tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import torch
from torch import Tensor

from ppojob_api.v1alpha1.algorithm import CertaintyRewardSpec
from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_trainer.algorithms.masked import row_mean
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.engine.head import TokenOutputs
from ppojob_trainer.rows.exchange import gather_columns
from ppojob_trainer.rows.experience import Experience
from ppojob_trainer.workers.batch_rows import BatchRows

_SPACES = " \n\t\r"
_NOTHING = [0], [False]
"""A row without reward: one token, of which nothing is read."""


def answered(
    spec: PPOJobSpec, chat: ChatTokenizer, rows: Experience, answers: Sequence[str]
) -> Experience:
    """Build a rank's rows with the ground truths of their prompts in place of their answers.

    The mask selects the ground truths. With `debias` each group has one row more, the last, which
    has the ground truth alone. Texts are tokenised anew, as by RLPR's authors; those longer than
    the response limit get no reward.
    """
    settings, limit = spec.algorithm.answer_reward, spec.data.max_response_tokens
    assert settings is not None, "who asks rewards answers"
    responses = torch.split(rows.response_tokens, rows.lengths.tolist())
    made = list[tuple[list[int], list[bool]]]()
    drawn = len(responses) // max(1, len(answers))
    for group, answer in enumerate(answers):
        own = responses[group * drawn : (group + 1) * drawn]
        texts = [chat.decode(tokens.tolist(), skip_special_tokens=False) for tokens in own]
        begun = [_before_answer(text, settings.marker) for text in texts]
        begun += [" "] if settings.debias else []
        for before in begun:
            row = chat.encode_marked(before + answer, len(before)) if before else _NOTHING
            made.append(row if len(row[0]) <= limit else _NOTHING)
    tokens = torch.tensor([token for ids, _ in made for token in ids], dtype=torch.int64)
    samples = drawn + settings.debias
    return Experience(
        prompts=rows.prompts,
        row_groups=torch.arange(len(answers)).repeat_interleave(samples),
        response_tokens=tokens,
        lengths=torch.tensor([len(ids) for ids, _ in made], dtype=torch.int64),
        mask=torch.tensor([is_of for _, marks in made for is_of in marks], dtype=torch.bool),
        rollout_logprobs=torch.zeros(len(tokens)),
        pictures=rows.pictures,
    )


def _before_answer(text: str, marker: str) -> str | None:
    """Return the text before the answer of a response; None if that is ambiguous.

    Spaces before the answer are the response's own, or one if it has none, as in RLPR's code.
    """
    before, *behind = text.split(marker)
    if len(behind) != 1:
        return None
    spaces = behind[0][: len(behind[0]) - len(behind[0].lstrip(_SPACES))]
    return before + marker + (spaces or " ")


def answer_probabilities(
    settings: CertaintyRewardSpec,
    rows: BatchRows,
    own: Experience,
    predict: Callable[[Experience], TokenOutputs],
) -> Tensor:
    """Return (rows of this rank,) rewards; a collective call of all ranks of the role.

    A response gets the mean probability of the answer's tokens, with `debias` less that of its
    group's row without reasoning, and at least 0. `own` are the rows of this rank from `answered`.
    """
    samples = rows.index.samples + settings.debias
    index = msgspec.structs.replace(
        rows.index,
        lengths=(1,) * (rows.index.num_groups * samples),
        samples=samples,
        teachers=(),
        teacher_prompt_lengths=(),
    )
    (lengths,) = gather_columns(rows.link, index, [own.lengths])
    index = msgspec.structs.replace(index, lengths=tuple(lengths.tolist()))
    replace(rows, index=index, mine=own).fill("old_logprobs", predict)
    assert own.old_logprobs is not None, "they have been filled in"
    means = row_mean(own.old_logprobs.exp(), own.mask, own.lengths).view(-1, samples)
    if settings.debias:
        means = (means[:, :-1] - means[:, -1:]).clamp(min=0.0)
    return means.flatten()
