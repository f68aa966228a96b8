"""The families of models that can be trained: a row says what tells each from llama.

Whatever knows of families asks this table. The packed forward pass is held against that of
transformers for each of them; another one may differ in ways that no error would tell (windows,
multipliers, caps), so it is refused by its name. A new family is a row here, and a model in
`tests/support/family_models.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from ppojob_trainer.json_value import Json

_QUERIES: Final = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_ATTENTION: Final = {"attention_bias": (*_QUERIES, "self_attn.o_proj")}
_FEED_FORWARD: Final = {"mlp_bias": ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")}


@dataclass(frozen=True, slots=True)
class Family:
    """What tells the models of a `model_type` from llama's, whose fields are the defaults here.

    Attributes:
        models: such models, for people.
        defaults: what transformers takes for keys that config.json does not have.
        biases: linear layers of a block that have biases where config.json says true to a key.
        always_biased: those that have one in any case.
        norms: of a block, of what goes into its matrices.
        head_norm: what queries and keys are normalised over, if at all.
    """

    models: str
    defaults: Mapping[str, Json] = field(default_factory=dict)
    biases: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: _ATTENTION)
    always_biased: tuple[str, ...] = ()
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    head_norm: Literal["none", "each head"] = "none"


FAMILIES: Final[Mapping[str, Family]] = {
    "llama": Family("Llama, SmolLM2", biases=_ATTENTION | _FEED_FORWARD),
    "qwen2": Family("Qwen2, Qwen2.5", biases={}, always_biased=_QUERIES),
    "qwen3": Family("Qwen3", defaults={"head_dim": 128}, head_norm="each head"),
}
"""By `model_type` of config.json."""
