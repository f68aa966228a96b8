"""Wiring: builds the training loop of a job, the one place that names all of its parts."""

import contextlib
import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ppojob_api import contract
from ppojob_api.checks.schedule import steps_of_run
from ppojob_api.run_config import RunConfig
from ppojob_api.run_layout import CHECKPOINTS_FOLDER, METRICS_FILE, TENSORBOARD_FOLDER
from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_trainer.algorithms.coefficients import EntropyController
from ppojob_trainer.checkpoint.copies import Copies
from ppojob_trainer.checkpoint.journal import JOURNAL_NAME, Journal
from ppojob_trainer.checkpoint.manifest import DataCursor, Progress, sha256_of
from ppojob_trainer.checkpoint.store import CheckpointStore
from ppojob_trainer.controller.batch_source import BatchSource, DynamicSampling, batch_source
from ppojob_trainer.controller.checkpoints import BestCheckpoint, Checkpoints
from ppojob_trainer.controller.demonstrations import Demonstrations, SupervisedRows
from ppojob_trainer.controller.engines import Engines, StandaloneEngines
from ppojob_trainer.controller.fit import Loop
from ppojob_trainer.controller.lookahead import PrefetchedSource
from ppojob_trainer.controller.progress import Reporter
from ppojob_trainer.controller.prompts import Datasets, open_datasets
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
from ppojob_trainer.data.dataset import PromptDataset
from ppojob_trainer.data.order import PromptOrder
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


def build_loop(
    environment: PodEnvironment,
    reporter: Reporter,
    stop: Callable[[], bool],
    heartbeat: HeartbeatPipe,
    stack: contextlib.ExitStack,
) -> Loop:
    """Build the loop of a job.

    Raises:
        ConfigError: data, keys or checkpoints do not fit the job.
    """
    config, run_folder = environment.config, environment.run_folder
    spec, root = config.spec, run_folder / CHECKPOINTS_FOLDER
    store, journal = _store(config, root), Journal(root / JOURNAL_NAME)
    began = journal.began()
    datasets = open_datasets(config, began, stack)
    train, order = datasets.train, datasets.train.order(spec.prompts, spec.algorithm.draw[1])
    roles = _roles(environment, stop, stack)
    hosts = _hosts(config, roles)
    tape = _tape(spec, journal, run_folder, store.settings, datasets)
    channels = _channels(config, roles, hosts["actorRollout"])
    stages = _rollout_stages(spec, roles, hosts, channels, tape, began, reporter.drawn)
    shown = Prometheus(config.name, environment.address, contract.PORT_METRICS)
    records = Records(_sinks(config, run_folder, began, shown, stack), run_folder)
    total_steps = steps_of_run(spec, len(train))
    reporter.report(total_steps=total_steps)
    source = _source(spec, stages, total_steps, train, order)
    training = _training_step(spec, stages, hosts, channels, source, datasets.demonstrations)
    checkpoints = _checkpoints(config, roles, store, journal, records, shown, reporter)
    roles.meanwhile = checkpoints.look
    if isinstance(source, (PrefetchedSource, DynamicSampling)) and source.ahead is not None:
        checkpoints.write_ahead = source.ahead.save
    return Loop(
        spec=spec,
        total_steps=total_steps,
        num_devices=config.topology.num_devices,
        dataset=train,
        order=order,
        sampling=RowSampling.of(spec, train, stack),
        training=training,
        validation=datasets.validation,
        records=records,
        checkpoints=checkpoints,
        recovery=Recovery(
            roles=roles,
            journal=journal,
            store=store,
            records=records,
            tape=tape,
            fresh=_fresh(spec, train.digest, training),
            reporter=reporter,
            total_updates={u.model: u.done_after(total_steps) for u in training.updates},
            budget=spec.recovery.restarts_without_progress,
            code_files=partial(_code_files, config),
        ),
        journal=journal,
        reporter=reporter,
        stop_requested=stop,
        tell_progress=heartbeat.tell_progress,
    )


