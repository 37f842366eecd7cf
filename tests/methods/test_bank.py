"""The particle bank: who stays in it and why, and that nothing is lost on the way."""

import copy
import math
from collections import Counter, deque
from functools import partial

import pytest
import torch
from torch.distributions import MultivariateNormal
from vectors import unit

from jointembed.methods.gmje import ParticleBank, info_nce
from jointembed.methods.gmje.bank import mahalanobis_score


def filled_bank(size: int = 32, dim: int = 8, batch: int = 8, **options: object) -> ParticleBank:
    bank = ParticleBank(size, dim, **options).double()
    for step in range(size // batch):
        bank.update(unit(batch, dim, seed=2 * step), unit(batch, dim, seed=2 * step + 1))
    assert bank.filled == size
    return bank


def test_weights_are_mean_likelihoods_without_own_pairs() -> None:
    bank = filled_bank(temperature=0.3)
    queries, keys = unit(5, 8, seed=100), unit(5, 8, seed=101)
    pool, log_weights = bank.weigh(queries, keys)
    expected = []  # the textbook: loops over particles and queries
    for m, z in enumerate(pool):
        likelihood = [math.exp(float(q @ z) / 0.3) for b, q in enumerate(queries) if m - 32 != b]
        expected.append(sum(likelihood) / len(likelihood) / 32)
    total = sum(expected)
    torch.testing.assert_close(log_weights.exp(), torch.tensor([w / total for w in expected]).double())
    assert torch.equal(pool, torch.cat([bank.particles, keys]))


def test_effective_sample_size_is_that_of_the_pool_before_resampling() -> None:
    bank = filled_bank(temperature=0.2)
    queries, keys = unit(5, 8, seed=100), unit(5, 8, seed=101)
    weights = bank.weigh(queries, keys)[1].exp()
    bank.update(queries, keys)
    assert float(bank.statistics()["ess"]) == pytest.approx(float(1 / weights.square().sum()))


@pytest.mark.parametrize("resampling", ["systematic", "multinomial"])
def test_particles_are_drawn_by_their_weights(resampling: str) -> None:
    queries, keys = unit(8, 8, seed=100), unit(8, 8, seed=101)
    start = filled_bank(temperature=0.2, resampling=resampling)
    weights, counts, repeats = start.weigh(queries, keys)[1].exp(), torch.zeros(40), 400
    for seed in range(repeats):
        bank = copy.deepcopy(start)
        bank.seed = seed
        bank.update(queries, keys)
        counts += bank.ids.bincount(minlength=40)
    expected = 32 * repeats * weights
    # Binomial at most: systematic counts vary less.
    assert ((counts - expected).abs() < 5 * expected.sqrt() + 1).all()


@pytest.mark.parametrize("general", [False, True])
def test_the_newest_batch_does_not_take_the_bank(general: bool) -> None:
    """With equal queries and keys, own pairs would outweigh everything else."""
    size, batch, dim = 256, 64, 32
    score = partial(mahalanobis_score, scale_tril=0.3 * torch.eye(dim)) if general else None
    bank = ParticleBank(size, dim, temperature=0.1)
    for step in range(12):
        z = unit(batch, dim, seed=step, dtype=torch.float32)
        pool = torch.cat([bank.contents, z])
        scores = z @ pool.T / 0.1 if score is None else score(z, pool)
        bank.update(z, z, score)
    newest = (bank.born == bank.step - 1).float().mean()
    assert newest == pytest.approx(batch / (size + batch), abs=0.07)
    assert scores.logsumexp(0).softmax(0)[size:].sum() > 0.9  # what they would have taken


def test_general_smc_scores_with_the_density_of_the_shared_covariance() -> None:
    queries, particles = 100 + unit(4, 6, seed=1), 100 + unit(9, 6, seed=2)
    tril = torch.linalg.cholesky(torch.cov(torch.randn(6, 50, dtype=torch.float64)))
    density = MultivariateNormal(particles, scale_tril=tril).log_prob(queries[:, None])
    constant = MultivariateNormal(torch.zeros(6).double(), scale_tril=tril).log_prob(torch.zeros(6).double())
    torch.testing.assert_close(mahalanobis_score(queries, particles, tril), density - constant)


@pytest.mark.parametrize("batches", [[3, 3, 3, 3, 3], [7, 1, 2, 7], [10, 20, 3], [1] * 9])
def test_fifo_is_a_queue(batches: list[int]) -> None:
    bank, queue = ParticleBank(7, 4, policy="fifo").double(), deque(maxlen=7)
    for step, batch in enumerate(batches):
        keys = unit(batch, 4, seed=step)
        bank.update(keys, keys)
        queue.extend(keys)
        assert torch.equal(bank.contents[bank.ids[: bank.filled].argsort()], torch.stack(list(queue)))


@pytest.mark.parametrize("policy", ["smc", "fifo"])
@pytest.mark.parametrize("batches", [[1] * 9, [3, 3, 3], [7, 2], [20, 3]])
def test_a_bank_fills_up_and_stays_full(policy: str, batches: list[int]) -> None:
    bank, offered = ParticleBank(7, 4, policy=policy).double(), 0
    assert all(float(value) == 0 for value in bank.statistics().values())
    for step, batch in enumerate(batches):
        keys = unit(batch, 4, seed=step)
        bank.update(unit(batch, 4, seed=50 + step), keys)
        offered += batch
        assert bank.filled == len(bank.contents) == min(7, offered)
        torch.testing.assert_close(bank.contents.norm(dim=1), torch.ones(bank.filled).double())
        if offered <= 7:
            assert bank.statistics()["distinct"] == 1


@pytest.mark.parametrize("policy", ["smc", "fifo"])
def test_a_loss_survives_an_update_of_its_bank(policy: str) -> None:
    bank, queries = filled_bank(policy=policy), unit(5, 8, seed=100).requires_grad_()
    (expected,) = torch.autograd.grad(info_nce(queries, unit(5, 8), bank.contents.clone(), 0.1)["loss"], queries)
    loss = info_nce(queries, unit(5, 8), bank.contents, 0.1)["loss"]
    bank.update(queries, unit(5, 8))
    loss.backward()
    torch.testing.assert_close(queries.grad, expected)


def test_a_single_new_key_keeps_an_equal_share() -> None:
    bank = filled_bank(temperature=0.05)
    log_weights = bank.weigh(unit(1, 8, seed=100), unit(1, 8, seed=101))[1]
    assert float(log_weights[-1].exp()) == pytest.approx(1 / 33)


def test_statistics_count_ages_and_clones() -> None:
    bank, history = ParticleBank(16, 4, temperature=0.1, resampling="multinomial").double(), []
    for step in range(6):
        keys = unit(5, 4, seed=step)
        bank.update(unit(5, 4, seed=50 + step), keys)
        history += [(step, key) for key in keys]
    for particle, number, born in zip(bank.particles, bank.ids, bank.born, strict=True):
        assert torch.equal(particle, history[number][1])
        assert born == history[number][0]
    found = bank.statistics()
    ages = [5 - history[number][0] for number in bank.ids]
    assert float(found["age_mean"]) == pytest.approx(sum(ages) / 16)
    assert float(found["age_max"]) == max(ages)
    clones = Counter(tuple(row) for row in bank.particles.tolist())
    assert float(found["distinct"]) == pytest.approx(len(clones) / 16)
    assert len(clones) < 16


@pytest.mark.parametrize("policy", ["smc", "fifo"])
@pytest.mark.parametrize("resampling", ["systematic", "multinomial"])
def test_a_restored_bank_goes_on_as_if_uninterrupted(policy: str, resampling: str) -> None:
    options = {"policy": policy, "resampling": resampling, "seed": 3}
    bank = filled_bank(24, **options)
    restored = ParticleBank(24, 8, **options).double()
    restored.load_state_dict(copy.deepcopy(bank.state_dict()))
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    for step in range(4):
        queries, keys = unit(7, 8, seed=200 + step), unit(7, 8, seed=300 + step)
        bank.update(queries, keys)
        restored.update(queries, keys)
    assert torch.equal(torch.random.get_rng_state(), before)
    for name, value in bank.state_dict().items():
        assert torch.equal(value, restored.state_dict()[name]), name


@pytest.mark.parametrize("temperature", [1e-6, 1e-3, 1e6])
def test_extreme_temperatures_stay_finite(temperature: float) -> None:
    bank = ParticleBank(16, 4, temperature=temperature)
    for step in range(4):
        queries = unit(8, 4, seed=step, dtype=torch.float32).requires_grad_()
        keys = unit(8, 4, seed=50 + step, dtype=torch.float32)
        loss = info_nce(queries, keys, bank.contents, temperature)["loss"]
        loss.backward()
        bank.update(queries, keys)
        assert loss.isfinite() and queries.grad.isfinite().all()
        assert bank.particles.isfinite().all() and bank.ess.isfinite()
        assert 1 - 1e-4 <= bank.ess <= 24 + 1e-2


def test_autocast_does_not_lower_the_precision() -> None:
    queries, keys = unit(8, 16, seed=1, dtype=torch.float32), unit(8, 16, seed=2, dtype=torch.float32)
    bank = ParticleBank(16, 16)
    for _ in range(2):
        bank.update(queries, keys)
    outside = info_nce(queries, keys, bank.contents, 0.01)["loss"], bank.weigh(queries, keys)[1]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = info_nce(queries, keys, bank.contents, 0.01)["loss"], bank.weigh(queries, keys)[1]
    assert all(torch.equal(a, b) for a, b in zip(inside, outside, strict=True))


def test_bad_arguments_are_named() -> None:
    z, bank = unit(3, 4), unit(5, 4)
    for argument, call in {
        "size": lambda: ParticleBank(0, 4),
        "dim": lambda: ParticleBank(4, 0),
        "policy": lambda: ParticleBank(4, 4, policy="lifo"),
        "resampling": lambda: ParticleBank(4, 4, resampling="stratified"),
        "temperature": lambda: ParticleBank(4, 4, temperature=0.0),
        "seed": lambda: ParticleBank(4, 4, seed=-1),
        "queries": lambda: info_nce(z[0], z, bank, 0.1),
        "keys": lambda: info_nce(z, z[:2], bank, 0.1),
        "bank": lambda: info_nce(z, z, bank[:, :3], 0.1),
        "log_weights": lambda: info_nce(z, z, bank, 0.1, torch.zeros(4)),
        "temperature:": lambda: info_nce(z, z, bank, -1.0),
    }.items():
        with pytest.raises(ValueError, match=f"^{argument}"):
            call()


@pytest.mark.parametrize("policy", ["smc", "fifo"])
def test_bad_embeddings_are_named_and_change_nothing(policy: str) -> None:
    bank = filled_bank(policy=policy)
    before = copy.deepcopy(bank.state_dict())
    z, bad = unit(5, 8), unit(5, 8).index_fill(0, torch.tensor(2), torch.nan)
    for message, queries, keys in [
        (r"^keys: expected finite values, got 8", z, bad),
        (r"^queries: expected finite values, got 8", bad, z),
        (r"^keys: expected shape \(B, 8\), got \(5, 7\)", z, z[:, :7]),
        (r"^queries: expected shape \(5, 8\), got \(4, 8\)", z[:4], z),
        (r"^keys: expected shape \(B, 8\), got \(0, 8\)", z[:0], z[:0]),
    ]:
        with pytest.raises(ValueError, match=message):
            bank.update(queries, keys)
    if policy == "smc":
        with pytest.raises(ValueError, match="^log_score"):
            bank.update(z, z, partial(mahalanobis_score, scale_tril=torch.full((8, 8), torch.nan).double()))
    assert all(torch.equal(value, before[name]) for name, value in bank.state_dict().items())
