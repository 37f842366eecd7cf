"""Models on the Hugging Face Hub, with a folder in its place."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from huggingface_hub import HfApi

import jointembed as je


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that holds repositories, as pushed and as downloaded."""
    hub = tmp_path / "hub"

    class Repository:
        repo_id = "me/digits"

    def upload(self, *, repo_id: str, folder_path: str | Path, **_):
        shutil.copytree(folder_path, hub / repo_id)
        return str(hub / repo_id)

    def download(repo_id: str, allow_patterns: list[str], revision: str | None = None) -> str:
        target = tmp_path / "cache" / str(revision)
        target.mkdir(parents=True)
        for path in (hub / repo_id).iterdir():
            if path.name in allow_patterns:
                shutil.copy(path, target)
        return str(target)

    monkeypatch.setattr(HfApi, "create_repo", lambda self, **_: Repository)
    monkeypatch.setattr(HfApi, "upload_folder", upload)
    monkeypatch.setattr("jointembed.model.snapshot_download", download)
    return hub


def test_a_model_comes_back_from_where_it_was_pushed(run: Path, hub: Path, tmp_path: Path) -> None:
    model = je.load(run)
    model.push_to_hub("me/digits", private=True)
    assert {path.name for path in (hub / "me/digits").iterdir()} == {"README.md", *je.model.FILES}
    back = je.Model.from_pretrained("me/digits", revision="v1")
    assert {path.name for path in (tmp_path / "cache/v1").iterdir()} == set(je.model.FILES)
    images = je.data.open_source("digits").batch(range(20))
    assert torch.equal(back.embed(images), model.embed(images))
    assert back.config == model.config
    assert all(torch.equal(back.reference[name], value) for name, value in model.reference.items())


def test_a_saved_folder_is_a_run_with_a_card(run: Path, tmp_path: Path) -> None:
    je.load(run).save_pretrained(tmp_path / "x")
    images = je.data.open_source("digits").batch(range(20))
    for model in (je.Model.from_pretrained(tmp_path / "x"), je.load(tmp_path / "x")):
        assert torch.equal(model.embed(images), je.load(run).embed(images))
    card = (tmp_path / "x/README.md").read_text()
    config = json.loads((run / "config.json").read_text())
    assert yaml.safe_load(card.split("---")[1])["library_name"] == "jointembed"
    for text in (
        je.methods.summary(je.methods.get("lejepa")),
        f"{config['training']['images']} images of digits",
        f"| epochs | {config['training']['epochs']} |",
        f"| dim | {config['method_options']['dim']} |",
        f"torch {torch.__version__}",
    ):
        assert text in card, text


def test_what_comes_from_the_hub_is_checked_as_any_run(run: Path, hub: Path, tmp_path: Path) -> None:
    repository = hub / "me/evil"
    shutil.copytree(run, repository, ignore=shutil.ignore_patterns("tensorboard", "*.ckpt"))
    config = json.loads((run / "config.json").read_text())
    (repository / "config.json").write_text(json.dumps({**config, "backbone": "hf-hub:me/code"}))
    with pytest.raises(ValueError, match="backbone: expected a module or the name of a network, never a place"):
        je.Model.from_pretrained("me/evil", revision="a")
    (repository / "config.json").write_text(json.dumps(config))
    (repository / "model.safetensors").unlink()
    (repository / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(ValueError, match="has no model.safetensors"):
        je.Model.from_pretrained("me/evil", revision="b")
    assert not (tmp_path / "cache/b/pytorch_model.bin").exists()
