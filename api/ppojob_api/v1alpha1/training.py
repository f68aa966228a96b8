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
    """What an adapter adds counts alpha / rank times. verl: lora_alpha, 16."""

    target_modules: Annotated[Items[Name], Field(min_length=1, max_length=64)] | None = None
    """Linear layers that get an adapter, such as [q_proj, v_proj]; absent, or [all-linear]: all of
    the decoder layers, neither head nor embedding. Experts that lie in one tensor are
    experts.gate_up_proj and experts.down_proj. verl: target_modules."""

    experts: bool = False
    """Experts of a mixture get adapters too, each its own: with a rank that is a multiple of 8, and
    without dropout. PEFT and verl: target_parameters, of experts that lie in one tensor."""

    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of an adapter's inputs that updates drop. PEFT and verl: 0. TRL: lora_dropout, 0.05."""

    rank_stabilized: bool = False
    """What an adapter adds counts alpha / √rank times (Kalajdzievski 2023, arXiv:2312.03732).
    TRL and PEFT: use_rslora, false."""

    weight_decomposed: bool = False
    """The lengths of the rows of W + alpha / rank * B A are trained too, beside where these point
    (DoRA, Liu et al. 2024, arXiv:2402.09353). verl: lora.type, dora. TRL and PEFT: use_dora."""

    base_type: Literal["nf4"] | None = None
    """Type that the trainer keeps the frozen matrices of attention and feed-forward blocks in; nf4:
    four bits a number (QLoRA, Dettmers et al. 2023, arXiv:2305.14314). Absent: model.dtype.
    TRL: load_in_4bit."""

    path: Path | None = None
    """Folder of adapters to begin with, in PEFT's form, as `adapter/` in an export; absent: A is
    drawn and B is zero. A reference is the policy without them. verl: lora_adapter_path."""

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
    """Rotary positions, stretched to longer rows than a model was trained on."""

    type: Literal["yarn", "llama3", "linear"]
    """yarn: by frequency (Peng et al. 2023, arXiv:2309.00071). llama3: by wavelength, as Llama 3.1
    has it (arXiv:2407.21783). linear: all alike (Chen et al. 2023, arXiv:2306.15595)."""

    factor: Annotated[float, Field(ge=1, le=1_000)]
    """How many times as long. verl: override_config.rope_scaling.factor."""

    original_max_position_embeddings: Tokens | None = None
    """Positions that the model was trained on, of yarn and llama3; absent: as its config.json says.
    verl: override_config.rope_scaling.original_max_position_embeddings."""

    low_freq_factor: RopeFactor = 1.0
    """Of llama3: dimensions that turn fewer times than this over those positions are stretched by
    the whole factor. Llama 3.1: 1. verl: override_config.rope_scaling.low_freq_factor."""

    high_freq_factor: RopeFactor = 4.0
    """Of llama3: dimensions that turn more times than this stay as they are. Llama 3.1: 4.
    verl: override_config.rope_scaling.high_freq_factor."""


class MtpSpec(Section):
    """How the layer that predicts the token after the next one is trained beside the policy."""

    loss_coefficient: Annotated[float, Field(gt=0, le=1_000)] = 0.1
    """Weight of its loss, the cross-entropy of its predictions, beside that of the policy.
    verl: mtp_loss_scaling_factor."""

    detach: bool = False
    """Its loss trains the layer alone; false: all that the layer reads learns from it too.
    verl: detach_encoder."""


