"""What is trained, on which prompts, by which optimizer: a section each; and the critic of PPO."""

import math
from typing import Annotated, Final, Literal

from pydantic import Field

from ppojob_api.v1alpha1.section import (
    Arguments,
    CodeSource,
    Count,
    FloatType,
    Items,
    Name,
    Path,
    Section,
    Seed,
    Template,
    Tokens,
)

Share = Annotated[float, Field(ge=0, le=1)]
Beta = Annotated[float, Field(ge=0, lt=1)]
RopeFactor = Annotated[float, Field(gt=0, le=1_000)]
LearningRate = Annotated[float, Field(gt=0, le=1_000)]


ALL_LINEAR: Final = "all-linear"
"""PEFT's word for all linear layers."""


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

    init: Literal["kaiming", "gaussian", "xavier"] = "kaiming"
    """Initial A: uniform up to 1 / √in, or normal with a deviation of 1 / rank, or of
    √(2 / (in + rank)); B is zero. PEFT: init_lora_weights. verl: lora_A_init_method, xavier."""

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


class DataFile(Section):
    """A file of rows, or several that count as one."""

    path: Path
    """Parquet or JSON file; a pattern such as data/train-*.parquet; a folder: a path that ends in
    /; or a Python file that produces the rows. verl: data.custom_cls.path."""

    format: Literal["auto", "parquet", "jsonl", "python"] = "auto"
    """auto: by the file's extension. jsonl: one object per line, or one array of objects."""

    function: Name | None = None
    """In a Python file, the function or class (such as a PyTorch Dataset) that produces the rows;
    absent: rows. verl: data.custom_cls.name."""

    arguments: Arguments | None = None
    """Keyword arguments of the function."""

    weight: Annotated[float, Field(gt=0, le=1_000_000)] | None = None
    """Its share of every batch, relative to the weights of the other training files, which then all
    need one; absent: all rows count equally."""

    max_rows: Annotated[int, Field(ge=1, le=2**53)] | None = None
    """Use only its first rows; absent: all."""


class CurriculumSpec(Section):
    """An order of the training rows by difficulty."""

    key: Name
    """Column, or entry of extra_info, that holds a number for each row."""

    order: Literal["ascending", "descending"] = "ascending"
    """ascending: the smallest number first, in every epoch."""


class SamplerSpec(Section):
    """A function that chooses the rows of each step by earlier scores of rows."""

    function: Name
    """Name of a function in `source`, or of a built-in one: nearest, uncertain."""

    source: CodeSource | None = None
    """Where the function comes from; absent: built in."""

    arguments: Arguments = Field(default_factory=dict)
    """Keyword arguments of every call."""

    columns: Annotated[Items[Name], Field(max_length=16)] = ()
    """Entries of extra_info that the function gets for every row, for example [level]."""


_OF_ALL_ROWS: Final = (
    "text_prompts",
    "max_prompt_tokens",
    "max_response_tokens",
    "max_picture_pixels",
    "min_picture_pixels",
    "audio_key",
    "shuffle",
    "seed",
    "overlong_prompts",
    "apply_chat_template_kwargs",
    "template_columns",
    "tools_key",
)
"""How rows are read and shuffled, whatever is learnt of them."""


