"""SwAV: predict a view's cluster from another view (Caron et al., 2020, arXiv 2006.09882).

Clusters are assigned online, to prototypes that all get an equal share of the batch: Sinkhorn's iterations.

    >>> z = F.normalize(torch.randn(4, 256, 128), dim=-1)  # (V, N, D), of two global and two local views
    >>> prototypes = F.normalize(torch.randn(300, 128), dim=-1).requires_grad_()
    >>> terms = swav_loss(z @ prototypes.T, num_global=2)
    >>> terms["loss"].backward()
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jointembed._distributed import log_softmax_over_ranks, rank

from .base import Method, at_least_float32, encode_views, feature_dim
from .gmje.bank import ParticleBank
from .lejepa import projector_mlp
from .stacks import average, check_above_zero, check_counts, check_not_negative, check_stack, directed_pairs


@torch.no_grad()
def sinkhorn(scores: Tensor, epsilon: float = 0.05, iterations: int = 3) -> Tensor:
    """Logarithms of the codes (N, K) for scores (N, K): each row of codes sums to 1, each column nearly to N / K.

    Codes maximise sum(codes * scores) + epsilon * entropy under these constraints (the paper's Eqs. 3 and 5). In
    logarithms no scores are too large for the exponential. In `torch.distributed` N counts the rows of all ranks.
    """
    if scores.ndim != 2 or 0 in scores.shape:
        raise ValueError(f"scores: expected (N, K), got shape {tuple(scores.shape)}")
    check_above_zero(epsilon=epsilon)
    check_counts(iterations=iterations)
    log_codes = at_least_float32(scores) / epsilon
    for _ in range(iterations):
        log_codes = log_softmax_over_ranks(log_codes)  # equal shares for the prototypes
        log_codes = log_codes.log_softmax(1)  # then for the images
    return log_codes


def swav_loss(
    scores: Tensor,
    num_global: int,
    temperature: float = 0.1,
    epsilon: float = 0.05,
    iterations: int = 3,
    queue: Tensor | None = None,
) -> dict[str, Tensor]:
    """Cross-entropy of every view's prediction with the codes of every other global view (the paper's Eqs. 1 and 2).

    It is the codes' "entropy" plus the "kl" divergence of predictions from codes.

    Args:
        scores: of V views with K prototypes, (V, N, K), the global views first.
        num_global: how many are; only they have codes.
        temperature: of the predictions, tau.
        epsilon: of the codes' entropy.
        iterations: of Sinkhorn.
        queue: (M, K), scores of earlier images, which take part in the assignment only; the same on all ranks.
    """
    check_stack("scores", scores, num_global)
    check_above_zero(temperature=temperature)
    scores = at_least_float32(scores)
    images, prototypes = scores.shape[1:]
    earlier = scores.new_empty(0, prototypes) if queue is None else queue.detach().to(scores)
    if earlier.ndim != 2 or earlier.shape[1] != prototypes:
        raise ValueError(f"queue: expected (M, {prototypes}) as scores have, got shape {tuple(earlier.shape)}")
    if rank() > 0:
        earlier = earlier[:0]  # they count once
    log_codes = [
        sinkhorn(torch.cat([view.detach(), earlier]), epsilon, iterations)[:images] for view in scores[:num_global]
    ]
    log_predictions = (scores / temperature).log_softmax(-1)
    pairs = directed_pairs(len(scores), num_global)
    return average([cross_entropy(log_codes[j], log_predictions[i]) for i, j in pairs], images)


def cross_entropy(log_target: Tensor, log_prediction: Tensor) -> dict[str, Tensor]:
    """Of two stacks of log-probabilities (N, K), the mean over images, and its parts, entropy and divergence."""
    target = log_target.exp()
    loss = -(target * log_prediction).sum(-1).mean()
    entropy = -(target * log_target).sum(-1).mean()
    return {"loss": loss, "entropy": entropy, "kl": loss.detach() - entropy}


class SwAV(Method, name="swav"):
    """SwAV: predict a view's cluster from another view.

    The features are the backbone's; prototypes lie in projector space, on the unit sphere.

    The projector has two layers with BatchNorm between them. The queue holds embeddings of the first view; in the paper
    every global view has its own.

    Args:
        backbone: network with `num_features`, images to (N, D).
        prototypes: K; the paper has 3000 for ImageNet, about three per class.
        temperature: of the predictions.
        epsilon: of the codes' entropy.
        iterations: of Sinkhorn.
        queue: earlier images to take part in the assignment, for batches with fewer images than prototypes; the paper
            has 3840 for batches of 256. 0 for none.
        queue_start: the epoch from which the queue is filled; it is used when full.
        freeze_epochs: so long the prototypes stay as they are.
        dim: dimension of the projections.
        projector_width: width of the projector's hidden layer; the paper has 2048.
    """

    spaces = ("backbone", "projector")
    density_space = "projector"
    preset = "swav"

    def __init__(
        self,
        backbone: nn.Module,
        prototypes: int = 300,
        temperature: float = 0.1,
        epsilon: float = 0.05,
        iterations: int = 3,
        queue: int = 0,
        queue_start: float = 15.0,
        freeze_epochs: float = 1.0,
        dim: int = 128,
        projector_width: int = 512,
    ) -> None:
        check_above_zero(temperature=temperature, epsilon=epsilon)
        check_counts(prototypes=prototypes, iterations=iterations, dim=dim, projector_width=projector_width)
        check_not_negative(queue=queue, queue_start=queue_start, freeze_epochs=freeze_epochs)
        super().__init__(backbone, density_dim=dim)
        self.projector = projector_mlp(feature_dim(backbone), projector_width, dim, 2)
        self.prototypes = nn.Parameter(F.normalize(torch.randn(prototypes, dim), dim=-1))
        self.temperature, self.epsilon, self.iterations = temperature, epsilon, iterations
        self.queue = ParticleBank(queue, dim, "fifo") if queue else None
        self.queue_start, self.freeze_epochs = queue_start, freeze_epochs
        self.seen: Tensor | None = None  # this step's embeddings, for the queue

    def forward(self, views: list[Tensor], num_global: int) -> dict[str, Tensor]:
        z = self._on_sphere(encode_views(nn.Sequential(self.backbone, self.projector), views))  # (V, N, D)
        self.seen = z[0].detach()
        with torch.autocast(z.device.type, enabled=False):
            scores = z @ self.prototypes.mT  # (V, N, K)
            queue = None
            if self.queue is not None and self.queue.filled == self.queue.size:
                queue = self.queue.contents @ self.prototypes.detach().mT
        return swav_loss(scores, num_global, self.temperature, self.epsilon, self.iterations, queue)

    def _on_sphere(self, projected: Tensor) -> Tensor:
        return F.normalize(at_least_float32(projected), dim=-1)

    def encode(self, images: Tensor) -> dict[str, Tensor]:
        h = self.backbone(images)
        return {"backbone": h, "projector": self._on_sphere(self.projector(h))}

    def before_step(self) -> None:
        if self.clock.epoch < self.freeze_epochs:
            self.prototypes.grad = None

    @torch.no_grad()
    def after_step(self) -> None:
        self.prototypes.copy_(F.normalize(self.prototypes, dim=-1))
        if self.queue is not None and self.seen is not None and self.clock.epoch >= self.queue_start:
            self.queue.update(self.seen, self.seen)
