import itertools
import re
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ppojob_trainer.children.frames import MAX_FRAME_BYTES
from ppojob_trainer.data.template_renderer import (
    CHUNK_BYTES,
    CHUNK_CHATS,
    MAX_CHAT_BYTES,
    BadChatTemplate,
    TemplateRenderer,
    chunked,
)

MEBI = 1 << 20
TEMPLATE = "{{ messages[0].content * (repeat or 1) }}"


@pytest.fixture(scope="module")
def renderer() -> Iterator[TemplateRenderer]:
    with TemplateRenderer(TEMPLATE, "t.jinja", 0.0) as renderer:
        yield renderer


def rendered(
    renderer: TemplateRenderer, *contents: str, repeat: int = 1
) -> list[str | BadChatTemplate]:
    """Text of each conversation, or what is said in its place."""
    chats = [[{"role": "user", "content": content}] for content in contents]
    return renderer.render(chats, {"repeat": repeat}, open_turn=True)


@pytest.mark.processes
def test_more_conversations_than_fit_into_one_frame(renderer: TemplateRenderer) -> None:
    """Say 4,096 answers of 16 kB: each is small, and all are more than a frame holds."""
    contents = [str(number) * MEBI for number in range(10)] * 7
    assert sum(map(len, contents)) > MAX_FRAME_BYTES
    assert rendered(renderer, *contents) == contents


@pytest.mark.processes
def test_a_conversation_and_a_text_that_are_too_long_are_refused_alone(renderer) -> None:
    before, long, longer, after = rendered(
        renderer, "before", "x" * MAX_CHAT_BYTES, "x" * (MAX_FRAME_BYTES + 1), "after"
    )
    assert (before, after) == ("before", "after")
    assert f"at most {MAX_CHAT_BYTES} bytes" in str(long)
    said = r"t.jinja: got a conversation of \d{8} bytes: too long .+; at most "
    assert re.match(said, str(longer))
    assert long.refusal.endswith(f" bytes, at most {MAX_CHAT_BYTES}")
    short, text = rendered(renderer, "x", "y" * MEBI, repeat=65)
    assert short == "x" * 65
    assert f"a text of {65 * MEBI} bytes, at most " in str(text)


@pytest.mark.processes
def test_the_longest_conversation_has_the_memory_it_needs(renderer: TemplateRenderer) -> None:
    wide = "\U0001f600" + "x" * (MAX_CHAT_BYTES - 100)  # four bytes a character in Python
    assert rendered(renderer, wide) == [wide]


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
