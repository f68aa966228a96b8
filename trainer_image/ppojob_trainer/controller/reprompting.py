"""Prompts of a teacher that are made of what a group drew (SDPO: arXiv:2601.20802).

The controller knows the scores and what was said of the rows; their owners have the texts, and make
the prompts.
"""

from dataclasses import dataclass

import msgspec

from ppojob_api.v1alpha1.estimators import RepromptSpec
from ppojob_trainer.controller.batch import Batch
from ppojob_trainer.controller.role_channels import RoleChannels
from ppojob_trainer.rpc.messages.rows import Reprompt
from ppojob_trainer.rpc.methods import REPROMPT
from ppojob_trainer.rpc.wire import RequestId

TAUGHT = "distillation/taught"
"""Name of the share of the rows whose teacher is shown something."""


@dataclass(frozen=True)
class Reprompting:
    """Has the prompts of a step made, behind its scores.

    Attributes:
        began: unix seconds at which the run began.
    """

    settings: RepromptSpec
    channels: RoleChannels
    began: float

    def prompts_of(self, batch: Batch, step: int) -> list[int]:
        """Have the owners make the prompts of all rows; answers the rows that have none."""
        asked = [self._request(batch, first, last) for first, last in batch.shares]
        roles, owner = self.channels.roles, self.channels.owner
        answers = roles.ask(owner, REPROMPT, asked, RequestId(0, step, "reprompt"))
        batch.teacher_prompt_tokens = [tokens for answer in answers for tokens in answer.tokens]
        self.channels.place_rows(batch, step, again=True)
        firsts = [first * batch.samples for first, _ in batch.shares]
        taught = {
            first + row
            for first, answer in zip(firsts, answers, strict=True)
            for row in answer.taught
        }
        return [row for row in range(batch.num_rows) if row not in taught]

    def _request(self, batch: Batch, first: int, last: int) -> Reprompt:
        """What is asked of the owner of a run of prompts."""
        rows = range(first * batch.samples, last * batch.samples)
        succeeded = [
            number
            for number, row in enumerate(rows)
            if batch.scores[row] >= self.settings.min_score
        ]
        feedback = [""] * len(rows)
        if (key := self.settings.feedback_key) is not None:
            values = batch.values()
            feedback = [str(values[row].get(key) or "") for row in rows]
        prompts = [msgspec.json.encode(prompt.prompt) for prompt in batch.prompts[first:last]]
        return Reprompt(prompts, succeeded, feedback, self.began)
