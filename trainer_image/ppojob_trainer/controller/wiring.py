"""Wiring: builds the training loop of a job from its parts."""

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path

from ppojob_api import contract
from ppojob_api.checks.schedule import steps_of_run
from ppojob_api.run_layout import CHECKPOINTS_FOLDER, METRICS_FILE, TENSORBOARD_FOLDER
from ppojob_trainer import durable
from ppojob_trainer.algorithms.coefficients import EntropyController
from ppojob_trainer.checkpoint.copies import Copies
from ppojob_trainer.checkpoint.identity import Identity
from ppojob_trainer.checkpoint.journal import JOURNAL_NAME, Journal
from ppojob_trainer.checkpoint.manifest import DataCursor, Progress
from ppojob_trainer.checkpoint.store import CheckpointStore
from ppojob_trainer.controller.batch_source import BatchSource, DynamicSampling, batch_source
from ppojob_trainer.controller.checkpoints import BestCheckpoint, Checkpoints
from ppojob_trainer.controller.demonstrations import Demonstrations, SupervisedRows
from ppojob_trainer.controller.engines import Engines, StandaloneEngines
from ppojob_trainer.controller.fit import Loop
from ppojob_trainer.controller.lookahead import PrefetchedSource
from ppojob_trainer.controller.progress import Reporter
from ppojob_trainer.controller.prompts import open_datasets
from ppojob_trainer.controller.records import Records
from ppojob_trainer.controller.recovery import Recovery
from ppojob_trainer.controller.reprompting import Reprompting
from ppojob_trainer.controller.role_channels import RoleChannels
from ppojob_trainer.controller.roles import RoleGroup, Roles, role_group
from ppojob_trainer.controller.rollout_stages import RolloutStages
from ppojob_trainer.controller.row_sampling import RowSampling
from ppojob_trainer.controller.row_tape import RowTape
from ppojob_trainer.controller.scoring import RewardModel, Scoring
from ppojob_trainer.controller.step_plan import passes_of, updates_of
from ppojob_trainer.controller.training_step import TrainingStep
from ppojob_trainer.heartbeat_pipe import HeartbeatPipe
from ppojob_trainer.metrics.exporter import Prometheus
from ppojob_trainer.metrics.sinks import JsonLines, Sink, Sinks
from ppojob_trainer.models.fingerprint import bases_of
from ppojob_trainer.pod_environment import PodEnvironment
from ppojob_trainer.processor import has_native_bfloat16
from ppojob_trainer.retrieval.manifest import MANIFEST
from ppojob_trainer.rewards.shaping import ScoreShaping
from ppojob_trainer.rpc.client import Caller
from ppojob_trainer.rpc.identity import Agreement, code_digest, config_digest
from ppojob_trainer.rpc.keys import read_key_ring
from ppojob_trainer.trackers.libraries import LIBRARIES
from ppojob_trainer.trackers.messages import TrackedRun
from ppojob_trainer.trackers.sink import TrackerSink


