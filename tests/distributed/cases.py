"""Every method, without BatchNorm, trained for some steps: by one process, or by ranks that each have a part of it."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributions import Normal
from torch.nn.parallel import DistributedDataParallel

from jointembed import methods
from jointembed.methods.base import Clock
from jointembed.training.sharding import shard, whole

IMAGES, STEPS = 12, 3
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}  # of the largest number there is
SPLITS = {"equal": 6, "unequal": 11}  # images of rank 0
BANK = 20  # not a multiple of the batch, and full in the second step

# Options that reach what a method does with its batch; by default none.
OPTIONS: dict[str, dict[str, dict]] = {
    "dino": {"": {"prototypes": 10}},
    "gje": {variant: {"variant": variant, "bank": BANK} for variant in ("primal", "hsic", "dual", "rff")}
    | {"joint": {"entropy": "joint"}},
    "gmje": {
        f"{learning}, {covariance}": {
            "learning": learning,
            "covariance": covariance,
            "prototypes": 24,  # some without images: to be revived
            "revive_every": 2,
        }
        for learning, covariance in (
            ("em", "shared"),
            ("em", "full"),
            ("gradient", "shared"),
            ("gng", "shared"),
            ("smc", "shared"),
            ("smc", "fixed"),
        )
    },
    "gmje-smc": {policy: {"policy": policy, "bank": BANK} for policy in ("smc", "fifo", "batch")},
    "lejepa": {
        "": {"num_slices": 32},
        "swa": {"num_slices": 32, "swa": 0.9},
        "watson": {"num_slices": 32, "test": "watson"},
    },
    "lejepa-mdn": {"": {"num_slices": 32, "width": 8}},
    "lejepa-vje": {"": {"num_slices": 32}},
    "moco-v2": {"": {"bank": BANK}, "symmetric": {"bank": BANK, "symmetric": True}},
    "swav": {"": {"prototypes": 10}, "queue": {"prototypes": 10, "queue": BANK, "queue_start": 0.0}},
    "vje": {"": {}, "student": {"likelihood": "student", "samples": 2}, "ema": {"target": "ema"}},
    "vssl": {"": {}, "cosine": {"form": "cosine"}},
}
CASES = [(name, variant) for name in methods.names() for variant in OPTIONS.get(name, {"": {}})]


class Network(nn.Module):
    """(N, 1, S, S) of any size to (N, 6)."""

    num_features = 6

    def __init__(self, batch_norm: bool = False) -> None:
        super().__init__()
        self.convolution, self.linear = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(16, 6)
        self.norm = nn.BatchNorm2d(4) if batch_norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.convolution(x)).tanh()
        return self.linear(nn.functional.adaptive_avg_pool2d(x, 2).flatten(1))


def without_batch_norm(module: nn.Module) -> nn.Module:
    """LayerNorm takes its place: what an image gives must not depend on its neighbours on the same rank."""
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm1d):
            trained = any(p.requires_grad for p in child.parameters())  # not in a teacher
            norm = nn.LayerNorm(child.num_features, elementwise_affine=child.affine)
            setattr(module, name, norm.requires_grad_(trained))
        else:
            without_batch_norm(child)
    return module


def create(name: str, variant: str, dtype: torch.dtype, batch_norm: bool = False) -> methods.Method:
    torch.manual_seed(0)
    known = methods.get(name).options()
    options = {k: v for k, v in {"dim": 4, "projector_width": 8}.items() if k in known}
    method = methods.create(name, Network(batch_norm), **(options | OPTIONS.get(name, {"": {}})[variant]))
    return (method if batch_norm else without_batch_norm(method)).to(dtype).train()


def views(step: int, dtype: torch.dtype) -> list[Tensor]:
    """Two global views and a local one of all images, which have something in common."""
    g = torch.Generator().manual_seed(step)
    image = torch.randn(IMAGES, 1, 8, 8, generator=g, dtype=torch.float64)
    noise = 0.5 * torch.randn(3, IMAGES, 1, 8, 8, generator=g, dtype=torch.float64)
    first, second, third = (image + one for one in noise)
    return [first.to(dtype), second.to(dtype), third[..., :4, :4].to(dtype)]


def noise_of_the_image(self: Normal, shape: tuple[int, ...] = ()) -> Tensor:
    """A sample that every process draws alike for the same image: in place of `Normal.rsample`."""
    loc = self.loc.expand(*shape, *self.loc.shape)
    which = torch.arange(1, len(loc) + 1).view(-1, *[1] * self.loc.ndim) if shape else 1
    return loc + self.scale * torch.sin(7 * which * loc.detach())


def train(
    name: str,
    variant: str,
    dtype: torch.dtype,
    rank: int = 0,
    split: str | None = None,
    mesh: DeviceMesh | None = None,
    batch_norm: bool = False,
) -> dict[str, Any]:
    """Losses, the last step's gradients, and the state afterwards.

    With a split, one rank's part of the same under DDP; with a mesh too, under FSDP.
    """
    method = create(name, variant, dtype, batch_norm)
    own = slice(None)
    network: nn.Module = method
    if split is not None:
        own = slice(SPLITS[split]) if rank == 0 else slice(SPLITS[split], None)
        if mesh is None:
            network = DistributedDataParallel(method, broadcast_buffers=False)  # equal by themselves, or not at all
        else:
            shard(method, mesh, large=50)  # of the network's two layers, one by itself
    steps = STEPS if dtype == torch.float64 else 2  # before rounding can choose another particle, or node
    losses = []
    for step in range(steps):
        torch.manual_seed(1000 * rank + step)  # ranks draw differently, as in training
        method.clock = Clock(step, steps)
        method.zero_grad()
        found = network([view[own] for view in views(step, dtype)], 2)
        found["loss"].backward()
        losses.append(found["loss"].detach())
        method.before_step()
        gradient = torch.cat([whole(p.grad).flatten() for p in method.parameters() if p.grad is not None])
        with torch.no_grad():
            for p in method.parameters():
                if p.grad is not None:
                    p -= 0.05 * p.grad / gradient.norm().clamp_min(1)
        method.after_step()
    state = {key: whole(value).clone() for key, value in method.state_dict().items()}
    return {"loss": torch.stack(losses), "gradient": gradient, "state": state}


@functools.cache
def by_one_process(name: str, variant: str, dtype: torch.dtype) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Normal, "rsample", noise_of_the_image)
        return train(name, variant, dtype)


def assert_near(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """Beside the largest number: entries that are 0 but for rounding have no relative error."""
    torch.testing.assert_close(actual.isfinite(), expected.isfinite())
    actual, expected = actual[actual.isfinite()], expected[expected.isfinite()]
    if expected.numel():
        error = float((actual - expected).abs().max())
        assert error <= TOLERANCE[dtype] * max(float(expected.abs().max()), 1e-3), (error, expected.abs().max())


def assert_as_one(found: list[dict], expected: dict[str, Any], dtype: torch.dtype) -> None:
    first, second = found
    for one in found:
        assert_near(one["loss"], expected["loss"], dtype)
        assert_near(one["gradient"], expected["gradient"], dtype)
    for key, value in expected["state"].items():
        torch.testing.assert_close(first["state"][key], second["state"][key], rtol=0, atol=0, equal_nan=True, msg=key)
        assert_near(first["state"][key], value, dtype)