class ModelSpec(Section):
    """The policy before training."""

    path: Path
    """Folder in Hugging Face form, or its URL: hf://owner/name, s3://BUCKET/FOLDER and the like.
    verl: actor_rollout_ref.model.path."""

    tokenizer_path: Path | None = None
    """Folder of the tokenizer; absent: the model's."""

    dtype: FloatType = "float32"
    """Type of the weights that the optimizer updates; bfloat16 rounds small updates away.
    verl: fsdp_config.model_dtype, fp32."""

    chat_template: Template | None = None
    """File with a Jinja chat template, or the template itself; absent: the tokenizer's own.
    verl: custom_chat_template."""

    trust_remote_code: bool = False
    """Always false: code that lies beside a model is not run. verl: trust_remote_code, false."""

    rope_scaling: RopeScalingSpec | None = None
    """Positions in place of those of its config.json, for policy, reference, engines, export, and a
    critic of the same folder; absent: as there. verl: override_config.rope_scaling."""

    max_position_embeddings: Tokens | None = None
    """Longest row that it takes; absent: as its config.json says, and with yarn and llama3 factor
    times the positions that it was trained on. verl: override_config.max_position_embeddings."""

    attention_dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Share of attention weights that updates drop; absent: as its config.json says.
    verl: override_config.attention_dropout."""

    lora: LoraSpec | None = None
    """Train adapters beside frozen weights; absent: all weights are trained."""

    average_decay: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Export an average of what is trained: after each update the average a becomes
    d a + (1 - d) w, where d is this number and w the weights; absent: the last weights.
    OpenRLHF: ema_beta, 0.992, with enable_ema."""

    mtp: MtpSpec | None = None
    """Train the layer that predicts the token after the next one too (multi-token prediction:
    DeepSeek-V3, arXiv:2412.19437, section 2.2); absent: it is exported as it was.
    verl: enable_train."""

    freeze_routers: bool = False
    """Leave the routers of a mixture of experts as they are. verl: freeze_moe_router, false."""

    freeze_vision_tower: bool = True
    """Leave the vision tower of a model that sees pictures as it is; false: it learns too.
    verl: freeze_vision_tower, false."""


class DataFile(Section):
    """A file of rows, or several that count as one."""

    path: Path
    """Parquet or JSON file, a pattern such as data/train-*.parquet, or a folder: a path that ends
    in /; or a Python file that makes the rows. verl: data.custom_cls.path."""

    format: Literal["auto", "parquet", "jsonl", "python"] = "auto"
    """auto: by the file's ending. jsonl: one object a line, or one array of objects."""

    function: Name | None = None
    """In a Python file, what makes the rows: a function, or a class such as a Dataset of PyTorch;
    absent: rows. verl: data.custom_cls.name."""

    arguments: Arguments | None = None
    """Keyword arguments of the function."""

    weight: Annotated[float, Field(gt=0, le=1_000_000)] | None = None
    """Its share of every batch, beside the weights of the other training files, which have one
    too then; absent: rows count, wherever they are."""

    max_rows: Annotated[int, Field(ge=1, le=2**53)] | None = None
    """Use only its first rows; absent: all."""


class CurriculumSpec(Section):
    """An order of the training rows by how hard they are."""

    key: Name
    """Column, or entry of extra_info, that holds a number for each row."""

    order: Literal["ascending", "descending"] = "ascending"
    """ascending: the smallest number first, in every epoch."""


