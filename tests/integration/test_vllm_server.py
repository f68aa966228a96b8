"""The server of a judge: it says what transformers says, or that it was asked for what is not."""

import json
import os
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from family_models import FAMILY_MODELS
from padded_reference import token_logprobs
from tiny_models import make_model, save_tokenizer, write_model

from ppojob_api import contract
from ppojob_api.v1alpha1.rollout import JudgeSpec
from ppojob_trainer.children.program import Program
from ppojob_trainer.workers.judge import QUIET, server_command

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900)]
ADDRESS = "127.0.2.1"
SIZES = {
    "vocab_size": 128,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "eos_token_id": 2,
}


@contextmanager
def serving(folder: Path, address: str, max_tokens: int) -> Iterator[Program]:
    judge = JudgeSpec(path=str(folder), dtype="float32", max_tokens=max_tokens, kv_cache_gib=0.25)
    command = server_command(judge, address=address, gpus=0)
    with Program(command, {**os.environ, **QUIET}) as server:
        yield server


def asked(path: str, body: dict[str, object] | None = None) -> Any:
    url = f"http://{ADDRESS}:{contract.PORT_JUDGE}/{path}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.loads(answer.read() or "{}")


@pytest.mark.long
@pytest.mark.parametrize("family", ["deepseek_v3", "ernie4_5_moe"])
def test_a_server_says_what_transformers_says(family: str, tmp_path: Path) -> None:
    """Of the folder as transformers writes it, without what it takes for granted."""
    torch.manual_seed(0)
    kind, options = FAMILY_MODELS[family]
    model = make_model(kind, **{**options, **SIZES})
    write_model(tmp_path, model)
    save_tokenizer(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert not {"scoring_func", "topk_method"} & config.keys()
    prompt = torch.randint(3, 128, (40,)).tolist()
    with serving(tmp_path, ADDRESS, 96) as server:
        while True:
            assert server.ended() is None
            try:
                asked("health")
                break
            except OSError:
                time.sleep(0.2)
        body = {"prompt": prompt, "max_tokens": 40, "seed": 1, "ignore_eos": True}
        answer = asked(
            "v1/completions",
            {**body, "model": str(tmp_path), "logprobs": 0, "return_token_ids": True},
        )
    (said,) = answer["choices"]
    tokens = torch.tensor(said["token_ids"])
    model.set_attn_implementation("eager")
    with torch.no_grad():
        ids = torch.tensor([[*prompt, *tokens.tolist()]])
        logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
    expected, _ = token_logprobs(logits, tokens)
    assert len(tokens) == 40
    found = torch.tensor(said["logprobs"]["token_logprobs"])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_what_vllm_refuses_has_a_status_of_its_own(tmp_path: Path) -> None:
    """It is asked for longer texts than the model was made for."""
    kind, options = FAMILY_MODELS["qwen2"]
    write_model(tmp_path, make_model(kind, **options))
    save_tokenizer(tmp_path)
    with serving(tmp_path, "127.0.2.2", 1_000_000) as server:
        while (how := server.ended()) is None:
            time.sleep(0.2)
    assert how == f"exit status {contract.EXIT_INVALID}"
