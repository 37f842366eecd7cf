"""Shared by all tests: a run, trained once; one thread for small tensors."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tiny import TINY

import jointembed as je

# Two processes with two threads each would fight over two cores.
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1" if "PYTEST_XDIST_WORKER" in os.environ else "2")))


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with a named backbone, trained on the digits for two epochs."""
    folder = tmp_path_factory.mktemp("runs") / "digits"
    je.train("digits", backbone="resnet10-narrow", epochs=2, out=folder, batch_size=128, **(TINY | {"hold_out": 0.05}))
    return folder


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """For small tensors: on a busy machine waiting for a second thread costs more than it brings."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