def _store(config: RunConfig, root: Path) -> CheckpointStore:
    return CheckpointStore(
        root,
        job_uid=config.uid,
        config=config.trajectory_json(),
        files=_code_files(config),
        bases=bases_of(config.spec),
    )


def _source(
    spec: PPOJobSpec,
    stages: RolloutStages,
    total_steps: int,
    dataset: PromptDataset,
    order: PromptOrder,
) -> BatchSource | Demonstrations:
    algorithm = spec.algorithm
    if algorithm.given is None:
        return batch_source(spec, stages, total_steps, dataset, order)
    size, answers = algorithm.prompts_per_step, algorithm.answers_per_row
    return Demonstrations(stages.roles, stages.actor, size, answers, algorithm.has_mismatched)


def _hosts(config: RunConfig, roles: Roles) -> dict[str, RoleGroup]:
    """Return the ranks that run each role's model: its own, or those it is colocated with."""
    return {
        role.role: roles.group(role.colocated_with or role.role)
        for role in config.topology.roles
        if role.role != "controller"
    }


def _channels(config: RunConfig, roles: Roles, actor: RoleGroup) -> RoleChannels:
    spec = config.spec
    several = spec.reference if len(spec.reference_paths) > 1 else None
    return RoleChannels(roles, actor, config.uid, several)


def _rollout_stages(
    spec: PPOJobSpec,
    roles: Roles,
    hosts: dict[str, RoleGroup],
    channels: RoleChannels,
    tape: RowTape,
    began: float,
    tell_drawn: Callable[[int, int], None],
) -> RolloutStages:
    actor, model = hosts["actorRollout"], None
    if "rewardModel" in hosts and spec.reward_model is not None:  # not if nothing scores
        own = spec.reward_model
        model = RewardModel(hosts["rewardModel"], own.mean, own.weight, began)
    tensor = spec.rollout.parallelism.tensor
    engines = Engines(actor, tensor)
    if "rollout" in hosts:
        seconds = spec.timeouts.stage_seconds
        engines = StandaloneEngines(hosts["rollout"], tensor, channels, seconds)
    return RolloutStages(
        roles,
        actor,
        engines,
        Scoring(roles, actor, hosts.get("reward"), model),
        tape,
        has_turns=spec.agent is not None,
        given=0 if (guidance := spec.algorithm.guidance) is None else guidance.samples,
        began=began,
        tools=hosts.get("tools"),
        retriever=hosts.get("retriever"),
        tell_drawn=tell_drawn,
    )


def _checkpoints(
    config: RunConfig,
    roles: Roles,
    store: CheckpointStore,
    journal: Journal,
    records: Records,
    shown: Prometheus,
    reporter: Reporter,
) -> Checkpoints:
    spec = config.spec.checkpoint
    best = BestCheckpoint(spec.best, records.history) if spec.best is not None else None
    among = best.among if best is not None else lambda _: None

    def tell_saved(step: int) -> None:
        shown.saved(step)
        reporter.training.checkpoint(step)

    return Checkpoints(
        roles=roles,
        store=store,
        journal=journal,
        every=spec.every,
        keep_last=spec.keep_last,
        best=best,
        tell_saved=tell_saved,
        copies=Copies(config, store, among) if spec.copy_to is not None else None,
    )


def _code_files(config: RunConfig, host: str | None = None) -> dict[str, str]:
    """Return digests of the files that decide answers, if the controller's pod can read them.

    These are the files of reward functions, tools, users, samplers, estimators and losses, and the
    manifest of an index; with a host, those of the roles that live there.
    """
    spec, topology = config.spec, config.topology
    here = {role.role for role in topology.roles} if host is None else topology.living_in(host)
    paths = [source.path for _, role, source in spec.code_sources if role in here]
    if spec.agent is not None and spec.agent.retriever is not None and "retriever" in here:
        paths.append(f"{spec.agent.retriever.index}/{MANIFEST}")
    found = {}
    for path in paths:
        if path is not None:
            with contextlib.suppress(OSError):
                found[path] = sha256_of(Path(path))[1]
    return found


