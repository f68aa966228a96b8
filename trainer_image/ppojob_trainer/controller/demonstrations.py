"""Supervised stages: demonstrations, prompts with answers, go to the ranks that train on them.

Nothing is generated or scored. Rows follow from the data alone, so none is recorded on disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_trainer.algorithms.coefficients import SupervisedSchedule
from ppojob_trainer.checkpoint.manifest import DataCursor
from ppojob_trainer.controller.batch import Batch, spread
from ppojob_trainer.controller.roles import RoleGroup, Roles
from ppojob_trainer.controller.rollout_round import Draw, Rows
from ppojob_trainer.controller.step_plan import Updates
from ppojob_trainer.data.dataset import PromptDataset
from ppojob_trainer.data.media.pictures import packed_later
from ppojob_trainer.data.order import PromptOrder
from ppojob_trainer.data.prompt_store import PromptRow
from ppojob_trainer.metrics.pass_statistics import step_statistics
from ppojob_trainer.metrics.timer import StepTimer
from ppojob_trainer.rpc.messages.demonstrations import Demonstrate, Demonstration, GivenRows
from ppojob_trainer.rpc.methods import DEMONSTRATE, MEASURE_LOSS, SUPERVISE
from ppojob_trainer.rpc.wire import RequestId


@dataclass(frozen=True)
class Demonstrations:
    """Draws the demonstrations of a step, and measures the loss of held-out ones.

    Attributes:
        actor: the role whose ranks own the rows.
        rows_per_step: rows of a batch, also the most rows of one validation call.
        answers: answers per prompt, each of which is a row of the batch.
        has_mismatched: whether each prompt also gets an answer to another prompt (KTO).
    """

    roles: Roles
    actor: RoleGroup
    rows_per_step: int
    answers: int
    has_mismatched: bool = False

    def rows(self, step: int, draw: Draw, timer: StepTimer) -> Rows:
        """Place the rows of a step on their owners; a repeated step gets the same rows."""
        with timer("data"):
            prompts = draw(self.rows_per_step)
            batch = self._batch("train", prompts, before=prompts[-1])
            requests = list(self._shares(batch))
            self.roles.call(self.actor, DEMONSTRATE, requests, RequestId(0, step, "demonstrate"))
        return Rows(batch, is_recorded=True)

    def loss(self, held_out: PromptDataset, step: int) -> dict[str, float]:
        """Return the mean loss of held-out rows and its metrics, with a step's weights."""
        measured = []
        for first in range(0, len(held_out), self.rows_per_step):
            last = min(first + self.rows_per_step, len(held_out))
            before = held_out[(first or len(held_out)) - 1]
            batch = self._batch("validation", held_out.rows(range(first, last)), before)
            id_ = RequestId(0, step, "measure_loss", first)
            requests = self._given(batch)
            measured.append(self.roles.call(self.actor, MEASURE_LOSS, requests, id_)[0])
        return step_statistics(measured)

    def place_beside(self, rows: list[PromptRow], step: int) -> None:
        """Place these rows on their owners beside the rows of a step."""
        requests = self._given(self._batch("train", rows, before=rows[-1]))
        self.roles.call(self.actor, SUPERVISE, requests, RequestId(0, step, "supervise"))

    def _given(self, batch: Batch) -> list[GivenRows]:
        index = batch.index
        return [GivenRows(given, index) for given in self._shares(batch)]

    def _batch(self, purpose: str, prompts: list[PromptRow], before: PromptRow) -> Batch:
        """Build a batch; `before` supplies the other prompt's answer where no earlier row does."""
        samples = self.answers
        if self.has_mismatched:
            samples += 1
            prompts = [
                replace(row, answers=(*row.answers, *_other(row, prompts[:at], before).answers))
                for at, row in enumerate(prompts)
            ]
        answers = [answer for row in prompts for answer in row.answers]
        shown = [[one for part in answer for one in part.pictures] for answer in answers]
        return Batch(
            purpose,
            prompts,
            samples=samples,
            owners=len(self.actor.ranks),
            lengths=[sum(len(part.tokens) for part in answer) for answer in answers],
            truncated=[False] * len(answers),
            later_picture_bytes=[len(packed_later(later)) for later in shown],
        )

    def _shares(self, batch: Batch) -> Iterator[Demonstrate]:
        """Return each rank's range of rows; empty for some if there are fewer rows than ranks."""
        for first, last in batch.shares:
            rows = [
                Demonstration(
                    row.index,
                    list(row.token_ids),
                    row.answers,
                    _reward(row),
                    row.pictures,
                )
                for row in batch.prompts[first:last]
            ]
            yield Demonstrate(first, rows)


@dataclass(frozen=True)
class SupervisedRows:
    """Demonstrations that the policy learns beside the rows of an RL step.

    Attributes:
        schedule: weight of their loss by step.
        updates: the policy's optimizer steps.
    """

    demonstrations: Demonstrations
    dataset: PromptDataset
    order: PromptOrder
    schedule: SupervisedSchedule
    updates: Updates

    @classmethod
    def of(
        cls,
        spec: PPOJobSpec,
        roles: Roles,
        actor: RoleGroup,
        dataset: PromptDataset,
        updates: Updates,
    ) -> SupervisedRows:
        """Build the demonstrations of a job.

        Raises:
            ConfigError: a file has too few rows for its share of a step.
        """
        settings, field = spec.algorithm.supervised, "spec.data.demonstrations"
        assert settings is not None, "only such a job has them"
        assert settings.rows_per_step is not None, "a resolved configuration says how many"
        order = dataset.order(spec.data.of_demonstrations, settings.rows_per_step, field=field)
        given = Demonstrations(roles, actor, settings.rows_per_step, answers=1)
        own = {one.name for one in fields(SupervisedSchedule)}
        schedule = SupervisedSchedule(**settings.model_dump(by_alias=False, include=own))
        return cls(given, dataset, order, schedule, updates)

    def load(self, cursor: DataCursor) -> None:
        """Resume from a cursor in their order."""
        self.order.place = cursor.place

    @property
    def cursor(self) -> DataCursor:
        """Return the cursor at which the next step begins."""
        return DataCursor(*self.order.place, sha256=self.dataset.digest)

    def coefficient(self, step: int) -> float:
        """Return the weight of their loss in a step; at 0 none are drawn."""
        return self.schedule.after(step - self.updates.first_step)

    def begin(self, step: int) -> dict[str, float]:
        """Draw the rows of a step and place them on owners; return their weight if it changes."""
        coefficient = self.coefficient(step)
        if coefficient > 0.0:
            drawn = self.order.next_batch(self.demonstrations.rows_per_step)
            self.demonstrations.place_beside(self.dataset.rows(drawn), step)
        return {"actor/sft_coeff": coefficient} if self.schedule.changes else {}

    def of_update(self, number: int) -> list[int]:
        """Return the positions of an optimizer step's rows: a range of similar lengths."""
        first, last = spread(self.demonstrations.rows_per_step, self.updates.of_step)[number]
        return list(range(first, last))


def _other(row: PromptRow, ahead: list[PromptRow], before: PromptRow) -> PromptRow:
    """Return the nearest earlier row (`ahead`) of another prompt in its batch, else `before`."""
    others = (one for one in reversed(ahead) if one.token_ids != row.token_ids)
    return next(others, before)


def _reward(row: PromptRow) -> float:
    """Return 1 for a good answer, -1 for a bad one, a pair's margin, or 0 without a label."""
    if isinstance(row.ground_truth, bool):
        return 1.0 if row.ground_truth else -1.0
    return row.ground_truth if isinstance(row.ground_truth, float) else 0.0
