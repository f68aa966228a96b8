"""Recovery: starts or resumes a job, after a controller restart or the loss of a role.

A lost stateless role (reward, reference, rollout) is started again and the step continues: the
other roles answer finished work from memory. When a stateful role (actor-rollout, critic, and
rollout with lookahead) is lost, it is started again and all stateful roles rewind to the last
checkpoint; living ones keep their processes. A restarted controller finds living ranks where the
journal says they are, and continues beside them without repeating a step.
"""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

import ppojob_trainer
from ppojob_trainer.checkpoint.journal import (
    AttemptStarted,
    CheckpointRefused,
    ControllerStarted,
    Journal,
    Resumed,
    Rewound,
    resume_point,
)
from ppojob_trainer.checkpoint.manifest import UNREAD, Progress
from ppojob_trainer.checkpoint.store import Checkpoint, CheckpointStore, Refusal
from ppojob_trainer.controller.journal_state import JournalState, read_journal_state
from ppojob_trainer.controller.progress import Reporter
from ppojob_trainer.controller.records import Records
from ppojob_trainer.controller.roles import RoleGroup, Roles
from ppojob_trainer.controller.row_tape import AHEAD_FOLDER, RowTape
from ppojob_trainer.errors import CannotResume, JobFailed, RoleLost
from ppojob_trainer.rpc.messages.rollout import SyncWeights
from ppojob_trainer.rpc.messages.saving import Restore
from ppojob_trainer.rpc.methods import RESTORE, SYNC_WEIGHTS
from ppojob_trainer.rpc.wire import RequestId

_log = logging.getLogger(__name__)


