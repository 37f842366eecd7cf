"""Growing Neural Gas: Fritzke's algorithm step for step, the mini-batch beside it, and the mixture it gives."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal

from jointembed import distributions
from jointembed.methods.gmje import GrowingNeuralGas


class Fritzke:
    """The numbered steps of "A Growing Neural Gas Network Learns Topologies" (1995), section 2, signal by signal."""

    def __init__(
        self,
        start: np.ndarray,  # step 0: two units
        max_nodes: int,
        eps_b: float = 0.2,
        eps_n: float = 0.006,
        max_age: int = 50,
        insert_every: int = 100,
        alpha: float = 0.5,
        beta: float = 0.005,
    ) -> None:
        self.w = {0: start[0].copy(), 1: start[1].copy()}
        self.error = {0: 0.0, 1: 0.0}
        self.age: dict[frozenset[int], int] = {}
        self.signals, self.max_nodes = 0, max_nodes
        self.eps_b, self.eps_n, self.max_age = eps_b, eps_n, max_age
        self.insert_every, self.alpha, self.d = insert_every, alpha, 1 - beta

    def signal(self, xi: np.ndarray) -> None:
        names = list(self.w)  # 2: nearest and second-nearest unit
        distance = ((np.array(list(self.w.values())) - xi) ** 2).sum(1)
        s1, s2 = (names[i] for i in np.argsort(distance)[:2])
        neighbours = []
        for edge in self.age:  # 3: age of all edges emanating from s1
            if s1 in edge:
                self.age[edge] += 1
                neighbours.append(next(iter(edge - {s1})))
        self.error[s1] += float(distance[names.index(s1)])  # 4
        self.w[s1] += self.eps_b * (xi - self.w[s1])  # 5
        for n in neighbours:
            self.w[n] += self.eps_n * (xi - self.w[n])
        self.age[frozenset((s1, s2))] = 0  # 6
        for edge in [edge for edge, age in self.age.items() if age > self.max_age]:  # 7
            del self.age[edge]
        for unit in set(self.w) - {unit for edge in self.age for unit in edge}:
            del self.w[unit], self.error[unit]
        self.signals += 1
        if self.signals % self.insert_every == 0 and len(self.w) < self.max_nodes:  # 8
            q = max(self.error, key=lambda unit: self.error[unit])
            f = max((next(iter(e - {q})) for e in self.age if q in e), key=lambda unit: self.error[unit])
            r = max(self.w) + 1
            self.w[r] = (self.w[q] + self.w[f]) / 2
            del self.age[frozenset((q, f))]
            self.age[frozenset((q, r))] = self.age[frozenset((r, f))] = 0
            self.error[q] *= self.alpha
            self.error[f] *= self.alpha
            self.error[r] = self.error[q]
        for unit in self.error:  # 9
            self.error[unit] *= self.d

    def quantisation_error(self, x: np.ndarray) -> float:
        w = np.array(list(self.w.values()))
        return float(np.mean([((w - xi) ** 2).sum(1).min() for xi in x]))


def first_two(x: Tensor, seed: int = 0) -> np.ndarray:
    """The samples on which a gas that starts with x puts its first nodes."""
    return x[torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:2]].numpy()


def blobs(n: int, seed: int = 0, dim: int = 2, count: int = 6, spread: float = 4.0) -> Tensor:
    random = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(count, dim)) * spread
    return torch.from_numpy(centres[random.integers(count, size=n)] + 0.5 * random.normal(size=(n, dim)))


def rings(n: int, seed: int = 0) -> Tensor:
    random = np.random.default_rng(seed)
    angle, radius = random.uniform(0, 2 * math.pi, n), random.choice([1.0, 3.0], n) + 0.05 * random.normal(size=n)
    return torch.from_numpy(np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1))


@pytest.mark.parametrize(
    "options",
    [
        {"max_nodes": 12, "insert_every": 20, "max_age": 50},
        {"max_nodes": 15, "insert_every": 15, "max_age": 5, "eps_b": 0.05, "eps_n": 0.02, "alpha": 0.3, "beta": 0.02},
    ],
)
def test_one_sample_at_a_time_is_fritzkes_algorithm(options: dict[str, float]) -> None:
    x = blobs(700, dim=3)
    gas = GrowingNeuralGas(batch_size=1, **options).partial_fit(x[:2])
    reference = Fritzke(first_two(x[:2]), **options)
    removed = 0
    for step, xi in enumerate(x.numpy()):
        before = set(reference.w)
        reference.signal(xi)
        removed += len(before - set(reference.w))
        if step < 2:
            continue  # both of the first call
        gas.partial_fit(xi[None])
        number = {unit: i for i, unit in enumerate(reference.w)}
        ages = {tuple(sorted(number[unit] for unit in edge)): age for edge, age in reference.age.items()}
        assert dict(zip(map(tuple, gas.edges.tolist()), gas.ages.tolist(), strict=True)) == ages
        w, error = np.array(list(reference.w.values())), np.array(list(reference.error.values()))
        np.testing.assert_allclose(gas.nodes.numpy(), w, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(gas.errors.numpy(), error, rtol=1e-10)
    assert gas.steps == len(x)
    if options["max_age"] == 5:
        assert removed  # the case was exercised


def test_a_mini_batch_is_its_samples_one_after_the_other() -> None:
    """Three far nodes, all connected: whatever the nodes do within a batch, winners and neighbours do not change."""
    centres = torch.tensor([[0.0, 0.0], [100.0, 0.0], [40.0, 90.0]], dtype=torch.float64)
    random = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 3, (300,), generator=random)
    x = centres[labels] + torch.randn(300, 2, generator=random, dtype=torch.float64)
    gases = []
    for batch_size in (1, 100):
        gas = GrowingNeuralGas(3, eps_n=0.0001, max_age=1000, insert_every=10**6, batch_size=batch_size)
        gas.partial_fit(x[:2])
        gas.nodes, gas.errors = centres.clone(), torch.zeros(3, dtype=torch.float64)
        gas.edges, gas.ages = torch.tensor([[0, 1], [0, 2], [1, 2]]), torch.tensor([3, 1, 4])
        gases.append(gas.partial_fit(x))
    one, many = gases
    torch.testing.assert_close(many.nodes, one.nodes)
    assert torch.equal(many.edges, one.edges)
    assert torch.equal(many.ages, one.ages)
    torch.testing.assert_close(many.errors, one.errors, rtol=0.2, atol=0)  # measured before the nodes move


def test_the_mini_batch_quantises_as_well_as_one_sample_at_a_time() -> None:
    """The size of the benchmark: 200 nodes in 64 dimensions."""
    x = blobs(7000, dim=64, count=30, spread=1.0)
    options = {"max_nodes": 200, "insert_every": 25}
    reference = Fritzke(first_two(x), **options)
    for xi in x.numpy():
        reference.signal(xi)
    gas = GrowingNeuralGas(**options).partial_fit(x)
    assert len(gas.nodes) == len(reference.w) == 200
    assert gas.quantisation_error(x[:1000]) == pytest.approx(reference.quantisation_error(x[:1000].numpy()), rel=0.02)


@pytest.mark.parametrize("data", [blobs, rings])
def test_the_mini_batch_quantises_the_plane_as_well(data) -> None:
    """Once settled. Snapshots in the plane differ by percents from seed to seed: a mean, with its standard error."""
    options, ratios = {"max_nodes": 40, "insert_every": 50}, []
    for seed in range(5):
        x = data(6000, seed)  # 1900 to grow
        reference = Fritzke(first_two(x, seed), **options)
        for xi in x.numpy():
            reference.signal(xi)
        gas = GrowingNeuralGas(seed=seed, **options).partial_fit(x)
        ratios.append(gas.quantisation_error(x[:2000]) / reference.quantisation_error(x.numpy()[:2000]))
    assert np.mean(ratios) == pytest.approx(1, abs=0.02 + 2 * np.std(ratios, ddof=1) / 5**0.5)


def test_rings_become_rings() -> None:
    x = rings(5000)
    gas = GrowingNeuralGas(max_nodes=60).fit(x)
    labels, radius = gas.components(), gas.nodes.norm(dim=1)
    assert labels.max() == 1
    for label in (0, 1):
        of_label = radius[labels == label]
        assert of_label.max() - of_label.min() < 0.5
    degree = gas.edges.flatten().bincount()
    assert (degree == 2).float().mean() > 0.9


def test_it_grows_by_one_node_every_lambda_samples_up_to_the_limit() -> None:
    gas = GrowingNeuralGas(max_nodes=100, insert_every=10, max_age=10**6).partial_fit(blobs(730))
    assert len(gas.nodes) == 75
    gas, x = GrowingNeuralGas(max_nodes=5, insert_every=30, max_age=10**6), blobs(200)
    for n, nodes in ((29, 2), (30, 3), (59, 3), (60, 4), (90, 5), (199, 5)):
        gas.partial_fit(x[gas.steps : n])
        assert (gas.steps, len(gas.nodes)) == (n, nodes)


def test_fits_are_functions_of_the_seed() -> None:
    x = blobs(500)
    torch.manual_seed(1)
    one = GrowingNeuralGas(max_nodes=10, seed=3).fit(x)
    state = torch.random.get_rng_state()
    two = GrowingNeuralGas(max_nodes=10, seed=3).fit(x).fit(x)  # a second fit starts anew
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(one.nodes, two.nodes)
    assert torch.equal(one.edges, two.edges)
    other = GrowingNeuralGas(max_nodes=10, seed=4).fit(x)
    assert not torch.equal(one.nodes[: len(other.nodes)], other.nodes[: len(one.nodes)])
    assert one.steps == 3 * 10 * 100


def test_far_from_the_origin_single_precision_is_enough() -> None:
    x = blobs(3000)
    near = GrowingNeuralGas(max_nodes=20).fit(x)
    far = GrowingNeuralGas(max_nodes=20).fit((x + 5000).float())
    assert far.nodes.dtype == torch.float32
    assert far.quantisation_error((x + 5000).float()) == pytest.approx(near.quantisation_error(x), rel=0.05)


def test_autocast_does_not_lower_the_precision() -> None:
    x = blobs(500).float()
    outside = GrowingNeuralGas(max_nodes=10).fit(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = GrowingNeuralGas(max_nodes=10).fit(x)
    assert torch.equal(inside.nodes, outside.nodes)


def test_quantisation_error_is_the_mean_squared_distance_to_the_nearest_node() -> None:
    x = blobs(300)
    gas = GrowingNeuralGas(max_nodes=8).fit(x.numpy())
    assert gas.quantisation_error(x) == pytest.approx(float(torch.cdist(x, gas.nodes).amin(1).square().mean()))


# The mixture


def test_the_mixture_of_separate_blobs_is_theirs() -> None:
    random = np.random.default_rng(0)
    centres = np.array([[-20.0, 0.0], [20.0, 0.0], [0.0, 30.0]])
    scales = np.array([[[1.0, 0.0], [0.8, 0.3]], [[0.5, 0.0], [0.0, 2.0]], [[1.0, 0.0], [-1.0, 0.5]]])
    labels = random.choice(3, size=3000, p=[0.5, 0.3, 0.2])
    x = torch.from_numpy(centres[labels] + np.einsum("nij,nj->ni", scales[labels], random.normal(size=(3000, 2))))
    gas = GrowingNeuralGas(max_nodes=3).fit(x)
    gas.nodes = torch.from_numpy(centres)  # where they belong, for the comparison to be sharp
    weights, means, covariances = gas.mixture_parameters(x, prior=1e-9)
    assert torch.equal(means, gas.nodes)
    for k in range(3):
        mine = x[labels == k] - means[k]
        assert float(weights[k]) == pytest.approx(len(mine) / 3000, abs=1e-6)
        torch.testing.assert_close(covariances[k], mine.T @ mine / len(mine), rtol=1e-4, atol=1e-4)


def test_covariances_of_all_shapes_agree() -> None:
    x = blobs(1000, dim=4)
    gas = GrowingNeuralGas(max_nodes=12).fit(x)
    nodes = len(gas.nodes)
    weights, _, full = gas.mixture_parameters(x)
    _, _, diagonal = gas.mixture_parameters(x, "diagonal")
    _, _, isotropic = gas.mixture_parameters(x, "isotropic")
    _, _, shared = gas.mixture_parameters(x, "shared", prior=1e-9)
    assert full.shape == (nodes, 4, 4) and shared.shape == (1, 4, 4)
    torch.testing.assert_close(full.diagonal(dim1=1, dim2=2), diagonal)
    torch.testing.assert_close(diagonal.mean(1), isotropic)
    _, _, bare = gas.mixture_parameters(x, prior=1e-9)
    torch.testing.assert_close((weights[:, None, None] * bare).sum(0, keepdim=True), shared)
    assert float(weights.sum()) == pytest.approx(1)


def test_nodes_with_a_sample_each_have_positive_definite_covariances() -> None:
    x = torch.randn(20, 6, generator=torch.Generator().manual_seed(0))
    gas = GrowingNeuralGas(max_nodes=20).fit(x)
    gas.nodes = torch.cat([x, x[:1] + 1e3])  # one of them with none at all
    weights, _, covariances = gas.mixture_parameters(x)
    assert (torch.linalg.eigvalsh(covariances) > 0).all()
    assert (weights > 0).all()


def test_the_mixture_explains_held_out_data_better_than_one_gaussian() -> None:
    x, held_out = rings(3000), rings(1000, seed=1)
    gas = GrowingNeuralGas(max_nodes=40).fit(x)
    weights, means, covariances = gas.mixture_parameters(x)
    mixture = MixtureSameFamily(Categorical(weights), MultivariateNormal(means, covariances))
    gaussian = MultivariateNormal(x.mean(0), x.T.cov())
    assert mixture.log_prob(held_out).mean() > gaussian.log_prob(held_out).mean() + 1


@pytest.mark.skipif(not hasattr(distributions, "GaussianMixture"), reason="GaussianMixture is not there yet")
@pytest.mark.parametrize("covariance", ["full", "shared", "diagonal", "isotropic"])
def test_the_mixture_is_a_distribution(covariance: str) -> None:
    x = blobs(500)
    gas = GrowingNeuralGas(max_nodes=8).fit(x)
    weights, means, covariances = gas.mixture_parameters(x, covariance)
    if covariance == "diagonal":
        covariances = torch.diag_embed(covariances)
    elif covariance == "isotropic":
        covariances = covariances[:, None, None] * torch.eye(2)
    expected = MixtureSameFamily(Categorical(weights), MultivariateNormal(means, covariances.expand(len(means), 2, 2)))
    torch.testing.assert_close(gas.mixture(x, covariance).log_prob(x), expected.log_prob(x))


# Errors


def test_bad_arguments_are_named() -> None:
    x, fitted = blobs(30), GrowingNeuralGas(max_nodes=4).fit(blobs(30))
    nan = x.clone()
    nan[3, 1] = torch.nan
    for argument, call in {
        "max_nodes: expected at least 2": lambda: GrowingNeuralGas(max_nodes=1),
        "eps_b": lambda: GrowingNeuralGas(eps_b=1.5),
        "eps_n": lambda: GrowingNeuralGas(eps_n=-0.1),
        "alpha": lambda: GrowingNeuralGas(alpha=1.0),
        "beta": lambda: GrowingNeuralGas(beta=1.0),
        "max_age": lambda: GrowingNeuralGas(max_age=0),
        "insert_every": lambda: GrowingNeuralGas(insert_every=0),
        "batch_size": lambda: GrowingNeuralGas(batch_size=0),
        "max_nodes: expected at most the 30 samples": lambda: GrowingNeuralGas(max_nodes=31).fit(x),
        "steps": lambda: GrowingNeuralGas(max_nodes=4).fit(x, steps=0),
        "x: expected finite values, got 1": lambda: fitted.partial_fit(nan),
        "x: expected finite": lambda: fitted.fit(nan),
        "x: expected .N, 2.": lambda: fitted.partial_fit(x[:, :1]),
        "x: expected .N, D. with N at least 2": lambda: GrowingNeuralGas().partial_fit(x[:1]),
        "x: expected .N, D.": lambda: fitted.quantisation_error(x[0]),
        "covariance": lambda: fitted.mixture_parameters(x, "spherical"),
        "prior": lambda: fitted.mixture_parameters(x, prior=0.0),
        "nodes": lambda: GrowingNeuralGas().quantisation_error(x),
    }.items():
        with pytest.raises(ValueError, match=f"^{argument}"):
            call()


def test_a_refused_call_changes_nothing() -> None:
    x = blobs(30)
    gas = GrowingNeuralGas(max_nodes=4).fit(x)
    nodes, ages, steps = gas.nodes.clone(), gas.ages.clone(), gas.steps
    for bad in (torch.full((5, 2), torch.inf), x[:, :1], x[0]):
        with pytest.raises(ValueError, match="^x: expected"):
            gas.partial_fit(bad)
    with pytest.raises(ValueError, match="^max_nodes: expected at most"):
        gas.fit(x[:3])
    assert torch.equal(gas.nodes, nodes) and torch.equal(gas.ages, ages) and gas.steps == steps
