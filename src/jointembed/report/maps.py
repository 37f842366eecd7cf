"""The embedding map: features in two dimensions, coloured by class."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from jointembed._files import atomic
from jointembed._text import printable


def flatten(z: Tensor, seed: int = 0) -> dict[str, np.ndarray]:
    """Directions of features z (N, D), N of at least 4, in two dimensions (N, 2), by "t-SNE" and by "PCA"."""
    from rich.console import Console
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    unit = torch.nn.functional.normalize(z.double(), dim=1).numpy()
    # t-SNE's authors advise principal components first; it is faster, too.
    with np.errstate(invalid="ignore"):  # of a collapsed cloud, which has no variance to take shares of
        reduced = PCA(min(50, *unit.shape), random_state=seed).fit_transform(unit)
    start = "pca" if reduced.shape[1] > 1 and reduced[:, 0].std() > 0 else "random"  # of points that differ at all
    mapping = TSNE(init=start, perplexity=min(30, (len(unit) - 1) / 3), random_state=seed)
    with Console(stderr=True).status(f"drawing a map of {len(unit):,} images"):  # a word of it on a terminal only
        flat = mapping.fit_transform(reduced)
    return {"t-SNE": flat, "PCA": np.pad(reduced, ((0, 0), (0, 1)))[:, :2]}


def embedding_map(
    features: dict[str, Tensor],
    labels: Tensor,
    class_names: Sequence[str] | None,
    path: str | Path,
    limit: int = 1500,
    seed: int = 0,
) -> None:
    """t-SNE of each of the named features (N, D) of the same images, side by side, as a picture at `path`."""
    from matplotlib.figure import Figure

    some = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))[:limit]
    classes = [int(c) for c in labels.unique()]
    # A space in front: matplotlib leaves labels that begin with an underscore out of the legend.
    names = [f" {printable(name)}" for name in class_names or range(max(classes) + 1)]
    figure = Figure(figsize=(6 * len(features), 6.4), layout="constrained")
    axes = np.atleast_1d(figure.subplots(1, len(features)))
    chosen = labels[some].numpy()
    for axis, (title, z) in zip(axes, features.items(), strict=True):
        flat = flatten(z[some], seed)["t-SNE"]
        for c in classes:
            points = flat[chosen == c]
            axis.scatter(*points.T, s=9, color=f"C{c % 10}", label=names[c], linewidths=0)
        axis.set_title(title)
        axis.set_xticks([])
        axis.set_yticks([])
        axis.set_aspect("equal", "datalim")
    handles, texts = axes[0].get_legend_handles_labels()
    legend = figure.legend(
        handles, texts, loc="outside lower center", ncols=min(len(texts), 10), frameon=False, markerscale=2.5
    )
    for text in legend.get_texts():
        text.set_parse_math(False)  # a class name may hold dollars, which are no formula
    with atomic(Path(path)) as target:
        figure.savefig(target, dpi=110)
