"""Messages of forward passes, advantages and updates."""

import msgspec

from ppojob_trainer.metrics.step_metrics import Spread


class Forward(msgspec.Struct, frozen=True):
    """Run a model's forward pass over the training rows and store its column.

    Attributes:
        model: `policy` (old log-probabilities), `reference`, `critic` (values, or rewards of
            tokens) or `critic_reference` (of a process reward model).
    """

    model: str


class Advantages(msgspec.Struct, frozen=True):
    """Inputs of advantage estimation, for the whole batch.

    Attributes:
        greedy_scores: (prompts,) of greedy responses; empty if unused.
        rewards: (keys, rows) the rewards that the estimator names; empty likewise.
        dropped: rows that are not trained on, and do not count among those of their prompt.
        masked: rows that are not trained on, but count.
        step: step of the rows, part of the random key.
        outcomes: (rows,) targets of a process reward model; empty without one.
        baselines: (prompts,) tracked value of each; empty if unused.
        positives: rows that scored well; empty likewise.
    """

    scores: list[float]
    kl_coefficient: float
    greedy_scores: list[float] = []
    rewards: list[list[float]] = []
    dropped: list[int] = []
    masked: list[int] = []
    step: int = 0
    outcomes: list[float] = []
    baselines: list[float] = []
    positives: list[int] = []


class Advantaged(msgspec.Struct, frozen=True):
    """Inputs and results of the estimator, for metrics.

    Attributes:
        row_rewards: (rows,) scores with the KL penalty, summed over tokens.
        advantages: over the trained tokens.
        returns: over the trained tokens.
        told: metrics of weighted or excluded tokens, by name.
        kl: mean over rows of their mean KL to the reference a token; None where the reward has no
            KL.
        values: over the trained tokens; None where there is no critic.
        explained_variance: share of the returns' variance that the values explain; None likewise.
        zero_signal_groups: share of the prompts whose rows have no advantage other than 0.
        tokens_owned: (ranks,) tokens of the rows that each rank generated.
        tokens_computed: (ranks,) tokens of the rows that each rank computes where the batch is one.
        row_advantages: (rows,) mean over the trained tokens of each.
        without_tokens: the rows of which no token is trained, which have no score then.
    """

    row_rewards: list[float]
    advantages: Spread
    returns: Spread
    zero_signal_groups: float
    tokens_owned: list[int]
    tokens_computed: list[int]
    told: dict[str, float] = {}
    kl: float | None = None
    values: Spread | None = None
    explained_variance: float | None = None
    row_advantages: list[float] = []
    without_tokens: list[int] = []


class Update(msgspec.Struct, frozen=True):
    """One optimizer step of a model on the rows of these prompts (positions in the batch).

    Attributes:
        model: `policy` or `critic`.
        outcomes: (rows of the batch,) targets of a process reward model, NaN for none; empty for
            others.
        demonstrations: demonstrations that are also learnt, as positions in a batch of their own.
        supervised_coefficient: their weight; 0 where there are none.
    """

    model: str
    prompts: list[int]
    kl_coefficient: float = 0.0
    entropy_coefficient: float = 0.0
    outcomes: list[float] = []
    demonstrations: list[int] = []
    supervised_coefficient: float = 0.0
