"""Writes a model and one batch for `long_tail_update.py`, ours and TRL's: few long responses.

    python benchmarks/long_tail_rows.py --output FOLDER

The model has the shape of Qwen2.5-0.5B cut to four layers, with its vocabulary of 151,936 and
random weights. The batch is 4 groups of 4 responses: 16 rows with 3,096 tokens in all, of the 9,216
that a batch padded to its longest row holds (34 %).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from long_tail_ratio import rows_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

GROUPS, SAMPLES = 4, 4
PROMPT_TOKENS = 64
RESPONSE_TOKENS = (512, 384, 256, 192, 160, 128, 96, 72, 64, 56, 40, 32, 32, 24, 16, 8)
"""Long-tailed, 2,072 in all; dealt out so that each group has long and short ones."""


def config() -> Qwen2Config:
    return Qwen2Config(
        vocab_size=151_936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=4,
        num_attention_heads=14,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        max_position_embeddings=2048,
        bos_token_id=0,
        eos_token_id=1,
    )


def write_tokenizer(folder: Path) -> None:
    """TRL wants one to show the responses; no figure depends on it."""
    words = {"<bos>": 0, "<eos>": 1, "<pad>": 2, "<unk>": 3}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="<unk>")),
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        unk_token="<unk>",
    )
    tokenizer.save_pretrained(folder)


def write_rows(path: Path, vocabulary: int) -> None:
    """One line a row: group, prompt and response token ids, reward."""
    with path.open("w") as file:
        prompts = torch.randint(4, vocabulary, (GROUPS, PROMPT_TOKENS)).tolist()
        for row in range(GROUPS * SAMPLES):
            group, sample = divmod(row, SAMPLES)
            length = RESPONSE_TOKENS[sample * GROUPS + group]
            line = {
                "group": group,
                "prompt_ids": prompts[group],
                "response_ids": torch.randint(4, vocabulary, (length,)).tolist(),
                "reward": float(sample % 2),
            }
            file.write(json.dumps(line) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True)
    folder = parser.parse_args().output
    torch.manual_seed(0)
    Qwen2ForCausalLM(config()).save_pretrained(folder / "model")
    write_tokenizer(folder / "model")
    write_rows(rows_file(folder), config().vocab_size)


if __name__ == "__main__":
    main()
