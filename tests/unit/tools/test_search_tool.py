import json
from pathlib import Path
from typing import Any

import pytest
from answering_service import Answer, services
from golden_lines import assert_lines, read_lines
from tool_calls import ask, problems_of

from ppojob_api.v1alpha1.agent import AgentSpec
from ppojob_trainer.rpc.messages.agents import ToolAnswer
from ppojob_trainer.tools.pool import ToolPool

pytestmark = pytest.mark.processes

EXPECTED = read_lines(Path(__file__).parent / "bad_searches.txt")
WRONG: dict[str, dict[str, Any]] = {
    "both": {"index": "FOLDER/index", "url": "http://127.0.0.1:1/retrieve"},
    "neither": {"topk": 3},
    "no folder": {"index": "FOLDER/none"},
    "folder of something else": {"index": "FOLDER"},
    "index that is a number": {"index": 7},
    "no passages": {"index": "FOLDER/index", "topk": 0},
    "passages that are no number": {"index": "FOLDER/index", "topk": True},
    "setting that there is not": {"index": "FOLDER/index", "depth": 3},
    "url of nobody": {"url": "retriever:8000"},
    "damaged index": {"index": "FOLDER/damaged"},
}


def agent(config: dict[str, Any]) -> AgentSpec:
    return AgentSpec.model_validate({"tools": [{"name": "search", "config": config}]})


def search(pool: ToolPool, query: str) -> ToolAnswer:
    return ask(pool, "search", json.dumps({"query": query}))


def test_an_index(index: Path) -> None:
    with ToolPool(agent({"index": str(index), "topk": 2})) as pool:
        found = search(pool, "Ulf")
        assert (found.failure, found.reward) == ("", 0.0)
        assert found.text == (
            'Doc 1(Title: "Ulf") Ulf lives in town 0.\n'
            'Doc 2(Title: "Ulf and Bo") Ulf and Bo lives in town 3.\n'
        )
        assert [search(pool, "Ulf").text, search(pool, "nobody").text] == [found.text, ""]
        assert search(pool, "").failure == ""


def test_a_list_of_queries_is_answered_as_by_verls_tool(index: Path) -> None:
    """The texts of `SearchTool` with `search_r1_like_utils` of verl's, of the same passages."""
    listed = {"query_list": {"type": "array"}}
    parameters = {"type": "object", "properties": listed, "required": ["query_list"]}
    config = {"index": str(index), "topk": 2}
    tool = {"name": "search", "config": config, "parameters": parameters}
    with ToolPool(AgentSpec.model_validate({"tools": [tool]})) as pool:
        asked = json.dumps({"query_list": ["Ulf", "nobody"]})
        told = (
            'Doc 1 (Title: "Ulf")\nUlf lives in town 0.\n\n'
            'Doc 2 (Title: "Ulf and Bo")\nUlf and Bo lives in town 3.\n---\n'
        )
        assert json.loads(ask(pool, "search", asked).text) == {"result": told}


def test_a_service() -> None:
    """Search-R1's `/retrieve`, which knows one document; it is away for the query `gone`."""

    def answer(asked: dict[str, Any]) -> Answer:
        contents = f'"{asked["queries"][0]}"\n{asked["topk"]} wanted'
        found = {"result": [[{"document": {"contents": contents}, "score": 1.0}]]}
        return (404 if "gone" in contents else 200), found

    with services("/retrieve") as start, ToolPool(agent({"url": start(answer).url})) as pool:
        assert search(pool, "Ada").text == 'Doc 1(Title: "Ada") 3 wanted\n'
        away = search(pool, "gone")
        assert away.failure == "raised"
        assert away.text.startswith("Error: search failed: RetrievalFailed: ")


@pytest.mark.parametrize("case", sorted(EXPECTED.keys() | WRONG.keys()))
def test_searches_that_cannot_be_made(case: str, index: Path, tmp_path: Path) -> None:
    if case == "damaged index":
        index = index.rename(tmp_path / "damaged")
        passages = index / "passages.jsonl"
        passages.write_bytes(passages.read_bytes()[:-1])
    config = json.loads(json.dumps(WRONG[case]).replace("FOLDER", str(tmp_path)))
    assert_lines(problems_of(agent(config), tmp_path), EXPECTED[case])
