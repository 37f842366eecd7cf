"""The demo: learn shapes without labels, then see what raw pixels, a k-NN and a linear probe make of them.

python examples/demo.py
"""

import json
import logging
import shutil
import time
from pathlib import Path

import torch

import jointembed as je
from jointembed._tables import print_table
from jointembed.data import open_source
from jointembed.report import embedding_map, write_report

OUT = Path("runs/demo")

# The views say what does not matter. Colours do not, here; where a shape lies does not either, but crops that cut it in
# half would make two views of one shape look like two shapes.
VIEWS = {"crop_scale": (0.6, 1.0), "jitter": 1.0, "jitter_strength": (0.8, 0.8, 0.8, 0.5), "grey": 0.5, "solarise": 0.0}


def main() -> None:
    logging.basicConfig(format="%(message)s")
    logging.getLogger("jointembed").setLevel(logging.INFO)
    shutil.rmtree(OUT, ignore_errors=True)
    began = time.perf_counter()
    model = je.train(
        "shapes",
        method="lejepa",
        backbone="resnet10-tiny",
        epochs=11,
        batch_size=64,
        lr=4e-3,
        view_size=[16, 20],
        view_options=VIEWS,
        weight=0.03,
        dim=16,
        num_slices=256,
        out=OUT,
    )
    result = je.evaluate(model, "shapes", pixels=True)

    test = open_source("shapes", split="test")
    images = test.batch(torch.arange(len(test)))
    assert isinstance(images, torch.Tensor) and test.labels is not None
    spaces = {"raw pixels": images.flatten(1).float(), "LeJEPA features": model.embed(test)}
    embedding_map(spaces, test.labels, test.class_names, OUT / "map.png")

    result["seconds"] = time.perf_counter() - began
    (OUT / "result.json").write_text(json.dumps(result, indent=2) + "\n")
    print_table("shapes: ten classes, no labels used in training", result)
    page = write_report(OUT, "shapes", OUT / "report.html", images=1000)
    print(f"model in {OUT}, embedding map in {OUT / 'map.png'}, report to open in a browser in {page}")


if __name__ == "__main__":
    main()
