"""Which precision a training runs in, and what it keeps out of it."""

import logging

import pytest
import torch
from torch import nn

import jointembed as je
from jointembed.backbones import create_backbone
from jointembed.training.precision import best_precision, kernel_beyond_image


def test_bf16_is_chosen_only_where_the_hardware_multiplies_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    for native, expected in ((True, "bf16-mixed"), (False, "32-true")):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda native=native: native)
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
        assert best_precision() == expected


def used_weights(convolution, side):
    """Which weights (H, W) of a kernel can change what comes out of an image of this side, by their gradients."""
    kernel = nn.Conv2d(1, 1, convolution.kernel_size, convolution.stride, convolution.padding, convolution.dilation)
    kernel(torch.ones(1, 1, side, side, dtype=torch.float32)).sum().backward()
    return kernel.weight.grad[0, 0] != 0


@pytest.mark.parametrize("side", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize(("kernel", "padding"), [(3, 1), (3, 0), (5, 2), (7, 3), ((5, 1), (2, 0)), (3, "same")])
def test_a_kernel_is_found_where_the_gradient_of_some_weight_is_always_zero(side, stride, kernel, padding):
    if (padding == "same" and stride > 1) or (padding == 0 and side < 3):
        return  # torch has no such convolution
    convolution = nn.Conv2d(3, 4, kernel, stride, padding)
    found = kernel_beyond_image(nn.Sequential(nn.Identity(), convolution), 3, side)
    assert (found is None) == bool(used_weights(convolution, side).all())
    assert found in (None, "1")


def test_looking_leaves_the_network_as_it_was():
    network = create_backbone("conv4", 1, 8).train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    assert kernel_beyond_image(network, 1, 8) is not None
    assert network.training and not any(module._forward_hooks for module in network.modules())
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_where_bfloat16_gradients_are_wrong_a_training_is_one_in_float32(tmp_path, caplog):
    options = {"backbone": "conv4", "epochs": 1, "progress": False, "num_slices": 16}
    with caplog.at_level(logging.WARNING, "jointembed"):
        asked = je.train("digits", out=tmp_path / "bf16", precision="bf16-mixed", **options)
    assert any(message.startswith("precision: 32 instead of bf16-mixed") for message in caplog.messages)
    plain = je.train("digits", out=tmp_path / "32", precision="32-true", **options)
    for key, value in plain.method.state_dict().items():
        assert torch.equal(asked.method.state_dict()[key], value), key