class SamplerSpec(Section):
    """A function that chooses the rows of each step, by what rows have scored before."""

    function: Name
    """Name of a function in `source`, or of one that is built in: nearest, uncertain."""

    source: CodeSource | None = None
    """Where the function comes from; absent: built in."""

    arguments: Arguments = Field(default_factory=dict)
    """Keyword arguments of every call."""

    columns: Annotated[Items[Name], Field(max_length=16)] = ()
    """Entries of extra_info that the function is told of every row, [level] say."""


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
    """Where prompts come from and how they become tokens."""

    train: Annotated[Items[DataFile], Field(min_length=1, max_length=256)]
    """Training files, read one after the other; with weights each has its share of every batch.
    verl: data.train_files."""

    validation: Annotated[Items[DataFile], Field(max_length=256)] = ()
    """Held-out files. verl: data.val_files."""

    demonstrations: Annotated[Items[DataFile], Field(max_length=256)] = ()
    """Files of rows with their answers, which algorithm.supervised learns: rows as of type sft, in
    an order of their own. OpenRLHF: pretrain_data."""

    prompt_key: Name = "prompt"
    """Column of chat messages, or of text; with algorithm.type: sft of conversations with their
    answers where answerKey is absent. verl: data.prompt_key, prompt."""

    text_prompts: Literal["as_is", "user_message"] = "as_is"
    """What a prompt that is text becomes: user_message is what a model with a chat template
    expects, as_is is for one without."""

    teacher_prompt_key: Name | None = None
    """Column, or path into a struct (extra_info.hint), of what the reference reads in the place of
    the prompt, before the same response: text or messages as the prompt, with the solution in them,
    say (OPSD: arXiv:2601.18734). Absent: the reference reads the prompt. TRL: privileged_context, a
    part of it."""

    answer_key: Name | None = None
    """Column of the ground truth; the row's other columns are its extra_info then. Absent:
    reward_model.ground_truth, and extra_info, as verl has them. With type sft the answer, with kto
    the one that is judged (absent: completion); it and promptKey may be a path into a struct:
    extra_info.answer."""

    guidance_key: Name | None = None
    """Column, or path, of the responses that algorithm.guidance gives: a text, a message of the
    assistant, or a list of such; null: none. LUFFY: target."""

    demonstration_prompt_key: Name | None = None
    """Column, or path, of the same of data.demonstrations: conversations with their answers, or
    prompts where demonstrationAnswerKey is given; absent: promptKey."""

    demonstration_answer_key: Name | None = None
    """Column, or path, of the answers of data.demonstrations; absent: they are in the
    conversations."""

    chosen_key: Name = "chosen"
    """With algorithm.type: dpo or reward_model the column, or path, of the answer that was
    preferred: text, messages, or the whole conversation, whose prompt is then what it has in common
    with the other. OpenRLHF: chosen_key, chosen."""

    rejected_key: Name = "rejected"
    """The same of the other answer. OpenRLHF: rejected_key, rejected."""

    margin_key: Name | None = None
    """With algorithm.type: reward_model the column, or path, that says by how much the rewards of a
    pair are to differ (Llama 2: arXiv:2307.09288); absent: 0 for all. TRL: margin."""

    label_key: Name = "label"
    """With algorithm.type: kto the column, or path, that says whether the answer is good: true or
    false. TRL: label."""

    split_pairs: bool = False
    """With algorithm.type: kto rows are pairs, whose answer in chosenKey is a good one and that in
    rejectedKey a bad one. TRL does so with files of pairs."""

    data_source_key: Name = "data_source"
    """Column that routes a row to its reward, and to its model in reference.teachers.
    verl: data.reward_fn_key, data_source."""

    data_source: Name | None = None
    """The same of every row, where no column says it."""

    max_prompt_tokens: Tokens = 512
    """Longest prompt. verl: data.max_prompt_length, 512."""

    max_teacher_prompt_tokens: Tokens | None = None
    """Longest prompt of teacherPromptKey; absent: maxPromptTokens. With distillation.reprompt the
    longest that is made; absent: maxPromptTokens + maxResponseTokens + 256.
    TRL: max_reprompt_len."""

    max_response_tokens: Tokens = 512
    """Longest response, its end token included; of given answers all that follows the first prompt.
    verl: data.max_response_length, 512."""

    max_picture_pixels: Annotated[int, Field(ge=1, le=2**40)] | None = None
    """Pixels to which a larger picture or frame of a video is made smaller, about; absent: those of
    the model's processor, and of a frame 768 tokens'. verl: data.mm_processor_kwargs.max_pixels."""

    min_picture_pixels: Annotated[int, Field(ge=1, le=2**40)] | None = None
    """Pixels to which a smaller picture or frame of a video is made larger, about; absent: those of
    the model's processor, and of a frame 128 tokens'. verl: data.mm_processor_kwargs.min_pixels."""

    audio_key: Name = "audios"
    """Column of the sounds that a model hears at the marks <audio> of a row.
    verl: data.audio_key, audios."""

    max_train_rows: Annotated[int, Field(ge=1, le=2**53)] | None = None
    """Use only the first rows; absent: all. verl: data.train_max_samples, -1."""

    max_validation_rows: Annotated[int, Field(ge=1, le=2**53)] | None = None
    """Use only the first rows; absent: all. verl: data.val_max_samples, -1."""

    shuffle: bool = True
    """A new seeded order each epoch. verl: data.shuffle, true."""

    seed: Seed | None = None
    """Seed of the order; absent: spec.seed. verl: data.seed."""

    curriculum: CurriculumSpec | None = None
    """Rows in the order of a number; absent: as shuffle says. Equal rows are shuffled."""

    sampler: SamplerSpec | None = None
    """Rows that a function chooses, step by step; absent: as shuffle and curriculum say.
    verl: data.sampler.class_path, a class."""

    scores_key: Name | None = None
    """Column, or entry of extra_info, with the scores of responses that were drawn beforehand, a
    list of numbers: what type spo and samplers know of a row at first. Absent: nothing is known.
    verl: trainer.spo.offline_values, a file."""

    overlong_prompts: Literal[
        "error", "drop", "truncate_left", "truncate_right", "truncate_middle"
    ] = "error"
    """What happens to a prompt above maxPromptTokens, or of teacherPromptKey above
    maxTeacherPromptTokens; also to a given answer above maxResponseTokens, which is cut at its end.
    verl: data.truncation, error; data.filter_overlong_prompts is drop."""

    apply_chat_template_kwargs: Arguments = Field(default_factory=dict)
    """Variables handed to the chat template; null: left out.
    verl: data.apply_chat_template_kwargs."""

    template_columns: Annotated[Items[Name], Field(max_length=16)] = ()
    """Columns that the chat template sees of its row as variables of their names, over those of
    applyChatTemplateKwargs: enable_thinking, say. A cell that is null is left out.
    verl: enable_thinking_key of the SFT trainer, enable_thinking."""

    tools_key: Name = "tools"
    """With algorithm.type: sft, dpo or kto, and of data.demonstrations, the column of what the
    model may call in a row, which the chat template shows: a list of schemas in OpenAI's form, or
    the same as JSON text. Rows without it show none. verl: tools_key of the SFT trainer, tools."""

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


