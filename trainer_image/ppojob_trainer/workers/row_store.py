"""Row store: the rows that a rank owns, as flat tensors and as a table for the disk."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import pyarrow as pa
import torch
from torch import Tensor

from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.media.images import LaterImage, packed_later
from ppojob_trainer.data.prompt_store import AnswerPart
from ppojob_trainer.models.routes import of_bytes
from ppojob_trainer.rollout.protocol import RolloutError
from ppojob_trainer.rollout.trajectory import Segment, Trajectory, turn_rewards
from ppojob_trainer.rows.experience import Experience, joined
from ppojob_trainer.rows.row_files import (
    SCHEMA,
    TOKEN_CELLS,
    later_images,
    truth_cells,
    value_cells,
    with_values,
)
from ppojob_trainer.rpc.messages.demonstrations import Demonstration
from ppojob_trainer.rpc.messages.rollout import PromptTokens
from ppojob_trainer.rpc.messages.rows import WriteRows


class Span(NamedTuple):
    """A segment without its tokens."""

    tokens: int  # how many
    version: int | None  # of the weights that generated them; None if they were given
    reward: float  # of the turn that ends with it
    begins_context: bool  # whether the following tokens see it, and nothing before it


@dataclass
class OwnedRows:
    """One batch of rows: row `p * samples + s` is sample `s` of prompt `p` of these."""

    first: int  # position in the batch of the first prompt
    prompt_ids: list[int]  # numbers of the prompts in the data
    samples: int
    experience: Experience
    truncated: list[bool]  # (rows,) whether the response reached the limit
    spans: list[list[Span]]  # (rows,) the segments of each row
    figures: list[bytes]  # (rows,) JSON; empty for rows of one turn
    experts: list[bytes]  # (rows,) as engines report them; empty if not recorded
    images: list[tuple[LaterImage, ...]]  # (rows,) after the prompts

    def response(self, row: int) -> tuple[list[int], list[float]]:
        """Return the token ids and engine log-probabilities of one response."""
        place = slice(*self.experience.offsets[row : row + 2].tolist())
        columns = self.experience.response_tokens, self.experience.rollout_logprobs
        tokens, logprobs = (column[place].tolist() for column in columns)
        return tokens, logprobs

    @property
    def first_row(self) -> int:
        return self.first * self.samples


def build_rows(
    first: int,
    prompts: list[PromptTokens],
    samples: int,
    trajectories: Sequence[Trajectory],
    *,
    has_turns: bool = False,
    has_given: bool = False,
    mixture: Any = None,
) -> OwnedRows:
    """Build rows from trajectories, in prompt-major order.

    `first` is the batch position of the first prompt. `has_turns`: rows have turn rewards.
    `has_given`: some responses come from the data. `mixture`: a model's configuration, if rows have
    experts.
    """
    lengths = [len(trajectory.tokens) for trajectory in trajectories]
    tensor = partial(torch.tensor, dtype=torch.int64)

    def column(values: Iterable[Iterable[Any]], dtype: torch.dtype) -> Tensor:
        return torch.tensor(list(chain.from_iterable(values)), dtype=dtype)

    experience = Experience(
        prompts=[tensor(prompt.tokens) for prompt in prompts],
        row_groups=torch.arange(len(prompts)).repeat_interleave(samples),
        response_tokens=column((t.tokens for t in trajectories), torch.int64),
        lengths=tensor(lengths),
        mask=column((t.mask for t in trajectories), torch.bool),
        rollout_logprobs=column((t.logprobs for t in trajectories), torch.float32),
        context_starts=column((t.context_starts for t in trajectories), torch.bool),
        given=column((t.given for t in trajectories), torch.bool) if has_given else None,
        turn_rewards=torch.tensor(turn_rewards(trajectories)) if has_turns else None,
        images=shown if any(shown := [prompt.images for prompt in prompts]) else [],
        teacher_prompts=[
            tensor(p.teacher_tokens) for p in prompts for _ in range(samples) if p.teacher_tokens
        ],
        later_images=later
        if any(later := [packed_later(trajectory.images) for trajectory in trajectories])
        else [],
    )
    if mixture is not None:
        _set_experts(experience, trajectories, mixture)
    return OwnedRows(
        first=first,
        prompt_ids=[prompt.prompt for prompt in prompts],
        samples=samples,
        experience=experience,
        truncated=[trajectory.finish_reason == "length" for trajectory in trajectories],
        spans=[
            [
                Span(len(one.tokens), one.policy_version, one.reward, one.begins_context)
                for one in trajectory.segments
            ]
            for trajectory in trajectories
        ],
        figures=[trajectory.figures for trajectory in trajectories],
        experts=[trajectory.experts if mixture is not None else b"" for trajectory in trajectories],
        images=[trajectory.images for trajectory in trajectories],
    )


def _set_experts(rows: Experience, trajectories: Sequence[Trajectory], mixture: Any) -> None:
    """Set the experts that the engine recorded; a prompt gets those of its first row."""
    of_prompts: list[Tensor] = []
    of_responses: list[Tensor] = []
    groups = rows.row_groups.tolist()
    for row, (trajectory, length) in enumerate(
        zip(trajectories, rows.lengths.tolist(), strict=True)
    ):
        if length and not trajectory.experts:
            raise RolloutError(
                "spec.algorithm.routerReplay: got rollout: the rows have no recorded experts; "
                "none or recompute, or rows that were generated with it"
            )
        prompt = rows.prompts[groups[row]].numel()
        experts = of_bytes(trajectory.experts, prompt + length, mixture)
        if groups[row] == len(of_prompts):
            of_prompts.append(experts[:prompt])
        of_responses.append(experts[prompt:])
    empty = of_bytes(b"", 0, mixture)
    rows.prompt_experts = torch.cat([empty, *of_prompts])
    rows.experts = torch.cat([empty, *of_responses])


def demonstration_rows(
    first: int, rows: Sequence[Demonstration], *, has_rewards: bool = False
) -> OwnedRows:
    """Build rows from demonstrations, as if the policy had generated the trained part.

    `first` is the batch position of the first.
    """
    made = [
        _demonstration(answer, row.reward if number == 0 else 0.0)
        for row in rows
        for number, answer in enumerate(row.answers)
    ]
    samples = len(rows[0].answers) if rows else 1
    prompts = [PromptTokens(row.prompt, row.tokens, images=row.images) for row in rows]
    return build_rows(first, prompts, samples, made, has_turns=has_rewards)


def _demonstration(answer: Sequence[AnswerPart], reward: float) -> Trajectory:
    *before, last = (
        Segment(part.tokens, policy_version=0 if part.is_trained else None) for part in answer
    )
    shown = tuple(one for part in answer for one in part.images)
    return Trajectory((*before, replace(last, reward=reward)), "stop", images=shown)


def select_rows(rounds: Mapping[int, OwnedRows], origins: Sequence[tuple[int, int]]) -> Experience:
    """Select rows of some prompts from several generation rounds.

    `origins` are the round of each prompt and its position there, in ascending order.
    """
    parts = []
    for number, rows in sorted(rounds.items()):
        groups = [position - rows.first for round_, position in origins if round_ == number]
        chosen = [g * rows.samples + sample for g in groups for sample in range(rows.samples)]
        parts.append(rows.experience.select(chosen))
    return joined(parts)


def rows_table(rows: OwnedRows, request: WriteRows, chat: ChatTokenizer) -> pa.Table:
    """Build the table of a request's rows, in row order."""
    records = []
    for scored in request.prompts:
        own = scored.position - rows.first
        tokens = rows.experience.prompts[own]
        prompt = chat.decode(tokens.tolist(), skip_special_tokens=False)
        truth, extra_info = json.loads(scored.ground_truth), scored.extra_info.decode()
        for sample, (score, extras) in enumerate(zip(scored.scores, scored.extras, strict=True)):
            row = own * rows.samples + sample
            response, logprobs = rows.response(row)
            records.append(
                {
                    "step": request.step,
                    "row": rows.first_row + row,
                    "prompt_id": rows.prompt_ids[own],
                    "sample": sample,
                    "data_source": scored.data_source,
                    "prompt": prompt,
                    "response": chat.decode(response, skip_special_tokens=True),
                    **truth_cells(truth),
                    "score": score,
                    "prompt_tokens": len(tokens),
                    "response_tokens": len(response),
                    "truncated": rows.truncated[row],
                    "response_ids": response,
                    "rollout_logprobs": logprobs,
                    "segments": [span._asdict() for span in rows.spans[row]],
                    "experts": rows.experts[row] or None,
                    "pictures": [{"start": one.start, "file": one.file} for one in rows.images[row]]
                    or None,
                    "picture_bytes": len(packed_later(rows.images[row])) or None,
                    "figures": rows.figures[row].decode() or None,
                    "extra_info": extra_info,
                    "reward_values": extras.decode(),
                    **value_cells(json.loads(extras), request.value_kinds),
                }
            )
    return pa.Table.from_pylist(records, schema=with_values(SCHEMA, request.value_kinds))


def read_trajectories(columns: dict[str, list[Any]]) -> list[Trajectory]:
    """Build trajectories from the columns of `row_files.read_tokens`."""
    return [
        Trajectory(
            tuple(_segments(ids, logprobs, segments)),
            "length" if truncated else "stop",
            experts=experts or b"",
            images=later_images(images),
        )
        for truncated, ids, logprobs, segments, experts, images in zip(
            *(columns[name] for name in TOKEN_CELLS), strict=True
        )
    ]


def _segments(ids: list[int], logprobs: list[float], spans: list[dict[str, Any]]) -> list[Segment]:
    found, start = [], 0
    for span in spans:
        part = slice(start, start + span["tokens"])
        start = part.stop
        drawn = () if span["version"] is None else tuple(logprobs[part])
        own = span["version"], span["reward"], span["begins_context"]
        found.append(Segment(tuple(ids[part]), drawn, *own))
    return found