def _tape(
    spec: PPOJobSpec,
    journal: Journal,
    run_folder: Path,
    settings: bytes,
    datasets: Datasets,
) -> RowTape:
    """Return the tape, whose rows belong to these settings and this data."""
    decisive = hashlib.sha256(settings)
    for digest in datasets.digests:
        decisive.update(b"\0" if digest is None else digest.encode())
    recording = spec.rollout.replay
    return RowTape(
        journal=journal,
        run_folder=run_folder,
        settings=decisive.hexdigest(),
        recording=None if recording is None else Path(recording).resolve(),
        takes_given=spec.algorithm.guidance is not None,
    )


def _training_step(
    spec: PPOJobSpec,
    stages: RolloutStages,
    hosts: dict[str, RoleGroup],
    channels: RoleChannels,
    source: BatchSource | Demonstrations,
    demonstrations: PromptDataset | None,
) -> TrainingStep:
    control = spec.algorithm.entropy_control
    updates = updates_of(spec, hosts)
    return TrainingStep(
        spec=spec,
        stages=stages,
        channels=channels,
        passes=passes_of(spec, hosts),
        updates=updates,
        shaping=ScoreShaping.of(spec),
        entropy=None
        if control is None
        else EntropyController(
            control.target, control.step, control.min_coefficient, control.max_coefficient
        ),
        source=source,
        reprompting=None
        if spec.algorithm.reprompt is None
        else Reprompting(
            spec.algorithm.reprompt, channels, stages.began, is_shown=spec.num_examine > 0
        ),
        supervised=None
        if demonstrations is None
        else SupervisedRows.of(
            spec,
            stages.roles,
            stages.actor,
            demonstrations,
            updates[-1],
        ),
    )


def _roles(
    environment: PodEnvironment, stop: Callable[[], bool], stack: contextlib.ExitStack
) -> Roles:
    spec = environment.config.spec
    keys = read_key_ring(environment.keys, environment.role)
    caller = Caller(keys, default_deadline_seconds=spec.timeouts.stage_seconds)
    stack.callback(caller.close)
    ahead = spec.rollout.max_staleness if spec.steps.trains else 0
    groups = tuple(
        role_group(topology, environment.host, ahead=ahead)
        for topology in environment.config.topology.with_own_pods
        if topology.role != "controller"
    )
    agreement = Agreement(
        code_digest(), config_digest(environment.config), native_bfloat16=has_native_bfloat16()
    )
    startup = spec.timeouts.startup_seconds
    return Roles(caller, groups, startup, stop, agreement)


def _sinks(
    config: RunConfig,
    run_folder: Path,
    began: float,
    shown: Prometheus,
    stack: contextlib.ExitStack,
) -> Sinks:
    sinks: list[Sink] = [JsonLines(run_folder / METRICS_FILE), shown]
    if "tensorboard" in config.spec.loggers:
        from ppojob_trainer.metrics.event_files import TensorBoard

        sinks.append(TensorBoard(run_folder / TENSORBOARD_FOLDER))
    for tracker in LIBRARIES:
        if tracker in config.spec.loggers:
            sinks.append(TrackerSink(TrackedRun.of(tracker, config, run_folder, began)))
    all_sinks = Sinks(tuple(sinks))
    stack.callback(all_sinks.close)
    return all_sinks


def _fresh(spec: PPOJobSpec, data_digest: str, training: TrainingStep) -> Progress:
    return Progress(
        step=0,
        policy_version=0,
        data=DataCursor(epoch=0, cursor=0, sha256=data_digest),
        kl_coefficient=spec.algorithm.kl.first_coefficient,
        metrics_lines=0,
        tokens=0,
        seconds=0.0,
        roles=tuple(updates.state_after(0) for updates in training.updates),
        demonstrations=None if training.supervised is None else training.supervised.cursor,
    )
