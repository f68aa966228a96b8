import pytest

from ppojob_trainer.controller.engines import Engines
from ppojob_trainer.controller.roles import RoleGroup
from ppojob_trainer.rpc.client import Peer


@pytest.mark.parametrize(
    ("ranks", "tensor", "prompts", "runs"),
    [
        (2, 1, 3, [((0, 1), (0, 1)), ((1, 3), (1, 3))]),
        (2, 2, 3, [((0, 3), (0, 1)), ((0, 3), (1, 3))]),
        (4, 2, 4, [((0, 2), (0, 1)), ((0, 2), (1, 2)), ((2, 4), (2, 3)), ((2, 4), (3, 4))]),
        # The first rank keeps nothing; an engine without prompts draws none.
        (4, 2, 3, [((0, 1), (0, 0)), ((0, 1), (0, 1)), ((1, 3), (1, 2)), ((1, 3), (2, 3))]),
        (4, 2, 1, [((0, 0), (0, 0)), ((0, 0), (0, 0)), ((0, 1), (0, 0)), ((0, 1), (0, 1))]),
        # Each engine has a prompt, though most ranks keep none.
        (
            6,
            3,
            2,
            [
                *(((0, 1), kept) for kept in [(0, 0), (0, 0), (0, 1)]),
                *(((1, 2), kept) for kept in [(1, 1), (1, 1), (1, 2)]),
            ],
        ),
    ],
)
def test_ranks_of_an_engine_draw_together_what_each_keeps(ranks, tensor, prompts, runs) -> None:
    peers = (Peer("a rank", "127.0.0.1", 1, "actorRollout"),) * ranks
    group = RoleGroup("actorRollout", (), peers, is_stateful=True, has_channels=False)
    assert Engines(group, tensor).runs(prompts) == runs
