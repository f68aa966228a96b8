"""Calls beside those that verl's parsers find, run outside of this tree.

The first line of the table has the tools. Of the others, ``theirs`` is what verl (1dda039) finds,
of `search_r1` what Search-R1 (a14dc3a) finds; ``ours`` stands, with the reason, where it differs on
purpose.
"""

import json
from collections import Counter
from pathlib import Path

import pytest

from ppojob_trainer.agents.formats.calls import BadCall, Call
from ppojob_trainer.agents.formats.table import FORMATS

HEAD, *CASES = [
    json.loads(line)
    for line in (Path(__file__).parent / "calls_of_verl.jsonl").read_text().splitlines()
]
OF_VERL = tuple(name for name in FORMATS if name not in ("llama3_json", "search_r1"))


@pytest.mark.parametrize("name", OF_VERL)
def test_calls_are_those_of_verl(name: str) -> None:
    wrong = []
    for case in CASES:
        if case["format"] == name:
            said = FORMATS[name].parse(case["text"], HEAD["tools"] if "tools" in case else ())
            calls = [call for call in said if isinstance(call, Call)]
            found = [[c.name, c.arguments, c.id][: 3 if c.id else 2] for c in calls]
            if found != case.get("ours", case["theirs"])["calls"]:
                wrong.append((case, said))
    assert wrong == []


def test_actions_are_those_of_search_r1() -> None:
    for case in CASES:
        if case["format"] == "search_r1":
            calls = FORMATS["search_r1"].parse(case["text"], ())
            match case["theirs"]:
                case None:
                    assert isinstance(calls[0], BadCall), case
                case ["answer", _]:
                    assert calls == (), case
                case ["search", query]:
                    (call,) = calls
                    assert isinstance(call, Call)
                    assert (call.name, json.loads(call.arguments)) == ("search", {"query": query})


def test_every_format_has_forty_texts_and_most_are_read_as_verl_reads_them() -> None:
    texts = Counter(case["format"] for case in CASES)
    assert set(texts) == {*OF_VERL, "search_r1"}
    assert min(texts.values()) >= 40
    others = Counter(case["format"] for case in CASES if "ours" in case)
    assert all(case["why"] for case in CASES if "ours" in case)
    assert all(count < texts[name] / 2 for name, count in others.items())