class DataSpec(Section):
    """Where prompts come from, and how they become tokens."""

    train: Annotated[Items[DataFile], Field(min_length=1, max_length=256)]
    """Training files, read one after the other; with weights each has its share of every batch.
    verl: data.train_files."""

    validation: Annotated[Items[DataFile], Field(max_length=256)] = ()
    """Held-out files. verl: data.val_files."""

    demonstrations: Annotated[Items[DataFile], Field(max_length=256)] = ()
    """Files of demonstrations (SFT data) for algorithm.supervised: rows as of type sft, in their
    own order. OpenRLHF: pretrain_data."""

    prompt_key: Name = "prompt"
    """Column of chat messages or of text; with algorithm.type: sft of conversations with their
    answers if answerKey is absent. verl: data.prompt_key, prompt."""

    text_prompts: Literal["as_is", "user_message"] = "as_is"
    """How to use a text prompt: user_message, for a model with a chat template; as_is, for one
    without."""

    teacher_prompt_key: Name | None = None
    """Column, or path into a struct (extra_info.hint), that the reference reads instead of the
    prompt, before the same response: text or messages like the prompt, for example with the
    solution (OPSD: arXiv:2601.18734). Absent: the reference reads the prompt. TRL:
    privileged_context, a part of it."""

    answer_key: Name | None = None
    """Column of the ground truth; the row's other columns are then its extra_info. Absent:
    reward_model.ground_truth, and extra_info, as in verl. With type sft the answer, with kto the
    labelled answer (absent: completion). It and promptKey may be a path into a struct:
    extra_info.answer."""

    guidance_key: Name | None = None
    """Column, or path, of the responses for algorithm.guidance: a text, an assistant message, or a
    list of them; null: none. LUFFY: target."""

    demonstration_prompt_key: Name | None = None
    """Prompt column, or path, of data.demonstrations: conversations with their answers, or prompts
    if demonstrationAnswerKey is given; absent: promptKey."""

    demonstration_answer_key: Name | None = None
    """Answer column, or path, of data.demonstrations; absent: answers are in the conversations."""

    chosen_key: Name = "chosen"
    """With algorithm.type: dpo or reward_model the column, or path, of the preferred answer: text,
    messages, or the whole conversation; the prompt is then the common beginning of both. OpenRLHF:
    chosen_key, chosen."""

    rejected_key: Name = "rejected"
    """The same for the rejected answer. OpenRLHF: rejected_key, rejected."""

    margin_key: Name | None = None
    """With algorithm.type: reward_model the column, or path, of the target difference of a pair's
    rewards (Llama 2: arXiv:2307.09288); absent: 0 for all. TRL: margin."""

    label_key: Name = "label"
    """With algorithm.type: kto the column, or path, of the label: true for a good answer, else
    false. TRL: label."""

    split_pairs: bool = False
    """With algorithm.type: kto rows are pairs: the answer in chosenKey is good and the one in
    rejectedKey is bad. TRL does so with files of pairs."""

    data_source_key: Name = "data_source"
    """Column that selects the reward of a row, and its model in reference.teachers. verl:
    data.reward_fn_key, data_source."""

    data_source: Name | None = None
    """Data source of every row, if no column has it."""

    max_prompt_tokens: Tokens = 512
    """Longest prompt. verl: data.max_prompt_length, 512."""

    max_teacher_prompt_tokens: Tokens | None = None
    """Longest prompt of teacherPromptKey; absent: maxPromptTokens. With distillation.reprompt the
    longest prompt that is built; absent: maxPromptTokens + maxResponseTokens + 256. TRL:
    max_reprompt_len."""

    max_response_tokens: Tokens = 512
    """Longest response, including its end token; for given answers everything after the first
    prompt. verl: data.max_response_length, 512."""

    max_picture_pixels: Annotated[int, Field(ge=1, le=2**40)] | None = None
    """Larger images and video frames are scaled down to about this many pixels; absent: the
    limit of the model's processor, and for a frame 768 tokens. verl:
    data.mm_processor_kwargs.max_pixels."""

    min_picture_pixels: Annotated[int, Field(ge=1, le=2**40)] | None = None
    """Smaller images and video frames are scaled up to about this many pixels; absent: the limit of
    the model's processor, and for a frame 128 tokens. verl: data.mm_processor_kwargs.min_pixels."""

    audio_key: Name = "audios"
    """Column of the audio for the marks <audio> of a row. verl: data.audio_key, audios."""

    max_train_rows: Annotated[int, Field(ge=1, le=2**53)] | None = None
    """Use only the first rows; absent: all. verl: data.train_max_samples, -1."""

    max_validation_rows: Annotated[int, Field(ge=1, le=2**53)] | None = None
    """Use only the first rows; absent: all. verl: data.val_max_samples, -1."""

    shuffle: bool = True
    """Shuffle the rows in each epoch, with the seed. verl: data.shuffle, true."""

    seed: Seed | None = None
    """Seed of the order; absent: spec.seed. verl: data.seed."""

    curriculum: CurriculumSpec | None = None
    """Order rows by a number; absent: as shuffle says. Rows with equal numbers are shuffled."""

    sampler: SamplerSpec | None = None
    """A function chooses the rows of each step; absent: as shuffle and curriculum say. verl:
    data.sampler.class_path, a class."""

    scores_key: Name | None = None
    """Column, or entry of extra_info, with the scores of responses that were generated beforehand,
    a list of numbers: the initial knowledge of type spo and of samplers about a row. Absent: none.
    verl: trainer.spo.offline_values, a file."""

    overlong_prompts: Literal[
        "error", "drop", "truncate_left", "truncate_right", "truncate_middle"
    ] = "error"
    """What happens to a prompt above maxPromptTokens, or of teacherPromptKey above
    maxTeacherPromptTokens; also to a given answer above maxResponseTokens, which is truncated at
    its end. verl: data.truncation, error; data.filter_overlong_prompts is drop."""

    apply_chat_template_kwargs: Arguments = Field(default_factory=dict)
    """Variables passed to the chat template; null values are omitted. verl:
    data.apply_chat_template_kwargs."""

    template_columns: Annotated[Items[Name], Field(max_length=16)] = ()
    """Columns of a row that its chat template gets as variables of the same names, overriding
    applyChatTemplateKwargs: for example enable_thinking. Null cells are omitted. verl:
    enable_thinking_key of the SFT trainer, enable_thinking."""

    tools_key: Name = "tools"
    """With algorithm.type: sft, dpo or kto, and for data.demonstrations, the column with the tools
    of a row, which the chat template shows: a list of schemas in OpenAI's form, or the same as JSON
    text. Rows without it show none. verl: tools_key of the SFT trainer, tools."""

    def tools_column(self, given: str | None) -> str | None:
        """toolsKey, where rows of a job of this type have their answers and these are chats."""
        return self.tools_key if given in {"sft", "dpo", "kto"} else None

    def answer_columns(self, given: str | None) -> tuple[str, ...]:
        """Those of the answers of a row of a job of this type, the better one first, if any."""
        if given in {"dpo", "reward_model"} or self.split_pairs:
            return self.chosen_key, self.rejected_key
        if given == "kto":
            return (self.answer_key or "completion",)
        return (self.answer_key,) if self.answer_key else ()

    @property
    def of_validation(self) -> "DataSpec":
        """How the files of a validation are read: all rows in any order, by the policy alone."""
        of_training = (
            *("curriculum", "sampler", "scores_key", "guidance_key"),
            *("teacher_prompt_key", "max_teacher_prompt_tokens"),
        )
        return self.model_copy(update=dict.fromkeys(of_training))

    @property
    def of_demonstrations(self) -> "DataSpec":
        """How demonstrations are read: as the training rows of a job of type sft."""
        return DataSpec(
            train=self.demonstrations,
            prompt_key=self.demonstration_prompt_key or self.prompt_key,
            answer_key=self.demonstration_answer_key,
            demonstration_prompt_key=self.demonstration_prompt_key,
            demonstration_answer_key=self.demonstration_answer_key,
            **{name: getattr(self, name) for name in _OF_ALL_ROWS},
        )


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

    moments_dtype: FloatType = "float32"
    """Type of the optimizer moments of float32 weights between updates. bfloat16 takes half the
    memory, with stochastic rounding. verl: optim.exp_avg_dtype and exp_avg_sq_dtype, fp32."""

    weight_decay: Share = 0.01
    """Weight decay, decoupled from the gradient except for sgd. verl: weight_decay, 0.01."""

    gradient_clip: Annotated[float, Field(ge=0, le=1_000_000)] = 1.0
    """Largest global gradient norm; 0: no clipping. verl: grad_clip, 1."""

    @property
    def moments(self) -> float:
        """How many times the memory of the weights is kept for them, at the least."""
        numbers = {"adamw": 2, "muon": 1, "sgd": int(self.momentum > 0)}[self.type]
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
