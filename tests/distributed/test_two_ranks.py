"""Two processes (gloo), started once for all of this, against one on the concatenated batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from cases import CASES, SPLITS, TOLERANCE, assert_as_one, by_one_process, noise_of_the_image, train
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn.parallel import DistributedDataParallel

from benchmarks.communication import Ledger, third_step
from benchmarks.cost_model import VARIANTS, Sizes
from jointembed import _distributed
from jointembed.methods.gmje import ParticleBank
from jointembed.normality import EppsPulley, SIGReg, sigreg

SIGREG = {"biased": False, "unbiased": True}
ROWS = {"equal": (20, 20), "unequal": (29, 11)}
SIZES = Sizes(6, 4, 40, 2, 15, 7, 10)


def network_and_data() -> tuple[nn.Linear, Tensor]:
    torch.manual_seed(0)
    return nn.Linear(6, 5).double(), 2 * torch.randn(40, 6, dtype=torch.float64)


def test_of(form: str) -> SIGReg:
    return SIGReg(EppsPulley(unbiased=SIGREG[form]), num_slices=600)


test_of.__test__ = False  # type: ignore[attr-defined]


def own(x: Tensor, split: str, rank: int) -> Tensor:
    return x.split(ROWS[split])[rank]


def use_primitives(rank: int, split: str) -> dict[str, Any]:
    """A function of every primitive, whose gradient depends on the other rank's rows."""
    network, data = network_and_data()
    parallel = DistributedDataParallel(network)  # by name: with it, what averages the gradients would be gone
    z = parallel(own(data, split, rank))
    variance, mean = _distributed.var_mean(z, 0)
    everyone, first = _distributed.gather_rows(z)
    stacked, _ = _distributed.gather_rows(torch.stack([z, z.square()]), dim=1)
    loss = (
        (variance / (1 + mean.square())).sum()
        + _distributed.covariance(z).square().sum()
        + _distributed.mean_over_ranks((z @ everyone.mT).tanh().mean(), len(z))
        + _distributed.sum_over_ranks((z - mean).sin().sum()) / _distributed.rows_of_all_ranks(z)
        + stacked[1].tanh().sum()
    )
    loss.backward()
    assert network.weight.grad is not None
    return {
        "loss": loss.detach(),
        "gradient": network.weight.grad,
        "gathered": everyone.detach(),
        "first": first,
        "log_softmax": _distributed.log_softmax_over_ranks(z.detach()),
        "from first": _distributed.from_first_rank(torch.tensor([rank])),
        "everywhere": [_distributed.everywhere(torch.tensor(c)) for c in (True, rank == 0, False)],
        "alone": use_alone(),
    }


def use_alone() -> tuple[int, int]:
    with _distributed.alone():
        return _distributed.rank(), _distributed.world_size()


def use_sigreg(rank: int, split: str, form: str) -> dict[str, Any]:
    sigreg.BLOCK_ELEMENTS["cpu"] = 12_000  # 600 slices of the longer part do not fit, of the shorter they do
    network, data = network_and_data()
    test = test_of(form)
    parallel = DistributedDataParallel(network)
    value = test(parallel(own(data, split, rank)))
    value.backward()
    assert network.weight.grad is not None
    return {"loss": value.detach(), "gradient": network.weight.grad, "directions": test.directions(5)}


def use_bank(rank: int) -> dict[str, Tensor]:
    bank = ParticleBank(16, 3, resampling="multinomial")
    for step in range(4):
        queries, keys = nn.functional.normalize(torch.randn(2, 10, 3, generator=generator(step)), dim=-1)
        part = slice(7) if rank == 0 else slice(7, None)
        bank.update(queries[part], keys[part])
    return bank.state_dict()


class Witness(Ledger):
    """Enters what passes between these two processes."""

    def __init__(self) -> None:
        super().__init__(dist.get_world_size())

    def get_rank(self) -> int:
        return dist.get_rank()

    def all_reduce(self, x: Tensor, op: Any = None) -> None:
        self._enter("reduced", x)
        dist.all_reduce(x, op)

    def all_gather(self, parts: list[Tensor], x: Tensor) -> None:
        self._enter("gathered", x)
        dist.all_gather(parts, x)

    def broadcast(self, x: Tensor, source: int) -> None:
        self._enter("broadcast", x)
        dist.broadcast(x, source)


