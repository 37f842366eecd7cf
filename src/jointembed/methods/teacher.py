"""A teacher: a weight-averaged copy of a network, with a decay that may follow a schedule."""

import math
from collections.abc import Callable, Sequence

from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


def moving_average(decay: float) -> Callable[[Sequence[Tensor], Sequence[Tensor], Tensor | int], None]:
    """What an `AveragedModel` is updated by, where parameters are shared out over processes and buffers are not too."""
    update = get_ema_multi_avg_fn(decay)

    def update_each_kind(averages: Sequence[Tensor], values: Sequence[Tensor], count: Tensor | int) -> None:
        for kind in (True, False):
            chosen = [pair for pair in zip(averages, values, strict=True) if isinstance(pair[0], DTensor) is kind]
            if chosen:
                update(*map(list, zip(*chosen, strict=True)), count)

    return update_each_kind


class Teacher(AveragedModel):
    """A copy that is not trained but follows the network, its buffers too: w <- decay w + (1 - decay) w_network.

    It is in training mode when the method is, as in the papers: its BatchNorm sees the batch.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__(network, use_buffers=True)
        self.requires_grad_(False)
        self.n_averaged.fill_(1)  # at 0 the first update would copy the network instead of averaging

    def follow(self, network: nn.Module, decay: float) -> None:
        """One step of the moving average."""
        self.multi_avg_fn = moving_average(decay)
        self.update_parameters(network)


def check_decay(**values: float) -> None:
    """Decays, of which 1 is a teacher that stands still."""
    for name, value in values.items():
        if not 0 <= value <= 1:
            raise ValueError(f"{name}: expected a decay from 0 to 1, got {value}")


def cosine(start: float, end: float, share: float) -> float:
    """From start to end along half a cosine, `share` from 0 to 1."""
    return end - (end - start) * (math.cos(math.pi * share) + 1) / 2


def linear(start: float, end: float, share: float) -> float:
    """From start to end along a line, `share` from 0 to 1."""
    return start + (end - start) * share
