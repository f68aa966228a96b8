"""Messages of forward passes, advantages and updates."""

import msgspec

from ppojob_trainer.metrics.step_metrics import Spread


class Forward(msgspec.Struct, frozen=True):
    """Run a model's forward pass over the training rows and store its column.

    Attributes:
        model: `policy` (old log-probabilities), `reference`, `critic` (values or token rewards) or
            `critic_reference` (of a process reward model).
    """

    model: str


class Advantages(msgspec.Struct, frozen=True):
    """Inputs of advantage estimation, for the whole batch.

    Attributes:
        greedy_scores: (prompts,) scores of greedy responses; empty if unused.
        rewards: (keys, rows) further rewards of the estimator; empty if unused.
        dropped: rows excluded from training and from the statistics of their group.
        masked: rows excluded from training only.
        step: part of the random key.
        outcomes: (rows,) targets of a process reward model; empty without one.
        baselines: (prompts,) tracked values; empty if unused.
        positives: rows of positive examples; empty if unused.
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
    """Statistics of advantage estimation; spreads are over the trained tokens.

    Attributes:
        row_rewards: (rows,) scores with the KL penalty, summed over tokens.
        told: further metrics, by name.
        kl: mean over rows of their mean KL per token; None without KL in the reward.
        values: spread of the critic's values; None without critic.
        explained_variance: share of the returns' variance explained by the values; None likewise.
        zero_signal_groups: share of prompts without advantages.
        tokens_owned: (ranks,) tokens of each rank's own rows.
        tokens_computed: (ranks,) tokens that each rank computes after balancing.
        row_advantages: (rows,) mean over trained tokens.
        without_tokens: rows without trained tokens.
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
    """One optimizer step of a model on the rows of these prompts (batch positions).

    Attributes:
        model: `policy` or `critic`.
        outcomes: (batch rows,) targets of a process reward model, NaN for none; else empty.
        demonstrations: positions of demonstrations that are also learnt.
        supervised_coefficient: weight of their loss.
    """

    model: str
    prompts: list[int]
    kl_coefficient: float = 0.0
    entropy_coefficient: float = 0.0
    outcomes: list[float] = []
    demonstrations: list[int] = []
    supervised_coefficient: float = 0.0
