from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def torch_as_it_was() -> Iterator[None]:
    """Undoes for the tests behind this one what a rank sets for its whole process."""
    deterministic, threads = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    yield
    torch.use_deterministic_algorithms(deterministic)
    torch.set_num_threads(threads)
