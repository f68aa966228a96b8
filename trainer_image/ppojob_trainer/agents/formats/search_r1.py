"""Search-R1 (arXiv:2503.09516): `<search>QUERY</search>`, and `<answer>...</answer>` at the end.

The first of them that is whole counts, also within thoughts. A query is a call of the tool
`search`; an answer ends the row; a turn with neither is told that its action is invalid.
"""

from ppojob_trainer.agents.formats.calls import BadCall, Call, Calls, Tools, blocks, encoded

INVALID = (
    "\nThat was neither a search nor an answer. A query stands between <search> and </search>, a "
    "final answer between <answer> and </answer>. I try again.\n"
)
"""What a turn is told that has neither; Search-R1 has other words of the same meaning."""
_TAGS = ("search", "answer")


def information(answer: str) -> str:
    """The answer of a search, as the paper puts it behind one."""
    return f"\n\n<information>{answer.strip()}</information>\n\n"


def search_r1(text: str, _tools: Tools = ()) -> Calls:
    """Read a turn."""
    found = [
        (text.find(f"<{tag}>"), tag, inner[0].strip())
        for tag in _TAGS
        if (inner := blocks(text, f"<{tag}>", f"</{tag}>"))
    ]
    if not found:
        return (BadCall("neither <search>...</search> nor <answer>...</answer>"),)
    _, tag, inside = min(found)
    if tag == "answer":
        return ()
    return (Call("search", encoded({"query": inside})),)
