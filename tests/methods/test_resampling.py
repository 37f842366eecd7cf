"""InfoNCE and resampling: what a loss over a resampled bank is, against closed forms and exact enumeration."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal
from vectors import unit

from jointembed.methods.gmje import ParticleBank, info_nce
from jointembed.methods.gmje.bank import multinomial, systematic


def random_weights(count: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).dirichlet(np.full(count, 0.5)))


def draws_of_systematic(weights: Tensor, count: int) -> list[tuple[float, Tensor]]:
    """Every outcome with its probability: the comb's counts change only where a tooth meets a step of the CDF."""
    cuts = sorted({0.0, 1.0, *(count * weights.cumsum(0) % 1).tolist()})
    return [(b - a, systematic(weights, count, (a + b) / 2)) for a, b in pairwise(cuts) if b - a > 1e-12]


def weighted_and_expected_loss(weights: Tensor, count: int, temperature: float = 0.5) -> tuple[float, float]:
    """Over a weighted pool, and the exact mean over all its systematic resamplings."""
    query, key, pool = unit(1, 6, seed=1), unit(1, 6, seed=2), unit(len(weights), 6, seed=3)
    weighted = info_nce(query, key, pool, temperature, (count * weights).log())["loss"]
    outcomes = draws_of_systematic(weights, count)
    expected = sum(p * float(info_nce(query, key, pool[chosen], temperature)["loss"]) for p, chosen in outcomes)
    return float(weighted), expected


@pytest.mark.parametrize("count", [1, 5, 64])
def test_systematic_resampling_takes_each_floor_or_ceil_times(count: int) -> None:
    for seed in range(20):
        weights = random_weights(17, seed)
        counts = systematic(weights, count, np.random.default_rng(seed).random()).bincount(minlength=17)
        assert counts.sum() == count
        assert (counts >= (count * weights).floor()).all()
        assert (counts <= (count * weights).ceil()).all()


def test_systematic_resampling_is_unbiased_exactly() -> None:
    weights = random_weights(9)
    mean = sum(p * chosen.bincount(minlength=9).double() for p, chosen in draws_of_systematic(weights, 7))
    torch.testing.assert_close(mean, 7 * weights)


def test_multinomial_resampling_has_the_weights_for_frequencies() -> None:
    weights, n = random_weights(9), 200_000
    frequency = multinomial(weights, torch.from_numpy(np.random.default_rng(0).random(n))).bincount(minlength=9) / n
    standard_error = (weights * (1 - weights) / n).sqrt()
    assert ((frequency - weights).abs() < 5 * standard_error + 1e-12).all()


def test_what_has_no_weight_is_never_drawn() -> None:
    weights = torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0])
    for u in (0.0, 0.5, 1 - 2**-53):
        assert set(systematic(weights, 4, u).tolist()) == {1, 3}
        assert set(multinomial(weights, torch.tensor([u], dtype=torch.float64)).tolist()) <= {1, 3}


def test_the_resampled_denominator_is_unbiased() -> None:
    weights, pool, query, count = random_weights(9), unit(9, 6, seed=3), unit(1, 6, seed=1), 5
    likelihood = (query @ pool.T / 0.2).exp()[0]
    expected = sum(p * likelihood[chosen].sum() for p, chosen in draws_of_systematic(weights, count))
    torch.testing.assert_close(expected, count * (weights * likelihood).sum())

    draws = multinomial(weights, torch.from_numpy(np.random.default_rng(1).random(20_000 * count))).view(-1, count)
    sums = likelihood[draws].sum(1)
    standard_error = sums.std() / len(sums) ** 0.5
    assert abs(sums.mean() - count * (weights * likelihood).sum()) < 4 * standard_error


def test_the_expected_loss_over_the_resampled_bank_is_below_the_weighted_one() -> None:
    for seed in range(5):
        weighted, expected = weighted_and_expected_loss(random_weights(12, seed), 8)
        assert expected < weighted


