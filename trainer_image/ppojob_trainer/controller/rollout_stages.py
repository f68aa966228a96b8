"""Generation and scoring: the stages that training and validation share.

The controller says who does what; the responses go from the ranks that own them straight to the
reward pods, as text, and only lengths and scores come back here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from ppojob_trainer.controller.batch import Batch, shares
from ppojob_trainer.controller.roles import RoleGroup, Roles
from ppojob_trainer.rpc.messages import Generate, RowScore, Score, SendTexts, WriteRows
from ppojob_trainer.rpc.methods import GENERATE, SCORE, SEND_TEXTS, WRITE_ROWS, Method
from ppojob_trainer.rpc.wire import RequestId

Answer = TypeVar("Answer", bound=msgspec.Struct)


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
        """Have the rows generated, each run of prompts on its owner; fills in lengths."""
        requests = [
            Generate(batch.purpose, step, first, batch.prompt_tokens(first, last), batch.samples)
            for first, last in batch.shares
        ]
        answers = self._ask_owners(batch, GENERATE, requests, step, "generate")
        batch.lengths = [length for answer in answers for length in answer.lengths]
        batch.truncated = [truncated for answer in answers for truncated in answer.truncated]

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

    def _send_texts(self, batch: Batch, step: int, rank: int, first: int, last: int) -> None:
        """Have the owners of rows `[first, last)` send them to one reward pod."""
        destination = self.reward.ranks[rank]
        owned = [
            (owner, max(first, begin * batch.samples), min(last, end * batch.samples))
            for owner, (begin, end) in enumerate(batch.shares)
        ]
        senders = [(owner, begin, end) for owner, begin, end in owned if begin < end]
        requests = [
            SendTexts(
                purpose=batch.purpose,
                step=step,
                host=destination.host,
                port=destination.port,
                epoch=self.reward.epoch,
                life=self.roles.life,
                first=begin,
                last=end,
            )
            for _, begin, end in senders
        ]
        # A reward role that was restarted must get the texts again: its epoch is in the id.
        id_ = RequestId(0, step, f"{batch.purpose}/send_texts/{self.reward.epoch}", rank)
        ranks = [owner for owner, _, _ in senders]
        self.roles.ask(self.actor, SEND_TEXTS, requests, id_, ranks=ranks)


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
