"""How responses are generated and scored."""

from typing import Annotated, Literal

from pydantic import Field

from ppojob_api.v1alpha1.section import (
    Arguments,
    AutoFloatType,
    CodeSource,
    Count,
    Items,
    MinP,
    Name,
    Path,
    Probability,
    RepetitionPenalty,
    Seconds,
    Section,
    Temperature,
    Template,
    Tokens,
    TopK,
    Url,
)


class ValidationSamplingSpec(Section):
    """Sampling of held-out prompts."""

    temperature: Temperature = 0.0
    """0: greedy. verl: val_kwargs.temperature, 0."""

    top_p: Probability = 1.0
    """Nucleus. verl: val_kwargs.top_p, 1."""

    top_k: TopK = -1
    """-1: all. verl: val_kwargs.top_k, -1."""

    min_p: MinP = 0.0
    """As rollout.minP."""

    repetition_penalty: RepetitionPenalty = 1.0
    """As rollout.repetitionPenalty; it counts with temperature: 0, too."""

    samples: Annotated[int, Field(ge=1, le=65_536)] = 1
    """Responses of each prompt, for mean@n, best@n, maj@n. verl: val_kwargs.n, 1."""


class RolloutParallelism(Section):
    """Layout of the rollout engines over ranks."""

    tensor: Count = 1
    """Ranks that share each matrix product of an engine, its cache and its prompts, of one pod or
    of several whole ones; vLLM alone. It divides the query heads, and is a divisor or a multiple of
    the key heads. verl: tensor_model_parallel_size, 2."""

    expert: Count = 1
    """Ranks that the experts of a mixture are dealt to: 1, each is cut over the ranks of an engine;
    or as many as tensor, each rank has some of them whole. verl: expert_parallel_size, 1."""

    data: Count | None = None
    """Engines; absent: as many as the ranks over tensor."""


class DraftsSpec(Section):
    """Guesses of the next tokens of a row, which an engine reads in one pass."""

    tokens: Annotated[int, Field(ge=1, le=64)] = 4
    """Guesses of a row in a pass, at most. vLLM: num_speculative_tokens."""

    shortest_match: Annotated[int, Field(ge=1, le=64)] = 2
    """Last tokens of a row that must have stood in it before. vLLM: prompt_lookup_min, 5."""

    longest_match: Annotated[int, Field(ge=1, le=64)] = 4
    """As many of them are looked for first, then fewer. vLLM: prompt_lookup_max, 5."""

    max_rows: Annotated[int, Field(ge=1, le=65_536)] = 8
    """Rows of a pass, at most: more of them keep a processor busy without guesses. vLLM:
    num_speculative_tokens_per_batch_size."""


