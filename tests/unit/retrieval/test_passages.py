import pytest

from ppojob_trainer.retrieval.passages import Passage, passages_to_string


def literal_passages2string(found: list[dict[str, dict[str, str]]]) -> str:
    """What Search-R1 does to an answer of its server."""
    told = ""
    for place in range(len(found)):
        lines = found[place]["document"]["contents"].split("\n")
        told = told + "Doc " + str(place + 1) + "(Title: " + lines[0] + ") "
        told = told + "\n".join(lines[1:]) + "\n"
    return told


@pytest.mark.parametrize(
    ("contents", "expected"),
    [
        ([], ""),
        (['"Paris"\nParis is a town.'], 'Doc 1(Title: "Paris") Paris is a town.\n'),
        (["A\na", "B\nb\n\nc"], "Doc 1(Title: A) a\nDoc 2(Title: B) b\n\nc\n"),
        (["A", "\na"], "Doc 1(Title: A) \nDoc 2(Title: ) a\n"),
        (["A\u2028B\rC\na"], "Doc 1(Title: A\u2028B\rC) a\n"),  # only a line feed ends a title
    ],
)
def test_the_text_that_a_policy_reads(contents: list[str], expected: str) -> None:
    passages = [Passage("7", text, 1.0) for text in contents]
    assert passages_to_string(passages) == expected
    as_served = [{"document": {"contents": text}} for text in contents]
    assert literal_passages2string(as_served) == expected
