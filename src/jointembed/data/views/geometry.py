"""Where a view's pixels come from: crop, flip, rotation, blur. Float images are (n, C, H, W) in [0, 1]."""

import torch
import torch.nn.functional as F
from torch import Tensor


def resize_matrices(start: Tensor, length: Tensor, mirrored: Tensor, size_in: int, size_out: int) -> Tensor:
    """(n, size_out, size_in): row i weighs the input pixels that make output pixel i of a crop [start, start + length).

    The triangle filter of bilinear resizing, widened by the scale when shrinking (antialiasing), its weights summing
    to one over the pixels inside the crop: the definition that Pillow and torchvision's `antialias=True` share.
    """
    start, length, mirrored = start[:, None], length[:, None], mirrored[:, None]  # (n, 1)
    width = (length / size_out).clamp(min=1)  # of half the triangle, which makes the unit below
    step = torch.where(mirrored, -length, length) / (size_out * width)
    row = torch.arange(size_out, device=start.device) + 0.5
    centre = row * step + torch.where(mirrored, length, 0) / width
    pixel = torch.arange(0.5, size_in, device=start.device) - start
    pixel.masked_fill_((pixel - length / 2).abs_() > length / 2, torch.inf).div_(width)
    # min(|distance| - 1, 0) is minus the triangle; dividing by the sum takes the sign away.
    weight = (pixel[:, None] - centre[:, :, None]).abs_().sub_(1).clamp_(max=0)
    return weight.div_(weight.sum(-1, keepdim=True))


def crop_matrix(images: Tensor, box: Tensor, flip: Tensor, vertical_flip: Tensor, size: int) -> Tensor:
    """Crop, antialiased resize, flips and scaling to [0, 1] in two batched products: a crop is separable.

    images (n, C, H, W) uint8, box (n, 4) float -> (n, C, size, size).
    """
    n, channels, height, width = images.shape
    rows = resize_matrices(box[:, 0], box[:, 2], vertical_flip, height, size)
    columns = resize_matrices(box[:, 1], box[:, 3], flip, width, size)
    pixels = images.to(torch.float32).mul_(1 / 255)
    narrow = torch.bmm(pixels.view(n, channels * height, width), columns.transpose(1, 2))
    return torch.matmul(rows[:, None], narrow.view(n, channels, height, size))


def crop_each(images: list[Tensor], boxes: list[list[int]], flip: Tensor, vertical_flip: Tensor, size: int) -> Tensor:
    """The same, image by image, for images of different sizes and for large ones, where the products cost more.

    images (1, C, H_i, W_i) uint8, channels_last, which the resizing kernel likes best.
    """
    crops = [
        F.interpolate(
            image[..., top : top + height, left : left + width], (size, size), mode="bilinear", antialias=True
        )
        for image, (top, left, height, width) in zip(images, boxes, strict=True)
    ]
    x = torch.cat(crops).to(torch.float32, memory_format=torch.contiguous_format).div_(255)
    for chosen, axis in ((flip, -1), (vertical_flip, -2)):
        rows = chosen.nonzero().flatten()
        if len(rows):
            x.index_copy_(0, rows, x[rows].flip(axis))
    return x


def rotate(x: Tensor, degrees: Tensor) -> Tensor:
    """Counter-clockwise about the centre, bilinear, zeros outside; views are square."""
    angle = torch.deg2rad(degrees)
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    to_source = torch.stack([cos, -sin, zero, sin, cos, zero], 1).view(-1, 2, 3)
    grid = F.affine_grid(to_source, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, align_corners=False)


def blur(x: Tensor, sigma: Tensor) -> Tensor:
    """Gaussian blur, one sigma per image, reflected at the border; kernel of a tenth of the size as in SimCLR."""
    size = x.shape[-1]
    radius = min(max(1, size // 20), size - 1)
    offset = torch.arange(-radius, radius + 1, device=x.device)
    weight = torch.exp(-0.5 * (offset / sigma[:, None]) ** 2)  # (n, taps)
    weight = (weight / weight.sum(1, keepdim=True))[:, :, None, None, None]
    # A sum of shifted copies, rows then columns: with one kernel per image this beats a grouped convolution.
    for axis in (2, 3):
        padding = [radius, radius, 0, 0] if axis == 3 else [0, 0, radius, radius]
        padded = F.pad(x, padding, mode="reflect")
        x = padded.narrow(axis, radius, size) * weight[:, radius]
        for tap in range(radius):
            pair = padded.narrow(axis, tap, size) + padded.narrow(axis, 2 * radius - tap, size)
            x.addcmul_(pair, weight[:, tap])
    return x