class Wiring:
    """The parts of a loop, in the order in which they depend on each other.

    `stack` closes them. ConfigError if data or keys are wrong.
    """

    def __init__(
        self,
        environment: PodEnvironment,
        reporter: Reporter,
        stop: Callable[[], bool],
        heartbeat: HeartbeatPipe,
        stack: contextlib.ExitStack,
    ) -> None:
        self.environment, self.reporter, self.stop = environment, reporter, stop
        self.stack = stack
        self.config, self.run_folder = environment.config, environment.run_folder
        self.spec = self.config.spec
        root = self.run_folder / CHECKPOINTS_FOLDER
        trajectory, bases = self.config.trajectory_json(), bases_of(self.spec)
        owner = Identity(self.config.uid, trajectory, self._code_files(), bases)
        self.store = CheckpointStore(root, owner)
        self.journal = Journal(root / JOURNAL_NAME)
        self.began = self.journal.began()
        self.datasets = open_datasets(self.config, self.began, stack)
        self.train = self.datasets.train
        self.order = self.train.order(self.spec.prompts, self.spec.algorithm.draw[1])
        self.roles = self._roles()
        # The ranks of each role, possibly those of the role that it is colocated with.
        self.hosts: dict[str, RoleGroup] = {
            role.role: self.roles.group(role.colocated_with or role.role)
            for role in self.config.topology.roles
            if role.role != "controller"
        }
        self.tape = self._tape()
        several = self.spec.reference if len(self.spec.reference_paths) > 1 else None
        self.channels = RoleChannels(self.roles, self.config.uid, several)
        self.stages = self._rollout_stages()
        self.prometheus = Prometheus(self.config.name, environment.address, contract.PORT_METRICS)
        self.records = Records(self._sinks(), self.run_folder)
        self.total_steps = steps_of_run(self.spec, len(self.train))
        reporter.report(total_steps=self.total_steps)
        self.source = self._source()
        self.training = self._training_step()
        self.checkpoints = self._checkpoints()
        self.roles.meanwhile = self.checkpoints.poll
        ahead = self.source.source if isinstance(self.source, DynamicSampling) else self.source
        if isinstance(ahead, PrefetchedSource):
            self.checkpoints.write_ahead = ahead.save
        self.loop = self._loop(heartbeat)

    def _loop(self, heartbeat: HeartbeatPipe) -> Loop:
        recovery = Recovery(
            roles=self.roles,
            journal=self.journal,
            store=self.store,
            records=self.records,
            tape=self.tape,
            data=self.spec.prompts,
            fresh=self._fresh(),
            reporter=self.reporter,
            total_updates={u.model: u.done_after(self.total_steps) for u in self.training.updates},
            budget=self.spec.recovery.restarts_without_progress,
            code_files=self._code_files,
        )
        return Loop(
            spec=self.spec,
            total_steps=self.total_steps,
            num_devices=self.config.topology.num_devices,
            dataset=self.train,
            order=self.order,
            sampling=RowSampling.of(self.spec, self.train, self.stack),
            training=self.training,
            validation=self.datasets.validation,
            records=self.records,
            checkpoints=self.checkpoints,
            recovery=recovery,
            journal=self.journal,
            reporter=self.reporter,
            stop_requested=self.stop,
            report_progress=heartbeat.report_progress,
        )

    def _roles(self) -> Roles:
        spec, topology = self.spec, self.config.topology
        keys = read_key_ring(self.environment.keys, self.environment.role)
        caller = Caller(keys, default_deadline_seconds=spec.timeouts.stage_seconds)
        self.stack.callback(caller.close)
        ahead = spec.rollout.max_staleness if spec.steps.trains else 0
        groups = tuple(
            role_group(role, self.environment.host, ahead=ahead)
            for role in topology.with_own_pods
            if role.role != "controller"
        )
        agreement = Agreement(
            code_digest(), config_digest(self.config), native_bfloat16=has_native_bfloat16()
        )
        return Roles(caller, groups, spec.timeouts.startup_seconds, self.stop, agreement)

    def _tape(self) -> RowTape:
        """Return the tape; its rows are valid for these settings and this data."""
        digest = hashlib.sha256(self.store.settings)
        for of_data in self.datasets.digests:
            digest.update(b"\0" if of_data is None else of_data.encode())
        recording = self.spec.rollout.replay
        return RowTape(
            journal=self.journal,
            run_folder=self.run_folder,
            settings=digest.hexdigest(),
            recording=None if recording is None else Path(recording).resolve(),
            takes_given=self.spec.algorithm.guidance is not None,
        )

    def _rollout_stages(self) -> RolloutStages:
        spec, hosts, model = self.spec, self.hosts, None
        if "rewardModel" in hosts and spec.reward_model is not None:  # not if nothing scores
            own = spec.reward_model
            model = RewardModel(hosts["rewardModel"], own.mean, own.weight, self.began)
        tensor = spec.rollout.parallelism.tensor
        engines = Engines(self.roles.owner, tensor)
        if "rollout" in hosts:
            seconds = spec.timeouts.stage_seconds
            engines = StandaloneEngines(hosts["rollout"], tensor, self.channels, seconds)
        guidance = spec.algorithm.guidance
        # The ranks of one engine would not stop at the same step.
        can_abort = spec.steps.trains and tensor == 1
        return RolloutStages(
            self.roles,
            engines,
            Scoring(self.roles, hosts.get("reward"), model),
            self.tape,
            has_turns=spec.agent is not None,
            loops=[one.name for one in spec.agent.agent_loops] if spec.agent else (),
            given=0 if guidance is None else guidance.samples,
            began=self.began,
            tools=hosts.get("tools"),
            retriever=hosts.get("retriever"),
            on_progress=self.reporter.report_rows,
            aborts=self.roles.stop_requested if can_abort else lambda: False,
        )

    def _source(self) -> BatchSource | Demonstrations:
        algorithm = self.spec.algorithm
        if algorithm.given is None:
            return batch_source(self.spec, self.stages, self.total_steps, self.train, self.order)
        return Demonstrations(
            self.roles,
            algorithm.prompts_per_step,
            algorithm.answers_per_row,
            algorithm.has_mismatched,
        )

    def _training_step(self) -> TrainingStep:
        spec = self.spec
        control, reprompt = spec.algorithm.entropy_control, spec.algorithm.reprompt
        entropy, reprompting, supervised = None, None, None
        if control is not None:
            entropy = EntropyController(
                control.target, control.step, control.min_coefficient, control.max_coefficient
            )
        if reprompt is not None:
            is_logged = spec.num_examine > 0
            reprompting = Reprompting(reprompt, self.channels, self.began, is_logged)
        updates = updates_of(spec, self.hosts)
        if (rows := self.datasets.demonstrations) is not None:
            supervised = SupervisedRows.of(spec, self.roles, rows, updates[-1])
        return TrainingStep(
            spec=spec,
            stages=self.stages,
            channels=self.channels,
            passes=passes_of(spec, self.hosts),
            updates=updates,
            shaping=ScoreShaping.of(spec),
            entropy=entropy,
            source=self.source,
            reprompting=reprompting,
            supervised=supervised,
        )

    def _checkpoints(self) -> Checkpoints:
        spec = self.spec.checkpoint
        best = None if spec.best is None else BestCheckpoint(spec.best, self.records.history)
        among = best.among if best is not None else lambda _: None

        def on_saved(step: int) -> None:
            self.prometheus.saved(step)
            self.reporter.training.checkpoint(step)

        return Checkpoints(
            roles=self.roles,
            store=self.store,
            journal=self.journal,
            every=spec.every,
            keep_last=spec.keep_last,
            best=best,
            on_saved=on_saved,
            copies=Copies(self.config, self.store, among) if spec.copy_to is not None else None,
        )

    def _code_files(self, host: str | None = None) -> dict[str, str]:
        """Return the digests of custom code files and of the index manifest, if readable here.

        With a host, only those of the roles in its pods.
        """
        spec, topology = self.spec, self.config.topology
        here = {one.role for one in topology.roles} if host is None else topology.living_in(host)
        paths = [source.path for _, role, source in spec.code_sources if role in here]
        if spec.agent is not None and spec.agent.retriever is not None and "retriever" in here:
            paths.append(f"{spec.agent.retriever.index}/{MANIFEST}")
        found = {}
        for path in paths:
            if path is not None:
                with contextlib.suppress(OSError):
                    found[path] = durable.sha256_of(Path(path))[1]
        return found

    def _sinks(self) -> Sinks:
        loggers = self.spec.loggers
        sinks: list[Sink] = [JsonLines(self.run_folder / METRICS_FILE), self.prometheus]
        if "tensorboard" in loggers:
            from ppojob_trainer.metrics.event_files import TensorBoard

            sinks.append(TensorBoard(self.run_folder / TENSORBOARD_FOLDER))
        for tracker in LIBRARIES:
            if tracker in loggers:
                run = TrackedRun.of(tracker, self.config, self.run_folder, self.began)
                sinks.append(TrackerSink(run))
        all_sinks = Sinks(tuple(sinks))
        self.stack.callback(all_sinks.close)
        return all_sinks

    def _fresh(self) -> Progress:
        supervised = self.training.supervised
        return Progress(
            step=0,
            data=DataCursor(epoch=0, cursor=0, sha256=self.train.digest),
            kl_coefficient=self.spec.algorithm.kl.first_coefficient,
            metrics_lines=0,
            tokens=0,
            seconds=0.0,
            demonstrations=None if supervised is None else supervised.cursor,
        )