class RolloutSpec(Section):
    """How responses are generated."""

    engine: Literal["vllm", "huggingface"] = "vllm"
    """huggingface is the slow fall-back for tiny models. verl: rollout.name."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of the engine's weights; auto: bfloat16 on GPUs and on processors that multiply it
    natively (AVX512-BF16, AMX), float32 elsewhere. verl: rollout.dtype, bfloat16."""

    temperature: Temperature = 1.0
    """verl: rollout.temperature, 1."""

    top_p: Probability = 1.0
    """verl: rollout.top_p, 1."""

    top_k: TopK = -1
    """-1: all. verl: rollout.top_k, -1."""

    min_p: MinP = 0.0
    """Tokens less likely than this share of the most likely one are not drawn; 0: all are.
    verl: rollout.min_p, which older versions hand to vLLM."""

    repetition_penalty: RepetitionPenalty = 1.0
    """What the logit of a token of prompt or response is divided by where it is positive, and else
    multiplied with, before the next one is drawn; 1: neither.
    verl: rollout.repetition_penalty, which older versions hand to vLLM."""

    max_model_tokens: Tokens | None = None
    """Longest prompt and response together; absent: maxPromptTokens + maxResponseTokens.
    verl: rollout.max_model_len."""

    max_sequences: Annotated[int, Field(ge=1, le=65_536)] = 256
    """Sequences generated at one time. verl: max_num_seqs; vLLM: 256."""

    kv_cache_gib: Annotated[float, Field(gt=0, le=4_096)] | None = None
    """Memory of a rank's key-value cache; absent: the engine's choice."""

    gpu_memory_share: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of a GPU that weights and cache of the engine fill; absent: 0.5 beside a trainer, 0.9
    in pods of roles.rollout. verl: gpu_memory_utilization, 0.5."""

    max_batched_tokens: Tokens | None = None
    """Tokens that an engine computes at one time, those of prompts among them; absent: 8192, or as
    many as maxSequences. Processors compute a whole prompt at one time, however long.
    verl: max_num_batched_tokens, 8192."""

    enforce_eager: bool = False
    """Without CUDA graphs and without compiling, as on processors: slower, in less memory, and
    started sooner. verl: enforce_eager, false."""

    drafts: DraftsSpec | None = None
    """Guess that a row goes on as it did where its last tokens stood before, in prompt or response
    (n-grams, prompt lookup). A guess is kept where it is the token that is drawn in any case: so
    responses are those without drafts, and come sooner where they repeat themselves. Engines of
    vLLM on processors alone, and models whose layers keep no states. vLLM: speculative_config of
    method ngram, which draws otherwise, as verl's mtp.enable_rollout does."""

    engine_arguments: Arguments = Field(default_factory=dict)
    """Further arguments of vLLM, by the names that its EngineArgs has for them, such as
    `compilation_config: {cudagraph_mode: FULL_AND_PIECEWISE}`. What has a field of its own, or is
    not known to the installed vLLM, is refused. Whatever they are, they are part of what decides
    the bits. verl: engine_kwargs.vllm."""

    parallelism: RolloutParallelism = RolloutParallelism()
    """Layout of its own over the same ranks."""

    adapters: Literal["merged", "beside"] = "merged"
    """How engines get those of model.lora. merged: into all weights, which go over at each sync.
    beside: adapters alone go to pods of roles.rollout, which read the weights below from the
    model's folder once; an engine of few digits does not round away what small adapters add.
    verl: model.lora.merge, false, which is beside."""

    validation: ValidationSamplingSpec = ValidationSamplingSpec()
    """Sampling of held-out prompts."""

    max_staleness: Annotated[int, Field(ge=0, le=16)] = 0
    """Versions by which weights that draw tokens may be older than those that train on them.
    Engines in the ranks that train draw so many further steps, or rounds of dynamicSampling,
    beside each, and long rows go on with newer weights: partial rollouts. Those of roles.rollout
    draw while a step trains, with 1 the next one: one step off-policy; with dynamicSampling at
    most 1. AReaL: max_head_offpolicyness."""

    replay: Path | None = None
    """Folder of a run whose rows and scores are trained on again, step by step; nothing is
    generated or scored. For an update to be looked into, or tried otherwise."""

    stop_token_ids: Annotated[
        Items[Annotated[int, Field(ge=0, le=2**31 - 1)]], Field(max_length=256)
    ] = ()
    """Tokens that end a response besides the model's own end tokens."""

    ignore_eos: bool = False
    """Go on behind the model's own end tokens, in validations too: responses of maxResponseTokens,
    but for those that stopTokenIds or a call of a tool end. verl: ignore_eos, false."""


class RewardSource(CodeSource):
    """Where a custom reward function comes from; exactly one member."""

    path: Path | None = None
    """Python file. verl: custom_reward_function.path."""

    package: Name | None = None
    """Module of a package that the image of the reward pods has: our_package.rewards."""


RewardWeight = Annotated[float, Field(ge=-1_000_000, le=1_000_000)]


