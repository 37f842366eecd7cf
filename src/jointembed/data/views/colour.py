"""What happens to a view's colours, in place on float images (n, C, H, W) in [0, 1], with torchvision's semantics."""

import numpy as np
import torch
from torch import Tensor

from jointembed.data.views.parameters import CONTRAST, NO_JITTER, SATURATION, Parameters


def luminance(x: Tensor) -> Tensor:
    """(n, C, H, W) -> (n, H, W): ITU-R 601 weights for RGB, the mean for any other number of channels."""
    if x.shape[1] != 3:
        return x.mean(1)
    red, green, blue = x.unbind(1)
    return (red * 0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114)


def jitter_(x: Tensor, p: Parameters) -> None:
    """Brightness, contrast, saturation and hue, each image in its own order.

    The first three are blends f * x + (1 - f) * base with base = 0, the image's mean grey, and the pixel's grey, so one
    formula with per-image coefficients serves all of them: x <- clamp(f * x + a * grey + b * mean(grey)).
    Hue goes between the blends. The rows come sorted by `hue_stage`, so it works on slices, not on scattered rows.
    """
    colourful = x.shape[1] == 3
    saturates, contrasts = p.blend == SATURATION, p.blend == CONTRAST  # (n, 3)
    factor = p.factor if colourful else np.where(saturates, 1, p.factor)
    coefficients = np.stack([factor, (1 - factor) * saturates, (1 - factor) * contrasts]).T  # (stage, n, 3)
    ends = p.hue_stage.searchsorted(np.arange(NO_JITTER + 1)).tolist()
    jittered = x[: ends[-1]]
    for stage in range(4):
        rows = slice(ends[stage], ends[stage + 1])
        if colourful and p.hue[rows].any():
            turn_hue_(x[rows], torch.from_numpy(p.hue[rows]).to(x))
        if stage < 3 and len(jittered):
            f, a, b = torch.from_numpy(coefficients[stage, : len(jittered), :, None, None]).to(x).unbind(1)  # (n, 1, 1)
            grey = luminance(jittered)
            mean = grey.mean((1, 2), keepdim=True)
            base = grey.mul_(a).add_(mean.mul_(b))
            torch.addcmul(base[:, None], jittered, f[:, None], out=jittered)
            jittered.clamp_(0, 1)


def turn_hue_(x: Tensor, turns: Tensor) -> None:
    """Rotate the hue by `turns` (n,) of the colour circle: HSV's, without branches, saturation or value.

    With r, g, b scaled to low = 0 and high = 1, the hue in sixths of a turn, from -3 to 3 with red at 0, is
        h = sign(g - b) * (1 + g + b - r)
    (red to yellow has r = 1 and b = 0, which leaves g; yellow to cyan has g = 1, which leaves 2 - r + b; the blue half
    mirrors it). Back again, with h from 0 to 6 and ramp(t) = clamp(|t| - 1, 0, 1):
        r = ramp(h - 3), g = 1 - ramp(h - 2), b = 1 - ramp(h - 4)
    Turning moves h and leaves low and high alone. The code has h in turns, and the -1 of the ramp in its other terms.
    """
    red, green, blue = x.unbind(1)  # (n, H, W) each
    high = torch.maximum(torch.maximum(red, green), blue)
    low = torch.minimum(torch.minimum(red, green), blue)
    chroma = high - low
    six = (6 * chroma).clamp_(min=1e-12)  # greys have no hue: any will do
    h = (green + blue).sub_(red).sub_(low).div_(six).add_(1 / 6).copysign_(green - blue).add_(turns[:, None, None])
    h.sub_(h.floor())
    ramp = (h - 1 / 2).abs_().clamp_(1 / 6, 1 / 3)
    torch.addcmul(low.sub_(chroma), six, ramp, out=red)
    high.add_(chroma)
    for channel, opposite in ((green, 1 / 3), (blue, 2 / 3)):
        torch.sub(h, opposite, out=ramp).abs_().clamp_(1 / 6, 1 / 3)
        torch.addcmul(high, six, ramp, value=-1, out=channel)


def grey_(x: Tensor, rows: Tensor) -> None:
    x.index_copy_(0, rows, luminance(x[rows])[:, None].expand(-1, x.shape[1], -1, -1))


def solarise_(x: Tensor, rows: Tensor, threshold: float) -> None:
    """Invert what is at least as bright as the threshold: mirror it at 1/2, by a sign (`where` is slow on a CPU)."""
    chosen = x[rows]
    below = torch.nextafter(torch.tensor(threshold, device=x.device), torch.tensor(-1.0, device=x.device))
    sign = torch.ones((), device=x.device).copysign(below - chosen)
    x.index_copy_(0, rows, chosen.sub_(0.5).mul_(sign).add_(0.5))
