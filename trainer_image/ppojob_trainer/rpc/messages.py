"""What the methods of the control RPC carry: ids, lengths, scalars, texts; never a tensor."""

from typing import Literal

import msgspec

from ppojob_trainer.rewards.wire import NotScored

ValueKind = Literal["number", "text"]


class RankState(msgspec.Struct, frozen=True):
    """What a supervisor knows of one of its processes.

    Attributes:
        rank: number within the role.
        pid: process id, 0 before it is started.
        state: `starting`, `ready`, `exited` or `silent` (no heartbeat).
        exit_code: as of `subprocess`: negative is a signal; None while it runs.
        error: the first line of what it reported before it ended, or empty.
    """

    rank: int
    pid: int
    state: str
    exit_code: int | None = None
    error: str = ""


class PodStatus(msgspec.Struct, frozen=True):
    """A supervisor's account of its pod.

    Attributes:
        role: role of the pod.
        pod: index of the pod within the role.
        epoch: epoch whose ranks it runs; 0 before the first.
        phase: `idle`, `starting`, `ready`, `lost` or `done`.
        ranks: its processes.
        reason: why the phase is `lost`, or how it is `done`.
        exit_code: for the controller's pod: how the controller ended.
        restarts: how often processes of this pod were started again.
    """

    role: str
    pod: int
    epoch: int
    phase: str
    ranks: tuple[RankState, ...] = ()
    reason: str = ""
    exit_code: int | None = None
    restarts: int = 0


class StartRanks(msgspec.Struct, frozen=True):
    """Start the ranks of this epoch, after ending those of any earlier one."""

    epoch: int


class PromptTokens(msgspec.Struct, frozen=True, array_like=True):
    """A prompt by its number in the data and its token ids."""

    prompt: int
    tokens: list[int]


class Generate(msgspec.Struct, frozen=True):
    """Generate `samples` responses for each prompt; the rows stay on the rank.

    Attributes:
        purpose: `train` or `validation`; the store of rows has one batch for each.
        step: step of the loop, which goes into every sample's seed.
        first: position in the batch of the first of these prompts.
        prompts: this rank's share of the prompts, in the order of the batch.
        samples: responses a prompt.
        round: generation round of the step, from 0.
        greedy: whether each prompt has a greedy response too, a batch `greedy` of its own.
    """

    purpose: str
    step: int
    first: int
    prompts: list[PromptTokens]
    samples: int
    round: int = 0
    greedy: bool = False


class Generated(msgspec.Struct, frozen=True):
    """Lengths of the responses (rows, prompt-major) and which of them ran into the limit.

    Attributes:
        lengths: (rows,) tokens.
        truncated: (rows,).
        greedy: the same of greedy responses, where they were asked for.
    """

    lengths: list[int]
    truncated: list[bool]
    greedy: "Generated | None" = None


class LoadRows(msgspec.Struct, frozen=True):
    """Take up train rows that lie on the disk instead of generating them.

    Attributes:
        round: generation round of the step, from 0.
        folder: of the step's rows, relative to the run folder, or of another run.
        parts: its files.
        first: position in the batch of the first of this rank's prompts.
        last: one past the last.
        prompts: this rank's share of the prompts, in the order of the batch.
        samples: responses a prompt.
    """

    folder: str
    parts: list[str]
    first: int
    last: int
    prompts: list[PromptTokens]
    samples: int
    round: int = 0


def batch_label(purpose: str, round_: int) -> str:
    """Names a batch within its step; that of the only round is the purpose."""
    return f"{purpose}/{round_}" if round_ else purpose


class BatchName(msgspec.Struct, frozen=True, order=True, array_like=True):
    """Which batch: step, purpose and generation round, after how many rewinds of the job."""

    rewinds: int
    step: int
    purpose: str
    round: int = 0

    @property
    def label(self) -> str:
        """Purpose and round, as in the names of stages."""
        return batch_label(self.purpose, self.round)


class SendTexts(msgspec.Struct, frozen=True):
    """Send the responses of rows `[first, last)` as text to a rank that scores them.

    Attributes:
        batch: whose rows.
        role: role of that rank.
        host: address or name of its pod.
        port: its port.
        epoch: epoch of the role.
        first: first row.
        last: one past the last row.
    """

    batch: BatchName
    role: str
    host: str
    port: int
    epoch: int
    first: int
    last: int


