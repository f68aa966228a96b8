import pytest
import torch
from training_ranks import objective, rows_of_step

from ppojob_trainer.errors import DamagedCommit
from ppojob_trainer.models.state_dict import hf_named_tensors


def weights(learner):
    return {name: tensor.clone() for name, tensor in hf_named_tensors(learner.model)}


def test_a_commit_brings_everything_back(make_learner, tmp_path):
    first, second = make_learner(), make_learner()
    first.restore(None, [], 10)
    first.engine.update(rows_of_step(), objective())
    commit = tmp_path / "commit"
    commit.mkdir()
    files = first.save(commit)
    drawn = torch.rand(3)
    first.engine.update(rows_of_step(), objective())

    second.restore(commit, files, 10)
    assert torch.equal(torch.rand(3), drawn)
    second.engine.update(rows_of_step(), objective())
    expected = weights(first)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights(second).items())


def test_a_commit_without_one_of_the_files_is_refused(make_learner, tmp_path):
    learner = make_learner()
    learner.restore(None, [], 10)
    files = learner.save(tmp_path)
    for missing in files:
        with pytest.raises(DamagedCommit):
            learner.restore(tmp_path, [file for file in files if file != missing], 10)
