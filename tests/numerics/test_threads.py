"""PyTorch's threads while many small operations run."""

import pytest
import torch
from gdnspec.numerics.threads import one_thread


def test_threads_come_back_after_an_error() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(KeyError), one_thread():
            assert torch.get_num_threads() == 1
            raise KeyError
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
