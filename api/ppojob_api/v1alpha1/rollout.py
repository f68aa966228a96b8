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
    """As rollout.repetitionPenalty; it also applies with temperature: 0."""

    samples: Annotated[int, Field(ge=1, le=65_536)] = 1
    """Responses per prompt, for mean@n, best@n, maj@n. verl: val_kwargs.n, 1."""


class RolloutParallelism(Section):
    """Layout of the inference engines over ranks."""

    tensor: Count = 1
    """Tensor parallelism of an engine: ranks of one pod, or of several whole pods, share its matrix
    products, KV cache and prompts; vLLM only. It divides the query heads, and is a divisor or a
    multiple of the key heads. verl: tensor_model_parallel_size, 2."""

    expert: Count = 1
    """Expert parallelism of an engine (MoE). 1: each expert is split over the ranks of an engine;
    the value of tensor: each rank has some experts whole. verl: expert_parallel_size, 1."""

    data: Count | None = None
    """Number of engines; absent: the ranks divided by tensor."""


class DraftsSpec(Section):
    """Speculative decoding: an engine verifies guesses of the next tokens of a row in one pass."""

    tokens: Annotated[int, Field(ge=1, le=64)] = 4
    """Largest number of guessed tokens of a row in a pass. vLLM: num_speculative_tokens."""

    shortest_match: Annotated[int, Field(ge=1, le=64)] = 2
    """Shortest n-gram at the end of a row that must have occurred in it before. vLLM:
    prompt_lookup_min, 5."""

    longest_match: Annotated[int, Field(ge=1, le=64)] = 4
    """Longest such n-gram; it is looked for first, then shorter ones. vLLM:
    prompt_lookup_max, 5."""

    max_rows: Annotated[int, Field(ge=1, le=65_536)] = 8
    """Largest number of rows in a pass with guesses; more rows keep a CPU busy without them. vLLM:
    num_speculative_tokens_per_batch_size."""


class StructuredOutputSpec(Section):
    """The form of responses; exactly one field."""

    regex: Annotated[str, Field(min_length=1, max_length=65_536)] | None = None
    """Regular expression that a whole response matches, without look-around, back references and
    word boundaries. TRL: vllm_structured_outputs_regex."""

    choices: (
        Annotated[
            Items[Annotated[str, Field(min_length=1, max_length=65_536)]],
            Field(min_length=1, max_length=1_024),
        ]
        | None
    ) = None
    """Texts, one of which is the response. vLLM: choice."""

    json_schema: Annotated[str, Field(min_length=1, max_length=65_536)] | None = None
    """JSON schema of the response, as JSON text: properties follow in its order, which a cluster
    would not keep in an object. vLLM: json."""

    grammar: Annotated[str, Field(min_length=1, max_length=65_536)] | None = None
    """Context-free grammar of the response, in Lark's notation or GBNF. vLLM: grammar."""


