"""The families of models that can be trained, and the tensors that each consists of.

The packed forward pass and its attention are tested with these; another family may differ in ways
that no error would tell (windows, biases, scaled embeddings), so it is refused by its name.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ppojob_api.problem import ABSENT, Problem, shown
from ppojob_trainer.json_value import Json
from ppojob_trainer.models.problems import ModelReason

ARCHITECTURES: Final = ("llama", "qwen2", "qwen3")
"""`model_type` of the models whose packed forward is tested; SmolLM2 is a llama."""

EMBEDDING: Final = "model.embed_tokens.weight"
HEAD: Final = "lm_head.weight"

_QWEN3_HEAD_SIZE: Final = 128
_MAX_SIZE: Final = 2**31 - 1
_REQUIRED: Final = {
    "vocab_size": _MAX_SIZE,
    "hidden_size": _MAX_SIZE,
    "intermediate_size": _MAX_SIZE,
    "num_hidden_layers": 10_000,
    "num_attention_heads": _MAX_SIZE,
}

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sizes:
    """What config.json says of a model's sizes.

    Attributes:
        model_type: one of `ARCHITECTURES`.
        vocabulary: rows of the embedding.
        hidden: width of the stream.
        inner: width within a feed-forward block.
        key_heads: key and value heads.
        is_tied: whether the embedding is the output layer too.
        attention_bias: whether llama's and qwen3's projections have biases.
        mlp_bias: whether llama's feed-forward blocks have.
    """

    model_type: str
    vocabulary: int
    hidden: int
    inner: int
    layers: int
    heads: int
    key_heads: int
    head_size: int
    is_tied: bool
    attention_bias: bool
    mlp_bias: bool


def read_sizes(config: Mapping[str, Json], path: Path) -> Sizes | list[Problem]:
    """Read the sizes of a supported architecture, as transformers fills them in."""
    problems = []
    required: dict[str, int] = {}
    for key, most in _REQUIRED.items():
        value = _count(config.get(key))
        if value is None or value > most:
            got = ABSENT if config.get(key) is None else shown(config[key])
            why = "the model is built by it"
            allowed = f"an integer from 1 to {most}"
            problems.append(Problem(f"{path}:{key}", got, why, allowed, ModelReason.BAD_CONFIG))
            continue
        required[key] = value
    if problems:
        return problems
    model_type = str(config["model_type"])
    heads, hidden = required["num_attention_heads"], required["hidden_size"]
    whole = _QWEN3_HEAD_SIZE if model_type == "qwen3" else hidden // heads
    given = None if model_type == "qwen2" else _count(config.get("head_dim"))
    return Sizes(
        model_type=model_type,
        vocabulary=required["vocab_size"],
        hidden=hidden,
        inner=required["intermediate_size"],
        layers=required["num_hidden_layers"],
        heads=heads,
        key_heads=_count(config.get("num_key_value_heads")) or heads,
        head_size=given or whole,
        is_tied=config.get("tie_word_embeddings") is True,
        attention_bias=config.get("attention_bias") is True,
        mlp_bias=config.get("mlp_bias") is True,
    )


def backbone_tensors(sizes: Sizes) -> Iterator[tuple[str, Shape]]:
    """Names and shapes of all tensors of a model but those of its head."""
    yield EMBEDDING, (sizes.vocabulary, sizes.hidden)
    yield "model.norm.weight", (sizes.hidden,)
    for layer in range(sizes.layers):
        for name, shape in _of_a_layer(sizes):
            yield f"model.layers.{layer}.{name}", shape


def linear_layers(sizes: Sizes) -> dict[str, Shape]:
    """Linear layers of each block by their names in it, with the shapes of their weights."""
    hidden, inner = sizes.hidden, sizes.inner
    query, key = sizes.heads * sizes.head_size, sizes.key_heads * sizes.head_size
    return {
        "self_attn.q_proj": (query, hidden),
        "self_attn.k_proj": (key, hidden),
        "self_attn.v_proj": (key, hidden),
        "self_attn.o_proj": (hidden, query),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }


def _of_a_layer(sizes: Sizes) -> Iterator[tuple[str, Shape]]:
    yield "input_layernorm.weight", (sizes.hidden,)
    yield "post_attention_layernorm.weight", (sizes.hidden,)
    biased = _biased(sizes)
    for name, shape in linear_layers(sizes).items():
        yield f"{name}.weight", shape
        if name in biased:
            yield f"{name}.bias", shape[:1]
    if sizes.model_type == "qwen3":
        yield "self_attn.q_norm.weight", (sizes.head_size,)
        yield "self_attn.k_norm.weight", (sizes.head_size,)


def _biased(sizes: Sizes) -> set[str]:
    """Projections that add a bias."""
    queries = {f"self_attn.{name}_proj" for name in "qkv"}
    if sizes.model_type == "qwen2":
        return queries
    found = queries | {"self_attn.o_proj"} if sizes.attention_bias else set()
    if sizes.mlp_bias and sizes.model_type == "llama":
        found |= {f"mlp.{name}_proj" for name in ("gate", "up", "down")}
    return found


def _count(value: Json) -> int | None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MAX_SIZE
    return value if is_count and isinstance(value, int) else None
