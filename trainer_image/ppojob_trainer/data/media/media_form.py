"""Media format of a model: tokens of an image, video or audio in a prompt. Loads no torch.

transformers' own classes define it too, but load torch, which the controller must not.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ppojob_trainer.data.media.images import clip_of, unpacked

ProcessorArguments: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class MediaForm(ABC):
    """Token format of a model's images or audios, which are files as in `images.packed`."""

    token: int  # placeholder token in text, which is expanded to one token per feature of the tower
    processor: str  # prefix of the name of transformers' processor class

    @property
    def processor_arguments(self) -> ProcessorArguments:
        """Return arguments of the processor's class that its file lacks."""
        return {}

    @property
    def sees_ahead(self) -> bool:
        """Whether attention among the tokens of an image is bidirectional."""
        return False

    @property
    def ahead_in_windows(self) -> bool:
        """Whether it is bidirectional in sliding-window layers only."""
        return False

    def rewritten(self, text: str) -> str:
        """Rewrite a conversation with images from the template's form to the tokenizer's."""
        return text

    @abstractmethod
    def tokens_of(self, file: bytes) -> tuple[int, list[int]]:
        """Return the token of the features of a file, and all tokens of the file."""

    def positions(
        self, ids: Sequence[int], images: bytes, later: Sequence[int] = ()
    ) -> list[list[int]]:
        """Return (1 or 3, tokens) positions of a text's tokens; 3 are time, height and width.

        Arguments are those of `places`.
        """
        del images, later
        return [list(range(len(ids)))]

    def marks(self, images: bytes) -> list[tuple[int, list[int]]]:
        """Return each placeholder token that a template writes for files, and its expansion."""
        found: list[tuple[int, list[int]]] = []
        for file in unpacked(images):
            clip = clip_of(file)
            token, tokens = self.tokens_of(file)
            if clip is None or clip.has_placeholder:
                found.append((token, tokens))
            else:
                found[-1][1].extend(tokens)
        return found

    def feature_places(self, token: int, tokens: Sequence[int]) -> list[int]:
        """Return which of the tokens of a file, as by `tokens_of`, have features of the tower."""
        return [place for place, one in enumerate(tokens) if one == token]

    def expanded(self, ids: Sequence[int], images: bytes) -> list[int]:
        """Return a prompt with each placeholder replaced by all tokens of its file."""
        if not images:
            return list(ids)
        marks = self.marks(images)
        placeholders, left = {token for token, _ in marks}, iter(marks)
        return [one for id_ in ids for one in (next(left)[1] if id_ in placeholders else [id_])]

    def places(
        self, ids: Sequence[int], images: bytes, later: Sequence[int] = ()
    ) -> list[list[int]]:
        """Return the positions in a text of the feature tokens of each image.

        Images of the prompt are found by their tokens. After the prompt the policy may generate
        such tokens itself, as text: `later` are the first feature positions of the images there,
        which are the last ones of `images`.
        """
        files = unpacked(images)
        starts: list[int | None] = [*[None] * (len(files) - len(later)), *later]
        found: list[list[int]] = []
        end = 0
        for file, start in zip(files, starts, strict=True):
            token, tokens = self.tokens_of(file)
            features = self.feature_places(token, tokens)
            if start is None:
                begin = ids.index(token, end) - tokens.index(token)
            else:
                begin = start - features[0]
            found.append([begin + place for place in features])
            end = begin + len(tokens)
        return found
