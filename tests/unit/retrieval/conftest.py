import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny_models import NAMES, save_tokenizer
from transformers import BertConfig, BertModel

from ppojob_trainer.retrieval.build import build_index
from ppojob_trainer.retrieval.encoder import encoder_settings

TOWNS = ("Ulford", "Basmere", "Zafield", "Trihaven", "Orwick")


def document(number: int) -> dict[str, str]:
    name, town = f"Brebin{number}", TOWNS[number % len(TOWNS)]
    return {"id": str(number), "contents": f'"{name}"\n{name} lives in {town}, {number} miles off.'}


@pytest.fixture
def write_corpus(tmp_path: Path) -> Callable[..., Path]:
    def write(lines: list[dict[str, str]], name: str = "corpus.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    return write


@pytest.fixture
def encoder_folder(tmp_path: Path) -> Path:
    """A tiny e5: its folder's name says which prefixes it wants."""
    folder = tmp_path / "tiny-e5"
    save_tokenizer(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(NAMES),
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=300,
        initializer_range=0.3,
    )
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    return folder


@pytest.fixture(params=["bm25", "dense"])
def index_folder(request, tmp_path: Path, write_corpus) -> Path:
    """An index of 60 documents, by words and by vectors."""
    corpus = write_corpus([document(number) for number in range(60)])
    settings = None
    if request.param == "dense":
        settings = encoder_settings(request.getfixturevalue("encoder_folder"))
    folder = tmp_path / f"index-{request.param}"
    build_index(corpus, folder, encoder=settings, on_progress=lambda *_: None)
    return folder
