"""How models are trained: optimizers, forward and backward passes, and the critic."""

from typing import Annotated, Final, Literal

from pydantic import Field

from ppojob_api.v1alpha1.model import LoraSpec
from ppojob_api.v1alpha1.section import Count, FloatType, Path, Section, Tokens

Share = Annotated[float, Field(ge=0, le=1)]
Beta = Annotated[float, Field(ge=0, lt=1)]
LearningRate = Annotated[float, Field(gt=0, le=1_000)]


ENDLESS: Final = ("constant", "inverse_sqrt")
"""Schedules that do not end."""


class MuonSpec(Section):
    """Settings of `type: muon`."""

    nesterov: bool = True
    """Nesterov momentum. verl: muon_nesterov, false."""

    ns_steps: Annotated[int, Field(ge=1, le=99)] = 5
    """Newton-Schulz steps. verl: muon_num_ns_steps, 5."""

    coefficients: Literal["simple", "quintic", "polar_express", "cans", "aol", "deepseekv4"] = (
        "simple"
    )
    """Coefficients of the steps, by Megatron's names. verl: muon_coefficient_type, quintic."""

    scale_mode: Literal["spectral", "shape_scaling", "unit_rms_norm"] = "spectral"
    """Scale of a matrix's update: √max(out, in), √max(1, out / in) or √(out / in). verl:
    muon_scale_mode."""

    extra_scale_factor: Annotated[float, Field(gt=0, le=1_000_000)] | None = None
    """Further factor; absent: 0.2 with spectral, as large as AdamW's updates, else 1. verl:
    muon_extra_scale_factor, 1."""


class OptimizerSpec(Section):
    """The optimizer and the learning-rate schedule."""

    type: Literal["adamw", "muon", "sgd"] = "adamw"
    """adamw: Loshchilov and Hutter 2017, arXiv:1711.05101. muon: orthogonalized momentum for the
    matrices of the layers, at the rates of adamw (Liu et al. 2025, arXiv:2502.16982), and adamw for
    the rest. sgd: PyTorch's, which adds weight decay to the gradient. verl: optim.optimizer."""

    learning_rate: LearningRate = 1e-6
    """Peak learning rate. verl: optim.lr, 1e-6."""

    warmup_steps: Annotated[int, Field(ge=0, le=1_000_000_000)] = 0
    """Optimizer steps of linear warm-up. verl: lr_warmup_steps, in training steps."""

    warmup_ratio: Share = 0.0
    """Share of all optimizer steps for the warm-up, rounded down. verl:
    lr_warmup_steps_ratio, 0."""

    warmup_start_ratio: Share = 0.0
    """Initial rate of the warm-up, as a share of learningRate. verl: lr_warmup_init, a rate, 0."""

    schedule: Literal["constant", "linear", "cosine", "polynomial", "inverse_sqrt"] = "constant"
    """Schedule after the warm-up; polynomial: with power; inverse_sqrt: with the root of the step,
    without an end. verl: lr_scheduler_type, constant; TRL: linear."""

    decay_steps: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """Optimizer step at which the schedule ends, including the warm-up; absent: from decayRatio.
    verl: lr_decay_steps, in training steps."""

    decay_ratio: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of all optimizer steps after which the schedule ends, rounded down.
    verl: lr_decay_ratio, 1."""

    stable_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the schedule that stays at learningRate before it falls (warm-up, stable,
    decay). verl: lr_decay_style: WSD."""

    min_learning_rate_ratio: Share = 0.0
    """Final rate of the schedule, as a share of learningRate. verl: min_lr_ratio, 0."""

    cycles: Annotated[float, Field(gt=0, le=1_000)] = 0.5
    """Waves of the cosine: 0.5 falls once, 1 falls and rises again. verl: num_cycles, 0.5."""

    power: Annotated[float, Field(gt=0, le=100)] = 2.0
    """Exponent of polynomial; 1 is linear. TRL: 1."""

    betas: Annotated[tuple[Beta, Beta], Field(strict=False)] = (0.9, 0.999)
    """Decay of the first and second moment. verl: betas, 0.9 and 0.999."""

    momentum: Beta = 0.95
    """Decay of the momentum of muon and sgd; 0: none. Muon: 0.95. PyTorch's SGD: 0."""

    muon: MuonSpec | None = None
    """Settings of type muon."""

    lora_plus_ratio: Annotated[float, Field(gt=0, le=1_000_000)] = 1.0
    """Learning rate of the B of adapters, in that of all else (LoRA+, Hayou et al. 2024,
    arXiv:2402.12354: 16). PEFT: loraplus_lr_ratio."""

    epsilon: Annotated[float, Field(gt=0, le=1)] = 1e-8
    """Added to the root of the second moment. Adam and PyTorch: 1e-8."""

    amsgrad: bool = False
    """Divide by the largest second moment so far (AMSGrad, Reddi et al. 2018, arXiv:1904.09237);
    one more moment is kept. verl: override_optimizer_config.amsgrad, false."""

    moments_dtype: FloatType = "float32"
    """Type of the optimizer moments of float32 weights between updates. bfloat16 takes half the
    memory, with stochastic rounding. verl: optim.exp_avg_dtype and exp_avg_sq_dtype, fp32."""

    weight_decay: Share = 0.01
    """Weight decay, decoupled from the gradient except for sgd. verl: weight_decay, 0.01."""

    decoupled_weight_decay: bool = True
    """With adamw; false: weight decay is added to the gradient before the moments, as in Adam
    (arXiv:1412.6980) with L2 regularization. verl: decoupled_weight_decay, true; optim.optimizer:
    Adam."""

    gradient_clip: Annotated[float, Field(ge=0, le=1_000_000)] = 1.0
    """Largest global gradient norm; 0: no clipping. verl: grad_clip, 1."""

    @property
    def moments(self) -> float:
        """How many times the memory of the weights is kept for them, at the least."""
        adamw, sgd = 2 + int(self.amsgrad), int(self.momentum > 0)
        numbers = {"adamw": adamw, "muon": 1, "sgd": sgd}[self.type]
        return numbers * (0.5 if self.moments_dtype == "bfloat16" else 1.0)

    @property
    def needs_length(self) -> bool:
        """Whether the learning rate depends on how many steps there will be."""
        ends = self.schedule not in ENDLESS and self.decay_steps is None
        return ends or self.warmup_ratio > 0.0