def test_the_gap_shrinks_like_one_over_the_size_of_the_bank() -> None:
    """Multinomial: half the relative variance of a sum of M independent terms. Against that, and 4 times the size."""
    weights, query, key, pool = random_weights(12), unit(1, 6, seed=1), unit(1, 6, seed=2), unit(12, 6, seed=3)
    likelihood, positive = (query @ pool.T / 0.5).exp()[0], (query * key).sum().div(0.5).exp()
    mean = (weights * likelihood).sum()
    variance = (weights * likelihood.square()).sum() - mean.square()
    gaps = []
    for count in (64, 256):
        u = torch.from_numpy(np.random.default_rng(count).random(40_000 * count))
        denominator = positive + likelihood[multinomial(weights, u)].view(-1, count).sum(1)
        ratio = denominator / (positive + count * mean)
        gaps.append(float((ratio - 1 - ratio.log()).mean()))  # ratio - 1 has mean 0, and takes the noise with it
        predicted = float(count * variance / (positive + count * mean).square() / 2)
        assert gaps[-1] == pytest.approx(predicted, rel=0.05)
    assert gaps[0] / gaps[1] == pytest.approx(4, rel=0.1)


def test_nothing_is_lost_when_every_particle_is_due_a_whole_number_of_times() -> None:
    weights = torch.tensor([1, 0, 3, 2, 0, 2], dtype=torch.float64) / 8
    weighted, expected = weighted_and_expected_loss(weights, 8)
    assert expected == pytest.approx(weighted, rel=1e-12)


@pytest.mark.parametrize("temperature", [0.05, 0.5, 5.0])
def test_info_nce_is_minus_the_log_of_the_routing_responsibility(temperature: float) -> None:
    keys, context = unit(8, 5, seed=1), unit(1, 5, seed=2)
    prior = random_weights(8, seed=3).clamp_min(1e-3)
    modes = Independent(Normal(keys, math.sqrt(temperature)), 1)
    for i in range(8):
        others = [m for m in range(8) if m != i]
        uniform = modes.log_prob(context).log_softmax(-1)[i]
        loss = info_nce(context, keys[i : i + 1], keys[others], temperature)["loss"]
        torch.testing.assert_close(loss, -uniform, rtol=1e-12, atol=1e-12)
        weighted = (prior.log() + modes.log_prob(context)).log_softmax(-1)[i]
        ratios = (prior[others] / prior[i]).log()
        loss = info_nce(context, keys[i : i + 1], keys[others], temperature, ratios)["loss"]
        torch.testing.assert_close(loss, -weighted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("temperature", [0.02, 0.5, 5.0])
def test_info_nce_is_the_conditional_likelihood_and_a_residual(temperature: float) -> None:
    dim, keys = 5, unit(8, 5, seed=1)
    uniform = Categorical(torch.ones(8, dtype=torch.float64))
    scale = math.sqrt(temperature)
    joint = MixtureSameFamily(uniform, Independent(Normal(torch.cat([keys, keys], 1), scale), 1))
    marginal = MixtureSameFamily(uniform, Independent(Normal(keys, scale), 1))
    for i in range(8):
        context = F.normalize(keys[i : i + 1] + 0.1 * unit(1, 5, seed=i), dim=1)
        target, others = keys[i : i + 1], keys[[m for m in range(8) if m != i]]
        nll = marginal.log_prob(context) - joint.log_prob(torch.cat([context, target], 1))
        difference = others - target
        exponent = ((context * difference).sum(1) - difference.square().sum(1) / 2) / temperature
        residual = torch.cat([torch.zeros(1, dtype=torch.float64), exponent]).logsumexp(0)
        loss = info_nce(context, target, others, temperature)["loss"]
        expected = nll[0] - dim / 2 * math.log(2 * math.pi * temperature) + residual
        torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-10)
        if temperature == 0.02:  # the paper's identity, in its limit: the target's own mode is the nearest
            assert residual < 1e-6


def test_info_nce_is_cross_entropy_over_positive_and_bank() -> None:
    queries, keys, bank = unit(4, 6, seed=1).requires_grad_(), unit(4, 6, seed=2), unit(10, 6, seed=3)
    terms = info_nce(queries, keys, bank, 0.2)
    logits = torch.cat([(queries * keys).sum(1, keepdim=True), queries @ bank.T], 1) / 0.2
    torch.testing.assert_close(terms["loss"], F.cross_entropy(logits, torch.zeros(4, dtype=torch.int64)))
    torch.testing.assert_close(terms["loss"], terms["alignment"] + terms["uniformity"])
    assert torch.autograd.gradcheck(lambda q: info_nce(q, keys, bank, 0.2)["loss"], queries)


def test_against_an_empty_bank_there_is_nothing_to_lose() -> None:
    bank = ParticleBank(4, 6)
    assert float(info_nce(unit(3, 6), unit(3, 6), bank.contents, 0.1)["loss"]) == pytest.approx(0)
