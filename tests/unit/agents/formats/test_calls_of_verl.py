"""Calls beside those that verl's parsers find, run outside of this tree.

The first line of the table has the tools. Of the others, ``theirs`` is what verl (1dda039) finds,
of `search_r1` what Search-R1 (a14dc3a) finds; ``ours`` stands, with the reason, where it differs on
purpose.
"""

import json
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
    cases = [case for case in CASES if case["format"] == name]
    assert len(cases) >= 40
    for case in cases:
        said = FORMATS[name].parse(case["text"], HEAD["tools"] if "tools" in case else ())
        calls = [call for call in said if isinstance(call, Call)]
        found = [[c.name, c.arguments, c.id][: 3 if c.id else 2] for c in calls]
        assert found == case.get("ours", case["theirs"])["calls"], case


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