class Texts(msgspec.Struct, frozen=True):
    """Responses as text, from the rank that owns the rows to one that scores them."""

    batch: BatchName
    first: int
    texts: list[str]


class ScoreItem(msgspec.Struct, frozen=True):
    """What a scorer is told of rows `[first, last)`, which answer one prompt, besides their texts.

    Attributes:
        data_source: what routes it to a scorer.
        ground_truth: JSON of the truth.
        extra_info: JSON of the free fields.
        lengths: (rows,) tokens of the responses.
        truncated: (rows,) whether a response ran into the limit.
    """

    first: int
    last: int
    data_source: str
    ground_truth: bytes
    extra_info: bytes
    lengths: list[int]
    truncated: list[bool]


class Score(msgspec.Struct, frozen=True):
    """Score rows whose text has arrived."""

    batch: BatchName
    items: list[ScoreItem]


class RowScore(msgspec.Struct, frozen=True, array_like=True):
    """The score of a row and the scorer's further variables, as JSON."""

    row: int
    score: float
    extras: bytes


class Scored(msgspec.Struct, frozen=True):
    """Scores in the order of the rows, or why there are none."""

    scores: list[RowScore]
    failure: NotScored | None = None


class ModelScoreItem(msgspec.Struct, frozen=True, array_like=True):
    """Rows `[first, last)` for a reward model, and their prompt: JSON of text or chat messages."""

    first: int
    last: int
    prompt: bytes


class ScoreByModel(msgspec.Struct, frozen=True):
    """Score rows whose text has arrived by the reward model; all its ranks do so together.

    Attributes:
        batch: whose rows.
        items: the rows.
        began: unix seconds at which the run began, for a chat template that asks for the date.
    """

    batch: BatchName
    items: list[ModelScoreItem]
    began: float


class ModelScored(msgspec.Struct, frozen=True):
    """Scores in the order of the rows."""

    scores: list[float]


class RowIndex(msgspec.Struct, frozen=True):
    """Which rows a batch has and who owns them: all that plans of transfers are made of.

    Attributes:
        prompt_lengths: (prompts,) tokens.
        lengths: (rows,) response tokens, prompt-major.
        samples: rows a prompt.
        owners: (prompts,) the rank that owns the rows of each prompt.
    """

    prompt_lengths: list[int]
    lengths: list[int]
    samples: int
    owners: list[int]


class PlaceRows(msgspec.Struct, frozen=True):
    """Tell an owner of train rows where all the others are.

    Attributes:
        index: of the rows that are trained on.
        origins: (prompts,) round and position in it of each prompt; None: those of the one round.
    """

    index: RowIndex
    origins: list[tuple[int, int]] | None = None


class OpenChannel(msgspec.Struct, frozen=True):
    """Open the channel between the owners of rows and another role, in their present epochs.

    Attributes:
        role: the role at the other end.
        key: names the pair of epochs.
        owners: ranks of the owning role, members 0, 1, ... of the channel.
        consumers: ranks of the other role, the members behind those.
        store_host: name of the pod whose rank 0 hosts the owners' store.
        store_key: prefix of the keys of the owners' epoch.
    """

    role: str
    key: str
    owners: int
    consumers: int
    store_host: str
    store_key: str


class MoveRows(msgspec.Struct, frozen=True):
    """Move the train rows from their owners to the other role; both sides are told together.

    Attributes:
        role: the role at the other end.
        batch: whose rows; a consumer that has them keeps what it has filled in.
        index: of the rows at their owners.
    """

    role: str
    batch: BatchName
    index: RowIndex


class MoveColumns(msgspec.Struct, frozen=True):
    """Move columns of rows that both roles have; both sides are told together.

    Attributes:
        role: the role at the other end.
        index: of the rows at their owners.
        columns: which.
        to_owners: towards the owners, else away from them.
    """

    role: str
    index: RowIndex
    columns: list[str]
    to_owners: bool


class CutChannel(msgspec.Struct, frozen=True):
    """End whatever waits on the channel to a role that is lost."""

    role: str