class RolloutSpec(Section):
    """How responses are generated."""

    engine: Literal["vllm", "huggingface"] = "vllm"
    """Inference engine; huggingface is a slow fallback for tiny models. verl: rollout.name."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of the engine's weights; auto: bfloat16 on GPUs and on CPUs that multiply it natively
    (AVX512-BF16, AMX), float32 elsewhere. verl: rollout.dtype, bfloat16."""

    temperature: Temperature = 1.0
    """verl: rollout.temperature, 1."""

    top_p: Probability = 1.0
    """verl: rollout.top_p, 1."""

    top_k: TopK = -1
    """-1: all. verl: rollout.top_k, -1."""

    min_p: MinP = 0.0
    """Tokens less likely than this share of the most likely token are not sampled; 0: all are.
    verl: rollout.min_p, which older versions hand to vLLM."""

    repetition_penalty: RepetitionPenalty = 1.0
    """Penalty on tokens of the prompt and the response so far: a positive logit is divided by it,
    any other multiplied with it; 1: no penalty. verl: rollout.repetition_penalty, which older
    versions hand to vLLM."""

    max_model_tokens: Tokens | None = None
    """Longest prompt and response together; absent: maxPromptTokens + maxResponseTokens.
    verl: rollout.max_model_len."""

    max_sequences: Annotated[int, Field(ge=1, le=65_536)] = 256
    """Sequences generated at the same time. verl: max_num_seqs; vLLM: 256."""

    kv_cache_gib: Annotated[float, Field(gt=0, le=4_096)] | None = None
    """Memory of a rank's KV cache; absent: the engine's choice."""

    gpu_memory_share: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of a GPU for weights and KV cache of the engine; absent: 0.5 beside a trainer, 0.9 in
    pods of roles.rollout. verl: gpu_memory_utilization, 0.5."""

    max_batched_tokens: Tokens | None = None
    """Tokens that an engine computes at once, including those of prompts; absent: 8192, or
    maxSequences if that is more. CPUs compute a whole prompt at once, however long. verl:
    max_num_batched_tokens, 8192."""

    enforce_eager: bool = False
    """Without CUDA graphs and compilation, as on CPUs: slower, with less memory, and a faster
    start. verl: enforce_eager, false."""

    drafts: DraftsSpec | None = None
    """Speculative decoding with n-grams (prompt lookup): guess that a row continues as it did after
    an earlier occurrence of its last tokens. A guess is kept only if it equals the token that is
    sampled anyway. So responses are the same as without, and repetitive ones come sooner. vLLM on
    CPUs only, and models without recurrent layer states. vLLM: speculative_config of method ngram,
    which draws otherwise, as verl's mtp.enable_rollout does."""

    engine_arguments: Arguments = Field(default_factory=dict)
    """Further arguments of vLLM, by the names of its EngineArgs, such as `compilation_config:
    {cudagraph_mode: FULL_AND_PIECEWISE}`. Arguments with a field here, or unknown to the installed
    vLLM, are refused. All of them count as settings that determine the bits. verl:
    engine_kwargs.vllm."""

    parallelism: RolloutParallelism = RolloutParallelism()

    adapters: Literal["merged", "beside"] = "merged"
    """How engines, in the trainer's pods or those of roles.rollout, get the adapters of model.lora.
    merged: all weights, with adapters merged in, at each sync. beside: base weights and adapters
    apart, so that low-precision engines do not round small adapters away; pods of roles.rollout
    read the base weights from the model's folder once, and are then sent only adapters.
    verl: model.lora.merge, false, which is beside."""

    validation: ValidationSamplingSpec = ValidationSamplingSpec()

    max_staleness: Annotated[int, Field(ge=0, le=16)] = 0
    """Largest staleness in versions: how much older the weights that generate a token may be than
    those that train on it. Engines in the training ranks generate so many further steps, or rounds
    of dynamicSampling, at the same time, and long rows continue with newer weights (partial
    rollouts). Those of roles.rollout generate while a step trains; with 1 the next one (one step
    off-policy); with dynamicSampling at most 1. AReaL: max_head_offpolicyness."""

    replay: Path | None = None
    """Folder of a run whose rows and scores are trained on again, step by step; nothing is
    generated or scored. Use it to debug an update, or to try another one."""

    stop_token_ids: Annotated[
        Items[Annotated[int, Field(ge=0, le=2**31 - 1)]], Field(max_length=256)
    ] = ()
    """Tokens that end a response, in addition to the model's own end tokens."""

    stop_strings: Annotated[
        Items[Annotated[str, Field(min_length=1, max_length=256)]], Field(max_length=64)
    ] = ()
    """Texts that end a response, in validations too, such as </answer>. The token that completes
    one is the last, and stays whole. vLLM: stop."""

    ignore_eos: bool = False
    """Continue past the model's own end tokens, in validations too: responses have
    maxResponseTokens, except those that stopTokenIds, stopStrings or a tool call end. verl:
    ignore_eos, false."""

    structured_output: StructuredOutputSpec | None = None
    """Only sample tokens with which responses have this form, in validations too. vLLM:
    structured_outputs."""


