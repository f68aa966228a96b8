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
    """Training steps to trace. verl: global_profiler.steps."""

    ranks: Annotated[Items[_Rank], Field(min_length=1, max_length=64)] = (0,)
    """Ranks to trace, of every role with a model. verl: profiler.ranks."""

    contents: Annotated[Items[Literal["shapes", "stack", "memory"]], Field(max_length=3)] = ()
    """What a trace records of each operation besides its time: the shapes of its inputs, the Python
    lines that called it (stack), its memory allocations. stack makes traces much larger. verl:
    profiler.tool_config.torch.contents."""


class StepsSpec(Section):
    """How long to train and when to validate."""

    total: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """Steps; exactly one of total and epochs, both optional with validateOnly and generateOnly.
    verl: trainer.total_training_steps."""

    epochs: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Passes over the training data. With algorithm.dynamicSampling the run ends with the step that
    uses the last prompt; it may use some of another pass. verl: trainer.total_epochs."""

    validate_every: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """Validate after every n-th step; absent: never during training. verl:
    trainer.test_freq, -1."""

    validate_first: bool = True
    """Validate before the first step. verl: trainer.val_before_train, true."""

    validate_last: bool = True
    """Validate after the last step. verl always does."""

    validate_only: bool = False
    """Run only the first validation; nothing is trained. verl: trainer.val_only, false."""

    generate_only: bool = False
    """Only generate responses to the prompts of data.validation, in responses.parquet; nothing is
    scored or trained, and data.train is not read. verl: main_generation."""

    @property
    def trains(self) -> bool:
        """Whether the job trains at all."""
        return not (self.validate_only or self.generate_only)


class VolumeSpec(Section):
    """A volume: an existing claim, or one that the operator creates, NAME-run."""

    claim_name: ObjectName | None = None
    """PersistentVolumeClaim of the job's namespace; exactly one of claimName and size."""

    size: Quantity | None = None
    """Create a claim of this size, such as 100Gi, for this job only."""

    storage_class_name: ObjectName | None = None
    """Storage class of the created claim; absent: the cluster's default class."""

    access_mode: Literal["ReadWriteMany", "ReadWriteOnce"] = "ReadWriteMany"
    """Access mode of the created claim; with ReadWriteOnce all pods of the job must run on one
    node."""

    when_deleted: Literal["Retain", "Delete"] = "Retain"
    """What happens to the created claim, and to the run in it, when the job is deleted."""


class BestCheckpointSpec(Section):
    """How to select the best checkpoint: by a metric of the validation after its step."""

    metric: Name
    """Name in metrics.jsonl, such as val-core/openai/gsm8k/acc/mean@1."""

    mode: Literal["max", "min"] = "max"
    """Whether larger (max) or smaller (min) is better; of equal values the first is kept."""


class BranchSpec(Section):
    """A checkpoint of another run, from which this run starts with its own settings."""

    run: Path
    """Run folder of a job, or its copy made by copyTo: a path, or an s3://, gs:// or hdfs:// URL.
    verl: trainer.resume_from_path."""

    step: _Step | None = None
    """Step of the checkpoint; absent: the newest. Step numbers continue from it."""


class CheckpointSpec(Section):
    """Checkpoints of everything that a run needs to resume."""

    every: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """Write a checkpoint after every n-th step; absent: only after the last. verl:
    trainer.save_freq, -1."""

    background: bool = False
    """Asynchronous checkpoints: write them during the following steps, from a copy in host memory;
    else the next step waits until they are on disk. verl: checkpoint.async_save, false."""

    keep_last: Annotated[int, Field(ge=2, le=1_000)] = 2
    """Checkpoints kept; at least 2, because a damaged one needs an older one. verl:
    max_actor_ckpt_to_keep, all."""

    best: BestCheckpointSpec | None = None
    """Also keep the checkpoint with the best validation, whatever its age; absent: only
    keepLast."""

    volume: VolumeSpec | None = None
    """Volume of the run folder; required on a cluster. `ppojob run` uses --output instead."""

    copy_to: CopyTarget | None = None
    """Also copy checkpoints and the export there, to a folder of the job's name, during training:
    an s3://, gs:// or hdfs:// URL, or an absolute path. A run whose folder is lost resumes from
    there. verl: trainer.default_hdfs_dir."""

    branch: BranchSpec | None = None
    """Start from a checkpoint of another run: its weights, optimizer moments and position in the
    data, with the settings of this job. A run folder that already holds a checkpoint resumes from
    its own."""

    resume: Literal["auto", "never"] = "auto"
    """auto: resume from the last good checkpoint; never, with `ppojob run` only: refuse a run
    folder that holds one. verl: trainer.resume_mode, auto."""

    export: bool = True
    """Export the last weights as a Hugging Face folder."""


class LifecycleSpec(Section):
    """Start, stop and clean-up of the job; may change while it runs."""

    suspend: bool = False
    """Write a checkpoint and delete the pods; false again: resume."""

    active_deadline_seconds: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    """Fail the job if it is active for longer than this."""

    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    """Delete the job this long after it has ended."""


class RecoverySpec(Section):
    """How often lost processes are restarted."""

    restarts_without_progress: Annotated[int, Field(ge=0, le=1_000_000)] = 3
    """The job fails if a role, or the controller, is lost more often than this without a completed
    step in between; each completed step refills the budget."""


class TimeoutsSpec(Section):
    """When a silent process counts as failed."""

    liveness_seconds: Annotated[float, Field(ge=5, le=31_536_000)] = 20.0
    """A process without a heartbeat for this long is lost; heartbeats come every second once it has
    loaded its program."""

    stage_seconds: Seconds = 1_800.0
    """Longest stage of a step (generation, scoring, update)."""

    startup_seconds: Seconds = 600.0
    """Longest time from the start of a role's pods until they are ready."""
