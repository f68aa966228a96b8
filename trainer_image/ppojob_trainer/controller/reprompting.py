"""Teacher prompts built from the responses of a group (SDPO: arXiv:2601.20802).

The controller has the scores and the reward functions' feedback. The owners of the rows have the
texts, and build the prompts.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import msgspec

from ppojob_api.problem import shown
from ppojob_api.v1alpha1.estimators import RepromptSpec
from ppojob_trainer.controller.batch import Batch
from ppojob_trainer.controller.role_channels import RoleChannels
from ppojob_trainer.controller.samples import log_teacher_prompt
from ppojob_trainer.rpc.messages.rows import Reprompt
from ppojob_trainer.rpc.methods import REPROMPT
from ppojob_trainer.rpc.wire import RequestId

_log = logging.getLogger(__name__)

FEEDBACK_KEY: Final = "spec.algorithm.distillation.reprompt.feedbackKey"
TAUGHT = "distillation/taught"
"""Metric: share of the rows whose teacher gets a solution or feedback."""


@dataclass(frozen=True)
class Reprompting:
    """Requests the teacher prompts of a step, after its scores.

    Attributes:
        is_shown: whether one of the prompts is logged.
        began: start of the run, in unix seconds.
    """

    settings: RepromptSpec
    channels: RoleChannels
    began: float
    is_shown: bool

    def prompts_of(self, batch: Batch, dropped: Collection[int], step: int) -> list[int]:
        """Request the prompts of all rows from their owners; return the rows without one.

        `dropped` rows have no score: no prompt shows them, and they are taught nothing.
        """
        said = self._said_of(batch, step)
        asked = [self._request(batch, dropped, said, first, last) for first, last in batch.shares]
        roles, owner = self.channels.roles, self.channels.owner
        answers = roles.call(owner, REPROMPT, asked, RequestId(0, step, "reprompt"))
        batch.teacher_prompt_tokens = [tokens for answer in answers for tokens in answer.tokens]
        self.channels.place_rows(batch, step, again=True)
        firsts = [first * batch.samples for first, _ in batch.shares]
        taught = [
            first + row
            for first, answer in zip(firsts, answers, strict=True)
            for row in answer.taught
        ]
        if taught and self.is_shown:
            prompt = next(answer.first for answer in answers if answer.taught)
            log_teacher_prompt(step, taught[0], prompt)
        return sorted(set(range(batch.num_rows)).difference(taught))

    def _said_of(self, batch: Batch, step: int) -> list[str]:
        """Return (rows,) the feedback of a reward function on each; empty for none."""
        key = self.settings.feedback_key
        if key is None:
            return [""] * batch.num_rows
        values = batch.values()
        if not any(key in own for own in values):
            there = " or ".join(batch.value_kinds())
            _log.warning(
                "%s: got %s: no reward function gave it of a response of step %d, so no teacher "
                "is shown feedback; a name of what they give beside the score: %s",
                *(FEEDBACK_KEY, shown(key), step, there),
            )
        return [str(own.get(key) or "") for own in values]

    def _request(
        self, batch: Batch, dropped: Collection[int], said: list[str], first: int, last: int
    ) -> Reprompt:
        """Build the request to the owner of a range of prompts."""
        rows = range(first * batch.samples, last * batch.samples)
        unknown = [number for number, row in enumerate(rows) if row in dropped]
        succeeded = [
            number
            for number, row in enumerate(rows)
            if row not in dropped and batch.scores[row] >= self.settings.min_score
        ]
        prompts = [msgspec.json.encode(prompt.prompt) for prompt in batch.prompts[first:last]]
        return Reprompt(prompts, succeeded, unknown, said[rows.start : rows.stop], self.began)
