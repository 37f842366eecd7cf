"""GMJE with data as modes: InfoNCE as the routing of a mixture with one component per key (sections 4.6 and 4.7).

With unit norms, a key k_m standing for both views and covariance tau I, the responsibility of the matching mode is the
softmax of InfoNCE, exactly and at any tau:  -log g_i(z_c) = InfoNCE. Which keys are the modes is the policy: the
batch's own ("batch"), the last ones ("fifo", as in MoCo), or particles resampled by how well they explain the queries
("smc").
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from jointembed._distributed import gather_rows, means_over_ranks
from jointembed.distributions import GaussianMixture

from ..base import encode_views
from ..teacher import moving_average
from .bank import ParticleBank, info_nce
from .sphere import SphereMethod


class GMJESMC(SphereMethod, name="gmje-smc"):
    """SMC-GMJE: InfoNCE as the routing of a mixture, with resampled past embeddings as its modes.

    With other policies MoCo and data-as-mode GMJE, all else equal.

    Args:
        backbone: network with `num_features`, images to (N, D).
        dim: dimension of the projections, of unit norm.
        projector_width: width of the projector's hidden layers.
        projector_layers: 1 to 3 linear layers.
        policy: modes from particles ("smc"), from a queue ("fifo"), or from the batch ("batch"; the queue is then kept
            for the density only).
        bank: M, particles.
        resampling: "systematic", or "multinomial" as in the paper.
        temperature: tau, the variance of a mode.
        ema: decay of the weight-averaged encoder that makes the keys.
    """

    def __init__(
        self,
        backbone: nn.Module,
        dim: int = 128,
        projector_width: int = 512,
        projector_layers: int = 2,
        policy: Literal["smc", "fifo", "batch"] = "smc",
        bank: int = 4096,
        resampling: Literal["systematic", "multinomial"] = "systematic",
        temperature: float = 0.2,
        ema: float = 0.99,
    ) -> None:
        if policy not in ("smc", "fifo", "batch"):
            raise ValueError(f"policy: expected 'smc', 'fifo' or 'batch', got {policy!r}")
        if not 0 <= ema < 1:
            raise ValueError(f"ema: expected a decay from 0 to below 1, got {ema}")
        super().__init__(backbone, dim, projector_width, projector_layers, radius=1.0)
        self.policy, self.temperature = policy, temperature
        self.bank = ParticleBank(bank, dim, "smc" if policy == "smc" else "fifo", resampling, temperature)
        self.average = AveragedModel(
            nn.Sequential(backbone, self.projector), multi_avg_fn=moving_average(ema), use_buffers=True
        )
        self.average.requires_grad_(False)
        self.seen: tuple[Tensor, Tensor] | None = None  # this step's queries and keys, for the bank

    def forward(self, views: list[Tensor], num_global: int) -> dict[str, Tensor]:
        """Every view asks for the keys of every other global view."""
        queries = self.embed_views(views)  # (V, N, D)
        with torch.no_grad():
            keys = self.on_sphere(encode_views(self.average, views[:num_global]))
        pairs = [(i, j) for i in range(len(views)) for j in range(num_global) if i != j]
        found = [self._terms(queries[i], keys[j]) for i, j in pairs]
        terms = {name: torch.stack([one[name] for one in found]).mean() for name in found[0]}
        self.seen = (queries[-1].detach(), keys[0])
        return terms | self.bank.statistics()

    def _terms(self, queries: Tensor, keys: Tensor) -> dict[str, Tensor]:
        if self.policy != "batch":
            return info_nce(queries, keys, self.bank.contents, self.temperature)
        keys, first = gather_rows(keys)  # of all ranks
        scores = queries @ keys.mT / self.temperature  # the keys of the other images are the negatives
        own = torch.arange(first, first + len(queries), device=keys.device)
        return means_over_ranks({"loss": nn.functional.cross_entropy(scores, own)}, len(queries))

    def after_step(self) -> None:
        self.average.update_parameters(nn.Sequential(self.backbone, self.projector))
        if self.seen is not None:
            self.bank.update(*self.seen)

    def density(self) -> GaussianMixture:
        """A mode at every particle."""
        super().density()  # refuses a model whose training has not ended
        return self._modes(self.bank.contents)

    def posterior(self, encoded: dict[str, Tensor]) -> GaussianMixture:
        """The embedding of another view of each image, given this one: particles, routed to by similarity."""
        keys = self.bank.contents
        return self._modes(torch.cat([keys, keys], -1)).condition(range(self.dim), encoded["projector"])

    def _modes(self, means: Tensor) -> GaussianMixture:
        count = len(means)
        variances = means.new_full((1,), self.temperature)
        return GaussianMixture.isotropic(means.new_full((count,), 1 / count), means, variances, validate_args=False)
