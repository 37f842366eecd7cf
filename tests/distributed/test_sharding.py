"""FSDP on two processes (gloo), started once for all of this, against one on the concatenated batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from cases import CASES, Network, assert_as_one, by_one_process, create, noise_of_the_image, train
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributions import Normal
from torch.optim.swa_utils import AveragedModel

from jointembed import methods
from jointembed.training.sharding import gather, shard

SHARDED = [case for case in CASES if case != ("gmje", "gradient, shared")]  # refused
TEACHERS = [
    case
    for case in SHARDED
    if any(isinstance(module, AveragedModel) for module in create(*case, torch.float64).modules())
]


def use_shard(rank: int, mesh: DeviceMesh) -> dict[str, Any]:
    """A method with a teacher, made differently by each rank, and shared out."""
    torch.manual_seed(rank)

    def made() -> methods.Method:
        backbone = nn.Sequential(Network(), nn.Identity())  # of the same class as the projector, and within the teacher
        backbone.num_features = Network.num_features  # type: ignore[assignment]
        return methods.create("byol", backbone, dim=4, projector_width=8)

    method = made().to(memory_format=torch.channels_last)
    before = {name: value.clone() for name, value in method.state_dict().items()}
    shard(method, mesh, large=50)
    gather(method, whole := made())
    return {
        "before": before,
        "after": whole.state_dict(),
        "own": sum(p.to_local().numel() for p in method.parameters()),
        "all": sum(p.numel() for p in method.parameters()),
        "parts": [name for name, module in method.named_modules() if isinstance(module, FSDPModule)],
    }


def run_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    Normal.rsample = noise_of_the_image
    results: dict[Any, Any] = {"shard": use_shard(rank, mesh)}
    for case in SHARDED:
        results[(*case, "sharded")] = train(*case, torch.float64, rank, "unequal", mesh)
    for case in TEACHERS:
        results[(*case, "batch norm")] = train(*case, torch.float64, rank, "equal", mesh, batch_norm=True)
    torch.save(results, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    folder: Path = tmp_path_factory.mktemp("ranks")
    mp.spawn(run_rank, args=(str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


def test_weights_are_shared_out_from_the_first_rank_and_gathered_again(two_ranks: list[dict]) -> None:
    first, second = (result["shard"] for result in two_ranks)
    assert any(not torch.equal(first["before"][name], second["before"][name]) for name in first["before"])
    for name, value in first["before"].items():
        for one in (first, second):
            torch.testing.assert_close(one["after"][name], value, rtol=0, atol=0, equal_nan=True)
    assert first["own"] + second["own"] == first["all"]
    assert first["own"] < 0.6 * first["all"]
    assert {"", "backbone.0.linear"} < set(first["parts"])
    assert any(name.startswith("teacher") and name.endswith("linear") for name in first["parts"])


@pytest.mark.parametrize(("name", "variant"), SHARDED)
def test_two_ranks_that_share_the_weights_out_train_as_one(two_ranks: list[dict], name: str, variant: str) -> None:
    expected = by_one_process(name, variant, torch.float64)
    assert_as_one([result[name, variant, "sharded"] for result in two_ranks], expected, torch.float64)


@pytest.mark.parametrize(("name", "variant"), TEACHERS)
def test_a_teacher_follows_weights_that_are_shared_out_and_statistics_that_are_not(
    two_ranks: list[dict], name: str, variant: str
) -> None:
    first, second = (result[name, variant, "batch norm"]["state"] for result in two_ranks)
    start = create(name, variant, torch.float64, batch_norm=True).state_dict()
    shared = [key for key in first if "running_" not in key]
    for key in shared:
        torch.testing.assert_close(first[key], second[key], rtol=0, atol=0, equal_nan=True, msg=key)
    followed = [key for key in first if "running_mean" in key and key.startswith(("teacher", "average"))]
    assert followed
    assert all(not torch.equal(first[key], start[key]) for key in followed)
