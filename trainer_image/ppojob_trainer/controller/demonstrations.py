"""The stages of given answers: rows with their answers go to the ranks that train on them.

Nothing is generated or scored, and rows follow from the data alone, so that none is kept on the
disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_trainer.algorithms.coefficients import SupervisedSchedule
from ppojob_trainer.checkpoint.manifest import DataCursor
from ppojob_trainer.controller.batch import Batch, spread
from ppojob_trainer.controller.one_round import Draw, Rows
from ppojob_trainer.controller.roles import RoleGroup, Roles
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
    """Draws the rows of a step, and measures the loss of those that are held out.

    Attributes:
        actor: the role whose ranks own the rows.
        rows_per_step: rows of a batch, of a validation at one time as well.
        answers: those of a row, each of which is a row of the batch.
        has_mismatched: whether each prompt comes with an answer to another prompt as well.
    """

    roles: Roles
    actor: RoleGroup
    rows_per_step: int
    answers: int
    has_mismatched: bool = False

    def rows(self, step: int, draw: Draw, timer: StepTimer) -> Rows:
        """Have the rows of a step owned; the same for a step that is begun again."""
        with timer("data"):
            prompts = draw(self.rows_per_step)
            batch = self._batch("train", prompts, before=prompts[-1])
            requests = list(self._shares(batch))
            self.roles.ask(self.actor, DEMONSTRATE, requests, RequestId(0, step, "demonstrate"))
        return Rows(batch, is_kept=True)

    def loss(self, held_out: PromptDataset, step: int) -> dict[str, float]:
        """The mean loss of the held-out rows, and what goes with it, with a step's weights."""
        measured = []
        for first in range(0, len(held_out), self.rows_per_step):
            last = min(first + self.rows_per_step, len(held_out))
            before = held_out[(first or len(held_out)) - 1]
            batch = self._batch("validation", held_out.rows(range(first, last)), before)
            id_ = RequestId(0, step, "measure_loss", first)
            requests = self._given(batch)
            measured.append(self.roles.ask(self.actor, MEASURE_LOSS, requests, id_)[0])
        return step_statistics(measured)

    def place_beside(self, rows: list[PromptRow], step: int) -> None:
        """Have these rows owned beside those of a step."""
        requests = self._given(self._batch("train", rows, before=rows[-1]))
        self.roles.ask(self.actor, SUPERVISE, requests, RequestId(0, step, "supervise"))

    def _given(self, batch: Batch) -> list[GivenRows]:
        index = batch.index
        return [GivenRows(given, index) for given in self._shares(batch)]

    def _batch(self, purpose: str, prompts: list[PromptRow], before: PromptRow) -> Batch:
        """A batch of rows; `before` answers another prompt where none ahead in the batch does."""
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
        """What each rank is given: a run of rows, or none where there are fewer rows than ranks."""
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
    """Rows with answers that the policy learns beside those of the step.

    Attributes:
        schedule: what they count.
        updates: those of the policy.
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
        """Those that a job asks for.

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
        """Go on from a place in their order."""
        self.order.place = cursor.place

    @property
    def cursor(self) -> DataCursor:
        """The place that the next step begins at."""
        return DataCursor(*self.order.place, sha256=self.dataset.digest)

    def coefficient(self, step: int) -> float:
        """What they count in a step; 0: nothing, and none are drawn."""
        return self.schedule.after(step - self.updates.first_step)

    def begin(self, step: int) -> dict[str, float]:
        """Draw the rows of a step, and have them owned; tells what they count, if that changes."""
        coefficient = self.coefficient(step)
        if coefficient > 0.0:
            drawn = self.order.next_batch(self.demonstrations.rows_per_step)
            self.demonstrations.place_beside(self.dataset.rows(drawn), step)
        return {"actor/sft_coeff": coefficient} if self.schedule.changes else {}

    def of_update(self, number: int) -> list[int]:
        """Positions of the rows of one optimizer step: a run, all about equally long."""
        first, last = spread(self.demonstrations.rows_per_step, self.updates.of_step)[number]
        return list(range(first, last))


def _other(row: PromptRow, ahead: list[PromptRow], before: PromptRow) -> PromptRow:
    """The nearest row ahead of it in its batch that has another prompt, else the one before all."""
    others = (one for one in reversed(ahead) if one.token_ids != row.token_ids)
    return next(others, before)


def _reward(row: PromptRow) -> float:
    """1 of a good answer, -1 of a bad one, the margin of a pair, 0 where nothing is told."""
    if isinstance(row.ground_truth, bool):
        return 1.0 if row.ground_truth else -1.0
    return row.ground_truth if isinstance(row.ground_truth, float) else 0.0
