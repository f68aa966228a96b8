"""Messages of forward passes, advantages and updates."""

import msgspec

from ppojob_trainer.metrics.step_metrics import Spread


class Forward(msgspec.Struct, frozen=True):
    """Run a model's forward pass over the training rows and store its column."""

    # `policy` (old log-probabilities), `reference`, `critic` (values or token rewards) or
    # `critic_reference` (of a process reward model)
    model: str


class Advantages(msgspec.Struct, frozen=True):
    """Inputs of advantage estimation, for the whole batch."""

    scores: list[float]
    kl_coefficient: float
    greedy_scores: list[float] = []  # (prompts,) scores of greedy responses; empty if unused
    rewards: list[list[float]] = []  # (keys, rows) further rewards; empty if unused
    dropped: list[int] = []  # rows excluded from training and from the statistics of their group
    masked: list[int] = []  # rows excluded from training only
    step: int = 0  # part of the random key
    outcomes: list[float] = []  # (rows,) targets of a process reward model; empty without one
    baselines: list[float] = []  # (prompts,) tracked values; empty if unused
    positives: list[int] = []  # rows of positive examples; empty if unused


class Advantaged(msgspec.Struct, frozen=True):
    """Statistics of advantage estimation; spreads are over the trained tokens."""

    row_rewards: list[float]  # (rows,) scores with the KL penalty, summed over tokens
    advantages: Spread
    returns: Spread
    zero_signal_groups: float  # share of prompts without advantages
    tokens_owned: list[int]  # (ranks,) tokens of each rank's own rows
    tokens_computed: list[int]  # (ranks,) tokens that each rank computes after balancing
    told: dict[str, float] = {}  # further metrics, by name
    kl: float | None = None  # mean over rows of their mean per token; None without KL in the reward
    values: Spread | None = None  # spread of the critic's values; None without critic
    explained_variance: float | None = None  # share of the returns' variance; None likewise
    row_advantages: list[float] = []  # (rows,) mean over trained tokens
    without_tokens: list[int] = []  # rows without trained tokens


class Update(msgspec.Struct, frozen=True):
    """One optimizer step of a model on the rows of these prompts (batch positions)."""

    model: str  # `policy` or `critic`
    prompts: list[int]
    kl_coefficient: float = 0.0
    entropy_coefficient: float = 0.0
    outcomes: list[float] = []  # (batch rows,) targets of a process reward model, NaN for none
    demonstrations: list[int] = []  # positions of demonstrations that are also learnt
    supervised_coefficient: float = 0.0  # weight of their loss
