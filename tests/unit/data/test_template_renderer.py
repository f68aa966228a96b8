import itertools
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ppojob_trainer.children.frames import MAX_FRAME_BYTES
from ppojob_trainer.data.template_renderer import (
    CHUNK_BYTES,
    CHUNK_CHATS,
    TemplateRenderer,
    chunked,
)

MEBI = 1 << 20
TEMPLATE = "{{ messages[0].content }}"


@pytest.fixture(scope="module")
def renderer() -> Iterator[TemplateRenderer]:
    with TemplateRenderer(TEMPLATE, "t.jinja", 0.0) as renderer:
        yield renderer


@pytest.mark.processes
def test_more_conversations_than_fit_into_one_frame(renderer: TemplateRenderer) -> None:
    """Say 4,096 answers of 16 kB: each is small, and all are more than a frame holds."""
    contents = [str(number) * MEBI for number in range(10)] * 7
    assert sum(map(len, contents)) > MAX_FRAME_BYTES
    chats = [[{"role": "user", "content": content}] for content in contents]
    assert renderer.render(chats, {}, open_turn=True) == contents


@given(st.lists(st.integers(0, 2 * CHUNK_BYTES), max_size=20))
@example([1] * (3 * CHUNK_CHATS - 1))
@example([CHUNK_BYTES // 2, CHUNK_BYTES // 2, 1, CHUNK_BYTES])
def test_chunks_are_small_and_nothing_is_lost(sizes: list[int]) -> None:
    chunks = list(chunked(map(bytes, sizes)))
    assert [len(body) for chunk in chunks for body in chunk] == sizes
    for chunk in chunks:
        assert 1 <= len(chunk) <= CHUNK_CHATS
        assert len(chunk) == 1 or sum(map(len, chunk)) <= CHUNK_BYTES
    for chunk, following in itertools.pairwise(chunks):  # as few as can be
        size = sum(map(len, chunk)) + len(following[0])
        assert len(chunk) == CHUNK_CHATS or size > CHUNK_BYTES
