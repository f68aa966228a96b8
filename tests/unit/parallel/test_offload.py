import pytest
import torch

from ppojob_trainer.parallel.offload import HostBuffers, OffloadableWeights, saved_on_host


@pytest.fixture
def base():
    return torch.arange(12.0)


def test_views_of_a_storage_leave_and_come_back_together(base):
    host, part = HostBuffers(), base[4:10].view(2, 3).t()
    expected, whole = part.clone(), base.clone()
    host.offload([part, base])
    assert base.untyped_storage().nbytes() == 0
    assert torch.equal(host.view(part), expected)
    assert torch.equal(host.on_device(base), whole)
    assert base.untyped_storage().nbytes() == 0  # what was read is a copy
    host.offload([part])  # has left already
    host.load([part])
    assert torch.equal(base, whole)
    assert torch.equal(part, expected)


def test_what_changed_meanwhile_is_taken_anew_to_the_same_place(base):
    host = HostBuffers()
    host.offload([base])
    place = host.view(base).data_ptr()
    host.load([base])
    base.add_(1.0)
    host.load([base])  # is there already
    assert torch.equal(base, torch.arange(12.0) + 1.0)
    host.offload([base])
    assert torch.equal(host.view(base), torch.arange(12.0) + 1.0)
    assert host.view(base).data_ptr() == place


def test_a_tensor_that_is_there_is_given_as_it_is(base):
    host = HostBuffers()
    assert host.view(base) is base
    assert host.on_device(base) is base
    empty = torch.empty(0, 3)
    host.offload([empty])
    assert host.on_device(empty) is empty


@pytest.mark.parametrize("leaves", [True, False])
def test_gradients_go_with_the_weights_that_leave(leaves):
    weight = torch.nn.Parameter(torch.ones(3))
    resident = OffloadableWeights([weight], may_offload=leaves)
    weight.grad = torch.ones(3)
    resident.offload()
    assert (weight.untyped_storage().nbytes() == 0) == leaves
    assert (weight.grad is None) == leaves
    with resident.on_device():
        assert torch.equal(weight, torch.ones(3))
        weight.data.mul_(2.0)
    assert torch.equal(resident.host.on_device(weight.detach()), torch.full((3,), 2.0))


def test_what_is_saved_for_a_backward_pass_is_not_kept_on_the_device():
    x = torch.linspace(-1.0, 1.0, 5, requires_grad=True)
    with saved_on_host():
        middle = x.exp()
        y = middle.square().sum()
    memory = middle.untyped_storage()
    middle.data.zero_()  # nobody looks at it any more
    assert memory.nbytes()
    y.backward()
    torch.testing.assert_close(x.grad, 2.0 * (2.0 * x).exp())
