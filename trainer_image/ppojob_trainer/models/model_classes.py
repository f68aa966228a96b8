"""Model classes that transformers lacks: language models of multimodal ones, MiMo, value models.

transformers has the language model of a multimodal one as part of it, under other names. Here it is
a causal language model like any other, so loading, sharding, checkpoints and engines need no
special case.
"""

import copy
from pathlib import Path
from typing import Any, ClassVar, Final

from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Glm4Config,
    Glm4MoeConfig,
    Llama4ForCausalLM,
    Mistral4Config,
    Mistral4ForCausalLM,
    PreTrainedConfig,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3MoeConfig,
)
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.models.glm4v.modeling_glm4v import Glm4vTextModel
from transformers.models.glm4v_moe.modeling_glm4v_moe import Glm4vMoeTextModel
from transformers.models.glm_ocr.modeling_glm_ocr import GlmOcrTextModel
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniThinkerTextModel
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLTextModel
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLTextModel
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5TextConfig, Qwen3_5TextModel
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import (
    Qwen3_5MoeTextConfig,
    Qwen3_5MoeTextModel,
)
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeThinkerTextModel
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextModel
from transformers.models.qwen3_vl_moe.modeling_qwen3_vl_moe import Qwen3VLMoeTextModel

from ppojob_trainer.data.media.image_files import THINKER
from ppojob_trainer.models.architectures import sizes_of
from ppojob_trainer.models.config_files import TEXT_SECTION, TOWER
from ppojob_trainer.models.families import MULTIMODAL
from ppojob_trainer.models.kinds import CLASSIFIERS, TOKENS
from ppojob_trainer.models.quantised import SECTION


class MiMoConfig(Qwen2Config):  # type: ignore[misc]
    """Configuration of MiMo-7B: Qwen2 under another name; its MTP layer is one of `mtp_layers`."""

    model_type = "mimo"


class MiMoForCausalLM(Qwen2ForCausalLM):  # type: ignore[misc]
    """MiMo without its MTP layer."""

    config_class = MiMoConfig


AutoConfig.register(MiMoConfig.model_type, MiMoConfig, exist_ok=True)
AutoModelForCausalLM.register(MiMoConfig, MiMoForCausalLM, exist_ok=True)
# transformers has it as a part of multimodal models alone.
AutoModelForCausalLM.register(Mistral4Config, Mistral4ForCausalLM, exist_ok=True)
# Its own is no module of it.
Llama4ForCausalLM.base_model_prefix = "model"


