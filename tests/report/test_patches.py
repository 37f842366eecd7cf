"""Patches and attention against scikit-learn and a transformer's block by hand; odd patches tell what lies where."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.decomposition import PCA
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from jointembed.cli import main
from jointembed.model import Config, Model
from jointembed.report.patches import attention_maps, has_attention, patch_features, patch_rgb, patch_sheet

OPTIONS = {"dim": 4, "projector_width": 8}


def model_on(backbone: str | nn.Module) -> Model:
    """An untrained model for 32 px colour images."""
    torch.manual_seed(0)
    name = backbone if isinstance(backbone, str) else None
    config = Config("lejepa", OPTIONS, name, 3, 32, [0.5] * 3, [0.25] * 3)
    return config.build(backbone if isinstance(backbone, nn.Module) else None)


def transformer(**options: object) -> Model:
    torch.manual_seed(0)
    shape = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 0}
    return model_on(VisionTransformer(**(shape | options)))


def noise(count: int) -> Tensor:
    return torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def with_odd_patch(row: int, column: int, side: int = 8) -> tuple[Tensor, Tensor]:
    """A grey image, and the same with noise in one patch."""
    plain = torch.full((1, 3, 32, 32), 128, dtype=torch.uint8)
    odd, y, x = plain.clone(), row * side, column * side
    odd[..., y : y + side, x : x + side] = noise(1)[..., :side, :side]
    return plain, odd


def attention_by_hand(model: Model, images: Tensor) -> Tensor:
    """softmax(QK) of the last block, (N, heads, tokens, tokens), head by head."""
    net = model.method.backbone.eval()
    with torch.no_grad():
        x = net._pos_embed(net.patch_embed(model.views.single(images)))
        *before, last = net.blocks
        for block in before:
            x = block(x)
        q, k, _ = last.attn.qkv(last.norm1(x)).chunk(3, -1)
        heads = zip(q.split(8, -1), k.split(8, -1), strict=True)
        return torch.stack([(a @ b.transpose(1, 2) / math.sqrt(8)).softmax(-1) for a, b in heads], 1)


def test_patches_of_a_transformer_are_its_last_tokens_row_by_row() -> None:
    model = transformer(reg_tokens=2)
    found = patch_features(model, noise(5), batch_size=2)
    with torch.no_grad():
        tokens = model.method.backbone.forward_features(model.views.single(noise(5)))
    assert found.shape == (5, 4, 4, 24)
    torch.testing.assert_close(found, tokens[:, 3:].reshape(5, 4, 4, 24))


@pytest.mark.parametrize("name", ["vit-narrow", "resnet10-tiny", "dla46_c"])
def test_an_odd_patch_changes_the_features_where_it_is(name: str) -> None:
    model = model_on(name)
    side = 32 // patch_features(model, noise(1)).shape[1]
    row, column = (1, 5) if side == 4 else (1, 2) if side == 8 else (0, 0)
    plain, odd = (patch_features(model, image)[0] for image in with_odd_patch(row, column, side))
    assert divmod(int((odd - plain).norm(dim=-1).argmax()), odd.shape[1]) == (row, column)


def test_an_odd_patch_has_the_odd_colour() -> None:
    _, odd = with_odd_patch(2, 6, 4)
    colours = patch_rgb(patch_features(model_on("vit-narrow"), odd))[0]
    far = (colours[..., 0] - colours[..., 0].median()).abs()
    assert divmod(int(far.argmax()), 8) == (2, 6)


@pytest.mark.parametrize("together", [False, True])
def test_colours_are_the_principal_components_of_scikit_learn(together: bool) -> None:
    features = torch.randn(3, 4, 5, 7, generator=torch.Generator().manual_seed(1)) * torch.arange(1.0, 8.0)
    found = patch_rgb(features, together)
    flat = features.numpy().astype(float).reshape(1 if together else 3, -1, 7)
    for colours, x in zip(found.reshape(len(flat), -1, 3).numpy(), flat, strict=True):
        scores = PCA(3).fit_transform(x)
        scores = (scores - scores.min(0)) / np.ptp(scores, axis=0)
        turned = np.abs(colours - scores).max(0) > 0.5  # the sign of a component is anybody's choice
        np.testing.assert_allclose(colours, np.where(turned, 1 - scores, scores), atol=1e-5)


def test_colours_do_not_depend_on_signs_and_noise() -> None:
    features = torch.randn(2, 3, 3, 5, generator=torch.Generator().manual_seed(2))
    assert torch.equal(patch_rgb(features), patch_rgb(features.clone()))
    assert not patch_rgb(torch.full((1, 4, 4, 6), 1 / 3)).any()  # rounding is not stretched into a picture
    assert patch_rgb(features[..., :2])[..., 2].max() == 0  # two dimensions have two components


@pytest.mark.parametrize("options", [{}, {"reg_tokens": 2}, {"class_token": False, "global_pool": "avg"}])
def test_attention_is_that_of_the_last_block(options: dict) -> None:
    model, images = transformer(**options), noise(5)
    before = model.embed(images)
    found = attention_maps(model, images, batch_size=2)
    weights = attention_by_hand(model, images)
    # Patches come after the class token and the registers; without a class token every patch asks.
    rows = weights.mean(2) if "class_token" in options else weights[:, :, 0, 1 + options.get("reg_tokens", 0) :]
    torch.testing.assert_close(found, rows.reshape(5, 3, 4, 4))

    attention = model.method.backbone.blocks[-1].attn
    assert attention.fused_attn and not attention.attn_drop._forward_hooks  # left as it was
    assert torch.equal(model.embed(images), before)


def test_attention_finds_the_patch_it_looks_for() -> None:
    """A key that answers only to one token makes that patch the bright one."""
    model = transformer(pos_embed="none")
    attention = model.method.backbone.blocks[-1].attn
    plain, odd = with_odd_patch(1, 3)
    with torch.no_grad():
        attention.qkv.bias.zero_()
        attention.qkv.weight[:48] = 0  # queries and keys
    torch.testing.assert_close(attention_maps(model, plain), torch.full((1, 3, 4, 4), 1 / 17))
    block = model.method.backbone.blocks[-1]
    seen: list[Tensor] = []
    handle = block.norm1.register_forward_hook(lambda module, given, out: seen.append(out))
    model.embed(odd)
    handle.remove()
    tokens = seen[0][0, 1:]
    with torch.no_grad():
        attention.qkv.weight[24:32] = (tokens[7] - tokens[0])[None]  # token 7 is row 1, column 3
        attention.qkv.bias[:24] = 1
    first = attention_maps(model, odd)[0, 0]
    assert divmod(int(first.argmax()), 4) == (1, 3) and float(first.max()) > 2 * float(first.median())


def test_the_command_writes_a_row_per_image(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, images = tmp_path / "run", tmp_path / "images.npy"
    model_on("vit-narrow").save(run)
    np.save(images, noise(6).permute(0, 2, 3, 1).numpy())
    main(["patches", str(run), "--data", str(images), "--out", str(tmp_path / "p.png"), "-n", "3"])
    assert "3 images" in capsys.readouterr().out
    with Image.open(tmp_path / "p.png") as picture:
        assert picture.format == "PNG" and picture.width > 6 * 100 and picture.height > 3 * 100
    with pytest.raises(SystemExit, match=r"^jointembed: out: expected a file name ending in .png"):
        main(["patches", str(run), "--data", str(images), "--out", "p.pdf"])


def test_a_convolutional_network_has_colours_and_no_attention(tmp_path: Path) -> None:
    model = model_on("resnet10-tiny")
    assert not has_attention(model.method.backbone)
    patch_sheet(model, noise(2), tmp_path / "p.png")
    with Image.open(tmp_path / "p.png") as picture:
        assert picture.width < 3 * 150  # two columns


def test_bad_arguments_are_named(tmp_path: Path) -> None:
    for argument, call in {
        "model: expected a backbone of timm's": lambda: patch_features(model_on("conv4"), noise(1)),
        "model: expected a vision transformer": lambda: attention_maps(model_on("resnet10-tiny"), noise(1)),
        "images: expected 3 channels": lambda: patch_features(model_on("resnet10-tiny"), noise(1)[:, :1]),
        "images: expected at most 100": lambda: patch_sheet(model_on("resnet10-tiny"), noise(101), tmp_path / "p.png"),
        "features": lambda: patch_rgb(torch.zeros(2, 1, 1, 5)),
        "path": lambda: patch_sheet(model_on("resnet10-tiny"), noise(1), tmp_path / "p.jpg"),
    }.items():
        with pytest.raises(ValueError, match=f"^{argument}"):
            call()
