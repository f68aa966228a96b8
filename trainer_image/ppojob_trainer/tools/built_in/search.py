"""Corpus search, as in Search-R1: in a local index or by an HTTP service."""

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

from ppojob_api.problem import shown
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.json_value import Json
from ppojob_trainer.retrieval.http_retriever import HttpRetriever
from ppojob_trainer.retrieval.passages import Retriever, passages_to_paragraphs, passages_to_string
from ppojob_trainer.tools.arguments import WrongArguments
from ppojob_trainer.tools.built_in.tool import BuiltIn, Call, parameters

_PASSAGES: Final = 3
_WHERE: Final = "index (a folder that ppojob index made) or url"


def search(call: Call) -> str:
    """Return the best passages for a query, or for each query of a list."""
    index, url, top = _settings(call.config)
    return answer(_retriever(index, url), call.arguments, top)


def answer(retriever: Retriever, arguments: Mapping[str, Json], passages: int) -> str:
    """Format passages: for `query` as Search-R1, for `query_list` as verl's SearchTool."""
    queries = arguments.get("query_list")
    if queries is None and "query" not in arguments:
        raise WrongArguments("query is missing")
    if not isinstance(queries, list):
        return passages_to_string(retriever.search([str(arguments["query"])], passages)[0])
    found = retriever.search([str(one) for one in queries], passages)
    text = "\n---\n".join(passages_to_paragraphs(one) for one in found)
    return json.dumps({"result": text or "No search results found."}, ensure_ascii=False)


def open_search(config: Mapping[str, Json]) -> None:
    """Open the index or the service, so that a mistake is found before the first call."""
    index, url, _ = _settings(config)
    try:
        _retriever(index, url)
    except ConfigError as wrong:
        place, _, what = wrong.problems[0].partition(": got ")
        what = f"config.index: got {place} with {what}" if index else f"config.url: got {what}"
        raise ConfigError(what) from None


def _settings(config: Mapping[str, Json]) -> tuple[str, str, int]:
    top = passages_a_query({"topk": config.get("topk", _PASSAGES)})
    index, url = config.get("index", ""), config.get("url", "")
    for name in sorted(config.keys() - {"index", "url", "topk"}):
        raise ConfigError(
            f"config.{name}: got {shown(config[name])}: no such setting; {_WHERE}, and topk"
        )
    if not isinstance(index, str) or not isinstance(url, str) or bool(index) == bool(url):
        got = shown(dict(config))
        raise ConfigError(f"config: got {got}: it has no index; {_WHERE}")
    return index, url, top


def passages_a_query(config: Mapping[str, Json]) -> int:
    """Return the passages per query, for a corpus that is defined elsewhere."""
    for name in sorted(config.keys() - {"topk"}):
        got = shown(config[name])
        raise ConfigError(f"config.{name}: got {got}: agent.retriever sets what is searched; topk")
    top = config.get("topk", _PASSAGES)
    if not isinstance(top, int) or isinstance(top, bool) or top < 1:
        raise ConfigError(f"config.topk: got {shown(top)}: not a number of passages; at least 1")
    return top


@lru_cache
def _retriever(index: str, url: str) -> Retriever:
    if not index:
        return HttpRetriever(url)
    # Late: it imports NumPy, which most tool processes do not need.
    from ppojob_trainer.retrieval.index import open_index

    return open_index(Path(index))


TOOL: Final = BuiltIn(
    search,
    "Searches a corpus and gives the passages that fit best.",
    parameters(query="What to search for."),
    opens=open_search,
)
