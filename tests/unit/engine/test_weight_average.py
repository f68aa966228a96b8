"""The average of weights over updates, against a loop in float64."""

import torch
from torch import nn

from ppojob_trainer.engine.weight_average import WeightAverage
from ppojob_trainer.parallel.offload import HostBuffers

DECAY = 0.75


def test_an_average_follows_the_weights_wherever_it_lies() -> None:
    """Of float32 and of bfloat16 weights; one of them is loaded anew on the way."""
    generator = torch.Generator().manual_seed(0)
    weights = {
        "first": nn.Parameter(torch.randn(4, 3, generator=generator)),
        "second": nn.Parameter(torch.randn(5, generator=generator).bfloat16()),
    }
    expected = {name: weight.detach().double() for name, weight in weights.items()}
    host = HostBuffers()
    averages = [WeightAverage(weights, DECAY, one) for one in (None, host)]
    for average in averages:
        average.begin()
    for update in range(4):
        with torch.no_grad():
            for name, weight in weights.items():
                weight += torch.randn(weight.shape, generator=generator)
                expected[name] = DECAY * expected[name] + (1 - DECAY) * weight.double()
        for average in averages:
            average.update()
        if update == 1:
            again = WeightAverage(weights, DECAY, None)
            again.load({name: one.clone() for name, one in averages[0].tensors.items()})
            averages[0] = again
    plain, away = averages
    for name, average in plain.tensors.items():
        assert average.dtype == torch.float32
        torch.testing.assert_close(average.double(), expected[name], rtol=1e-6, atol=1e-6)
        assert away.tensors[name].untyped_storage().nbytes() == 0
        assert torch.equal(host.view(away.tensors[name]), average)
