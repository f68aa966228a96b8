import pytest
import torch
from lone_role import pod_of
from tiny_models import save_model

from ppojob_trainer.pod_environment import RankEnvironment
from ppojob_trainer.workers.rank_start import open_role_world


@pytest.mark.usefixtures("torch_as_it_was")
@pytest.mark.parametrize(
    ("timeouts", "limit"),
    [({}, 1800), ({"stageSeconds": 7200}, 7200), ({"startupSeconds": 3600}, 3600)],
)
def test_a_collective_may_take_as_long_as_what_it_is_part_of(tmp_path, timeouts, limit) -> None:
    save_model(tmp_path / "model")
    environment = pod_of(tmp_path, "actorRollout", timeouts=timeouts)
    with open_role_world(environment, RankEnvironment(rank=0, local_rank=0, epoch=1)) as world:
        assert world.group is not None
        options = world.group._get_backend(torch.device("cpu")).options
        assert options._timeout.total_seconds() == limit
