"""Would the tests of two ranks find a sum over ranks whose result is dropped? Tried with two processes that do."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from cases import CASES, assert_as_one, by_one_process, noise_of_the_image, train
from torch.distributions import Normal

# Methods whose gradient depends on a sum over ranks; of the others only the logged loss does.
STATISTICS = (
    "barlow-twins",
    "dino",
    "gje",
    "gmje",
    "gmje-mdn",
    "lejepa",
    "lejepa-mdn",
    "lejepa-vje",
    "simclr",
    "vicreg",
)


def run_broken_rank(rank: int, folder: str) -> None:
    """All ranks take part in every all-reduce, and each goes on with what it had before."""
    torch.set_num_threads(1)
    patience = timedelta(seconds=120)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2, timeout=patience)
    Normal.rsample = noise_of_the_image
    real = dist.all_reduce
    dist.all_reduce = lambda x, op: real(x.clone(), op)
    results = {case: train(*case, torch.float64, rank, "equal") for case in CASES}
    torch.save(results, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.soak  # two more interpreters, to try other tests
def test_a_sum_over_ranks_whose_result_is_dropped_is_found_in_every_method(tmp_path: Path) -> None:
    mp.spawn(run_broken_rank, args=(str(tmp_path),), nprocs=2)
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for case in CASES:
        expected = by_one_process(*case, torch.float64)
        with pytest.raises(AssertionError):
            assert_as_one([found[case] for found in ranks], expected, torch.float64)
        wrong = float((ranks[0][case]["gradient"] - expected["gradient"]).abs().max())
        if case[0] in STATISTICS:
            assert wrong > 1e-4 * float(expected["gradient"].abs().max()), case
