"""Two processes (gloo) against one on the concatenated batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from jointembed import _distributed
from jointembed.normality import EppsPulley, SIGReg

SPLITS = {"equal": 20, "unequal": 29}  # samples of 40 on rank 0


def network_and_data() -> tuple[nn.Linear, Tensor]:
    torch.manual_seed(0)
    return nn.Linear(6, 5).double(), 2 * torch.randn(40, 6, dtype=torch.float64)


def losses() -> dict[str, SIGReg]:
    return {str(unbiased): SIGReg(EppsPulley(unbiased=unbiased), num_slices=12) for unbiased in (False, True)}


def run_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    results = {"rank": _distributed.rank(), "world": _distributed.world_size()}
    for split, first in SPLITS.items():
        for name, sigreg in losses().items():
            network, data = network_and_data()
            replica = DistributedDataParallel(network)
            value = sigreg(replica(data[:first] if rank == 0 else data[first:]))
            value.backward()
            assert network.weight.grad is not None
            results[split, name] = (value.detach(), network.weight.grad, sigreg.directions(5))
    torch.save(results, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    folder: Path = tmp_path_factory.mktemp("ranks")
    mp.spawn(run_rank, args=(str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


def test_helpers_know_their_place(two_ranks: list[dict]) -> None:
    assert [(r["rank"], r["world"]) for r in two_ranks] == [(0, 2), (1, 2)]
    assert (_distributed.rank(), _distributed.world_size()) == (0, 1)
    assert torch.equal(_distributed.all_reduce_sum(torch.ones(2)), torch.ones(2))


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("unbiased", ["False", "True"])
def test_two_ranks_give_the_value_and_gradient_of_one(two_ranks: list[dict], split: str, unbiased: str) -> None:
    network, data = network_and_data()
    sigreg = losses()[unbiased]
    value = sigreg(network(data))
    value.backward()
    for result in two_ranks:
        actual_value, actual_gradient, directions = result[split, unbiased]
        torch.testing.assert_close(actual_value, value.detach())
        torch.testing.assert_close(actual_gradient, network.weight.grad)
        assert torch.equal(directions, sigreg.directions(5))
