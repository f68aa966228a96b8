"""Media tokens: which tokens stand for a picture or sound in a prompt, and where. Loads no torch.

transformers' own classes define it too, but load torch, which the controller must not.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ppojob_trainer.data.media.pictures import unpacked
from ppojob_trainer.data.media.videos import clip_of

Settings = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class MediaForm(ABC):
    """Token format of a model's pictures or sounds; each is a file of `data.pictures`.

    Attributes:
        token: placeholder token in text, expanded to one per feature of the tower.
        processor: prefix of the name of transformers' processor class.
    """

    token: int
    processor: str

    @property
    def told(self) -> Settings:
        """Return arguments for the processor's class that its file lacks."""
        return {}

    @property
    def sees_ahead(self) -> bool:
        """Whether tokens of a picture attend to later tokens of the same picture."""
        return False

    @property
    def ahead_in_windows(self) -> bool:
        """Whether they do so only in sliding-window layers."""
        return False

    def rewritten(self, text: str) -> str:
        """Rewrite a conversation with pictures from the template's form to the tokenizer's."""
        return text

    @abstractmethod
    def tokens_of(self, file: bytes) -> tuple[int, list[int]]:
        """Return the feature token of a file, and all tokens that stand for it."""

    def positions(
        self, ids: Sequence[int], pictures: bytes, later: Sequence[int] = ()
    ) -> list[list[int]]:
        """Return the positions of a text's tokens: one row, or time, height and width.

        Pictures are those of `places`.
        """
        del pictures, later
        return [list(range(len(ids)))]

    def marks(self, pictures: bytes) -> list[tuple[int, list[int]]]:
        """Return for each placeholder token of a template: it, and its expansion."""
        found: list[tuple[int, list[int]]] = []
        for file in unpacked(pictures):
            clip = clip_of(file)
            token, written = self.tokens_of(file)
            if clip is None or clip.begins:
                found.append((token, written))
            else:
                found[-1][1].extend(written)
        return found

    def expanded(self, ids: Sequence[int], pictures: bytes) -> list[int]:
        """Return a prompt with each placeholder expanded to all tokens of its picture."""
        if not pictures:
            return list(ids)
        marks = self.marks(pictures)
        tokens, written = {token for token, _ in marks}, iter(marks)
        return [one for id_ in ids for one in (next(written)[1] if id_ in tokens else [id_])]

    def places(
        self, ids: Sequence[int], pictures: bytes, later: Sequence[int] = ()
    ) -> list[list[int]]:
        """Of each picture of a text the places of its tokens for which there are features.

        Those of a prompt are found by its tokens. `later` are the first such places of those behind
        it, the last of the pictures: there the policy may draw such a token itself, which is text.
        """
        files = unpacked(pictures)
        starts: list[int | None] = [*[None] * (len(files) - len(later)), *later]
        found: list[list[int]] = []
        end = 0
        for file, start in zip(files, starts, strict=True):
            token, written = self.tokens_of(file)
            seen = [place for place, one in enumerate(written) if one == token]
            begin = (ids.index(token, end) if start is None else start) - seen[0]
            found.append([begin + place for place in seen])
            end = begin + len(written)
        return found
