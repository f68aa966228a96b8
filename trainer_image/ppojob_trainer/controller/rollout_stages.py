"""Generation and scoring: the stages that training and validation share.

The controller says who does what; responses stay on the ranks that own them, and only lengths and
scores come here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from ppojob_trainer.controller.batch import Batch
from ppojob_trainer.controller.roles import RoleGroup, Roles
from ppojob_trainer.controller.scoring import Scoring
from ppojob_trainer.rpc.messages import Generate, WriteRows
from ppojob_trainer.rpc.methods import GENERATE, WRITE_ROWS, Method
from ppojob_trainer.rpc.wire import RequestId

Answer = TypeVar("Answer", bound=msgspec.Struct)


@dataclass(frozen=True)
class RolloutStages:
    """Generates and scores batches.

    Attributes:
        roles: the processes of the job.
        actor: owns the rows.
        scoring: says what they are worth.
    """

    roles: Roles
    actor: RoleGroup
    scoring: Scoring

    def generate(self, batch: Batch, step: int) -> None:
        """Have the rows generated, each run of prompts on its owner; fills in lengths."""
        requests = [
            Generate(batch.purpose, step, first, batch.prompt_tokens(first, last), batch.samples)
            for first, last in batch.shares
        ]
        answers = self._ask_owners(batch, GENERATE, requests, step, "generate")
        batch.lengths = [length for answer in answers for length in answer.lengths]
        batch.truncated = [truncated for answer in answers for truncated in answer.truncated]

    def score(self, batch: Batch, step: int) -> None:
        """Have the rows scored; fills in scores."""
        self.scoring.score(batch, step)

    def write_rows(self, batch: Batch, step: int, folder: str) -> None:
        """Have the owners write their rows as parts of a parquet folder."""
        requests = [_part(batch, folder, first, last) for first, last in batch.shares]
        self._ask_owners(batch, WRITE_ROWS, requests, step, "write_rows")

    def _ask_owners(
        self,
        batch: Batch,
        method: Method[Any, Answer],
        requests: Sequence[msgspec.Struct],
        step: int,
        stage: str,
    ) -> list[Answer]:
        """Ask the ranks that have a share of the batch, in the order of its prompts."""
        id_ = RequestId(0, step, f"{batch.purpose}/{stage}")
        return self.roles.ask(self.actor, method, requests, id_, ranks=range(len(requests)))


def _part(batch: Batch, folder: str, first: int, last: int) -> WriteRows:
    """What the owner of prompts `[first, last)` is told to write."""
    prompts = batch.prompts[first:last]
    rows = slice(first * batch.samples, last * batch.samples)
    return WriteRows(
        purpose=batch.purpose,
        folder=folder,
        scores=batch.scores[rows],
        data_sources=[prompt.data_source for prompt in prompts],
        ground_truths=[msgspec.json.encode(prompt.ground_truth) for prompt in prompts],
        extras=batch.extras[rows],
    )
