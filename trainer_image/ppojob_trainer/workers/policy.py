"""The policy in training: its weights, its optimizer, its reference, and what a step asks."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_trainer.algorithms.advantages import ADVANTAGES
from ppojob_trainer.algorithms.kl import apply_kl_penalty, kl_estimate
from ppojob_trainer.algorithms.masked import row_mean, row_sum
from ppojob_trainer.checkpoint.files import FileEntry
from ppojob_trainer.checkpoint.tensors import read_shard, write_shard
from ppojob_trainer.engine.forward_engine import ForwardEngine
from ppojob_trainer.engine.fused_logprobs import LogprobSettings
from ppojob_trainer.engine.head import PolicyHead
from ppojob_trainer.engine.policy_objective import PolicyObjective
from ppojob_trainer.engine.train_engine import TrainEngine
from ppojob_trainer.errors import DamagedCommit
from ppojob_trainer.models.state_dict import hf_named_tensors, load_named_tensors
from ppojob_trainer.rows.experience import Experience
from ppojob_trainer.rpc.messages import Advantaged, SavedFile, SpreadOf
from ppojob_trainer.workers.row_store import rewards_on_last_token

ROLE = "actorRollout"
MODEL_FILE = "model.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
RNG_FILE = "rng.safetensors"


class Policy:
    """A model in training.

    Args:
        spec: the job.
        model: causal language model, its own from now on.
        reference: the frozen reference engine; None where no KL needs one.
    """

    def __init__(
        self, spec: PPOJobSpec, model: PreTrainedModel, reference: ForwardEngine | None
    ) -> None:
        self.model = model
        self._spec = spec
        self._reference = reference
        self._engine: TrainEngine | None = None

    @property
    def engine(self) -> TrainEngine:
        """The optimizer's side of the model."""
        assert self._engine is not None, "restore comes before everything else"
        return self._engine

    def plan_updates(self, total_updates: int) -> None:
        """Make the optimizer, now that it is known how many steps it will take."""
        self._engine = TrainEngine(
            self.model,
            policy_head(
                self._spec, "gradient" if self._spec.algorithm.entropy_coefficient else "value"
            ),
            self._spec.training,
            self._spec.optimizer,
            total_steps=total_updates,
        )

    def add_logprobs(self, experience: Experience, model: str) -> dict[str, float]:
        """Fill in the log-probabilities of the policy or of the reference."""
        engine = self.engine if model == "policy" else self._reference
        assert engine is not None, "a reference pass was asked for, and there is no reference"
        logprobs, *_ = engine.predict(experience)
        if model == "policy":
            experience.old_logprobs = logprobs
        else:
            experience.ref_logprobs = logprobs
        return {}

    def add_advantages(
        self, experience: Experience, scores: Sequence[float], kl_coefficient: float
    ) -> Advantaged:
        """Place scores on the last tokens, take the KL penalty off, estimate advantages."""
        algorithm = self._spec.algorithm
        rewards = rewards_on_last_token(experience, scores)
        kl: float | None = None
        if algorithm.kl.in_ == "reward":
            assert experience.old_logprobs is not None
            assert experience.ref_logprobs is not None
            estimate = kl_estimate(
                experience.old_logprobs,
                experience.ref_logprobs,
                algorithm.kl.estimator,
                mask=experience.mask,
            )
            rewards = apply_kl_penalty(rewards, estimate, kl_coefficient)
            kl = float(row_mean(estimate, experience.mask, experience.lengths).mean())
        estimated = ADVANTAGES[algorithm.type](
            rewards,
            experience.mask,
            experience.lengths,
            experience.row_groups,
            **_estimator_options(self._spec),
        )
        experience.token_rewards = rewards
        experience.advantages = estimated.advantages
        experience.returns = estimated.returns
        return Advantaged(
            row_rewards=row_sum(rewards, experience.mask, experience.lengths).tolist(),
            advantages=_spread(estimated.advantages, experience.mask),
            returns=_spread(estimated.returns, experience.mask),
            kl=kl,
        )

    def update(self, experience: Experience, kl_coefficient: float) -> dict[str, float]:
        """One optimizer step on these rows."""
        objective = PolicyObjective.of(
            self._spec.algorithm,
            kl_coefficient,
            max_response_tokens=self._spec.data.max_response_tokens,
        )
        return self.engine.update(experience, objective)

    def save(self, folder: Path, rank: int) -> list[SavedFile]:
        """Write weights, optimizer and random state as this rank's files of a commit."""
        shards = {
            MODEL_FILE: dict(hf_named_tensors(self.model)),
            OPTIMIZER_FILE: self.engine.state_tensors(),
            RNG_FILE: {"torch": torch.get_rng_state()},
        }
        entries = [
            write_shard(folder, f"{ROLE}/rank-{rank:05d}/{name}", tensors, role=ROLE, rank=rank)
            for name, tensors in shards.items()
        ]
        return [SavedFile(entry.path, entry.size_bytes, entry.sha256) for entry in entries]

    def load(self, folder: Path, files: Iterable[SavedFile], rank: int) -> None:
        """Take weights, optimizer and random state from a commit; every file is verified.

        Raises:
            DamagedCommit: a file is absent or not what the manifest says.
        """
        shards = {}
        for file in files:
            entry = FileEntry(
                path=file.path, size_bytes=file.size, sha256=file.sha256, role=ROLE, rank=rank
            )
            shards[Path(file.path).name] = read_shard(folder, entry)
        for name in (MODEL_FILE, OPTIMIZER_FILE, RNG_FILE):
            if name not in shards:
                raise DamagedCommit(f"{folder.name}/{name}", "the commit does not hold this file")
        load_named_tensors(self.model, shards[MODEL_FILE])
        self.engine.load_state(shards[OPTIMIZER_FILE])
        torch.set_rng_state(shards[RNG_FILE]["torch"])


def policy_head(spec: PPOJobSpec, entropy: str) -> PolicyHead:
    """Log-probabilities of the distribution that responses are sampled from.

    Args:
        spec: the job.
        entropy: "none", "value" or "gradient".
    """
    return PolicyHead(
        LogprobSettings(spec.rollout.temperature, spec.training.logprob_chunk_tokens, entropy)
    )


def _estimator_options(spec: PPOJobSpec) -> dict[str, float | bool]:
    """The own options of the job's advantage estimator."""
    algorithm = spec.algorithm
    if algorithm.type == "grpo" and algorithm.grpo is not None:
        return {"normalize_by_std": algorithm.grpo.normalize_by_std}
    if algorithm.reinforce_plus_plus is not None:
        return {"gamma": algorithm.reinforce_plus_plus.gamma}
    return {}


def _spread(values: Tensor, mask: Tensor) -> SpreadOf:
    trained = values[mask]
    if trained.numel() == 0:
        return SpreadOf(float("nan"), float("nan"), float("nan"))
    return SpreadOf(float(trained.mean()), float(trained.max()), float(trained.min()))
