import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    *ROOT.glob("*.md"),
    *(page for part in ("docs", "cli", "examples", "helm") for page in (ROOT / part).rglob("*.md")),
]
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> Iterator[str]:
    """What GitHub calls the headings of a page: the second of equal ones ends in -1."""
    seen: dict[str, int] = {}
    for heading in re.findall(r"^#+ (.+)$", CODE.sub("", page.read_text()), re.MULTILINE):
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        count = seen.get(name, 0)
        seen[name] = count + 1
        yield f"{name}-{count}" if count else name


def broken(page: Path) -> Iterator[str]:
    for link in re.findall(r"\]\(([^)\s]+)\)", CODE.sub("", page.read_text())):
        path, _, anchor = link.partition("#")
        if re.match(r"\w+:", link):
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield f"{page.relative_to(ROOT)}: {link}"


def test_every_link_leads_somewhere() -> None:
    assert len(PAGES) > 100
    assert [link for page in PAGES for link in broken(page)] == []
