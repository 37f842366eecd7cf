"""Views: random augmentation of whole uint8 batches as tensors, on CPU or GPU, as a pure function of (images, seed).

    views = Views(32, "simclr", num_global=2)
    first, second = views(images, seed=(seed, epoch, step, rank))  # (N, C, H, W) uint8 -> (N, C, 32, 32) float32

`presets` holds the papers' values, `parameters` draws what happens to each image, `geometry` and `colour` do it.
"""

from jointembed.data.views.pipeline import Views
from jointembed.data.views.presets import PRESETS, Settings, presets

__all__ = ["PRESETS", "Settings", "Views", "presets"]
