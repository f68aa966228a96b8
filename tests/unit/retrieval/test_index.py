import gzip
import random
from pathlib import Path

import numpy as np
import pytest

from ppojob_trainer.retrieval.build import build_index
from ppojob_trainer.retrieval.corpus import StoredCorpus
from ppojob_trainer.retrieval.index import best, open_index

QUESTIONS = ["Ulford", "miles off Basmere Orwick"]
QUESTIONS += [f"Where does Brebin{n} live?" for n in range(60)]


def test_a_query_has_the_same_bits_alone_and_among_others(index_folder: Path) -> None:
    chosen = random.Random(1)
    crowd = [*QUESTIONS, *(" ".join(chosen.sample(QUESTIONS, 3)) for _ in range(38))]
    with open_index(index_folder) as index:
        together = index.search(crowd, 5)
        order = chosen.sample(range(len(crowd)), len(crowd))
        shuffled = index.search([crowd[place] for place in order], 5)
        assert shuffled == [together[place] for place in order]
        for query, found in zip(crowd, together, strict=True):
            assert index.search([query], 5) == [found]
            assert index.search([query], 2) == [found[:2]]


def test_what_is_found(index_folder: Path) -> None:
    with open_index(index_folder) as index:
        (found,) = index.search(["Where does Brebin17 live?"], 3)
        assert [passage.score for passage in found] == sorted(
            (passage.score for passage in found), reverse=True
        )
        assert index.search([], 3) == []
        assert index.search(["Brebin17"], 0) == [[]]
        if index_folder.name.endswith("bm25"):
            assert found[0].id == "17"
            assert found[0].contents == '"Brebin17"\nBrebin17 lives in Zafield, 17 miles off.'
            assert index.search(["nobody knows", ""], 3) == [[], []]
        else:
            assert len(index.search([""], 100)[0]) == 60


def test_equal_scores_are_by_id(tmp_path: Path, write_corpus) -> None:
    lines = [{"id": name, "contents": "Twin\nthe same text"} for name in ("b", "10", "a", "9", "é")]
    folder = tmp_path / "index"
    build_index(write_corpus(lines), folder, encoder=None, on_progress=lambda *_: None)
    with open_index(folder) as index:
        for k in range(1, 6):
            (found,) = index.search(["twin text"], k)
            assert [passage.id for passage in found] == ["10", "9", "a", "b", "é"][:k]


@pytest.mark.parametrize("seed", range(30))
def test_the_best_are_those_of_a_full_sort(seed: int) -> None:
    chosen = np.random.default_rng(seed)
    scores = chosen.integers(0, 4, 40).astype(np.float32)  # many ties
    scores[chosen.random(40) < 0.2] = -np.inf
    ranks = chosen.permutation(40).astype(np.int32)
    literal = sorted((-float(scores[n]), int(ranks[n]), n) for n in range(40))
    numbers = [n for score, _, n in literal if score != np.inf]
    for k in (0, 1, 3, 10, 39, 40, 100):
        assert best(scores, ranks, k).tolist() == numbers[:k]


def test_gzip_and_plain_make_the_same_index(tmp_path: Path, write_corpus) -> None:
    lines = [{"id": str(n), "contents": f"T{n}\nword{n} é \u2028"} for n in range(9)]
    plain = write_corpus(lines)
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    a, b = (
        build_index(corpus, tmp_path / name, encoder=None, on_progress=lambda *_: None)
        for corpus, name in ((plain, "a"), (packed, "b"))
    )
    assert a == b
    stored = StoredCorpus(tmp_path / "a")
    assert [stored[n].contents for n in range(len(stored))] == [line["contents"] for line in lines]
    stored.close()
