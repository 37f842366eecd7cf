"""Backbones: any timm or torchvision name, any module giving (N, D), and small networks for 28-64 px on a CPU.

>>> backbone = create_backbone("resnet10-narrow", channels=3, image_size=32)
>>> backbone(torch.zeros(2, 3, 32, 32)).shape
torch.Size([2, 256])
"""

import difflib
from collections.abc import Callable
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn

SMALL_IMAGE = 64  # up to this side the papers give ResNets a 3x3 stride-1 stem and no max-pool


def _narrow_resnet(
    blocks: tuple[int, int, int, int], width: int = 32, strided: bool = False, head: int = 0
) -> Callable[[int, int], nn.Module]:
    """timm's ResNet with `width` channels after the stem, doubling thrice: one that two CPU cores can train.

    `strided`: a 4 x 4 stem that halves even small images, for a quarter of the work. `head`: so many features, made by
    a 1 x 1 convolution before pooling.
    """

    def create(channels: int, image_size: int) -> nn.Module:
        from timm.models.resnet import BasicBlock, ResNet

        small = image_size <= SMALL_IMAGE
        # timm ties the width after the stem to 64 unless the stem is "deep"; its convolutions are replaced just below.
        net: Any = ResNet(
            cast(Any, BasicBlock),
            blocks,
            num_classes=0,
            in_chans=channels,
            channels=(width, 2 * width, 4 * width, 8 * width),
            stem_type="deep",
            stem_width=width // 2,
            zero_init_last=False,  # with it, short trainings on shapes learned far less
        )
        stride = 1 if small and not strided else 2
        net.conv1 = nn.Conv2d(channels, width, 4 if strided else 3, stride, padding=1, bias=False)
        if small:
            net.maxpool = nn.Identity()
        if head:
            wide = nn.Conv2d(8 * width, head, 1, bias=False)
            nn.init.kaiming_normal_(wide.weight, mode="fan_out", nonlinearity="relu")
            net.layer4.append(nn.Sequential(wide, nn.BatchNorm2d(head), nn.ReLU(inplace=True)))
        nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")
        return net

    return create


def _small_vit(channels: int, image_size: int) -> nn.Module:
    """timm's VisionTransformer with 4-pixel patches (8 above 64 px): 192 wide, 6 deep, 2.7 M parameters."""
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(
        img_size=image_size,
        patch_size=4 if image_size <= SMALL_IMAGE else 8,
        in_chans=channels,
        num_classes=0,
        embed_dim=192,
        depth=6,
        num_heads=3,
        dynamic_img_size=True,
    )