class OptimizerSpec(Section):
    """How gradients become updates, and the schedule of the learning rate."""

    type: Literal["adamw", "muon", "sgd"] = "adamw"
    """adamw: Loshchilov and Hutter 2017, arXiv:1711.05101. muon: orthogonal momentum for the
    matrices of the layers, at the rates of adamw (Liu et al. 2025, arXiv:2502.16982), and adamw for
    the rest. sgd: PyTorch's, which adds weight decay to the gradient. verl: optim.optimizer."""

    learning_rate: LearningRate = 1e-6
    """Peak learning rate. verl: optim.lr, 1e-6."""

    warmup_steps: Annotated[int, Field(ge=0, le=1_000_000_000)] = 0
    """Optimizer steps of linear warm-up. verl: lr_warmup_steps, in training steps."""

    warmup_ratio: Share = 0.0
    """Share of all optimizer steps that warms up, rounded down. verl: lr_warmup_steps_ratio, 0."""

    warmup_start_ratio: Share = 0.0
    """What the warm-up begins at, as a share of learningRate. verl: lr_warmup_init, a rate, 0."""

    schedule: Literal["constant", "linear", "cosine", "polynomial", "inverse_sqrt"] = "constant"
    """After the warm-up; polynomial: by power; inverse_sqrt: by the root of the step, without an
    end. verl: lr_scheduler_type, constant; TRL: linear."""

    decay_steps: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """Optimizer step at which the schedule ends, counted with the warm-up; absent: by decayRatio.
    verl: lr_decay_steps, in training steps."""

    decay_ratio: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of all optimizer steps after which the schedule ends, rounded down.
    verl: lr_decay_ratio, 1."""

    stable_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the schedule that stays at learningRate before it falls (warm-up, stable,
    decay). verl: lr_decay_style: WSD."""

    min_learning_rate_ratio: Share = 0.0
    """What the schedule falls to, as a share of learningRate. verl: min_lr_ratio, 0."""

    cycles: Annotated[float, Field(gt=0, le=1_000)] = 0.5
    """Waves of cosine: 0.5 falls once, 1 falls and rises again. verl: num_cycles, 0.5."""

    power: Annotated[float, Field(gt=0, le=100)] = 2.0
    """Of polynomial, by which the share that is left is raised; 1 is linear. TRL: 1."""

    betas: Annotated[tuple[Beta, Beta], Field(strict=False)] = (0.9, 0.999)
    """Decay of the first and second moment. verl: betas, 0.9 and 0.999."""

    momentum: Beta = 0.95
    """Decay of the momentum of muon and sgd; 0: none. Muon: 0.95. PyTorch's SGD: 0."""

    epsilon: Annotated[float, Field(gt=0, le=1)] = 1e-8
    """Added to the root of the second moment. Adam and PyTorch: 1e-8."""

    moments_dtype: FloatType = "float32"
    """Type of the moments of float32 weights between updates. bfloat16 takes half the memory, and
    is rounded up or down by chance. verl: optim.exp_avg_dtype and exp_avg_sq_dtype, fp32."""

    weight_decay: Share = 0.01
    """Weight decay, decoupled from the gradient but for sgd. verl: weight_decay, 0.01."""

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
    """How forward and backward are computed; none of it changes what is optimised."""

    autocast: Literal["auto", "none", "bfloat16", "float16"] = "auto"
    """Type of the matrix products; none: that of the weights; auto: bfloat16 on GPUs and on
    processors that multiply it natively (AVX512-BF16, AMX), none elsewhere. float16 has three more
    bits and a smaller range, so that losses of updates are scaled (arXiv:1710.03740); with
    rollout.dtype: float16 engine and trainer differ less (arXiv:2510.26788).
    verl: fsdp_config.dtype, bfloat16."""

    micro_batch_tokens: Tokens = 16_384
    """Tokens of one forward and backward; a longer row goes alone. Ranks that share tokens
    (`parallelism.sequence`) have so many each.
    verl: ppo_max_token_len_per_gpu, 16384."""

    logprob_chunk_tokens: Annotated[int, Field(ge=0, le=10_000_000)] = 256
    """Tokens whose logits exist at one time; 0: all of a micro-batch."""

    mlp_tile_tokens: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    """Tokens of which the plain feed-forward block of a layer is computed at one time, and again in
    the backward pass, so that nothing as wide as it is there of all tokens; 0: all at one time.
    verl: tiled_mlp, in numbers of tiles."""

    share_prompts: bool = True
    """Compute the prompt of a group once; gradients are the same."""

    activation_checkpointing: bool = False
    """Recompute activations in the backward pass. verl: enable_gradient_checkpointing."""

    reshard_after_forward: bool = True
    """Give a layer's weights back until its backward pass; false: keep them whole, which takes less
    communication and the memory of a whole model. verl: fsdp_config.reshard_after_forward, true."""

    skip_zero_gradient_groups: bool = True
    """Skip groups whose gradient is provably zero; denominators still count their tokens."""


