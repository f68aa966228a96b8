"""Demonstrations (prompts with answers) for supervised losses.

Nothing is generated or scored. The rows follow from the data, so they are not recorded on disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_trainer.algorithms.coefficients import SupervisedSchedule
from ppojob_trainer.checkpoint.manifest import DataCursor
from ppojob_trainer.controller.batch import Batch, spread
from ppojob_trainer.controller.roles import Roles
from ppojob_trainer.controller.rollout_stages import Draw, Rows
from ppojob_trainer.controller.step_plan import Updates
from ppojob_trainer.data.dataset import PromptDataset
from ppojob_trainer.data.media.images import packed_later
from ppojob_trainer.data.order import PromptOrder
from ppojob_trainer.data.prompt_store import PromptRow
from ppojob_trainer.errors import Interrupted
from ppojob_trainer.metrics.pass_statistics import step_statistics
from ppojob_trainer.metrics.timer import StepTimer
from ppojob_trainer.rows.row_metadata import RowMetadata
from ppojob_trainer.rpc.messages.demonstrations import Demonstrate, Demonstration, GivenRows
from ppojob_trainer.rpc.methods import DEMONSTRATE, MEASURE_LOSS, SUPERVISE
from ppojob_trainer.rpc.wire import RequestId


@dataclass(frozen=True)
class Demonstrations:
    """Batch source of demonstrations, which also measures the loss of validation rows."""

    roles: Roles
    rows_per_step: int  # prompts of a batch, also of one validation call
    answers: int  # answers per prompt; each is a row of the batch
    has_mismatched: bool = False  # whether each prompt also gets an answer to another prompt (KTO)

    def rows(self, step: int, draw: Draw, timer: StepTimer) -> Rows:
        """Send the rows of a step to their owners; a repeated step gets the same rows."""
        with timer("data"):
            prompts = draw(self.rows_per_step)
            batch = self._batch("train", step, prompts, before=prompts[-1])
            requests = list(self._shares(batch))
            self.roles.call(
                self.roles.owner, DEMONSTRATE, requests, RequestId(0, step, "demonstrate")
            )
        return Rows(batch, is_recorded=True)

    def loss(self, held_out: PromptDataset, step: int) -> dict[str, float]:
        """Return the mean loss of validation rows and its metrics, after a step.

        Raises:
            Interrupted: the job was asked to stop.
        """
        measured = []
        for first in range(0, len(held_out), self.rows_per_step):
            if self.roles.stop_requested():
                raise Interrupted("asked to end during a validation")
            last = min(first + self.rows_per_step, len(held_out))
            before = held_out[(first or len(held_out)) - 1]
            batch = self._batch("validation", step, held_out.rows(range(first, last)), before)
            id_ = RequestId(0, step, "measure_loss", first)
            requests = self._given(batch)
            measured.append(self.roles.call(self.roles.owner, MEASURE_LOSS, requests, id_)[0])
        return step_statistics(measured)

    def send(self, rows: list[PromptRow], step: int) -> None:
        """Send rows to their owners, in addition to the generated rows of a step."""
        requests = self._given(self._batch("train", step, rows, before=rows[-1]))
        self.roles.call(self.roles.owner, SUPERVISE, requests, RequestId(0, step, "supervise"))

    def _given(self, batch: Batch) -> list[GivenRows]:
        index = batch.index
        return [GivenRows(given, index) for given in self._shares(batch)]

    def _batch(self, purpose: str, step: int, prompts: list[PromptRow], before: PromptRow) -> Batch:
        """Return a batch; `before` supplies the mismatched answer if no earlier row does."""
        samples = self.answers
        if self.has_mismatched:
            samples += 1
            prompts = [
                replace(row, answers=(*row.answers, *_other(row, prompts[:at], before).answers))
                for at, row in enumerate(prompts)
            ]
        answers = [answer for row in prompts for answer in row.answers]
        metadata = [
            RowMetadata(
                sum(len(part.tokens) for part in answer),
                is_truncated=False,
                later_image_bytes=len(
                    packed_later([one for part in answer for one in part.images])
                ),
            )
            for answer in answers
        ]
        owners = len(self.roles.owner.ranks)
        return Batch(purpose, step, prompts, samples=samples, owners=owners, metadata=metadata)

    def _shares(self, batch: Batch) -> Iterator[Demonstrate]:
        for first, last in batch.shares:
            yield Demonstrate(first, list(map(_demonstration, batch.prompts[first:last])))


@dataclass(frozen=True)
class SupervisedRows:
    """Demonstrations that the policy learns in addition to the rows of an RL step."""

    demonstrations: Demonstrations
    dataset: PromptDataset
    order: PromptOrder
    schedule: SupervisedSchedule  # weight of their loss by step
    updates: Updates  # the policy's optimizer steps

    @classmethod
    def of(
        cls,
        spec: PPOJobSpec,
        roles: Roles,
        dataset: PromptDataset,
        updates: Updates,
    ) -> SupervisedRows:
        """Build the demonstrations of a job; ConfigError if a file has too few rows for a step."""
        settings, field = spec.algorithm.supervised, "spec.data.demonstrations"
        assert settings is not None
        assert settings.rows_per_step is not None, "set in a resolved configuration"
        order = dataset.order(spec.data.of_demonstrations, settings.rows_per_step, field=field)
        given = Demonstrations(roles, settings.rows_per_step, answers=1)
        own = {one.name for one in fields(SupervisedSchedule)}
        schedule = SupervisedSchedule(**settings.model_dump(by_alias=False, include=own))
        return cls(given, dataset, order, schedule, updates)

    def load(self, cursor: DataCursor) -> None:
        self.order.place = cursor.place

    @property
    def cursor(self) -> DataCursor:
        """Return the cursor at the start of the next step."""
        return DataCursor(*self.order.place, sha256=self.dataset.digest)

    def coefficient(self, step: int) -> float:
        """Return the weight of their loss in a step."""
        return self.schedule.after(step - self.updates.first_step)

    def begin(self, step: int) -> dict[str, float]:
        """Draw and send the rows of a step, if their weight is not 0; return its metric."""
        coefficient = self.coefficient(step)
        if coefficient > 0.0:
            drawn = self.order.next_batch(self.demonstrations.rows_per_step)
            self.demonstrations.send(self.dataset.rows(drawn), step)
        return {"actor/sft_coeff": coefficient} if self.schedule.changes else {}

    def of_update(self, number: int) -> list[int]:
        """Return the positions of the rows of an optimizer step."""
        first, last = spread(self.demonstrations.rows_per_step, self.updates.of_step)[number]
        return list(range(first, last))


def _other(row: PromptRow, ahead: list[PromptRow], before: PromptRow) -> PromptRow:
    """Return the nearest row of another prompt among the earlier rows `ahead`, else `before`."""
    others = (one for one in reversed(ahead) if one.token_ids != row.token_ids)
    return next(others, before)


def _demonstration(row: PromptRow) -> Demonstration:
    """Return a row's message; its reward is +-1 for a labelled answer, or the margin of a pair."""
    reward = row.ground_truth if isinstance(row.ground_truth, float) else 0.0
    if isinstance(row.ground_truth, bool):
        reward = 1.0 if row.ground_truth else -1.0
    return Demonstration(row.index, list(row.token_ids), row.answers, reward, row.images)
