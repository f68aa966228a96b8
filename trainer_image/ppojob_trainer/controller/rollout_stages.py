"""Generation and scoring: the stages that training and validation share.

The controller says who does what; the responses go from the ranks that own them straight to the
reward pods, as text, and only lengths and scores come back here.
"""

from dataclasses import dataclass

import msgspec

from ppojob_trainer.controller.batch import Batch, shares
from ppojob_trainer.controller.roles import RoleGroup, Roles
from ppojob_trainer.rpc.messages import Generate, RowScore, Score, SendTexts, WriteRows
from ppojob_trainer.rpc.methods import GENERATE, SCORE, SEND_TEXTS, WRITE_ROWS
from ppojob_trainer.rpc.wire import RequestId


@dataclass(frozen=True)
class RolloutStages:
    """Generates and scores batches.

    Attributes:
        roles: the processes of the job.
        actor: owns the rows.
        reward: scores them.
    """

    roles: Roles
    actor: RoleGroup
    reward: RoleGroup

    def generate(self, batch: Batch, step: int) -> None:
        """Have the rows generated; fills in lengths."""
        request = Generate(batch.purpose, step, batch.prompt_tokens(), batch.samples)
        id_ = RequestId(0, step, f"{batch.purpose}/generate")
        (answer,) = self.roles.ask(self.actor, GENERATE, [request], id_)
        batch.lengths = answer.lengths
        batch.truncated = answer.truncated

    def score(self, batch: Batch, step: int) -> None:
        """Have the rows scored by all reward pods, each a run of rows; fills in scores."""
        parts = shares(batch.num_rows, len(self.reward.ranks))
        for rank, (first, last) in enumerate(parts):
            self._send_texts(batch, step, rank, first, last)
        requests = [Score(batch.purpose, batch.score_items(first, last)) for first, last in parts]
        answers = self.roles.ask(
            self.reward,
            SCORE,
            requests,
            RequestId(0, step, f"{batch.purpose}/score"),
            ranks=range(len(parts)),
        )
        scores: list[RowScore] = [score for answer in answers for score in answer.scores]
        batch.take_scores(scores)

    def write_rows(self, batch: Batch, step: int, folder: str) -> None:
        """Have the owners write their rows as parts of a parquet folder."""
        request = WriteRows(
            purpose=batch.purpose,
            folder=folder,
            scores=batch.scores,
            data_sources=[prompt.data_source for prompt in batch.prompts],
            ground_truths=[msgspec.json.encode(prompt.ground_truth) for prompt in batch.prompts],
            extras=batch.extras,
        )
        id_ = RequestId(0, step, f"{batch.purpose}/write_rows")
        self.roles.ask(self.actor, WRITE_ROWS, [request], id_)

    def _send_texts(self, batch: Batch, step: int, rank: int, first: int, last: int) -> None:
        destination = self.reward.ranks[rank]
        request = SendTexts(
            purpose=batch.purpose,
            step=step,
            host=destination.host,
            port=destination.port,
            epoch=self.reward.epoch,
            first=first,
            last=last,
        )
        # A reward role that was restarted must get the texts again: its epoch is in the id.
        stage = f"{batch.purpose}/send_texts/{self.reward.epoch}"
        self.roles.ask(self.actor, SEND_TEXTS, [request], RequestId(0, step, stage, rank))
