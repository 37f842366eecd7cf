"""The contact sheet: the strangest and the most typical images, to judge a score by eye."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from jointembed._files import atomic
from jointembed.data import Source, open_source

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 8
LARGEST = 500  # pictures per block: what one PNG can hold
PICTURE, GAP, LINE, TITLE, BETWEEN, MARGIN = 1.25, 0.15, 0.16, 0.32, 0.15, 0.2  # inches
FLAGGED = "#d62728"


def contact_sheet(
    images: Any,
    scores: Tensor,
    path: str | Path,
    names: Sequence[str] | None = None,
    each: int = 24,
    flagged: Tensor | None = None,
) -> None:
    """A PNG of the strangest images and, below them, the most typical ones. No image is shown twice.

    Grey and coloured images are shown as they are, any other number of channels as its mean in grey.

    Args:
        images: what `jointembed.data.open_source` takes; only the images on the sheet are read.
        scores: one number per image (N,), higher = stranger; stands under each picture.
        path: the .png to write.
        names: one per image, to stand under each picture.
        each: the most pictures of either kind.
        flagged: which images (N,) get a frame.
    """
    path = Path(path)
    if path.suffix != ".png":
        raise ValueError(f"path: expected a file name ending in .png, got {path}")
    if not 1 <= each <= LARGEST:
        raise ValueError(f"each: expected 1 to {LARGEST}, got {each}")
    source = open_source(images, minimum=1)
    for argument, value in (("scores", scores), ("names", names), ("flagged", flagged)):
        if value is not None and len(value) != len(source):
            raise ValueError(f"{argument}: expected one for each of {len(source)} images, got {len(value)}")
    order = scores.argsort(descending=True, stable=True)
    strangest = order[: min(each, (len(order) + 1) // 2)]
    typical = order[len(strangest) :].flip(0)[:each]  # the most typical first
    blocks = {"Strangest": strangest, "Most typical": typical} if len(typical) else {"Strangest": strangest}
    figure = _draw(source, blocks, scores, names, flagged)
    with atomic(path) as target, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a name in a script the font lacks is drawn as boxes
        figure.savefig(target, dpi=110)


def _draw(
    source: Source,
    blocks: dict[str, Tensor],
    scores: Tensor,
    names: Sequence[str] | None,
    flagged: Tensor | None,
) -> "Figure":
    """The figure: each block a title and rows of pictures, laid out in inches from the top left."""
    from matplotlib.figure import Figure

    columns = max(min(COLUMNS, max(map(len, blocks.values()))), 4)  # titles want some width even over a single picture
    row = PICTURE + LINE * (1 if names is None else 2) + GAP
    heights = [TITLE + row * -(-len(some) // COLUMNS) for some in blocks.values()]
    width = 2 * MARGIN + columns * (PICTURE + GAP) - GAP
    height = 2 * MARGIN - GAP + sum(heights) + BETWEEN * (len(blocks) - 1)
    figure = Figure(figsize=(width, height))
    top = height - MARGIN
    for (title, some), block in zip(blocks.items(), heights, strict=True):
        if flagged is not None:
            count = int(flagged[some].sum())
            title += f"  ({count} of {len(some)} flagged{', framed in red' if count else ''})"
        figure.text(MARGIN / width, top / height, title, va="top", fontsize=12)
        for place, (i, pixels) in enumerate(zip(some.tolist(), source.batch(some), strict=True)):
            x = MARGIN + place % COLUMNS * (PICTURE + GAP)
            y = top - TITLE - place // COLUMNS * row - PICTURE
            axis = figure.add_axes((x / width, y / height, PICTURE / width, PICTURE / height))
            framed = flagged is not None and bool(flagged[i])
            _picture(axis, pixels, framed)
            lines: list[tuple[str, dict[str, Any]]] = [(f"{float(scores[i]):.4g}", {"fontsize": 9})]
            if names is not None:  # monospaced: a number of letters is a width
                lines.append((_short(names[i]), {"fontsize": 7, "family": "monospace"}))
            for line, (text, style) in enumerate(lines):
                at = (x + PICTURE / 2) / width, (y - (line + 1) * LINE) / height
                color = FLAGGED if framed else "black"
                # A file name may hold dollars, which are no formula.
                figure.text(*at, text, ha="center", va="baseline", color=color, parse_math=False, **style)
        top -= block + BETWEEN
    return figure


def _picture(axis: "Axes", pixels: Tensor, framed: bool) -> None:
    """One image (C, H, W) in its own proportions, centred in its square."""
    axis.imshow(_displayed(pixels), cmap="gray", vmin=0, vmax=255)
    axis.set_xticks([])
    axis.set_yticks([])
    axis.spines[:].set(visible=framed, color=FLAGGED, linewidth=2.5)


def _displayed(pixels: Tensor) -> np.ndarray:
    """(H, W, 3) for three channels, else the channels' mean (H, W)."""
    return pixels.permute(1, 2, 0).numpy() if len(pixels) == 3 else pixels.float().mean(0).numpy()


def _short(name: str, limit: int = 20) -> str:
    """The end of a name: where files in one folder differ. Line breaks and broken characters would spoil the page."""
    name = "".join(letter if letter.isprintable() else "?" for letter in name)
    return name if len(name) <= limit else "…" + name[1 - limit :]