@dataclass
class Recovery:
    """Brings roles and records to a common state.

    Attributes:
        records: metrics and rows, truncated on a rewind.
        fresh: state of a job that has not begun.
        total_updates: optimizer steps of the whole job, by model.
        budget: allowed losses without a finished step in between.
        code_files: digests of the user's code files that the ranks of a role run.
    """

    roles: Roles
    journal: Journal
    store: CheckpointStore
    records: Records
    tape: RowTape
    fresh: Progress
    reporter: Reporter
    total_updates: dict[str, int]
    budget: int
    code_files: Callable[[str], dict[str, str]]
    _losses: list[int] = field(default_factory=list)
    _restarts: int = 0
    _has_state: bool = False  # whether the stateful ranks hold the state at the journal's end

    def begin_attempt(self) -> JournalState:
        """Become the controller: a new attempt that fences off any earlier one."""
        stateful = frozenset(group.name for group in self.roles.stateful)
        position = read_journal_state(self.journal.read(), stateful)
        self.tape.read()
        attempt = position.controller_attempt + 1
        self.roles.caller.attempt = attempt
        self.roles.rewinds = position.rewinds
        self.journal.append(
            ControllerStarted(
                time=time.time(), attempt=attempt, code_version=ppojob_trainer.version()
            )
        )
        for group in self.roles.groups:
            group.attempt = position.role_attempts.get(group.name, 0)
        return position

    def resume(self, position: JournalState) -> Progress:
        """Return the state to resume from, with all roles serving.

        Raises:
            RoleLost: a role was lost meanwhile.
        """
        if position.progress is not None and self._living() == self.roles.stateful:
            _log.info("the ranks live; going on after step %d", position.progress.step)
            self._check_data(position.progress)
            self.records.cut_metrics(position.progress)
            self._has_state = True
            if self._start_missing():
                return self._rewind(position.progress.step, "a role was lost meanwhile")
            return position.progress
        for group in self.roles.stateful:
            # Some ranks may wait in a collective for others that never got the request.
            if group.attempt > 0 and len(group.ranks) > 1:
                self._start(group)
        return self._rewind(0, "start")

    def recover(self, loss: RoleLost, progress: Progress) -> Progress:
        """Start a lost role again, and rewind as far as that requires.

        Raises:
            RoleLost: another role was lost meanwhile.
            JobFailed: roles are lost repeatedly, and no step is finished.
        """
        self._count(loss, progress.step)
        self.reporter.report(phase="Recovering", message=str(loss), restarts=self._restarts)
        _log.warning("%s", loss)
        group = self.roles.group(loss.role)
        if self._has_state and group.has_channels:
            self.roles.abort_channels(group.name)
        self._start(group)
        for path in self.store.edited(self.code_files(group.name)):
            self.reporter.notice(
                f"{path}: got another content than the run went by so far: {group.name} was lost, "
                "and goes on by the file as it is now"
            )
        if group.is_stateful or not self._has_state:
            return self._rewind(progress.step, loss.reason)
        if self._start_missing():
            return self._rewind(progress.step, f"{loss.reason}; and with it a role with state")
        return progress

    def _count(self, loss: RoleLost, step: int) -> None:
        self._restarts += 1
        self._losses = [at for at in self._losses if at >= step] + [step]
        if len(self._losses) > self.budget:
            raise JobFailed(
                f"{loss}: loss {len(self._losses)} without a new step done since step {step}: "
                f"spec.recovery.restartsWithoutProgress allows {self.budget}; "
                "the logs of the pods have the evidence"
            )

    def _check_data(self, progress: Progress) -> None:
        """Refuse to resume with other data than the run began with.

        Raises:
            CannotResume: the rows are not the same.
        """
        read = [("train", "prompts", progress.data, self.fresh.data)]
        if progress.demonstrations is not None and self.fresh.demonstrations is not None:
            cursors = progress.demonstrations, self.fresh.demonstrations
            read.append(("demonstrations", "rows", *cursors))
        changed = [
            f"spec.data.{field}: got {rows} with digest {now.sha256[:12]}: the run began with "
            f"{then.sha256[:12]}; bring the files back, or begin a run of its own in another folder"
            for field, rows, then, now in read
            if then.sha256 != now.sha256
        ]
        if changed:
            raise CannotResume(changed)

    def _living(self) -> list[RoleGroup]:
        """Return the stateful roles whose ranks all serve."""
        return [
            group
            for group in self.roles.stateful
            if group.attempt > 0 and self.roles.is_ready(group)
        ]

    def _start(self, group: RoleGroup) -> None:
        attempt = group.attempt + 1
        self.journal.append(
            AttemptStarted(
                time=time.time(), role=group.name, attempt=attempt, world_size=len(group.ranks)
            )
        )
        self.roles.start(group, attempt)

    def _start_missing(self) -> bool:
        """Start the roles that do not serve and wait for all; return whether one had state."""
        missing = self.roles.missing()
        for group in missing:
            self._start(group)
        self.roles.wait_ready(may_stop=not self._has_state)
        return any(group.is_stateful for group in missing)

    def _rewind(self, from_step: int, reason: str) -> Progress:
        self._has_state = False
        # Living ranks finish their requests, among them writes of checkpoints and rows.
        self.roles.barrier(self._living(), from_step, f"rewind/{self.roles.rewinds}")
        found = resume_point(self.store, self.journal.read())
        for refusal in found.refusals:
            self.journal.append(
                CheckpointRefused(
                    time=time.time(),
                    step=refusal.step,
                    file=refusal.file,
                    reason=refusal.reason,
                )
            )
        progress = self.fresh
        if found.checkpoint is not None:
            progress = found.checkpoint.manifest.progress
            if progress.data == UNREAD:
                progress = msgspec.structs.replace(progress, data=self.fresh.data)
            if progress.demonstrations is None or self.fresh.demonstrations is None:
                begun = self.fresh.demonstrations
                progress = msgspec.structs.replace(progress, demonstrations=begun)
            self._report_changes(found.refusals, found.checkpoint)
        self._check_data(progress)
        self.journal.append(
            Rewound(time=time.time(), from_step=from_step, to_step=progress.step, reason=reason)
        )
        self.roles.rewinds += 1
        self.records.cut_metrics(progress)
        self.tape.read()
        self.records.cut_rows(progress, self.tape.replayed)
        self._start_missing()
        self._restore(progress, found.checkpoint)
        return progress

    def _report_changes(self, refusals: Iterable[Refusal], checkpoint: Checkpoint) -> None:
        """Report what differs from the checkpoint that the job resumes from."""
        for refusal in refusals:
            self.reporter.notice(
                f"checkpoints/{refusal}: this checkpoint is not used; the job goes on from "
                f"{checkpoint.folder.name}"
            )
        change = self.store.layout_change(checkpoint)
        if change is not None:
            self.reporter.notice(
                f"{change}: from here on numbers agree with the old layout's to rounding, "
                'but for what docs/operations.md names at "Changing the layout of a job"'
            )
        for path in self.store.changed_files(checkpoint):
            self.reporter.notice(
                f"{path}: got another content than {checkpoint.folder.name} was made with: "
                "the steps "
                "from there on go by the file as it is now"
            )

    def _restore(self, progress: Progress, checkpoint: Checkpoint | None) -> None:
        request = Restore(
            folder=str(checkpoint.folder.relative_to(self.store.root.parent))
            if checkpoint
            else None,
            # A rank in another layout needs the parts of several ranks.
            files=[
                entry
                for entry in (checkpoint.manifest.files if checkpoint else ())
                if entry.role != "controller" and not entry.path.startswith(f"{AHEAD_FOLDER}/")
            ],
            total_updates=self.total_updates,
        )
        for group in self.roles.saved:
            self.roles.broadcast(group, RESTORE, request, RequestId(0, progress.step, "restore"))
        self.roles.broadcast(
            self.roles.group("actorRollout"),
            SYNC_WEIGHTS,
            SyncWeights(progress.policy_version),
            RequestId(0, progress.step, "restore/sync_weights"),
        )
        self.journal.append(Resumed(time=time.time(), progress=progress))
        self._has_state = True
