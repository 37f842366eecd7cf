"""A whole training step with the SMC bank against one with a queue, side by side in one run.

    python -m benchmarks.bank

Each step goes from uint8 images to updated weights: two 32 x 32 views of 256 images, queries by the narrow ResNet-10,
keys by its average, InfoNCE against the bank, backward, AdamW, and the update of average and bank.
"""

import argparse
from collections.abc import Iterator

import torch

from benchmarks.measure import best_seconds
from jointembed import methods
from jointembed.backbones import create_backbone
from jointembed.data import Views
from jointembed.methods.gmje import ParticleBank
from jointembed.training.engine import keep_freed_memory
from jointembed.training.precision import best_precision


def steps(policy: str, bank: int, batch: int, dim: int, backbone: str) -> Iterator[None]:
    torch.manual_seed(0)
    method = methods.create("gmje-smc", create_backbone(backbone), policy=policy, bank=bank, dim=dim)
    method = method.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(method.parameters(), 2e-3)
    views = Views(32, "moco-v2", mean=[0.5] * 3, std=[0.25] * 3)
    images = torch.randint(256, (batch, 3, 32, 32), dtype=torch.uint8)
    step = 0
    while True:
        with torch.autocast("cpu", torch.bfloat16, enabled=best_precision() == "bf16-mixed"):
            seen = [view.contiguous(memory_format=torch.channels_last) for view in views(images, (0, step))]
            loss = method(seen, 2)["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        method.after_step()
        step += 1
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bank", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--backbone", default="resnet10-narrow")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each of the four")
    options = parser.parse_args()
    keep_freed_memory()
    sizes = (options.bank, options.batch, options.dim)
    print(f"bank {options.bank}, batch {options.batch}, D = {options.dim}, {torch.get_num_threads()} threads\n")

    queries, keys = torch.nn.functional.normalize(torch.randn(2, options.batch, options.dim), dim=-1)
    updates, whole = {}, {}
    for policy in ("fifo", "smc"):
        bank = ParticleBank(options.bank, options.dim, policy)
        for _ in range(options.bank // options.batch + 1):  # full
            bank.update(queries, keys)
        updates[policy] = lambda bank=bank: bank.update(queries, keys)
        running = steps(policy, *sizes, options.backbone)
        for _ in range(2):
            next(running)
        whole[policy] = lambda running=running: next(running)
    # A bank that is not full yet keeps everything under both policies: fill it before timing the whole step.
    for running in whole.values():
        for _ in range(options.bank // options.batch):
            running()
    found = {
        name: best_seconds(timed, options.seconds)
        for name, timed in (("update of the bank", updates), ("whole step", whole))
    }
    print("| milliseconds | FIFO | SMC | SMC / FIFO |\n| --- | --- | --- | --- |")
    for name, seconds in found.items():
        fifo, smc = seconds["fifo"], seconds["smc"]
        print(f"| {name} | {1e3 * fifo:.2f} | {1e3 * smc:.2f} | {smc / fifo:.3f} |")


if __name__ == "__main__":
    main()
