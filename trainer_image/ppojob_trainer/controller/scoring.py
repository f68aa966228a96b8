"""What responses are worth: reward functions, a reward model, or the sum of both.

Texts go from the ranks that own the rows straight to those that score them; the controller says who
sends what to whom, and gets numbers.
"""

from dataclasses import dataclass

import msgspec

from ppojob_trainer.controller.batch import Batch, shares
from ppojob_trainer.controller.roles import RoleGroup, Roles
from ppojob_trainer.rpc.messages import BatchName, Judge, JudgeItem, RowScore, Score, SendTexts
from ppojob_trainer.rpc.methods import JUDGE, SCORE, SEND_TEXTS
from ppojob_trainer.rpc.wire import RequestId


@dataclass(frozen=True)
class RewardModel:
    """Where the reward model runs, what its score counts, and which time its template sees.

    Attributes:
        host: the role whose ranks run it.
        weight: factor of its score.
        began: unix seconds at which the run began.
    """

    host: RoleGroup
    weight: float
    began: float


@dataclass(frozen=True)
class Scoring:
    """Scores batches.

    Attributes:
        roles: the processes of the job.
        owner: the role whose ranks own the rows.
        functions: the role that runs reward functions; None where a model alone scores.
        model: the reward model, or None.
    """

    roles: Roles
    owner: RoleGroup
    functions: RoleGroup | None
    model: RewardModel | None

    def score(self, batch: Batch, step: int) -> None:
        """Have the rows scored; fills in scores and what else the scorers said."""
        scores = None if self.functions is None else self._by_functions(self.functions, batch, step)
        if self.model is not None:
            judged = self._by_model(self.model, batch, step)
            scores = _sum(scores, judged, self.model.weight)
        assert scores is not None, "a job has reward functions or a reward model"
        batch.take_scores(scores)

    def _by_functions(self, group: RoleGroup, batch: Batch, step: int) -> list[RowScore]:
        """Each pod scores a run of rows."""
        parts = self._send_texts(group, batch, step)
        name = self._name(batch, step)
        requests = [Score(name, batch.score_items(*part)) for part in parts]
        id_ = RequestId(0, step, f"{batch.purpose}/score")
        answers = self.roles.ask(group, SCORE, requests, id_, ranks=range(len(parts)))
        return [score for answer in answers for score in answer.scores]

    def _by_model(self, model: RewardModel, batch: Batch, step: int) -> list[float]:
        """All ranks of the model work together, so those without rows are asked as well."""
        parts = self._send_texts(model.host, batch, step)
        parts += [(0, 0)] * (len(model.host.ranks) - len(parts))
        requests = [
            Judge(
                self._name(batch, step),
                [
                    JudgeItem(row, msgspec.json.encode(batch.prompt_of(row).prompt))
                    for row in range(*part)
                ],
                model.began,
            )
            for part in parts
        ]
        id_ = RequestId(0, step, f"{batch.purpose}/judge")
        answers = self.roles.ask(model.host, JUDGE, requests, id_)
        return [score for answer in answers for score in answer.scores]

    def _name(self, batch: Batch, step: int) -> BatchName:
        return BatchName(self.roles.life, step, batch.purpose)

    def _send_texts(self, group: RoleGroup, batch: Batch, step: int) -> list[tuple[int, int]]:
        """Have the owners send all rows to the ranks of a role; which rank gets which run."""
        parts = shares(batch.num_rows, len(group.ranks))
        for rank, (first, last) in enumerate(parts):
            senders = batch.owners_of(first, last)
            requests = [
                SendTexts(
                    batch=self._name(batch, step),
                    role=group.name,
                    host=group.ranks[rank].host,
                    port=group.ranks[rank].port,
                    epoch=group.epoch,
                    first=begin,
                    last=end,
                )
                for _, begin, end in senders
            ]
            # A role that was restarted must get the texts again: its epoch is in the id.
            stage = f"{batch.purpose}/send_texts/{group.name}.{group.epoch}"
            id_ = RequestId(0, step, stage, rank)
            ranks = [owner for owner, _, _ in senders]
            self.roles.ask(self.owner, SEND_TEXTS, requests, id_, ranks=ranks)
        return parts


def _sum(functions: list[RowScore] | None, judged: list[float], weight: float) -> list[RowScore]:
    """The scores of both; the model's own is among the variables of the functions' answer."""
    if functions is None:
        extras = [msgspec.json.encode({"acc": weight * score}) for score in judged]
        return [
            RowScore(row, weight * score, extra)
            for row, (score, extra) in enumerate(zip(judged, extras, strict=True))
        ]
    ordered = sorted(functions, key=lambda score: score.row)
    return [
        RowScore(
            found.row,
            found.score + weight * score,
            msgspec.json.encode(msgspec.json.decode(found.extras) | {"reward_model/score": score}),
        )
        for found, score in zip(ordered, judged, strict=True)
    ]
