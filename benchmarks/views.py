"""Speed of `jointembed.data.views` beside lightly (PIL, one image at a time) and kornia (batched), in one run.

    python benchmarks/views.py [--repeats 7] [--batch 256] [--one-core]

Every pipeline turns the same uint8 images into two normalised float views. The repeats are interleaved, so that a busy
machine slows everybody, and the best one counts. lightly works on one core per DataLoader worker and is compared per
core, in CPU seconds; kornia is compared per core and on all cores, there in seconds on the wall, which mean something
on an otherwise idle machine only (the load is printed; `--one-core` leaves them out).
"""

import argparse
import os
import platform
import time
from collections.abc import Callable
from importlib.metadata import version

import kornia.augmentation as K
import torch
from lightly.transforms import DINOTransform, SimCLRTransform
from torchvision.transforms.v2 import functional as TF

from jointembed.data.views import PRESETS, Settings, Views

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def kornia_pipeline(size: int, settings: Settings, blur: float) -> torch.nn.Module:
    kernel = 2 * max(1, size // 20) + 1
    steps = [
        K.RandomResizedCrop((size, size), scale=settings.crop_scale, ratio=settings.ratio),
        K.RandomHorizontalFlip(p=settings.flip),
        K.ColorJitter(*settings.jitter_strength, p=settings.jitter),
        K.RandomGrayscale(p=settings.grey),
    ]
    if blur:
        steps.append(K.RandomGaussianBlur((kernel, kernel), settings.blur_sigma, p=blur))
    if settings.solarise:
        steps.append(K.RandomSolarize(0.0, 0.0, p=settings.solarise))
    return torch.nn.Sequential(*steps, K.Normalize(torch.tensor(MEAN), torch.tensor(STD)))


def lightly_pipeline(size: int, settings: Settings, blur: float) -> Callable:
    brightness, contrast, saturation, hue = settings.jitter_strength
    colour = {"cj_bright": brightness, "cj_contrast": contrast, "cj_sat": saturation, "cj_hue": hue, "cj_strength": 1.0}
    if not settings.solarise:
        return SimCLRTransform(size, min_scale=settings.crop_scale[0], gaussian_blur=blur, sigmas=(0.1, 2.0), **colour)
    return DINOTransform(
        size, settings.crop_scale, n_local_views=0, gaussian_blur=(blur, blur, 0.0), sigmas=(0.1, 2.0),
        solarization_prob=settings.solarise, **colour,
    )  # fmt: skip


def best_times(contestants: dict[str, Callable[[], object]], threads: int, repeats: int) -> dict[str, float]:
    clock = time.process_time if threads == 1 else time.perf_counter
    torch.set_num_threads(threads)
    best = dict.fromkeys(contestants, float("inf"))
    for repeat in range(repeats + 1):
        for name, run in contestants.items():
            start = clock()
            run()
            if repeat:  # the first round warms up
                best[name] = min(best[name], clock() - start)
    return best


def compare(title: str, preset: str, source: int, size: int, blur: float, batch: int, repeats: int, cores: int) -> str:
    settings = PRESETS[preset]
    generator = torch.Generator().manual_seed(0)
    # Smooth colours with some noise: closer to photographs than noise alone, which is kinder to nobody's branches.
    images = torch.rand(batch, 3, 4, 4, generator=generator)
    images = torch.nn.functional.interpolate(images, size=source, mode="bicubic")
    images = (255 * (images + 0.05 * torch.randn(images.shape, generator=generator))).clamp(0, 255).to(torch.uint8)
    few = [TF.to_pil_image(image) for image in images[: max(8, batch // 8)]]

    ours = Views(size, preset, mean=MEAN, std=STD, blur=blur)
    peer = kornia_pipeline(size, settings, blur)
    each = lightly_pipeline(size, settings, blur)
    contestants: dict[str, Callable[[], object]] = {
        "ours": lambda: ours(images, 0),
        "kornia": lambda: [peer(images.float() / 255) for _ in range(2)],
    }
    one = best_times(contestants | {"lightly": lambda: [each(image) for image in few]}, 1, repeats)
    mine, kornia, lightly = 2 * batch / one["ours"], 2 * batch / one["kornia"], 2 * len(few) / one["lightly"]
    row = f"| {title} | {mine:,.0f} | {lightly:,.0f} | {kornia:,.0f} "
    row += f"| **{mine / lightly:.1f}** | **{mine / kornia:.1f}** |"
    if cores == 1:
        return row
    both = best_times(contestants, cores, repeats)
    mine, kornia = 2 * batch / both["ours"], 2 * batch / both["kornia"]
    return row + f" {mine:,.0f} | {kornia:,.0f} | **{mine / kornia:.1f}** |"


def cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":")[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--one-core", action="store_true")
    arguments = parser.parse_args()
    cores = 1 if arguments.one_core else torch.get_num_threads()
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "torchvision", "lightly", "kornia", "numpy"))
    print(f"{cpu_name()}, {torch.backends.cpu.get_cpu_capability()}, {os.cpu_count()} cores; {packages}")
    print(f"Views per second of one core, or of as many as a column says; load average {os.getloadavg()[0]:.1f}\n")
    head = ["views", "ours", "lightly", "kornia", "ours / lightly", "ours / kornia"]
    head += [f"ours, {cores} cores", f"kornia, {cores} cores", "ours / kornia"] if cores > 1 else []
    print(f"| {' | '.join(head)} |\n| --- {'| ---: ' * (len(head) - 1)}|")
    for title, preset, source, size, blur in (
        ("simclr 32 px, no blur", "simclr", 32, 32, 0.0),
        ("simclr 32 px, blur", "simclr", 32, 32, 0.5),
        ("moco-v2 64 px from 64 px, blur", "moco-v2", 64, 64, 0.5),
        ("lejepa 96 px from 128 px, blur", "lejepa", 128, 96, 0.5),
    ):
        batch = max(8, arguments.batch * 32**2 // size**2)
        print(compare(title, preset, source, size, blur, batch, arguments.repeats, cores), flush=True)


if __name__ == "__main__":
    main()
