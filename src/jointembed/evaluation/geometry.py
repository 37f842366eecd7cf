"""Collapse and geometry of a model's embeddings: every measure of `jointembed.metrics` in one table."""

import torch

from jointembed.data import Source
from jointembed.metrics import (
    alignment,
    alpha_req,
    effective_rank,
    gaussianity,
    information,
    isotropy,
    lidar,
    rank_me,
    uniformity,
)
from jointembed.model import Model

from .views import embed_views

IMAGES = 5_000  # for the measures of one embedding per image: their cost grows with the square or the cube
VIEWED_IMAGES = 1_000  # for those of several views each, and for the null distribution; LiDAR's paper has as many
NUM_VIEWS = 10  # within one per cent of the paper's 50, it says


def feature_geometry(model: Model, source: Source, space: str | None = None, seed: int = 0) -> dict[str, float]:
    """Rank, spectrum, isotropy, spread and Gaussianity of the embeddings of a source's images, labels unused.

    At most 5,000 images, and 1,000 with ten views each for LiDAR, information and alignment. The Gaussianity is that of
    the standardised embeddings in `space`, or by default in the space where the method has its density.
    """
    z = model.embed(spread(source, IMAGES), space, progress=False)
    some = spread(source, VIEWED_IMAGES)
    views = embed_views(model, some, NUM_VIEWS, space, seed)
    normal = gaussianity(model.embed(some, space or model.method.density_space, progress=False), seed=seed)
    return {
        "rank_me": rank_me(z),
        "effective_rank": effective_rank(z),
        "lidar": lidar(views),
        "information": information(views),
        "alpha_req": alpha_req(z),
        "isotropy": isotropy(z),
        "uniformity": uniformity(z),
        "alignment": alignment(views),
        "sigreg": normal.value,
        "sigreg_null_mean": normal.null_mean,
        "sigreg_null_95": normal.null_quantiles[-1],
        "sigreg_p_value": normal.p_value,
    }


def spread(source: Source, limit: int) -> Source:
    """At most `limit` images, from the whole length of the source."""
    if len(source) <= limit:
        return source
    return source.subset(torch.linspace(0, len(source) - 1, limit).long())
