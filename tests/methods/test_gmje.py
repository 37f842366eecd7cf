"""The GMJE losses and mixtures against closed forms, and every variant in a short training on digits."""

import copy
import math

import pytest
import torch
from tiny import tiny_network
from torch.distributions import Categorical, Independent, MixtureSameFamily, MultivariateNormal, Normal

import jointembed as je
from jointembed.distributions import GaussianMixture
from jointembed.methods.gmje import EntropyGuard, MixtureDensityNetwork, gaussian_entropy, mdn_loss, prototype_loss
from jointembed.methods.gmje.components import GrowingPrototypes, OnlinePrototypes, ParticlePrototypes, Prototypes
from jointembed.metrics import effective_rank


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def correlated(n: int, dim: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Two views (n, dim) in double precision that share most of what they are."""
    g = generator(seed)
    common, own = torch.randn(n, dim, generator=g).double(), torch.randn(2, n, dim, generator=g).double()
    return common + 0.5 * own[0], common + 0.5 * own[1]


def joint_covariance(*views: torch.Tensor) -> torch.Tensor:
    return torch.cat(views, 1).mT.cov(correction=0)


def test_entropy_is_that_of_a_gaussian() -> None:
    z, _ = correlated(200, 5)
    gaussian = MultivariateNormal(torch.zeros(5).double(), z.mT.cov(correction=0))
    constant = 5 / 2 * (1 + math.log(2 * math.pi))
    assert float(gaussian_entropy(z, jitter=0) + constant) == pytest.approx(float(gaussian.entropy()))
    assert torch.autograd.gradcheck(gaussian_entropy, z[:8].clone().requires_grad_())


def test_a_memory_gives_the_value_and_the_batch_the_gradient() -> None:
    z, other = correlated(40, 4)
    z.requires_grad_()
    memory = other.mT.cov(correction=0)
    value = gaussian_entropy(z, memory, jitter=0)
    assert value.item() == pytest.approx(0.5 * float(memory.logdet()))
    value.backward()
    centred = (z - z.mean(0)).detach()
    torch.testing.assert_close(z.grad, centred @ memory.inverse() / 40)  # 1/2 Tr(S^-1 dS_batch)


def test_the_guard_remembers_fewer_images_than_dimensions() -> None:
    guard = EntropyGuard(16, decay=0.9).train()
    z = torch.randn(400, 16, generator=generator())
    for batch in z.split(8):
        value = guard(batch[None])
    assert abs(float(value)) < 4  # of the identity it is 0; of 8 images alone it would be below -30
    assert float(gaussian_entropy(z[:8])) < -30
    before = guard.memory.clone()
    guard.eval()(z[None, :8])
    assert guard.memory.equal(before)


def test_prototype_loss_is_equation_15() -> None:
    z_c, z_t = correlated(30, 3)
    g = generator(1)
    means, weights = torch.randn(4, 6, generator=g).double(), torch.rand(4, generator=g).double().softmax(-1)
    covariance = joint_covariance(z_c, z_t)
    terms = prototype_loss(z_c, z_t, GaussianMixture(weights, means, covariance[None]), weight=0.0)
    total = 0.0
    for z in torch.cat([z_c, z_t], 1):
        parts = [w.log() - 0.5 * (z - m) @ covariance.inverse() @ (z - m) for w, m in zip(weights, means, strict=True)]
        total += float(-torch.stack(parts).logsumexp(0) + 0.5 * covariance.logdet() + 3 * math.log(2 * math.pi))
    assert float(terms["loss"]) == pytest.approx(total / 30 / 6)


def test_with_one_component_the_loss_is_minus_the_mutual_information() -> None:
    z_c, z_t = correlated(500, 3)
    joint = torch.cat([z_c, z_t], 1)
    mixture = GaussianMixture(torch.ones(1).double(), joint.mean(0)[None], joint_covariance(z_c, z_t)[None])
    loss = prototype_loss(z_c, z_t, mixture, entropy=lambda z: gaussian_entropy(z, jitter=0))["loss"]
    constant = 0.5 * (1 + math.log(2 * math.pi))
    assert float(loss - constant) == pytest.approx(-float(mixture.mutual_information(range(3))) / 6)


def test_trace_trap_leaves_only_the_gradient_of_the_volume() -> None:
    """With the covariance of the same batch the distances sum to d, whatever the embeddings do (appendix O)."""
    z_c, z_t = (z.requires_grad_() for z in correlated(20, 3))
    weights = torch.ones(1).double()

    def gradient(value: torch.Tensor) -> torch.Tensor:
        return torch.cat(torch.autograd.grad(value, (z_c, z_t), retain_graph=True), 1)

    covariance = joint_covariance(z_c, z_t)
    mean = torch.cat([z_c, z_t], 1).mean(0, keepdim=True)
    nll = prototype_loss(z_c, z_t, GaussianMixture(weights, mean, covariance[None]), weight=0.0)["nll"] * 6
    volume = 0.5 * covariance.logdet()
    torch.testing.assert_close(gradient(nll), gradient(volume), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(gradient(nll - volume), torch.zeros(20, 6).double(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("covariance", ["shared", "full"])
def test_stepwise_em_finds_the_mixture_behind_the_data(covariance: str) -> None:
    g = generator(3)
    weights, centres, mixing = torch.tensor([0.1, 0.2, 0.2, 0.2, 0.3]), *torch.randn(2, 5, 4, generator=g)
    true = GaussianMixture(weights, 4 * centres, (mixing.mT @ mixing + 0.1 * torch.eye(4))[None])
    z = true.sample((6000,), g)
    prototypes = OnlinePrototypes(5, 4, covariance, floor=1e-6)
    prototypes.follow(true.means + 0.5 * torch.randn(5, 4, generator=g))
    for _ in range(12):
        for batch in z[torch.randperm(6000, generator=g)].split(200):
            prototypes.follow(batch)
    found, fresh = prototypes(), true.sample((6000,), g)
    assert float(found.log_prob(fresh).mean()) == pytest.approx(float(true.log_prob(fresh).mean()), abs=0.05)
    torch.testing.assert_close(found.weights, weights, rtol=0, atol=0.05)
    torch.testing.assert_close(found.means, true.means, rtol=0, atol=0.6)


def test_shared_scatter_is_the_sum_over_pairs() -> None:
    g = generator()
    z, prototypes = torch.randn(12, 3, generator=g), OnlinePrototypes(4, 3)
    share = torch.rand(12, 4, generator=g)
    differences = z[:, None] - prototypes.means
    expected = torch.einsum("nk,nki,nkj->ij", share, differences, differences)
    torch.testing.assert_close(prototypes._scatter(z, share)[0], expected, rtol=1e-4, atol=1e-4)


def test_covariance_never_falls_below_its_floor() -> None:
    z = torch.randn(1, 6).expand(64, -1)  # a collapsed batch
    prototypes = OnlinePrototypes(2, 6, floor=0.05)
    for _ in range(300):
        prototypes.follow(z)
    assert float(torch.linalg.eigvalsh(prototypes().covariances).min()) >= 0.0499
    learned = Prototypes(2, 6, "full", floor=0.05)
    learned.factors.data.zero_()
    assert float(torch.linalg.eigvalsh(learned().covariances.detach()).min()) >= 0.0499


@pytest.mark.parametrize("kind", [Prototypes, OnlinePrototypes])
@pytest.mark.parametrize("covariance", ["shared", "full", "fixed"])
def test_idle_components_share_the_work_of_the_busiest(kind: type[Prototypes], covariance: str) -> None:
    z = torch.randn(400, 40, generator=generator())
    prototypes = kind(4, 40, covariance)
    prototypes.follow(z)
    with torch.no_grad():
        prototypes.means.copy_(torch.tensor([0.0, 20.0, 30.0, -30.0])[:, None].expand(4, 40))
        for _ in range(100):
            Prototypes._learn(prototypes, z, 0.1)  # who is used, and nothing else
    assert prototypes.used.tolist() == [True, False, False, False]
    prototypes.revive()
    assert float(prototypes().weights.detach().sum()) == pytest.approx(1)
    torch.testing.assert_close(prototypes.usage, torch.full((4,), 0.25), atol=1e-3, rtol=0)
    # They are used indeed, by the images there are; had they moved to one of these they would be idle again.
    assert float(prototypes().responsibilities(z).detach().mean(0).min()) > 0.1


def test_neural_gas_grows_and_goes_on_from_a_checkpoint() -> None:
    g = generator()
    batches = torch.randn(40, 128, 6, generator=g)
    prototypes = GrowingPrototypes(16, 6)
    for batch in batches[:20]:
        prototypes.follow(batch)
    some = int((prototypes.weights > 0).sum())
    restored = GrowingPrototypes(16, 6)
    restored.load_state_dict(copy.deepcopy(prototypes.state_dict()))
    for batch in batches[20:]:
        prototypes.follow(batch)
        restored.follow(batch)
    assert 2 <= some < int((prototypes.weights > 0).sum()) <= 16
    for name, value in prototypes.state_dict().items():
        torch.testing.assert_close(restored.state_dict()[name], value, rtol=0, atol=0)
    torch.testing.assert_close(prototypes().log_prob(batch).isfinite().all(), torch.tensor(True))


def test_particles_are_past_embeddings() -> None:
    batches = torch.randn(6, 32, 4, generator=generator())
    prototypes = ParticlePrototypes(50, 4)
    for batch in batches:
        prototypes.follow(batch)
    distances = torch.cdist(prototypes.means, batches.flatten(0, 1))
    assert float(distances.amin(1).max()) < 1e-3
    torch.testing.assert_close(prototypes.weights, torch.full((50,), 0.02))


@pytest.mark.parametrize("kind", [Prototypes, OnlinePrototypes, GrowingPrototypes, ParticlePrototypes])
def test_exchangeable_components_leave_differences_between_views_to_the_covariance(kind: type[Prototypes]) -> None:
    """Views of an image are apart by +v or -v: components that follow one of these explain it away."""
    g = generator()
    apart = torch.tensor([2.0, 0.0, 0.0]) * torch.randn(2400, 1, generator=g).sign()
    image = 0.3 * torch.randn(2400, 3, generator=g)
    pairs = torch.stack([image + apart, image - apart], 1) + 0.1 * torch.randn(2400, 2, 3, generator=g)
    joint, swapped = pairs.flatten(1), pairs.flip(1).flatten(1)

    def offset(exchangeable: bool) -> float:
        torch.manual_seed(0)
        prototypes = kind(12, 6, exchangeable=exchangeable)
        optimizer = torch.optim.Adam([*prototypes.parameters(), torch.zeros(1)], lr=0.02)
        for batch in (torch.cat(orders) for orders in zip(joint.split(50), swapped.split(50), strict=True)):
            prototypes.follow(batch)
            if kind is Prototypes:
                optimizer.zero_grad()
                (-prototypes().log_prob(batch).mean()).backward()
                optimizer.step()
        mixture = prototypes()
        first, second = mixture.means.detach()[mixture.weights.detach() > 0].unflatten(1, (2, 3)).unbind(1)
        if exchangeable:
            torch.testing.assert_close(mixture.log_prob(joint), mixture.log_prob(swapped), rtol=0, atol=1e-3)
            covariance = mixture.covariances.detach()[0]
            assert float(covariance[0, 0] + covariance[3, 3] - 2 * covariance[0, 3]) > 8  # of 16, at the rates here
        return float((first - second).abs().max())

    assert offset(True) < 1e-5
    assert offset(False) > 2


def test_mdn_loss_is_the_likelihood_of_torchs_mixture() -> None:
    torch.manual_seed(0)
    network = MixtureDensityNetwork(3, 2, components=4, width=16)
    context, target = torch.randn(10, 3), torch.randn(10, 2)
    weights, means, scales = network.parts(context)
    peer = MixtureSameFamily(Categorical(weights), Independent(Normal(means, scales), 1))
    loss = mdn_loss(context, target, network(context), weight=0.0)["loss"]
    torch.testing.assert_close(loss, -peer.log_prob(target).mean() / 2)
    assert bool((scales >= 0.1).all())


def test_unguarded_mdn_shrinks_and_the_guard_holds() -> None:
    """The fifth failure mode: encoder and network alone send the loss down by shrinking the target."""

    def train(weight: float) -> float:
        torch.manual_seed(0)
        x_context, x_target = correlated(256, 4)
        x_context, x_target = x_context.float(), x_target.float()
        encoder, network = torch.nn.Linear(4, 4), MixtureDensityNetwork(4, 4, 2, 32, floor=1e-3)
        optimizer = torch.optim.Adam([*encoder.parameters(), *network.parameters()], 1e-2)
        for _ in range(300):
            z_c, z_t = encoder(x_context), encoder(x_target)
            loss = mdn_loss(z_c, z_t, network(z_c), weight)["loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return float(z_t.detach().std(0).mean())

    assert train(0.0) < 0.1  # 0.05 or 0.06, as rounding will have it
    assert train(1.0) > 0.3


def test_bad_input_is_named() -> None:
    z = torch.randn(8, 4)
    with pytest.raises(ValueError, match="mixture: expected 8 dimensions"):
        prototype_loss(z, z, GaussianMixture.isotropic(torch.ones(1), torch.zeros(1, 4), torch.ones(1)))
    with pytest.raises(ValueError, match="conditional: expected one of 4 dimensions for each of 8 targets"):
        mdn_loss(z, z, MixtureDensityNetwork(4, 4)(z[:5]))
    backbone = tiny_network()
    backbone.num_features = 32
    for options, message in (
        ({"learning": "magic"}, "learning: expected one of em, gradient, gng, smc"),
        ({"covariance": "round"}, "covariance: expected one of shared, full, fixed"),
        ({"covariance": "full", "learning": "gng"}, "covariance: expected 'shared' or 'fixed'"),
        ({"prototypes": 0}, "prototypes: expected at least 1, got 0"),
        ({"prototypes": 1, "learning": "gng"}, "prototypes: expected at least 2 for a neural gas, got 1"),
        ({"floor": 0.0}, "floor: expected above 0"),
    ):
        with pytest.raises(ValueError, match=message):
            je.methods.create("gmje", backbone, **options)
    with pytest.raises(ValueError, match="policy: expected 'smc', 'fifo' or 'batch'"):
        je.methods.create("gmje-smc", backbone, policy="lifo")
    with pytest.raises(ValueError, match="size: expected at least 1"):
        je.methods.create("gmje-smc", backbone, bank=0)


VARIANTS = (
    ("gmje", {"learning": "em"}),
    ("gmje", {"learning": "gradient", "covariance": "fixed"}),
    ("gmje", {"learning": "gng"}),
    ("gmje", {"learning": "smc", "prototypes": 256}),
    ("gmje-mdn", {}),
    ("gmje-smc", {"bank": 512}),
    ("gmje-smc", {"policy": "batch"}),
)


@pytest.mark.parametrize(("method", "options"), VARIANTS)
def test_every_variant_trains_and_answers(method: str, options: dict, tmp_path) -> None:
    source = je.data.open_source("digits")
    model = je.train(
        "digits", method, tiny_network(), epochs=5, out=tmp_path / "run", batch_size=128, preset="mnist",
        projector_width=64, dim=16, hold_out=0.0, progress=False, watch_every=100, **options,
    )  # fmt: skip
    z, projected = model.embed(source), model.embed(source, "projector")
    assert je.evaluation.knn_accuracy(z[:1000], source.labels[:1000], z[1000:], source.labels[1000:]) > 0.6
    assert float(effective_rank(projected)) > 4  # a quarter of 16
    images = source.batch(range(20))
    posterior = model.posterior(images)
    assert posterior.batch_shape == (20,) and posterior.event_shape == (16,)
    # What another view is expected to be is nearer to this view than to other images.
    distances = torch.cdist(posterior.mean, projected[:20])
    assert float(distances.diagonal().mean()) < float(distances.mean())
    samples = model.sample(64, seed=1)
    assert samples.shape == (64, 16) and samples.equal(model.sample(64, seed=1))
    density = model.method.density()
    torch.testing.assert_close(model.anomaly_score(images), -density.log_prob(projected[:20]), rtol=1e-4, atol=1e-3)
    again = je.load(tmp_path / "run", backbone=tiny_network())
    torch.testing.assert_close(again.log_prob(images), model.log_prob(images))
