"""MoCo v2: a view among a queue of past ones (He et al., 2019, arXiv 1911.05722; Chen et al., 2020, arXiv 2003.04297).

A query has to find its key, another view through a slowly moving encoder, among the keys of the last batches. The queue
is what `gmje-smc` has with policy "fifo".

    >>> bank = ParticleBank(4096, 128, "fifo")
    >>> queries, keys = torch.randn(1, 256, 128), F.normalize(torch.randn(256, 128), dim=-1)
    >>> bank.update(keys, keys)  # of an earlier batch
    >>> terms = moco_loss(queries, torch.randn(256, 128), bank.contents)
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Method, at_least_float32, encode_views, feature_dim
from .gmje.bank import ParticleBank, info_nce
from .stacks import average, check_above_zero, check_counts, check_stack
from .teacher import Teacher, check_decay


def moco_loss(queries: Tensor, keys: Tensor, bank: Tensor, temperature: float = 0.2) -> dict[str, Tensor]:
    """InfoNCE of the queries of some views with the keys of another, the mean over images and views.

    Args:
        queries: (V, N, D), of any norm, as the keys.
        keys: (N, D), of another view; the gradient does not pass.
        bank: (M, D), of unit norm: the negatives.
        temperature: tau; 0.07 in MoCo v1.
    """
    check_stack("queries", queries)
    if keys.shape != queries.shape[1:]:
        raise ValueError(f"keys: expected shape {tuple(queries.shape[1:])} as queries have, got {tuple(keys.shape)}")
    queries, keys = (F.normalize(at_least_float32(z), dim=-1) for z in (queries, keys.detach()))
    return info_nce(queries.flatten(0, 1), keys.repeat(len(queries), 1), bank, temperature)


class MoCo(Method, name="moco-v2"):
    """MoCo v2: tell a view from a queue of past ones.

    The features are the backbone's; the loss lives in projector space, on the unit sphere.

    The projector has two layers and no BatchNorm. The queue starts empty, and not full of noise. There is no shuffling
    of BatchNorm between devices.

    Args:
        backbone: network with `num_features`, images to (N, D).
        temperature: tau.
        ema: decay of the encoder that makes the keys; 0.99 suits runs of some thousand steps.
        bank: keys in the queue; the paper has 65536, and the authors' CIFAR-10 demonstration 4096.
        symmetric: every global view makes keys for all others, as in the authors' CIFAR-10 demonstration; the paper's
            keys are of one view only, the first.
        dim: dimension of the projections.
        projector_width: width of the projector's hidden layer; the paper has that of the features, 2048.
    """

    spaces = ("backbone", "projector")
    density_space = "projector"
    preset = "moco-v2"

    def __init__(
        self,
        backbone: nn.Module,
        temperature: float = 0.2,
        ema: float = 0.999,
        bank: int = 4096,
        symmetric: bool = False,
        dim: int = 128,
        projector_width: int = 512,
    ) -> None:
        check_above_zero(temperature=temperature)
        check_decay(ema=ema)
        check_counts(bank=bank, dim=dim, projector_width=projector_width)
        super().__init__(backbone, density_dim=dim)
        self.projector = nn.Sequential(
            nn.Linear(feature_dim(backbone), projector_width), nn.ReLU(inplace=True), nn.Linear(projector_width, dim)
        )
        self.teacher = Teacher(nn.Sequential(backbone, self.projector))
        self.bank = ParticleBank(bank, dim, "fifo")
        self.temperature, self.ema, self.symmetric = temperature, ema, symmetric
        self.seen: Tensor | None = None  # this step's keys (G, N, D), for the queue

    def forward(self, views: list[Tensor], num_global: int) -> dict[str, Tensor]:
        if len(views) < 2:
            raise ValueError(f"views: expected at least two, got {len(views)}")
        sources = num_global if self.symmetric else 1
        with torch.no_grad():
            keys = F.normalize(at_least_float32(encode_views(self.teacher, views[:sources])), dim=-1)  # (G, N, D)
        first = 0 if self.symmetric else 1  # the first view asks nobody where only it has keys
        queries = encode_views(nn.Sequential(self.backbone, self.projector), views[first:])
        found = []
        for j in range(sources):
            others = [i - first for i in range(first, len(views)) if i != j]
            found.append(moco_loss(queries[others], keys[j], self.bank.contents, self.temperature))
        self.seen = keys
        return average(found)

    def encode(self, images: Tensor) -> dict[str, Tensor]:
        h = self.backbone(images)
        return {"backbone": h, "projector": F.normalize(at_least_float32(self.projector(h)), dim=-1)}

    def after_step(self) -> None:
        self.teacher.follow(nn.Sequential(self.backbone, self.projector), self.ema)
        if self.seen is not None:
            self.bank.update(self.seen, self.seen)