class RewardSource(CodeSource):
    """Where a custom reward function comes from; exactly one field."""

    path: Path | None = None
    """Python file. verl: custom_reward_function.path."""

    package: Name | None = None
    """Module of a package in the image of the reward pods: our_package.rewards."""


RewardWeight = Annotated[float, Field(ge=-1_000_000, le=1_000_000)]


class RewardModelSpec(Section):
    """A sequence classifier with one label, which scores the whole conversation."""

    path: Path
    """Folder in Hugging Face form; `ppojob model` makes one of a hub id. verl:
    reward_model.model.path."""

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
    """Subtracted from its score before the multiplication by weight, so that scores are around 0.
    OpenRLHF: mean in a reward model's config.json, with normalize_reward."""

    weight: RewardWeight = 1.0
    """Factor of its score, beside those of `rewards`. OpenRLHF: 1 / std likewise."""


class JudgeSpec(Section):
    """A language model that the job serves.

    The reward function `judge` without a url, and custom functions, ask it.
    """

    path: Path
    """Folder in Hugging Face form, with a chat template."""

    dtype: AutoFloatType = "auto"
    """Type of the weights; auto: bfloat16 on GPUs and on CPUs that multiply it natively, float32
    elsewhere."""

    max_tokens: Tokens | None = None
    """Longest prompt and answer together; absent: the model's own limit."""

    gpu_memory_share: Annotated[float, Field(gt=0, lt=1)] = 0.9
    """Share of a GPU for weights and KV cache."""

    kv_cache_gib: Annotated[float, Field(gt=0, le=4_096)] | None = None
    """Memory of the KV cache of a GPU, or of a pod on CPU; absent: on GPUs what gpuMemoryShare
    leaves, on CPU 1."""


class SandboxSpec(Section):
    """Sandbox for generated code, used by the reward functions that run it."""

    level: Literal["namespaces", "restricted", "none"] = "restricted"
    """Least isolation that is required; with less the code is not run. restricted: seccomp and
    Landlock, which pods offer. namespaces: bubblewrap too. none: run it anyway. The highest level
    that a machine offers is always used. docs/sandbox.md."""

    memory_mib: Annotated[int, Field(ge=64, le=4_096)] = 1_024
    """Address space of a program, at most that of a reward process, 4 GiB: its programs inherit
    that limit. verl: sandbox_fusion.memory_limit_mb, 1024."""

    time_limit_seconds: Annotated[float, Field(ge=1, le=3_600)] = 10.0
    """Time limit of a program (one test of a response), in wall time and in CPU time. verl: 10."""

    url: Url | None = None
    """A SandboxFusion service that runs the code instead: http://HOST:8080/run_code. Absent: the
    job's own pods run it. verl: sandbox_fusion.url."""


class RewardSpec(Section):
    """One reward function; several are added up by weight."""

    function: Name
    """Name of a function in `source`, or of a built-in reward function. verl:
    custom_reward_function.name."""

    source: RewardSource | None = None
    """Where the function comes from; absent: built in."""

    weight: RewardWeight = 1.0
    """Factor of its score."""

    arguments: Arguments = Field(default_factory=dict)
    """Keyword arguments of every call; null values are omitted. verl:
    custom_reward_function.reward_kwargs."""

    time_limit_seconds: Seconds = 10.0
    """A longer call is killed and fails. Programs of `code` also have sandbox.timeLimitSeconds
    each, and attempts of `judge` and `http_score` their own limits."""

    error_score: RewardWeight | None = None
    """Score of a response if a call raises, takes too long, or returns no score; its value `failed`
    is then 1. Absent: onError applies."""

    on_error: Literal["fail", "drop"] = "fail"
    """What a failed call does without errorScore. fail: the job fails. drop: the response is not
    trained on, as if it had not been generated; its value `dropped` is 1."""
