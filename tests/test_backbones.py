import pytest
import timm
import torch
from torch import nn

from jointembed.backbones import SMALL, create_backbone


def parameters(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize(
    "name", [*SMALL, "resnet18", "mobilenetv3_small_050", "vit_tiny_patch16_224", "shufflenet_v2_x0_5"]
)
@pytest.mark.parametrize(("channels", "size"), [(1, 28), (3, 32), (5, 64)])
def test_any_name_gives_flat_features_for_any_channels(name: str, channels: int, size: int) -> None:
    if name == "vit_tiny_patch16_224":
        size = size // 16 * 16
    net = create_backbone(name, channels, size).eval()
    assert net(torch.zeros(2, channels, size, size)).shape == (2, net.num_features)


def test_small_images_get_the_stem_of_the_papers() -> None:
    small, large = create_backbone("resnet18", 3, 32), create_backbone("resnet18", 3, 96)
    # 7x7x3x64 weights become 3x3x3x64; the rest is timm's own network
    assert parameters(large) == parameters(timm.create_model("resnet18", num_classes=0))
    assert parameters(large) - parameters(small) == (49 - 9) * 3 * 64
    assert small.forward_features(torch.zeros(1, 3, 32, 32)).shape[-1] == 4  # 32 / 2^3: neither stem nor pool shrinks
    assert large.forward_features(torch.zeros(1, 3, 96, 96)).shape[-1] == 3  # 96 / 2^5


def test_the_narrow_resnet_10_has_about_1_2_million_parameters() -> None:
    net = create_backbone("resnet10-narrow", 3, 32)
    # counted by hand: stem 3x3x3x32; per stage two 3x3 convolutions and, where the width doubles, a 1x1
    convolutions = 9 * 3 * 32 + 2 * 9 * 32 * 32 + sum(9 * w * w // 2 + 9 * w * w + w * w // 2 for w in (64, 128, 256))
    norms = 2 * 32 + 2 * 2 * 32 + sum(3 * 2 * w for w in (64, 128, 256))
    assert parameters(net) == convolutions + norms == 1_226_400


def test_a_strided_stem_halves_small_images_too_and_a_head_widens_the_features() -> None:
    narrow, strided, headed = (create_backbone(f"resnet10-{name}", 3, 32) for name in ("narrow", "strided", "headed"))
    sides = [net.forward_features(torch.zeros(1, 3, 32, 32)).shape[-1] for net in (narrow, strided, headed)]
    assert sides == [4, 2, 4] and [net.num_features for net in (narrow, strided, headed)] == [256, 256, 1024]
    assert parameters(strided) - parameters(narrow) == (16 - 9) * 3 * 32
    assert parameters(headed) - parameters(narrow) == 256 * 1024 + 2 * 1024


def test_a_module_of_ones_own_is_taken_as_it_is() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 7))
    assert create_backbone(net, 3, 8) is net
    assert net.num_features == 7
    assert net.training


@pytest.mark.parametrize("name", ["vit-narrow", "conv4"])
def test_views_of_another_size_pass_a_network_made_for_one_size(name: str) -> None:
    net = create_backbone(name, 3, 32).eval()
    for size in (16, 24, 48):
        assert net(torch.rand(2, 3, size, size)).shape == (2, net.num_features)


def test_unknown_names_get_the_closest_ones() -> None:
    with pytest.raises(ValueError, match=r"backbone: no network called 'resnet10-narow'.*did you mean resnet10-narrow"):
        create_backbone("resnet10-narow")


def test_networks_that_give_maps_or_refuse_the_image_are_named() -> None:
    with pytest.raises(ValueError, match=r"backbone: expected features of shape \(2, D\).*got \(2, 4, 8, 8\)"):
        create_backbone(nn.Conv2d(3, 4, 3, padding=1), 3, 8)
    with pytest.raises(ValueError, match=r"backbone: does not take images of shape \(1, 8, 8\)"):
        create_backbone(nn.Conv2d(3, 4, 3), 1, 8)
    with pytest.raises(ValueError, match=r"backbone: expected features of shape \(2, D\).*got \(2, 0\)"):
        create_backbone(nn.Sequential(nn.Flatten(), nn.AdaptiveAvgPool1d(0)), 3, 8)