class CriticOptimizerSpec(OptimizerSpec):
    """The critic's; only the default of the learning rate differs."""

    learning_rate: LearningRate = 1e-5
    """Peak learning rate. verl: critic.optim.lr, 1e-5."""


class CriticSpec(Section):
    """The model that is trained beside the policy.

    Of `type: ppo` the value model, with one output a token; of `type: prime` the process reward
    model, a language model with the policy's tokens.
    """

    path: Path | None = None
    """Folder in Hugging Face form; absent: the policy's, of a value model with a new head.
    verl: critic.model.path; of prime reward_model.model.path."""

    reference_path: Path | None = None
    """With prime, folder of a model with the policy's tokens that the process reward model is
    compared with: what it was made of, where it has learnt before. Absent: itself as the job
    begins; with lora its weights without adapters. verl: reward_model.model.ref_path."""

    lora: LoraSpec | None = None
    """Train adapters beside frozen weights, and a value head whole; absent: all weights are
    trained."""

    optimizer: CriticOptimizerSpec = CriticOptimizerSpec()
    """How it is optimised."""

    value_clip: Annotated[float, Field(gt=0, le=1_000_000)] = 0.5
    """With ppo, a value that the update moved further than this from the one before it is pulled no
    further (PPO2 of OpenAI Baselines). verl: critic.cliprange_value, 0.5."""

    warmup_steps: Annotated[int, Field(ge=0, le=1_000_000_000)] = 0
    """First training steps, in which only the critic trains.
    verl: trainer.critic_warmup, one less than there."""

    epochs: Annotated[int, Field(ge=1, le=1_000)] | None = None
    """Passes over a step's experience; absent: algorithm.epochs. verl: critic.ppo_epochs."""

    mini_batch_prompts: Count | None = None
    """Prompts of one optimizer step; absent: algorithm.miniBatchPrompts.
    verl: critic.ppo_mini_batch_size."""
