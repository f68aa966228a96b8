"""Answer probability: the policy's probability of the ground truth after a response's reasoning.

The reward of RLPR (arXiv:2506.18254): the answer of each response is replaced by the ground truth,
and a forward pass over these rows gives the probability of its tokens.
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
_EMPTY_ROW = [0], [False]
"""Tokens and mask of a row without reward."""


def replace_answers(
    spec: PPOJobSpec, chat: ChatTokenizer, rows: Experience, answers: Sequence[str]
) -> Experience:
    """Build this rank's rows with the ground truths of their prompts in place of their answers.

    The mask selects the ground truths. With `debias` each group has one more row, the last, with
    the ground truth alone. Texts are tokenized again, as in RLPR's code; those longer than the
    response limit get no reward.
    """
    settings, limit = spec.algorithm.answer_reward, spec.data.max_response_tokens
    assert settings is not None, "of answerReward"
    responses = torch.split(rows.response_tokens, rows.lengths.tolist())
    marked = list[tuple[list[int], list[bool]]]()
    per_group = len(responses) // max(1, len(answers))
    for group, answer in enumerate(answers):
        own = responses[group * per_group : (group + 1) * per_group]
        texts = [chat.decode(tokens.tolist(), skip_special_tokens=False) for tokens in own]
        prefixes = [_before_answer(text, settings.marker) for text in texts]
        prefixes += [" "] if settings.debias else []
        for before in prefixes:
            row = chat.encode_marked(before + answer, len(before)) if before else _EMPTY_ROW
            marked.append(row if len(row[0]) <= limit else _EMPTY_ROW)
    tokens = torch.tensor([token for ids, _ in marked for token in ids], dtype=torch.int64)
    samples = per_group + settings.debias
    return Experience(
        prompts=rows.prompts,
        row_groups=torch.arange(len(answers)).repeat_interleave(samples),
        response_tokens=tokens,
        lengths=torch.tensor([len(ids) for ids, _ in marked], dtype=torch.int64),
        mask=torch.tensor([is_of for _, marks in marked for is_of in marks], dtype=torch.bool),
        rollout_logprobs=torch.zeros(len(tokens)),
        images=rows.images,
    )


def _before_answer(text: str, marker: str) -> str | None:
    """Return the text before the answer of a response; None if the marker is not there once.

    Spaces before the answer are the response's own, or one if it has none, as in RLPR's code.
    """
    before, *after = text.split(marker)
    if len(after) != 1:
        return None
    spaces = after[0][: len(after[0]) - len(after[0].lstrip(_SPACES))]
    return before + marker + (spaces or " ")


def answer_probabilities(
    settings: CertaintyRewardSpec,
    rows: BatchRows,
    own: Experience,
    predict: Callable[[Experience], TokenOutputs],
) -> Tensor:
    """Return (rows of this rank,) rewards; a collective of all ranks of the role.

    A reward is the mean probability of the answer's tokens, with `debias` minus that of the group's
    row without reasoning, and at least 0. `own` are the rows of this rank from `replace_answers`.
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
    assert own.old_logprobs is not None, "filled above"
    means = row_mean(own.old_logprobs.exp(), own.mask, own.lengths).view(-1, samples)
    if settings.debias:
        means = (means[:, :-1] - means[:, -1:]).clamp(min=0.0)
    return means.flatten()
