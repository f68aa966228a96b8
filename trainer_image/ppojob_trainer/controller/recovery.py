"""Recovery: starts or resumes a job, after a controller restart or the loss of a role.

After the loss of a stateless role (reward, reference, rollout), the role is restarted and the step
continues: the other roles answer finished work from memory. After the loss of a stateful role
(actor-rollout, critic, and rollout with lookahead), it is restarted and all stateful roles rewind
to the last checkpoint; the others keep their processes. A restarted controller continues with the
running ranks from the state in the journal.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

import ppojob_trainer
from ppojob_api.v1alpha1.data import DataSpec
from ppojob_trainer.checkpoint.identity import changed_data
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
from ppojob_trainer.checkpoint.store import Checkpoint, CheckpointStore
from ppojob_trainer.controller.journal_state import JournalState, read_journal_state
from ppojob_trainer.controller.progress import Reporter
from ppojob_trainer.controller.records import Records
from ppojob_trainer.controller.roles import RoleGroup, Roles
from ppojob_trainer.controller.row_tape import AHEAD_FOLDER, RowTape
from ppojob_trainer.errors import CannotResume, DamagedCheckpoint, JobFailed, RoleLost
from ppojob_trainer.rpc.messages.rollout import SyncWeights
from ppojob_trainer.rpc.messages.saving import FileEntry, Restore
from ppojob_trainer.rpc.methods import RESTORE, SYNC_WEIGHTS
from ppojob_trainer.rpc.wire import RequestId

_log = logging.getLogger(__name__)


@dataclass
class Recovery:
    """Brings roles and records to a common state."""

    roles: Roles
    journal: Journal
    store: CheckpointStore
    records: Records  # metrics and rows, truncated on a rewind
    tape: RowTape
    data: DataSpec
    fresh: Progress  # state before the first step
    reporter: Reporter
    total_updates: dict[str, int]  # optimizer steps of the whole job, by model
    budget: int  # allowed losses without a finished step in between
    code_files: Callable[[str], dict[str, str]]  # digests of the code files that a role runs
    _losses: list[int] = field(default_factory=list)
    _restarts: int = 0
    _has_state: bool = False  # whether the stateful ranks have the state at the journal's end

    def begin_attempt(self) -> JournalState:
        """Begin a new attempt of the controller, which fences off earlier ones."""
        stateful = frozenset(group.name for group in self.roles.stateful)
        position = read_journal_state(self.journal.read(), stateful)
        self.tape.read()
        attempt = position.controller_attempt + 1
        self.roles.caller.attempt = attempt
        self.roles.rewinds = position.rewinds
        code_version = ppojob_trainer.version()
        self.journal.append(ControllerStarted(attempt=attempt, code_version=code_version))
        for group in self.roles.groups:
            group.attempt = position.role_attempts.get(group.name, 0)
        return position

    def resume(self, position: JournalState) -> Progress:
        """Start or resume all roles; return the state to continue from. RoleLost on a loss."""
        if position.progress is not None and self._ready_roles() == self.roles.stateful:
            _log.info("the ranks are running; continuing after step %d", position.progress.step)
            self._check_data(position.progress)
            self.records.cut_metrics(position.progress)
            self._has_state = True
            if self._start_missing():
                return self._rewind(position.progress.step, "a role was lost meanwhile")
            return position.progress
        for group in self.roles.stateful:
            # Some ranks may hang in a collective whose request others never got.
            if group.attempt > 0 and len(group.ranks) > 1:
                self._start(group)
        return self._rewind(0, "start")

    def recover(self, loss: RoleLost, progress: Progress) -> Progress:
        """Restart a lost role, and rewind if necessary; return the state to continue from.

        RoleLost if another role is lost; JobFailed after too many losses without a finished step.
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
                f"{path}: its content has changed during the run: {group.name} was lost, and "
                "uses the file as it is now"
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
        cursors = {"train": self.fresh.data, "demonstrations": self.fresh.demonstrations}
        digests = {field: one.sha256 for field, one in cursors.items() if one is not None}
        if changed := changed_data(self.data, progress, digests):
            raise CannotResume(changed)

    def _ready_roles(self) -> list[RoleGroup]:
        return [
            group
            for group in self.roles.stateful
            if group.attempt > 0 and self.roles.is_ready(group)
        ]

    def _start(self, group: RoleGroup) -> None:
        attempt, size = group.attempt + 1, len(group.ranks)
        self.journal.append(AttemptStarted(role=group.name, attempt=attempt, world_size=size))
        self.roles.start(group, attempt)

    def _start_missing(self) -> bool:
        """Start missing roles and wait for all; return whether a started one is stateful."""
        missing = self.roles.missing()
        for group in missing:
            self._start(group)
        self.roles.wait_ready(may_stop=not self._has_state)
        return any(group.is_stateful for group in missing)

    def _rewind(self, from_step: int, reason: str) -> Progress:
        self._has_state = False
        # Running ranks finish their requests, among them writes of checkpoints and rows.
        self.roles.barrier(self._ready_roles(), from_step, f"rewind/{self.roles.rewinds}")
        found = resume_point(self.store, self.journal.read())
        for step, why in found.refusals:
            self.journal.append(CheckpointRefused(step=step, file=why.file, reason=why.reason))
        progress = self.fresh
        if found.checkpoint is not None:
            progress = found.checkpoint.manifest.progress
            if progress.data == UNREAD:
                progress = msgspec.structs.replace(progress, data=self.fresh.data)
            if progress.demonstrations is None or self.fresh.demonstrations is None:
                cursor = self.fresh.demonstrations
                progress = msgspec.structs.replace(progress, demonstrations=cursor)
            self._report_changes(dict(found.refusals).values(), found.checkpoint)
        self._check_data(progress)
        self.journal.append(Rewound(from_step=from_step, to_step=progress.step, reason=reason))
        self.roles.rewinds += 1
        self.records.cut_metrics(progress)
        self.tape.read()
        self.records.cut_rows(progress, self.tape.replayed)
        self._start_missing()
        self._restore(progress, found.checkpoint)
        return progress

    def _report_changes(self, refused: Iterable[DamagedCheckpoint], checkpoint: Checkpoint) -> None:
        for damage in refused:
            self.reporter.notice(
                f"checkpoints/{damage}: this checkpoint is not used; the job goes on from "
                f"{checkpoint.folder.name}"
            )
        change = self.store.layout_change(checkpoint)
        if change is not None:
            self.reporter.notice(
                f"{change}: the next steps agree with those of the old layout up to rounding, "
                'with the exceptions in docs/operations.md, "Changing the layout of a job"'
            )
        for path in self.store.changed_files(checkpoint):
            self.reporter.notice(
                f"{path}: its content differs from that of {checkpoint.folder.name}: the next "
                "steps use the file as it is now"
            )

    def _restore(self, progress: Progress, checkpoint: Checkpoint | None) -> None:
        folder, files = None, list[FileEntry]()
        if checkpoint is not None:
            folder = str(checkpoint.folder.relative_to(self.store.root.parent))
            files = [  # all ranks' files: in another layout, a rank reads those of several
                entry
                for entry in checkpoint.manifest.files
                if entry.role != "controller" and not entry.path.startswith(f"{AHEAD_FOLDER}/")
            ]
        request = Restore(folder, files, self.total_updates)
        for group in self.roles.saved:
            self.roles.broadcast(group, RESTORE, request, RequestId(0, progress.step, "restore"))
        id_ = RequestId(0, progress.step, "restore/sync_weights")
        self.roles.broadcast(self.roles.owner, SYNC_WEIGHTS, SyncWeights(progress.step), id_)
        self.journal.append(Resumed(progress=progress))
        self._has_state = True