class Forward(msgspec.Struct, frozen=True):
    """Run a model over the train rows and keep the column that it gives.

    Attributes:
        model: `policy` (old log-probabilities), `reference` or `critic` (values).
    """

    model: str


class Advantages(msgspec.Struct, frozen=True):
    """What advantages are estimated of, for the whole batch.

    Attributes:
        scores: (rows,).
        kl_coefficient: of this step.
        greedy_scores: (prompts,) of greedy responses; empty where nobody reads them.
        rewards: (keys, rows) the rewards that the estimator names; empty likewise.
    """

    scores: list[float]
    kl_coefficient: float
    greedy_scores: list[float] = []
    rewards: list[list[float]] = []


class SpreadOf(msgspec.Struct, frozen=True, array_like=True):
    """Mean, largest and smallest over the trained tokens of the batch."""

    mean: float
    max: float
    min: float


class Advantaged(msgspec.Struct, frozen=True):
    """What the estimator saw and gave.

    Attributes:
        row_rewards: (rows,) scores with the KL penalty, summed over tokens.
        advantages: over the trained tokens.
        returns: over the trained tokens.
        told: of tokens that were weighed or left out, by name of the metric.
        kl: mean over rows of their mean KL to the reference a token; None where the reward has
            no KL.
        values: over the trained tokens; None where there is no critic.
        explained_variance: share of the returns' variance that the values explain; None likewise.
        zero_signal_groups: share of the prompts whose rows have no advantage other than 0.
        tokens_owned: (ranks,) tokens of the rows that each rank generated.
        tokens_computed: (ranks,) tokens of the rows that each rank computes where the batch is one.
    """

    row_rewards: list[float]
    advantages: SpreadOf
    returns: SpreadOf
    zero_signal_groups: float
    tokens_owned: list[int]
    tokens_computed: list[int]
    told: dict[str, float] = {}
    kl: float | None = None
    values: SpreadOf | None = None
    explained_variance: float | None = None


class Update(msgspec.Struct, frozen=True):
    """One optimizer step of a model on the rows of these prompts (positions in the batch).

    Attributes:
        model: `policy` or `critic`.
        prompts: the mini-batch.
        kl_coefficient: of this step; the critic has no use for it.
    """

    model: str
    prompts: list[int]
    kl_coefficient: float = 0.0


class SyncWeights(msgspec.Struct, frozen=True):
    """Bring the trainer's weights into the rollout engine, as this version."""

    version: int


class WriteRows(msgspec.Struct, frozen=True):
    """Write rows that this rank owns as a part of a parquet folder.

    Attributes:
        purpose: whose rows.
        step: of the loop.
        folder: relative to the run folder.
        part: number of the part.
        first: position in the batch of the first of their prompts.
        scores: of the rows, in row order.
        data_sources: of their prompts.
        ground_truths: JSON, of their prompts.
        extras: the scorers' further values as JSON, in row order.
        value_kinds: of those values in the whole batch, so that all parts have the same columns.
        round: generation round of the step, from 0.
    """

    purpose: str
    step: int
    folder: str
    part: int
    first: int
    scores: list[float]
    data_sources: list[str]
    ground_truths: list[bytes]
    extras: list[bytes]
    value_kinds: dict[str, ValueKind]
    round: int = 0


class SaveShards(msgspec.Struct, frozen=True):
    """Write this rank's part of a commit into a folder relative to the run folder."""

    folder: str


class SavedFile(msgspec.Struct, frozen=True):
    """A file of a commit: name within it, size in bytes, sha256 in hexadecimal."""

    path: str
    size: int
    sha256: str


class Saved(msgspec.Struct, frozen=True):
    """The files that a rank wrote."""

    files: list[SavedFile]


class Restore(msgspec.Struct, frozen=True):
    """Take the state of a commit, or of the models that the job began with.

    Attributes:
        folder: the commit's, relative to the run folder; None for the models of the beginning.
        files: all files of the models that this rank holds a part of, whichever rank wrote them.
        total_updates: optimizer steps of the whole job by model, for schedules that end.
    """

    folder: str | None
    files: list[SavedFile]
    total_updates: dict[str, int]


class ExportModel(msgspec.Struct, frozen=True):
    """Write the model as a Hugging Face folder, relative to the run folder."""

    folder: str
