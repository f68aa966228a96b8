import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from ppojob_trainer.retrieval.encoder import SentenceEncoder, encoder_settings

TEXTS = ["a", "a longer text of more words", "b c", "x" * 400, "two\nlines"]


def literal_vector(folder: Path, text: str, pooling: str) -> list[float]:
    """One text alone, without padding; pooled and normalised by loops."""
    inputs = AutoTokenizer.from_pretrained(folder)(
        text, max_length=256, truncation=True, return_tensors="pt"
    )
    with torch.no_grad():
        hidden = AutoModel.from_pretrained(folder)(**inputs).last_hidden_state[0].tolist()
    pooled = []
    for axis in range(len(hidden[0])):
        total = 0.0
        for token in hidden:
            total += token[axis]
        pooled.append(hidden[0][axis] if pooling == "cls" else total / len(hidden))
    length = math.sqrt(sum(value * value for value in pooled))
    return [value / length for value in pooled]


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_vectors_are_those_of_loops(pooling, encoder_folder: Path) -> None:
    encoder = SentenceEncoder(encoder_folder, encoder_settings(encoder_folder, pooling=pooling))
    vectors = encoder.passages(TEXTS)
    assert vectors.dtype == np.float32
    for text, vector in zip(TEXTS, vectors, strict=True):
        expected = literal_vector(encoder_folder, f"passage: {text}", pooling)
        np.testing.assert_allclose(vector, expected, atol=2e-6)
        asked = literal_vector(encoder_folder, f"query: {text}", pooling)
        np.testing.assert_allclose(encoder.query(text), asked, atol=2e-6)


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("tiny-e5", {}, ("query: ", "passage: ")),
        ("tiny-e5", {"query_prefix": "", "passage_prefix": "p "}, ("", "p ")),
        ("plain", {}, ("", "")),
        ("BGE-s", {}, ("Represent this sentence for searching relevant passages: ", "")),
    ],
)
def test_prefixes_are_by_the_name_of_the_folder(name, given, expected, encoder_folder) -> None:
    found = encoder_settings(encoder_folder.rename(encoder_folder.with_name(name)), **given)
    assert (found.query_prefix, found.passage_prefix) == expected


@pytest.mark.parametrize(("told", "expected"), [(True, "cls"), (False, "mean")])
def test_pooling_is_what_the_folder_says(told, expected, encoder_folder: Path) -> None:
    (encoder_folder / "1_Pooling").mkdir()
    config = {"pooling_mode_cls_token": told, "pooling_mode_mean_tokens": not told}
    (encoder_folder / "1_Pooling" / "config.json").write_text(json.dumps(config))
    assert encoder_settings(encoder_folder).pooling == expected
    assert encoder_settings(encoder_folder, pooling="mean").pooling == "mean"
