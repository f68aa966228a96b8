"""Search in a corpus: Search-R1's, in an index of this pod or by a service over HTTP."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

from ppojob_trainer.errors import ConfigError
from ppojob_trainer.json_value import Json
from ppojob_trainer.retrieval.http_retriever import HttpRetriever
from ppojob_trainer.retrieval.index import open_index
from ppojob_trainer.retrieval.passages import Retriever, passages_to_string
from ppojob_trainer.tools.built_in.tool import BuiltIn, Call, parameters

_PASSAGES: Final = 3
_SETTINGS: Final = "config of index (a folder of ppojob index) or url, and topk"


def search(call: Call) -> str:
    """The best passages for a query, as Search-R1 writes them."""
    index, url, top = _settings(call.config)
    found = _retriever(index, url).search([str(call.arguments["query"])], top)
    return passages_to_string(found[0])


def open_search(config: Mapping[str, Json]) -> None:
    """Open what the settings name, so that a mistake is found before the first call.

    Raises:
        ConfigError: the settings are not those of a search, or name no index.
    """
    index, url, _ = _settings(config)
    _retriever(index, url)


def _settings(config: Mapping[str, Json]) -> tuple[str, str, int]:
    index, url, top = config.get("index", ""), config.get("url", ""), config.get("topk", _PASSAGES)
    is_one = isinstance(index, str) and isinstance(url, str) and bool(index) != bool(url)
    is_top = isinstance(top, int) and not isinstance(top, bool) and top >= 1
    if not is_one or not is_top or config.keys() - {"index", "url", "topk"}:
        told = ", ".join(sorted(config)) or "nothing"
        raise ConfigError(f"got {told}: it does not say what is searched; {_SETTINGS}")
    assert isinstance(index, str)
    assert isinstance(url, str)
    assert isinstance(top, int)
    return index, url, top


@lru_cache
def _retriever(index: str, url: str) -> Retriever:
    return open_index(Path(index)) if index else HttpRetriever(url)


TOOL: Final = BuiltIn(
    search,
    "Searches a corpus and gives the passages that fit best.",
    parameters(query="What to search for."),
    opens=open_search,
)
