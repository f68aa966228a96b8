"""How long a job runs, what it keeps, and when silence counts as failure."""

from typing import Annotated, Literal

from pydantic import Field

from ppojob_api.v1alpha1.section import Items, Name, ObjectName, Path, Quantity, Seconds, Section

_Step = Annotated[int, Field(ge=1, le=1_000_000_000)]
# Neither a password (user:word@host) nor a key (?, #): the target stands in logs and in plans.
CopyTarget = Annotated[
    str,
    Field(max_length=4_096, pattern=r"^((s3|gs|hdfs)://[^/@?#\s]+)?(/[^?#\s]*)?$", min_length=1),
]
_Rank = Annotated[int, Field(ge=0, le=1_000_000)]


class ProfileSpec(Section):
    """Traces of torch.profiler, for Perfetto or chrome://tracing, in the run folder: profile/."""

    steps: Annotated[Items[_Step], Field(min_length=1, max_length=64)]
    """Training steps that are traced. verl: global_profiler.steps."""

    ranks: Annotated[Items[_Rank], Field(min_length=1, max_length=64)] = (0,)
    """Ranks of every role with a model that are traced. verl: profiler.ranks."""

    contents: Annotated[Items[Literal["shapes", "stack", "memory"]], Field(max_length=3)] = ()
    """What a trace tells of each operation besides its time: the shapes of its inputs, the lines of
    Python that called it, what it took of memory and gave back. stack makes traces much larger.
    verl: profiler.tool_config.torch.contents."""


class StepsSpec(Section):
    """How long to train and when to validate."""

    total: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """Steps; exactly one of total and epochs, which validateOnly and generateOnly may do without.
    verl: trainer.total_training_steps."""

    epochs: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Passes over the training data. With algorithm.dynamicSampling the run ends with the step that
    draws the last of them; it may draw some of another pass. verl: trainer.total_epochs."""

    validate_every: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """Validate after every n-th step; absent: never in between. verl: trainer.test_freq, -1."""

    validate_first: bool = True
    """Validate before the first step. verl: trainer.val_before_train, true."""

    validate_last: bool = True
    """Validate after the last step. verl always does."""

    validate_only: bool = False
    """The first validation is the whole run; nothing is trained. verl: trainer.val_only, false."""

    generate_only: bool = False
    """Responses to the prompts of data.validation are the whole run, in responses.parquet; nothing
    is scored or trained, and data.train is not read. verl: main_generation."""

    @property
    def trains(self) -> bool:
        """Whether the job trains at all."""
        return not (self.validate_only or self.generate_only)


class VolumeSpec(Section):
    """A volume: of a claim that is there, or of one that the operator makes, NAME-run."""

    claim_name: ObjectName | None = None
    """PersistentVolumeClaim of the job's namespace; exactly one of claimName and size."""

    size: Quantity | None = None
    """Make a claim for this job alone, of this size, such as 100Gi."""

    storage_class_name: ObjectName | None = None
    """Of the claim that is made; absent: the cluster's default class."""

    access_mode: Literal["ReadWriteMany", "ReadWriteOnce"] = "ReadWriteMany"
    """Of the claim that is made; with ReadWriteOnce all pods of the job must run on one node."""

    when_deleted: Literal["Retain", "Delete"] = "Retain"
    """What becomes of the claim that is made, and of the run in it, when the job is deleted."""


class BestCheckpointSpec(Section):
    """Which checkpoint is the best, by a metric of the validation after its step."""

    metric: Name
    """Name in metrics.jsonl, such as val-core/openai/gsm8k/acc/mean@1."""

    mode: Literal["max", "min"] = "max"
    """Whether more is better; of equal values the first is kept."""


class BranchSpec(Section):
    """A checkpoint of another run, which this one goes on from by settings of its own."""

    run: Path
    """Run folder of a job, or what its copyTo has of it: a path, or an s3://, gs:// or hdfs:// URL.
    verl: trainer.resume_from_path."""

    step: _Step | None = None
    """Of its checkpoints that behind this step; absent: the newest. Steps are counted on from it.
    """


class CheckpointSpec(Section):
    """Checkpoints of everything that a resumed run needs."""

    every: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """Write one after every n-th step; absent: after the last only. verl: trainer.save_freq, -1."""

    background: bool = False
    """Write them beside the steps that follow, from a copy in host memory; else the next step waits
    until one is on the disk. verl: checkpoint.async_save, false."""

    keep_last: Annotated[int, Field(ge=2, le=1_000)] = 2
    """Checkpoints kept; at least 2, since one that is found damaged needs another behind it.
    verl: max_actor_ckpt_to_keep, all."""

    best: BestCheckpointSpec | None = None
    """Keep the checkpoint with the best validation too, whatever its age; absent: only keepLast."""

    volume: VolumeSpec | None = None
    """Where a cluster keeps the run folder, and needs it; `ppojob run` has its --output instead."""

    copy_to: CopyTarget | None = None
    """Copy checkpoints and export there too, in a folder of the job's name, beside the training: an
    s3://, gs:// or hdfs:// URL, or an absolute path. A run whose folder is lost goes on from there.
    verl: trainer.default_hdfs_dir."""

    branch: BranchSpec | None = None
    """Begin with a checkpoint of another run: its weights, moments and place in the data, and the
    settings of this job from there on. A run folder that holds a checkpoint goes on from that."""

    resume: Literal["auto", "never"] = "auto"
    """auto: go on from the last good checkpoint; never, of `ppojob run` alone: refuse a run folder
    that holds one. verl: trainer.resume_mode, auto."""

    export: bool = True
    """Write the last weights as a Hugging Face folder."""


class LifecycleSpec(Section):
    """Start, stop and clean-up of the job; may change while it runs."""

    suspend: bool = False
    """Write a checkpoint and give the resources back."""

    active_deadline_seconds: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    """Fail the job after this time."""

    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    """Delete the job this long after its end."""


class RecoverySpec(Section):
    """How hard to try when processes are lost."""

    restarts_without_progress: Annotated[int, Field(ge=0, le=1_000_000)] = 3
    """A role, or the controller, that is lost more often than this without a step done in between
    fails the job; each step done refills the budget."""


class TimeoutsSpec(Section):
    """When silence counts as failure."""

    liveness_seconds: Annotated[float, Field(ge=5, le=31_536_000)] = 20.0
    """A process without a heartbeat for so long is lost; one comes every second, from when it has
    loaded its program."""

    stage_seconds: Seconds = 1_800.0
    """Longest stage of a step (generation, scoring, update)."""

    startup_seconds: Seconds = 600.0
    """From the start of a role's pods to ready."""
