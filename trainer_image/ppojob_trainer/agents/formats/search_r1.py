"""Search-R1 (arXiv:2503.09516): `<search>QUERY</search>`, and `<answer>...</answer>` at the end.

The first complete one counts, also within thoughts. A query is a call of the tool `search`; an
answer ends the row; a turn with neither gets `INVALID`.
"""

from ppojob_trainer.agents.formats.calls import BadCall, Call, Calls, Tools, blocks, encoded

INVALID = (
    "\nThat was neither a search nor an answer. A query stands between <search> and </search>, a "
    "final answer between <answer> and </answer>. I try again.\n"
)
"""Message after a turn with neither; Search-R1 words it differently."""
_TAGS = ("search", "answer")


def information(answer: str) -> str:
    """Format the answer of a search as in the paper."""
    return f"\n\n<information>{answer.strip()}</information>\n\n"


def search_r1(text: str, _tools: Tools = ()) -> Calls:
    """Parse a turn."""
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
