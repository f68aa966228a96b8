"""The policy's model: its folder, overrides of its configuration, and adapters."""

import math
from typing import Annotated, Final, Literal

from pydantic import Field

from ppojob_api.v1alpha1.section import (
    Arguments,
    FloatType,
    Items,
    Name,
    Path,
    Section,
    Template,
    Tokens,
)

RopeFactor = Annotated[float, Field(gt=0, le=1_000)]


ALL_LINEAR: Final = "all-linear"
"""PEFT's word for all linear layers."""

FROM_BASE: Final = ("pissa", "pissa_niter_4", "pissa_niter_16", "olora")
"""Initial adapters that are a part of the base weights."""


class LoraSpec(Section):
    """Low-rank adapters (Hu et al. 2021, arXiv:2106.09685): y = W x + alpha / rank * B A x.

    A and B are trained, in float32, and W stays as it is.
    """

    rank: Annotated[int, Field(ge=1, le=65_536)]
    """Rows of A and columns of B. verl: actor_rollout_ref.model.lora_rank."""

    alpha: Annotated[float, Field(gt=0, le=1_000_000)] = 16.0
    """An adapter's output is scaled by alpha / rank. verl: lora_alpha, 16."""

    target_modules: Annotated[Items[Name], Field(min_length=1, max_length=64)] | None = None
    """Linear layers with an adapter, such as [q_proj, v_proj]; absent, or [all-linear]: all in the
    decoder layers, neither head nor embedding. Experts stacked in one tensor are
    experts.gate_up_proj and experts.down_proj. verl: target_modules."""

    experts: bool = False
    """Experts of an MoE model get adapters too, each its own: with a rank that is a multiple of 8,
    and without dropout. PEFT and verl: target_parameters, of experts that lie in one tensor."""

    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout of adapters in updates. PEFT and verl: 0. TRL: lora_dropout, 0.05."""

    dropout_position: Literal["pre", "post"] = "pre"
    """pre: of an adapter's inputs, as in PEFT; post: of its outputs. verl: lora.dropout_position,
    pre."""

    init: Literal[
        "kaiming",
        "gaussian",
        "xavier",
        "normal",
        "pissa",
        "pissa_niter_4",
        "pissa_niter_16",
        "olora",
    ] = "kaiming"
    """Initial A: uniform up to 1 / √in, or normal with a deviation of 1 / rank, of
    √(2 / (in + rank)), or of 0.2; B is zero. pissa: the largest singular vectors of W
    (arXiv:2404.02948), with niter by that many steps of a fast decomposition. olora: of its QR
    decomposition (arXiv:2406.01775). PEFT: init_lora_weights. verl: lora_A_init_method, xavier."""

    rank_stabilized: bool = False
    """An adapter's output is scaled by alpha / √rank (rsLoRA, Kalajdzievski 2023,
    arXiv:2312.03732). TRL and PEFT: use_rslora, false."""

    weight_decomposed: bool = False
    """Also train the magnitudes of the rows of W + alpha / rank * B A, apart from their directions
    (DoRA, Liu et al. 2024, arXiv:2402.09353). verl: lora.type, dora. TRL and PEFT: use_dora."""

    base_type: Literal["nf4"] | None = None
    """Storage type of the frozen matrices of attention and feed-forward blocks in the trainer; nf4:
    four bits per number (QLoRA, Dettmers et al. 2023, arXiv:2305.14314). Absent: model.dtype. TRL:
    load_in_4bit."""

    modules_to_save: (
        Annotated[Items[Literal["embed_tokens", "lm_head"]], Field(min_length=1, max_length=2)]
        | None
    ) = None
    """Layers of the policy that are trained whole beside adapters; a tied output layer with the
    embedding. A reference is then a model of its own. TRL: lora_modules_to_save."""

    path: Path | None = None
    """Folder of initial adapters in PEFT's form, like `adapter/` of an export; absent: A is random
    and B is zero. A reference is the policy without them. verl: lora_adapter_path."""

    def adapts(self, layer: str) -> bool:
        """Whether a linear layer of a decoder layer, by its name there, gets an adapter."""
        targets = self.target_modules
        if not targets or ALL_LINEAR in targets:
            return True
        return any(f".{layer}".endswith(f".{target}") for target in targets)

    @property
    def scale(self) -> float:
        """How many times B A counts."""
        return self.alpha / (math.sqrt(self.rank) if self.rank_stabilized else self.rank)

    @property
    def rows(self) -> int:
        """Rows of A and columns of B in files and engines: frozen initial ones too."""
        return 2 * self.rank if self.init in FROM_BASE else self.rank

    @property
    def alpha_of_rows(self) -> float:
        """The alpha with which adapters of so many rows have the same scale."""
        ratio = self.rows / self.rank
        return self.alpha * (math.sqrt(ratio) if self.rank_stabilized else ratio)


class RopeScalingSpec(Section):
    """RoPE scaling for rows longer than the model was trained on."""

    type: Literal["yarn", "llama3", "linear"]
    """yarn: by frequency (Peng et al. 2023, arXiv:2309.00071). llama3: by wavelength, as in Llama
    3.1 (arXiv:2407.21783). linear: all dimensions equally (Chen et al. 2023, arXiv:2306.15595)."""

    factor: Annotated[float, Field(ge=1, le=1_000)]
    """Factor by which rows may be longer. verl: override_config.rope_scaling.factor."""

    original_max_position_embeddings: Tokens | None = None
    """With yarn and llama3, number of positions in the model's training; absent: that of its
    config.json. verl: override_config.rope_scaling.original_max_position_embeddings."""

    low_freq_factor: RopeFactor = 1.0
    """With llama3: dimensions with fewer rotations than this over those positions are scaled by the
    whole factor. Llama 3.1: 1. verl: override_config.rope_scaling.low_freq_factor."""

    high_freq_factor: RopeFactor = 4.0
    """With llama3: dimensions with more rotations than this are not scaled. Llama 3.1: 4. verl:
    override_config.rope_scaling.high_freq_factor."""


class MtpSpec(Section):
    """Training of the multi-token prediction (MTP) layer with the policy."""

    loss_coefficient: Annotated[float, Field(gt=0, le=1_000)] = 0.1
    """Weight of its loss, the cross entropy of its predictions, added to the policy loss. verl:
    mtp_loss_scaling_factor."""

    detach: bool = False
    """Its loss trains only the MTP layer; false: its gradient also flows into the model. verl:
    detach_encoder."""


class ModelSpec(Section):
    """The initial policy."""

    path: Path
    """Folder in Hugging Face form, or its URL: hf://owner/name, s3://BUCKET/FOLDER and similar.
    verl: actor_rollout_ref.model.path."""

    tokenizer_path: Path | None = None
    """Folder of the tokenizer; absent: the model's."""

    dtype: FloatType = "float32"
    """Type of the weights that the optimizer updates; bfloat16 rounds small updates to zero. verl:
    fsdp_config.model_dtype, fp32."""

    chat_template: Template | None = None
    """File with a Jinja chat template, or the template itself; absent: the tokenizer's own.
    verl: custom_chat_template."""

    trust_remote_code: bool = False
    """Always false: code in a model folder is not run. verl: trust_remote_code, false."""

    rope_scaling: RopeScalingSpec | None = None
    """RoPE scaling that replaces that of config.json, for policy, reference, engines, export, and a
    critic of the same folder; absent: as in config.json. verl: override_config.rope_scaling."""

    max_position_embeddings: Tokens | None = None
    """Longest row that the model accepts; absent: that of config.json, and with yarn and llama3
    factor times the positions of its training. verl: override_config.max_position_embeddings."""

    attention_dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Dropout on attention weights in updates; absent: that of config.json. verl:
    override_config.attention_dropout."""

    config_overrides: Arguments = Field(default_factory=dict)
    """Other values for keys of config.json, such as `{rms_norm_eps: 1.0e-6}`, for all models that
    ropeScaling is for. Keys that trainer or engines would ignore are refused. verl:
    override_config."""

    lora: LoraSpec | None = None
    """Train adapters beside frozen weights; absent: all weights are trained."""

    average_decay: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Export an EMA of the trained weights: after each update the average a becomes d a + (1 - d)
    w, where d is this number and w the weights; absent: export the last weights. OpenRLHF:
    ema_beta, 0.992, with enable_ema."""

    mtp: MtpSpec | None = None
    """Also train the multi-token prediction (MTP) layer (DeepSeek-V3, arXiv:2412.19437, section
    2.2); absent: it is exported unchanged. verl: enable_train."""

    freeze_routers: bool = False
    """Freeze the routers of a mixture of experts (MoE). verl: freeze_moe_router, false."""

    freeze_vision_tower: bool = True
    """Freeze the vision tower of a vision-language model; false: it is trained too. verl:
    freeze_vision_tower, false."""
