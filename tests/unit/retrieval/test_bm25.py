"""BM25 against its formula, word for word and document for document."""

import math
import random
from pathlib import Path

import pytest

from ppojob_trainer.retrieval.bm25 import words
from ppojob_trainer.retrieval.build import build_index
from ppojob_trainer.retrieval.index import open_index

WORDS = ["ash", "birch", "cedar", "drum", "elm", "fir", "gum", "hazel", "ivy", "juniper"]


def literal_scores(documents: list[list[str]], query: list[str]) -> list[float]:
    """Lucene's BM25 by loops, with Search-R1's constants; nothing of ours."""
    mean = sum(len(document) for document in documents) / len(documents)
    scores = []
    for document in documents:
        score = 0.0
        for word in query:
            holding = 0
            for other in documents:
                if word in other:
                    holding += 1
            times = 0
            for one in document:
                if one == word:
                    times += 1
            rarity = math.log(1 + (len(documents) - holding + 0.5) / (holding + 0.5))
            score += rarity * times / (times + 0.9 * (1 - 0.4 + 0.4 * len(document) / mean))
        scores.append(score)
    return scores


@pytest.mark.parametrize("seed", range(5))
def test_scores_are_those_of_the_formula(seed: int, tmp_path: Path, write_corpus) -> None:
    chosen = random.Random(seed)
    documents = [chosen.choices(WORDS[:8], k=chosen.randint(1, 12)) for _ in range(40)]
    lines = [
        {"id": f"{n:02d}", "contents": f"{document[0]}\n{' '.join(document[1:])}"}
        for n, document in enumerate(documents)
    ]
    build_index(write_corpus(lines), tmp_path / "i", encoder=None, on_progress=lambda *_: None)
    with open_index(tmp_path / "i") as index:
        for _ in range(20):
            query = chosen.choices(WORDS, k=chosen.randint(1, 6))  # some that no document has
            literal = literal_scores(documents, query)
            (found,) = index.search([" ".join(query)], 40)
            assert {passage.id for passage in found} == {
                f"{n:02d}" for n, score in enumerate(literal) if score > 0
            }
            for passage in found:
                assert passage.score == pytest.approx(literal[int(passage.id)], rel=1e-5)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Mayor's house, in ULFORD", ["mayor", "house", "ulford"]),
        ("the mayor\u2019s", ["mayor"]),
        ("vitamin C and 3 apples", ["vitamin", "c", "3", "apples"]),
        ("naïve Straße 東京", ["naïve", "straße", "東京"]),
        ("it is what it was", ["what"]),
    ],
)
def test_words(text: str, expected: list[str]) -> None:
    assert words(text) == expected