class TrainingSpec(Section):
    """How forward and backward passes are computed; it does not change the objective."""

    autocast: Literal["auto", "none", "bfloat16", "float16"] = "auto"
    """Type of the matrix products; none: that of the weights; auto: bfloat16 on GPUs and on CPUs
    that multiply it natively (AVX512-BF16, AMX), none elsewhere. float16 has three more bits and a
    smaller range, so losses of updates are scaled (arXiv:1710.03740); with rollout.dtype: float16
    engine and trainer differ less (arXiv:2510.26788). verl: fsdp_config.dtype, bfloat16."""

    micro_batch_tokens: Tokens = 16_384
    """Tokens of one forward and backward pass; a longer row runs alone. With sequence parallelism
    (`parallelism.sequence`) tokens per rank. verl: ppo_max_token_len_per_gpu, 16384."""

    logprob_chunk_tokens: Annotated[int, Field(ge=0, le=10_000_000)] = 256
    """Tokens whose logits exist at one time; 0: all of a micro-batch."""

    mlp_tile_tokens: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    """Tiled MLP: tokens of a dense feed-forward block that are computed at once, and recomputed in
    the backward pass, so that its wide activations never exist for all tokens; 0: all at once.
    verl: tiled_mlp, in numbers of tiles."""

    share_prompts: bool = True
    """Compute the shared prompt of a group once; gradients are the same."""

    activation_checkpointing: bool = False
    """Recompute activations in the backward pass. verl: enable_gradient_checkpointing."""

    reshard_after_forward: bool = True
    """Free a layer's gathered weights until its backward pass; false: keep them, which needs less
    communication and the memory of a whole model. verl: fsdp_config.reshard_after_forward, true."""

    skip_zero_gradient_groups: bool = True
    """Skip groups whose gradient is provably zero; denominators still count their tokens."""


class CriticOptimizerSpec(OptimizerSpec):
    """The critic's optimizer; only the default of the learning rate differs."""

    learning_rate: LearningRate = 1e-5
    """Peak learning rate. verl: critic.optim.lr, 1e-5."""


class CriticSpec(Section):
    """The model that is trained beside the policy.

    With `type: ppo` the value model, with one output per token; with `type: prime` the process
    reward model, a language model with the policy's tokenizer.
    """

    path: Path | None = None
    """Folder in Hugging Face form; absent: the policy's, with a new head for a value model. verl:
    critic.model.path; of prime reward_model.model.path."""

    reference_path: Path | None = None
    """With prime, folder of the reference of the process reward model, with the policy's tokenizer:
    the model that it was trained from. Absent: itself at the start of the job; with lora its base
    weights. verl: reward_model.model.ref_path."""

    lora: LoraSpec | None = None
    """Train adapters beside frozen weights, and all of a value head; absent: all weights are
    trained."""

    optimizer: CriticOptimizerSpec = CriticOptimizerSpec()

    value_clip: Annotated[float, Field(gt=0, le=1_000_000)] = 0.5
    """With ppo, clip the change of a value in an update to this (PPO2 of OpenAI Baselines). verl:
    critic.cliprange_value, 0.5."""

    warmup_steps: Annotated[int, Field(ge=0, le=1_000_000_000)] = 0
    """First training steps, in which only the critic is trained. verl: trainer.critic_warmup, one
    less than there."""

    epochs: Annotated[int, Field(ge=1, le=1_000)] | None = None
    """Passes over a step's rollouts; absent: algorithm.epochs. verl: critic.ppo_epochs."""

    mini_batch_prompts: Count | None = None
    """Prompts of one optimizer step; absent: algorithm.miniBatchPrompts.
    verl: critic.ppo_mini_batch_size."""
