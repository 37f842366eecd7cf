"""In what precision to train: bf16 where it is fast and right."""

import logging

import lightning as L
import torch
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.plugins.precision import Precision
from torch import Tensor, nn

from jointembed.data.loading import GrowingViews

log = logging.getLogger("jointembed")


def best_precision(device: str = "auto") -> str:
    """bf16 autocast where the GPU or the CPU multiplies it natively; emulated elsewhere, it is many times slower.

    Args:
        device: "cpu", "cuda" or "mps"; "auto" is the one that Lightning would take.
    """
    if device == "cuda" or (device == "auto" and torch.cuda.is_available()):
        return "bf16-mixed" if torch.cuda.is_bf16_supported(including_emulation=False) else "32-true"
    if device == "mps" or (device == "auto" and torch.backends.mps.is_available()):
        return "32-true"
    native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return "bf16-mixed" if native else "32-true"


def keep_gradients_true(trainer: L.Trainer, backbone: nn.Module, channels: int, views: GrowingViews) -> None:
    """Train in float32 where torch's bf16 convolutions would have wrong gradients on this CPU.

    The gradient of a weight that only ever meets padding is 0; oneDNN's bf16 kernels leave there what the memory held
    before (torch 2.15: a 3 x 3 kernel with stride 2 on one pixel, a 5 x 5 or 7 x 7 kernel on one or two).
    """
    on_cpu = isinstance(trainer.accelerator, CPUAccelerator)
    if not on_cpu or trainer.precision not in ("bf16-mixed", "bf16-true"):
        return
    for size in sorted(views.sizes):
        if name := kernel_beyond_image(backbone, channels, size):
            log.warning(
                "precision: 32 instead of %s, whose gradients cannot be trusted here: the kernel of backbone.%s "
                "reaches beyond its whole input for views of %d pixels",
                trainer.precision,
                name,
                size,
            )
            trainer.strategy.precision_plugin = Precision()
            return


@torch.no_grad()
def kernel_beyond_image(network: nn.Module, channels: int, size: int) -> str | None:
    """The first convolution with weights that meet nothing but padding when images of this size come in."""
    found: list[str] = []
    names = {module: name for name, module in network.named_modules() if isinstance(module, nn.Conv2d)}

    def look(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(module, nn.Conv2d)
        if not all(_all_taps_used(module, axis, inputs[0].shape[axis - 2], output.shape[axis - 2]) for axis in (0, 1)):
            found.append(names[module])

    hooks = [module.register_forward_hook(look) for module in names]
    training = network.training
    try:
        parameter = next(network.parameters(), torch.empty(0))
        network.eval()(torch.zeros(2, channels, size, size, dtype=parameter.dtype, device=parameter.device))
    finally:
        network.train(training)
        for hook in hooks:
            hook.remove()
    return found[0] if found else None


def _all_taps_used(convolution: nn.Conv2d, axis: int, side_in: int, side_out: int) -> bool:
    before = convolution._reversed_padding_repeated_twice[2 * (1 - axis)]
    starts = [convolution.stride[axis] * i - before for i in range(side_out)]
    taps = [convolution.dilation[axis] * tap for tap in range(convolution.kernel_size[axis])]
    return all(any(0 <= start + tap < side_in for start in starts) for tap in taps)
