"""The pages say what is so: their code runs, they name every method, and the site's table of contents is whole."""

import csv
import functools
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image
from safetensors.torch import load_file

import jointembed as je

ROOT = Path(__file__).parents[1]
PAGES = sorted(path for path in (ROOT / "docs").rglob("*.md") if "results" not in path.parts)
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def code(page):
    return BLOCK.findall(page.read_text())


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of photographs to stand in for the reader's, and trainings of one epoch of a small network."""
    rng = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for i in range(40):
        Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(tmp_path / f"photos/{i}.png")
    monkeypatch.chdir(tmp_path)
    real = je.train

    @functools.wraps(real)
    def short(*args, **options):
        if isinstance(options.get("backbone"), str):
            options["backbone"] = "conv4"
        return real(*args, **options | {"epochs": 1, "progress": False})

    monkeypatch.setattr(je, "train", short)
    return tmp_path


@pytest.mark.parametrize("page", [page for page in PAGES if code(page)], ids=lambda page: page.stem)
def test_the_code_on_a_page_runs(page, folder):
    space = {}
    for block in code(page):
        exec(compile(block, str(page), "exec"), space)
    for run in folder.glob("runs/*"):
        assert all(np.isfinite(values.numpy()).all() for values in load_file(run / "model.safetensors").values())


def test_every_method_has_a_page():
    text = "\n".join(page.read_text() for page in (ROOT / "docs/methods").glob("*.md"))
    for name in je.methods.names():
        assert f".{je.methods.get(name).__name__}\n" in text, name


def test_the_table_of_contents_is_whole():
    listed = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    assert listed == {str(page.relative_to(ROOT / "docs")) for page in PAGES}
    assert yaml.safe_load((ROOT / "mkdocs.yml").read_text())["site_name"] == "jointembed"


def test_the_site_builds_without_a_warning(tmp_path):
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "methods/lejepa/index.html").read_text()
    assert "num_slices" in page  # the options are read off the signature


def test_pages_name_no_missing_results():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_method_in_contributing_trains(tmp_path, monkeypatch):
    (block,) = code(ROOT / "CONTRIBUTING.md")
    monkeypatch.setattr("jointembed.methods.base._REGISTRY", dict(je.methods.base._REGISTRY))
    exec(block.replace("from .base", "from jointembed.methods.base"), {"__name__": "contributed"})
    model = je.train("digits", "agreement", "conv4", epochs=1, out=tmp_path / "run", preset="mnist", dim=8)
    assert model.embed("digits", "projector").shape[1] == 8
    with (tmp_path / "run/metrics.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert float(row["loss"]) == float(row["agreement"]) > 0
