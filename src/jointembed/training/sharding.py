"""Models too large for one process: FSDP, in which every process keeps a part of each weight and of its optimiser.

What is trained is a copy. The model that people hold stays whole, in every process, and is brought up to date where it
is looked at or saved: so the first process can do both by itself.
"""

import copy
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from jointembed.methods import Method
from jointembed.model import Model

LARGE = 1_000_000  # parameters that are worth gathering by themselves


class FullySharded(ModelParallelStrategy):
    """Lightning's strategy for PyTorch's `fully_shard`, over all processes, with checkpoints of one whole file."""

    def __init__(self) -> None:
        super().__init__(tensor_parallel_size=1, save_distributed_checkpoint=False)

    def setup_environment(self) -> None:
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()


def shard(method: Method, mesh: DeviceMesh, large: int = LARGE) -> None:
    """Share a method's parameters out over the processes of a mesh, from the first one's values.

    The backbone and its weight-averaged copies are gathered part by part as a step goes through them, parts of at least
    `large` parameters; everything else at once.
    """
    method.to(memory_format=torch.contiguous_format)  # no other can be shared out
    for value in method.state_dict().values():
        dist.broadcast(value, 0)
    if mesh.device_type == "cuda":
        nn.SyncBatchNorm.convert_sync_batchnorm(method)
    networks = [module for module in method.modules() if type(module) is type(method.backbone)]
    for network in networks:
        _shard_parts(network, mesh, large)
    fully_shard(method, mesh=mesh)


def _shard_parts(module: nn.Module, mesh: DeviceMesh, large: int) -> int:
    """Shard the smallest parts that are large enough; the number of parameters that were left."""
    if isinstance(module, FSDPModule):  # as part of another network
        return 0
    left = sum(p.numel() for p in module.parameters(recurse=False))
    left += sum(_shard_parts(child, mesh, large) for child in module.children())
    if left < large or isinstance(module, nn.ModuleList | nn.ModuleDict):  # lists are never called
        return left
    fully_shard(module, mesh=mesh)
    return 0


def whole(tensor: Tensor) -> Tensor:
    """The tensor that the processes hold parts of: all of them must ask. Any other is itself."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def gather(sharded: nn.Module, into: nn.Module) -> None:
    """Copy the state of a sharded module into a whole one, one tensor after the other, in every process."""
    state = into.state_dict()
    for name, value in sharded.state_dict().items():
        state[name].copy_(whole(value))


class Gather(Callback):
    """Brings the model up to date after every epoch. It goes before all who look at it."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def on_fit_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if trainer.is_global_zero:  # the others' copies are never used before the end
            self.model.to(trainer.strategy.root_device)

    def on_train_epoch_end(self, trainer: L.Trainer, module: Any) -> None:
        gather(module.method, self.model.method)

    def teardown(self, trainer: L.Trainer, module: L.LightningModule, stage: str) -> None:
        self.model.to("cpu")  # where Lightning leaves what it has trained


def to_train(model: Model, trainer: L.Trainer) -> tuple[Method, list[Callback]]:
    """What the strategy trains, the model's own method or a copy to share out, and who keeps the model up to date."""
    if isinstance(trainer.strategy, FullySharded):
        if any(getattr(module, "writes_parameters", False) for module in model.method.modules()):
            raise ValueError(
                "strategy: expected one that keeps the whole model in every process, such as 'ddp', for these options "
                f"of {model.config.method}, which writes to its parameters itself; got 'fsdp'"
            )
        return copy.deepcopy(model.method), [Gather(model)]
    return model.method, []
