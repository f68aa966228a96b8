from pathlib import Path

from family_models import OTHER_HEADS
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES as BY_TEXTS,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES as BY_TOKENS,
)

from ppojob_trainer.data.media.audio_form import MODELS
from ppojob_trainer.models.families import FAMILIES, MULTIMODAL
from ppojob_trainer.models.family import Family
from ppojob_trainer.models.kinds import TEXTS, TOKENS
from ppojob_trainer.models.towers import TOWERS

PAGE = Path(__file__).parents[3] / "docs" / "models.md"


def row(model_type: str, family: Family) -> str:
    heads = {"critic": (TOKENS, BY_TOKENS), "reward model": (TEXTS, BY_TEXTS)}
    theirs = [
        use
        for use, (end, known) in heads.items()
        if model_type in known and (model_type, end) not in OTHER_HEADS
        if end == TOKENS or not family.is_multimodal  # of which there are no reward models
    ]
    return f"| `{model_type}` | {family.models} | {', '.join(theirs)} |"


def seen(whole: str) -> str:
    """Whether a whole gets audio, or images: whether it has a tower for them."""
    return "audio" if whole in MODELS else "yes" if whole in TOWERS else "no"


def test_every_family_has_its_row() -> None:
    _, *found = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    wholes = [f"| `{name}` | {one.models} | {seen(name)} |" for name, one in MULTIMODAL.items()]
    assert found == [*(row(*item) for item in FAMILIES.items()), *wholes]
