import pytest

from ppojob_trainer.retrieval.passages import Passage, passage_of, passages_to_string

CASES = {
    "none": ([], ""),
    "title in quotes, as in Search-R1's corpus": (
        ['"Paris"\nParis is a town.'],
        'Doc 1(Title: "Paris") Paris is a town.\n',
    ),
    "two": (["A\na", "B\nb"], "Doc 1(Title: A) a\nDoc 2(Title: B) b\n"),
    "lines of text stay lines": (["A\na\n\nb"], "Doc 1(Title: A) a\n\nb\n"),
    "a title alone": (["A"], "Doc 1(Title: A) \n"),
    "no title": (["\na"], "Doc 1(Title: ) a\n"),
    "only a line feed ends a title": (["A\u2028B\rC\na"], "Doc 1(Title: A\u2028B\rC) a\n"),
}


def literal_passages2string(found: list[dict[str, dict[str, str]]]) -> str:
    """What Search-R1 does to an answer of its server."""
    told = ""
    for place in range(len(found)):
        lines = found[place]["document"]["contents"].split("\n")
        told = told + "Doc " + str(place + 1) + "(Title: " + lines[0] + ") "
        told = told + "\n".join(lines[1:]) + "\n"
    return told


@pytest.mark.parametrize("name", CASES)
def test_the_text_that_a_policy_reads(name: str) -> None:
    contents, expected = CASES[name]
    passages = [passage_of(str(n), text, 1.0) for n, text in enumerate(contents)]
    assert passages_to_string(passages) == expected
    as_served = [{"document": {"contents": passage.contents}} for passage in passages]
    assert literal_passages2string(as_served) == expected


def test_contents_come_back() -> None:
    assert passage_of("7", '"T"\na\nb', 0.5) == Passage("7", '"T"', "a\nb", 0.5)
    for contents in ('"T"\na\nb', "T", "\na"):
        assert passage_of("7", contents, 0.5).contents == contents