def _four_convolutions(channels: int, image_size: int) -> nn.Module:
    """Four stride-2 convolutions and a linear layer, as the GMJE paper generates digits with: far the fastest here."""
    widths, side = (channels, 32, 64, 128, 256), -(-image_size // 16)
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Conv2d(a, b, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
    pool = nn.AdaptiveAvgPool2d(side)  # does nothing at image_size, and lets views of other sizes pass
    return nn.Sequential(*layers, pool, nn.Flatten(), nn.Linear(widths[-1] * side**2, 512), nn.ReLU())


SMALL: dict[str, Callable[[int, int], nn.Module]] = {
    "resnet10-tiny": _narrow_resnet((1, 1, 1, 1), width=16),
    "resnet10-narrow": _narrow_resnet((1, 1, 1, 1)),
    "resnet10-strided": _narrow_resnet((1, 1, 1, 1), strided=True),
    "resnet10-headed": _narrow_resnet((1, 1, 1, 1), head=1024),
    "resnet18-narrow": _narrow_resnet((2, 2, 2, 2)),
    "vit-narrow": _small_vit,
    "conv4": _four_convolutions,
}


def create_backbone(backbone: str | nn.Module, channels: int = 3, image_size: int = 32) -> nn.Module:
    """Return a network mapping (N, channels, image_size, image_size) to (N, D), with D as its `num_features`.

    Names are looked up among the small networks here, then in timm, then in torchvision; weights are random.
    """
    net: Any
    if isinstance(backbone, nn.Module):
        net = backbone
    elif not isinstance(backbone, str) or ":" in backbone or "/" in backbone:
        # To timm, hf-hub:... and local-dir:... are places to fetch networks from.
        raise ValueError(f"backbone: expected a module or the name of a network, never a place, got {backbone!r:.200}")
    elif backbone in SMALL:
        net = SMALL[backbone](channels, image_size)
    else:
        net = _from_timm(backbone, channels, image_size) or _from_torchvision(backbone, channels)
        if net is None:
            raise ValueError(
                f"backbone: no network called {backbone!r} here, in timm or in torchvision{_hint(backbone)}"
            )
        if backbone in ("resnet18", "resnet34", "resnet50") and image_size <= SMALL_IMAGE:
            _small_stem(net)
    net.num_features = _feature_dim(net, channels, image_size)
    return net


def _from_timm(name: str, channels: int, image_size: int) -> nn.Module | None:
    import timm

    return timm_network(name, channels, image_size)[0] if timm.is_model(name) else None


def timm_network(name: str, channels: int, image_size: int) -> tuple[nn.Module, dict[str, Any]]:
    """A network of timm's, and what `timm.create_model` was given to make it."""
    import timm

    basic: dict[str, Any] = {"num_classes": 0, "in_chans": channels}
    # Transformers must be told the image size, and that views may differ in size; convolutional networks know neither.
    sized = basic | {"img_size": image_size}
    for options in (sized | {"dynamic_img_size": True}, sized, basic):
        try:
            return timm.create_model(name, pretrained=False, **options), options
        except Exception as error:  # timm's networks refuse sizes in many ways
            if options is basic or "unexpected keyword argument" not in str(error):
                shape = f"{channels} x {image_size} x {image_size}"
                raise ValueError(f"backbone: {name} cannot be made for images of {shape}: {error}") from error
    raise AssertionError("the last options either make a network or raise")


def _from_torchvision(name: str, channels: int) -> nn.Module | None:
    from torchvision import models

    if name not in models.list_models(module=models):
        return None
    net = models.get_model(name, weights=None)
    for head in ("fc", "classifier", "heads", "head"):
        if hasattr(net, head):
            setattr(net, head, nn.Identity())
    if channels != 3:
        path, first = next((p, m) for p, m in net.named_modules() if isinstance(m, nn.Conv2d))
        keep = ("out_channels", "kernel_size", "stride", "padding")
        conv = nn.Conv2d(channels, **{k: getattr(first, k) for k in keep}, bias=first.bias is not None)
        parent, _, leaf = path.rpartition(".")
        setattr(net.get_submodule(parent), leaf, conv)
    return net


def _small_stem(net: nn.Module) -> None:
    old = net.conv1
    assert isinstance(old, nn.Conv2d)
    net.conv1 = nn.Conv2d(old.in_channels, old.out_channels, 3, stride=1, padding=1, bias=False)
    nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")
    net.maxpool = nn.Identity()


def _feature_dim(net: nn.Module, channels: int, image_size: int) -> int:
    """D, by running one blank batch; anything but (N, D) is refused here rather than in the first step."""
    training = net.training
    parameter = next(net.parameters(), torch.empty(0))
    shape = (channels, image_size, image_size)
    blank = torch.zeros(2, *shape, device=parameter.device, dtype=parameter.dtype)
    try:
        with torch.no_grad():
            out = net.eval()(blank)
    except Exception as error:
        raise ValueError(f"backbone: does not take images of shape {shape}: {error}") from error
    finally:
        net.train(training)
    if not isinstance(out, Tensor) or out.ndim != 2 or len(out) != 2 or not out.shape[1]:
        found = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise ValueError(f"backbone: expected features of shape (2, D) for a batch of 2 images, got {found}")
    return out.shape[1]


def _hint(name: str) -> str:
    import timm
    from torchvision import models

    known = [*SMALL, *timm.list_models(), *models.list_models(module=models)]
    close = difflib.get_close_matches(name, known, n=3)
    return f"; did you mean {', '.join(close)}?" if close else f"; for a start try {', '.join(SMALL)} or resnet18"
