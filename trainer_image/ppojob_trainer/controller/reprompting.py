"""Teacher prompts built from the responses of a group (SDPO: arXiv:2601.20802).

The controller sends scores and feedback to the owners of the rows, which have the texts and build
the prompts.
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
"""Metric: share of the rows with a teacher prompt."""


@dataclass(frozen=True)
class Reprompting:
    """Has the owners build the teacher prompts of a step, after scoring."""

    settings: RepromptSpec
    channels: RoleChannels
    began: float  # start of the run, in unix seconds
    is_logged: bool  # whether one of the prompts is logged

    def prompts_of(self, batch: Batch, dropped: Collection[int]) -> list[int]:
        """Build the prompts of all rows; return the rows without one.

        `dropped` rows, which have no score, get no prompt and are part of none.
        """
        feedback = self._feedback(batch)
        shares = batch.shares
        requests = [self._request(batch, dropped, feedback, *share) for share in shares]
        roles = self.channels.roles
        answers = roles.call(roles.owner, REPROMPT, requests, RequestId(0, batch.step, "reprompt"))
        batch.teacher_prompt_tokens = [tokens for answer in answers for tokens in answer.tokens]
        self.channels.place_rows(batch, again=True)
        taught = [
            first * batch.samples + row
            for (first, _), answer in zip(shares, answers, strict=True)
            for row in answer.taught
        ]
        if taught and self.is_logged:
            prompt = next(answer.first for answer in answers if answer.taught)
            log_teacher_prompt(batch.step, taught[0], prompt)
        return sorted(set(range(batch.num_rows)).difference(taught))

    def _feedback(self, batch: Batch) -> list[str]:
        """Return (rows,) the feedback of a reward function; empty text for none."""
        key = self.settings.feedback_key
        if key is None:
            return [""] * batch.num_rows
        values = batch.values()
        if not any(key in own for own in values):
            there = " or ".join(batch.value_kinds())
            _log.warning(
                "%s: got %s: no reward function returned it in step %d, so no teacher gets "
                "feedback; a name of a returned value: %s",
                *(FEEDBACK_KEY, shown(key), batch.step, there),
            )
        return [str(own.get(key) or "") for own in values]

    def _request(
        self, batch: Batch, dropped: Collection[int], feedback: list[str], first: int, last: int
    ) -> Reprompt:
        rows = range(first * batch.samples, last * batch.samples)
        unknown = [number for number, row in enumerate(rows) if row in dropped]
        succeeded = [
            number
            for number, row in enumerate(rows)
            if row not in dropped and batch.scores[row] >= self.settings.min_score
        ]
        prompts = [msgspec.json.encode(prompt.prompt) for prompt in batch.prompts[first:last]]
        return Reprompt(prompts, succeeded, unknown, feedback[rows.start : rows.stop], self.began)
