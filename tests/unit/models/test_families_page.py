"""The table of families in docs/models.md says what the table of the code does."""

from pathlib import Path

from ppojob_trainer.data.media.sound_form import MODELS
from ppojob_trainer.models.families import FAMILIES, TEXTS, TOKENS, WHOLES, Family
from ppojob_trainer.models.towers import TOWERS

PAGE = Path(__file__).parents[3] / "docs" / "models.md"


def row(model_type: str, family: Family) -> str:
    uses = {"critic": TOKENS, "reward model": TEXTS}
    also = [use for use, end in uses.items() if end in family.classifiers]
    engines = "vLLM, huggingface" if family.is_in_vllm else "huggingface"
    cut = "no: " + family.uncut if family.uncut else "yes"
    if family.mixture and family.mixture.uncut:
        cut += f"; of mixtures no: {family.mixture.uncut}"
    return f"| `{model_type}` | {family.models} | {', '.join(also)} | {engines} | {cut} |"


def seen(whole: str) -> str:
    """Whether a whole gets audio, or pictures: whether it has a tower for them."""
    return "audio" if whole in MODELS else "yes" if whole in TOWERS else "no"


def test_every_family_has_its_row() -> None:
    _, *found = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    wholes = [f"| `{name}` | {one.models} | {seen(name)} |" for name, one in WHOLES.items()]
    assert found == [*(row(*item) for item in FAMILIES.items()), *wholes]