class RewardModelSpec(Section):
    """A sequence classifier with one label, which scores the whole conversation."""

    path: Path
    """Folder in Hugging Face form, as `ppojob model` makes one of a hub id.
    verl: reward_model.model.path."""

    tokenizer_path: Path | None = None
    """Folder of the tokenizer; absent: the reward model's. verl: reward_model.model.input_tokenizer
    names the policy's; here texts are always tokenised anew."""

    chat_template: Template | None = None
    """File with a Jinja chat template, or the template itself; absent: the tokenizer's own."""

    dtype: AutoFloatType = "auto"
    """Type of the weights; auto: as that of rollout.dtype. verl: bfloat16."""

    max_tokens: Tokens | None = None
    """Longest conversation in the reward model's tokens; absent: what the model takes.
    verl: reward_model.max_length."""

    mean: RewardWeight = 0.0
    """What is subtracted from its score before weight multiplies it, so that scores lie around 0.
    OpenRLHF: mean in a reward model's config.json, with normalize_reward."""

    weight: RewardWeight = 1.0
    """Factor of its score, beside those of `rewards`. OpenRLHF: 1 / std likewise."""


class JudgeSpec(Section):
    """A language model that the job serves; `judge` without a url and own functions ask it."""

    path: Path
    """Folder in Hugging Face form, with a chat template."""

    dtype: AutoFloatType = "auto"
    """Type of the weights; auto: bfloat16 on GPUs and on processors that multiply it natively,
    float32 elsewhere."""

    max_tokens: Tokens | None = None
    """Longest prompt and answer together; absent: what the model was made for."""

    gpu_memory_share: Annotated[float, Field(gt=0, lt=1)] = 0.9
    """Share of a GPU that weights and cache fill."""

    kv_cache_gib: Annotated[float, Field(gt=0, le=4_096)] | None = None
    """Memory of the key-value cache of a GPU, or of a pod on CPU; absent: on GPUs what
    gpuMemoryShare leaves, on CPU 1."""


class SandboxSpec(Section):
    """Where the code of responses runs, for the scorers that run it."""

    level: Literal["namespaces", "restricted", "none"] = "restricted"
    """The least that must stand between that code and the machine; with less it is not run.
    restricted: seccomp and Landlock, what pods can give. namespaces: bubblewrap besides.
    none: run it anyhow. What a machine has is always used. docs/sandbox.md."""

    memory_mib: Annotated[int, Field(ge=64, le=4_096)] = 1_024
    """Address space of a program. No more than a reward process may have itself, 4 GiB: its
    programs inherit that limit. verl: sandbox_fusion.memory_limit_mb, 1024."""

    time_limit_seconds: Annotated[float, Field(ge=1, le=3_600)] = 10.0
    """Of a program, in wall time and in processor time: one test of a response. verl: 10."""

    url: Url | None = None
    """A SandboxFusion service that runs that code instead: http://HOST:8080/run_code. Absent: the
    pods of the job do. verl: sandbox_fusion.url."""


class RewardSpec(Section):
    """One reward function; several are summed by weight."""

    function: Name
    """Name of a function in `source`, or of a scorer that is built in.
    verl: custom_reward_function.name."""

    source: RewardSource | None = None
    """Where the function comes from; absent: built in."""

    weight: RewardWeight = 1.0
    """Factor of its score."""

    arguments: Arguments = Field(default_factory=dict)
    """Keyword arguments of every call; null: left out.
    verl: custom_reward_function.reward_kwargs."""

    time_limit_seconds: Seconds = 10.0
    """A call that takes longer is killed, and fails. Programs of `code` have
    sandbox.timeLimitSeconds each beside it, and attempts of `judge` and `http_score` theirs."""

    error_score: RewardWeight | None = None
    """Score of a response at which a call raises, takes too long, or returns no score; its value
    `failed` is 1 then. Absent: as onError says."""

    on_error: Literal["fail", "drop"] = "fail"
    """What such a call does where errorScore gives no score. drop: the response is not trained on,
    as if it had not been drawn; its value `dropped` is 1."""