def use_witness(variant: str) -> list[tuple[str, int]]:
    witness = Witness()
    third_step(variant, SIZES, witness)
    return witness.entries


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def run_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    Normal.rsample = noise_of_the_image
    results: dict[Any, Any] = {"place": (_distributed.rank(), _distributed.world_size()), "bank": use_bank(rank)}
    results |= {("sent", variant): use_witness(variant) for variant in VARIANTS}
    for split in SPLITS:
        results["primitives", split] = use_primitives(rank, split)
        for form in SIGREG:
            results["sigreg", split, form] = use_sigreg(rank, split, form)
        for name, variant in CASES:
            for dtype in TOLERANCE:
                try:
                    results[name, variant, split, dtype] = train(name, variant, dtype, rank, split)
                except Exception as error:
                    raise RuntimeError(f"{name} {variant} {split} {dtype}") from error
    torch.save(results, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    folder: Path = tmp_path_factory.mktemp("ranks")
    mp.spawn(run_rank, args=(str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


def test_helpers_know_their_place(two_ranks: list[dict]) -> None:
    assert [r["place"] for r in two_ranks] == [(0, 2), (1, 2)]
    assert (_distributed.rank(), _distributed.world_size()) == (0, 1)
    assert torch.equal(_distributed.all_reduce_sum(torch.ones(2)), torch.ones(2))


@pytest.mark.parametrize("split", SPLITS)
def test_primitives_on_two_ranks_give_value_and_gradient_of_one(two_ranks: list[dict], split: str) -> None:
    network, z = network_and_data()
    z = network(z)
    mean = z.mean(0)
    loss = (
        (z.var(0) / (1 + mean.square())).sum()
        + z.mT.cov(correction=0).square().sum()
        + (z @ z.mT).tanh().mean()
        + (z - mean).sin().sum() / len(z)
        + z.square().tanh().sum()
    )
    loss.backward()
    assert network.weight.grad is not None
    log_softmax = z.detach().log_softmax(0)
    for rank, result in enumerate(two_ranks):
        found = result["primitives", split]
        torch.testing.assert_close(found["loss"], loss.detach(), rtol=1e-13, atol=0)
        torch.testing.assert_close(found["gradient"], network.weight.grad, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(found["gathered"], z.detach())
        torch.testing.assert_close(found["log_softmax"], own(log_softmax, split, rank))
        assert found["first"] == rank * ROWS[split][0]
        assert found["from first"] == 0
        assert found["everywhere"] == [True, False, False]
        assert found["alone"] == (0, 1)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("form", SIGREG)
def test_sigreg_on_two_ranks_gives_value_and_gradient_of_one(two_ranks: list[dict], split: str, form: str) -> None:
    network, data = network_and_data()
    test = test_of(form)
    value = test(network(data))
    value.backward()
    for result in two_ranks:
        found = result["sigreg", split, form]
        torch.testing.assert_close(found["loss"], value.detach())
        torch.testing.assert_close(found["gradient"], network.weight.grad)
        assert torch.equal(found["directions"], test.directions(5))


def test_a_bank_of_two_ranks_is_one_bank(two_ranks: list[dict]) -> None:
    bank = ParticleBank(16, 3, resampling="multinomial")
    for step in range(4):
        bank.update(*nn.functional.normalize(torch.randn(2, 10, 3, generator=generator(step)), dim=-1))
    for result in two_ranks:
        for name, value in bank.state_dict().items():
            torch.testing.assert_close(result["bank"][name], value)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_benchmark_counts_what_two_ranks_send(two_ranks: list[dict], variant: str) -> None:
    ledger = Ledger(2)
    third_step(variant, SIZES, ledger)
    for result in two_ranks:
        assert result["sent", variant] == ledger.entries


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize(("name", "variant"), CASES)
def test_two_ranks_train_as_one(two_ranks: list[dict], name: str, variant: str, split: str, dtype: torch.dtype) -> None:
    expected = by_one_process(name, variant, dtype)
    assert float(expected["gradient"].abs().max()) > 1e-3
    assert_as_one([result[name, variant, split, dtype] for result in two_ranks], expected, dtype)
