"""The demo: learn shapes without labels, then see what raw pixels, a k-NN and a linear probe make of them.

python examples/demo.py
"""

import json
import shutil
import time
from pathlib import Path

import torch

import jointembed as je
from jointembed.cli import print_table
from jointembed.data import open_source
from jointembed.report import embedding_map

OUT = Path("runs/demo")


def main() -> None:
    shutil.rmtree(OUT, ignore_errors=True)
    began = time.perf_counter()
    model = je.train("shapes", method="lejepa", backbone="resnet10-narrow", epochs=10, out=OUT)
    result = je.evaluate(model, "shapes", pixels=True)

    test = open_source("shapes", split="test")
    images = test.batch(torch.arange(len(test)))
    assert isinstance(images, torch.Tensor) and test.labels is not None
    spaces = {"raw pixels": images.flatten(1).float(), "LeJEPA features": model.embed(test)}
    embedding_map(spaces, test.labels, test.class_names, OUT / "map.png")

    result["seconds"] = time.perf_counter() - began
    (OUT / "result.json").write_text(json.dumps(result, indent=2) + "\n")
    print_table("shapes: ten classes, no labels used in training", result)
    print(f"model in {OUT}, embedding map in {OUT / 'map.png'}")


if __name__ == "__main__":
    main()
