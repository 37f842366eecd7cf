"""Two processes (gloo), started once for all of this, against one on the concatenated batch."""

from __future__ import annotations

import functools
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from cases import CASES, SPLITS, Network, create, noise_of_the_image, train
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributions import Normal
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from benchmarks.communication import Ledger, third_step
from benchmarks.cost_model import VARIANTS, Sizes
from jointembed import _distributed, methods
from jointembed.methods.gmje import ParticleBank
from jointembed.normality import EppsPulley, SIGReg, sigreg
from jointembed.training.sharding import gather, shard

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}  # of the largest number there is
SIGREG = {"biased": False, "unbiased": True}
ROWS = {"equal": (20, 20), "unequal": (29, 11)}
SHARDED = [case for case in CASES if case != ("gmje", "gradient, shared")]  # refused
TEACHERS = [
    case
    for case in SHARDED
    if any(isinstance(module, AveragedModel) for module in create(*case, torch.float64).modules())
]
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


def use_shard(rank: int, mesh: DeviceMesh) -> dict[str, Any]:
    """A method with a teacher, made differently by each rank, and shared out."""
    torch.manual_seed(rank)

    def create() -> methods.Method:
        backbone = nn.Sequential(Network(), nn.Identity())  # of the same class as the projector, and within the teacher
        backbone.num_features = Network.num_features  # type: ignore[assignment]
        return methods.create("byol", backbone, dim=4, projector_width=8)

    method = create().to(memory_format=torch.channels_last)
    before = {name: value.clone() for name, value in method.state_dict().items()}
    shard(method, mesh, large=50)
    gather(method, whole := create())
    return {
        "before": before,
        "after": whole.state_dict(),
        "own": sum(p.to_local().numel() for p in method.parameters()),
        "all": sum(p.numel() for p in method.parameters()),
        "parts": [name for name, module in method.named_modules() if isinstance(module, FSDPModule)],
    }


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
    mesh = init_device_mesh("cpu", (2,))
    Normal.rsample = noise_of_the_image
    results: dict[Any, Any] = {"place": (_distributed.rank(), _distributed.world_size()), "bank": use_bank(rank)}
    results["shard"] = use_shard(rank, mesh)
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
    for name, variant in SHARDED:
        results[name, variant, "sharded"] = train(name, variant, torch.float64, rank, "unequal", mesh)
    for name, variant in TEACHERS:
        results[name, variant, "batch norm"] = train(name, variant, torch.float64, rank, "equal", mesh, True)
    torch.save(results, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    folder: Path = tmp_path_factory.mktemp("ranks")
    mp.spawn(run_rank, args=(str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


def assert_near(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """Beside the largest number: entries that are 0 but for rounding have no relative error."""
    torch.testing.assert_close(actual.isfinite(), expected.isfinite())
    actual, expected = actual[actual.isfinite()], expected[expected.isfinite()]
    if expected.numel():
        error = float((actual - expected).abs().max())
        assert error <= TOLERANCE[dtype] * max(float(expected.abs().max()), 1e-3), (error, expected.abs().max())


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


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_benchmark_counts_what_two_ranks_send(two_ranks: list[dict], variant: str) -> None:
    ledger = Ledger(2)
    third_step(variant, SIZES, ledger)
    for result in two_ranks:
        assert result["sent", variant] == ledger.entries


@functools.cache
def by_one_process(name: str, variant: str, dtype: torch.dtype) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Normal, "rsample", noise_of_the_image)
        return train(name, variant, dtype)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize(("name", "variant"), CASES)
def test_two_ranks_train_as_one(two_ranks: list[dict], name: str, variant: str, split: str, dtype: torch.dtype) -> None:
    expected = by_one_process(name, variant, dtype)
    assert float(expected["gradient"].abs().max()) > 1e-3
    assert_as_one([result[name, variant, split, dtype] for result in two_ranks], expected, dtype)


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
    assert all(not torch.equal(first[key], start[key]) for key in followed)


def assert_as_one(found: list[dict], expected: dict[str, Any], dtype: torch.dtype) -> None:
    first, second = found
    for one in found:
        assert_near(one["loss"], expected["loss"], dtype)
        assert_near(one["gradient"], expected["gradient"], dtype)
    for key, value in expected["state"].items():
        torch.testing.assert_close(first["state"][key], second["state"][key], rtol=0, atol=0, equal_nan=True, msg=key)
        assert_near(first["state"][key], value, dtype)


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


@pytest.mark.soak  # two more interpreters, to try the tests above
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