class _LanguageModel:
    """A decoder with an output layer, as transformers' causal language models are."""

    decoder: ClassVar[Any]
    text_config: ClassVar[type[PreTrainedConfig]]
    _tied_weights_keys: ClassVar = {"lm_head.weight": "model.embed_tokens.weight"}
    _keys_to_ignore_on_load_unexpected: ClassVar = [rf"^{TOWER}"]

    def __init__(self, config: Any) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        self.model = self.decoder(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()  # type: ignore[attr-defined]

    def forward(self, *, logits_to_keep: int = 0, **inputs: Any) -> CausalLMOutputWithPast:
        """Return the logits of the last tokens, of all for 0; inputs are the decoder's."""
        output = self.model(**inputs)
        logits = self.lm_head(output.last_hidden_state[:, -logits_to_keep:])
        return CausalLMOutputWithPast(logits=logits, past_key_values=output.past_key_values)


class _ScoringModel:
    """A decoder with a classifier's head, of one output.

    Where transformers has such a class, the weights have the same names, except for the heads of
    critics of GPT-2 and GPT-NeoX.
    """

    has_bias: ClassVar[bool]
    _tied_weights_keys: ClassVar = None

    def __init__(self, config: Any) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        own: Any = self
        for name in own._modules.keys() - {own.base_model_prefix}:
            delattr(self, name)
        config.num_labels = 1
        self.score = nn.Linear(config.hidden_size, 1, bias=self.has_bias)


def class_of(config: PreTrainedConfig, made_as: str) -> Any:
    """Return the class of a kind of model; for a causal LM transformers' or our own."""
    causal = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if made_as not in CLASSIFIERS:
        return causal
    name = causal.__name__.partition("For")[0].removesuffix("LMHeadModel")
    # In the module's source transformers looks for what the class supports.
    parts = {"has_bias": made_as == TOKENS, "__module__": causal.__module__}
    return type(f"{name}{made_as}", (_ScoringModel, causal), parts)


def _language_model(
    model_type: str, decoder: Any, text_config: type[PreTrainedConfig], **fields: bool | int
) -> Any:
    """Make the class of a language model, and register it with transformers.

    `text_config` is of the equivalent text-only models; `fields` are further or changed defaults of
    the decoder's configuration.
    """
    name = decoder.__name__.replace("_", "").removesuffix("TextModel")
    types = {field: type(default) for field, default in fields.items()}
    own = {"model_type": model_type, "__annotations__": types, **fields}
    config = type(f"{name}LanguageConfig", (decoder.config_class,), own)
    parts = {"config_class": config, "decoder": decoder, "text_config": text_config}
    model = type(f"{name}ForCausalLM", (_LanguageModel, *decoder.__bases__), parts)
    AutoModelForCausalLM.register(config, model, exist_ok=True)
    return model


_UNTIED: Final = {"tie_word_embeddings": False}
# The number of first layers after which deep image features are added.
_DEEPSTACK: Final = {"image_layers": 0, **_UNTIED}
_MODELS: Final = (
    _language_model("qwen2_vl", Qwen2VLTextModel, Qwen2Config),
    _language_model("qwen2_5_vl", Qwen2_5_VLTextModel, Qwen2Config),
    _language_model("qwen2_5_omni_thinker", Qwen2_5OmniThinkerTextModel, Qwen2Config, **_UNTIED),
    _language_model("qwen3_vl", Qwen3VLTextModel, Qwen3Config, **_DEEPSTACK),
    _language_model("qwen3_vl_moe", Qwen3VLMoeTextModel, Qwen3MoeConfig, **_DEEPSTACK),
    _language_model(
        "qwen3_omni_moe_thinker", Qwen3OmniMoeThinkerTextModel, Qwen3MoeConfig, **_DEEPSTACK
    ),
    _language_model("qwen3_5", Qwen3_5TextModel, Qwen3_5TextConfig),
    _language_model("qwen3_5_moe", Qwen3_5MoeTextModel, Qwen3_5MoeTextConfig),
    _language_model("glm4v", Glm4vTextModel, Glm4Config, attention_bias=True, **_UNTIED),
    _language_model("glm_ocr", GlmOcrTextModel, Glm4Config, attention_bias=False, **_UNTIED),
    _language_model("glm4v_moe", Glm4vMoeTextModel, Glm4MoeConfig, use_qk_norm=False),
)
LANGUAGE_MODELS: Final = {model.config_class.model_type: model for model in _MODELS}


def language_config(folder: Path | str) -> PreTrainedConfig:
    """Return the language model's configuration of a folder, without quantization or download."""
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    if config.model_type == "minicpm3":  # whose code reads it, and the hub's folder has none
        config.rope_parameters.setdefault("factor", 1.0)
    return language_part(unquantised(config))


def unquantised(config: PreTrainedConfig) -> PreTrainedConfig:
    """Return the configuration without quantization."""
    for one in (config, getattr(_whole(config), TEXT_SECTION, config)):
        if hasattr(one, SECTION):
            delattr(one, SECTION)
    return config


def language_part(config: PreTrainedConfig) -> PreTrainedConfig:
    """Return the language model's section of a configuration, or the configuration itself."""
    config = _whole(config)
    if config.model_type in MULTIMODAL:
        return _part_of_whole(config)
    model = LANGUAGE_MODELS.get(config.model_type)
    if model is None or isinstance(config, model.config_class):
        return config
    return model.config_class(**_language_values(config), name_or_path=config.name_or_path)


def text_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """Return the configuration of the equivalent text-only model.

    That is Qwen2 or 3, or GLM-4: for text the three positions of M-RoPE are equal.
    """
    config = _whole(config)
    config = _part_of_whole(config) if config.model_type in MULTIMODAL else config
    if (model := LANGUAGE_MODELS.get(config.model_type)) is None:
        text = config
    else:
        kind, values = model.text_config, _language_values(config)
        names = [kind.__name__.replace("Config", "ForCausalLM")]
        text = kind(**values, architectures=names)
    if ropes := getattr(text, "rope_parameters", None):
        kept = {name: one for name, one in ropes.items() if not name.startswith("mrope")}
        text.rope_parameters = kept
    return text


def _whole(config: PreTrainedConfig) -> PreTrainedConfig:
    """Return the configuration of a multimodal model; of Qwen-Omni its thinker's."""
    thinker: PreTrainedConfig | None = getattr(config, THINKER, None)
    if thinker is None:
        return config
    thinker.name_or_path = config.name_or_path
    return thinker


def _part_of_whole(config: PreTrainedConfig) -> PreTrainedConfig:
    """Return the language model's section as a model of its own, tied as `read_config` says."""
    part: PreTrainedConfig = copy.deepcopy(getattr(config, TEXT_SECTION))
    part.name_or_path = config.name_or_path
    sizes = sizes_of(config.name_or_path)
    assert sizes is not None, "the folder has been checked"
    part.tie_word_embeddings = sizes.is_tied
    part.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING[type(part)].__name__]
    return part


def _language_values(config: PreTrainedConfig) -> dict[str, Any]:
    values: dict[str, Any] = getattr(config, TEXT_SECTION).to_dict()
    for name in ("model_type", "architectures", "_name_or_path"):
        values.pop(name, None)
    if hasattr(LANGUAGE_MODELS[config.model_type].config_class, "image_layers"):
        values["image_layers"] = len(config.vision_config.deepstack_visual_indexes)
        # transformers always interleaves; vLLM needs the key.
        values["rope_parameters"] = {**values["rope_parameters"], "mrope_interleaved": True}
    if config.model_type in {"glm4v", "glm4v_moe", "glm_ocr"}:
        # transformers' defaults, which vLLM lacks.
        values.setdefault("head_dim", values["hidden_size"] // values["num_attention_heads"])
        ropes = {"mrope_section": [8, 12, 12], "partial_rotary_factor": 1.0}
        values["rope_parameters"] = {**ropes, **values["rope_parameters"]}
    return {**values, "tie_word_embeddings": config.tie_word_embeddings}
