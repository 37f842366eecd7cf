from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from jointembed import methods
from jointembed.backbones import create_backbone
from jointembed.methods.base import encode_views
from jointembed.methods.lejepa import LeJEPA, lejepa_loss, projector_mlp
from jointembed.normality import SIGReg, Watson


class Constant(nn.Module):
    """Stands for SIGReg where only the prediction is looked at."""

    def forward(self, z: Tensor) -> Tensor:
        return z.new_tensor(2.0)


def test_the_loss_is_algorithm_2() -> None:
    z = torch.randn(4, 10, 6, dtype=torch.float64)
    sigreg = SIGReg(num_slices=32)
    terms = lejepa_loss(z, 2, sigreg, 0.05)

    total = 0.0  # the textbook: loops over images, views and dimensions
    for n in range(10):
        centre = (z[0, n] + z[1, n]) / 2
        for v in range(4):
            total += float(((centre - z[v, n]) ** 2).mean())
    prediction = total / 40
    same = SIGReg(num_slices=32)
    directions = same.directions(6, 0).double()
    regularity = torch.stack([same.test(view @ directions).mean() for view in z]).mean()
    assert float(terms["prediction"]) == pytest.approx(prediction)
    assert float(terms["sigreg"]) == pytest.approx(float(regularity))
    assert float(terms["loss"]) == pytest.approx(0.95 * prediction + 0.05 * float(regularity))


def test_any_test_and_directions_can_be_asked_for_by_name() -> None:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(12, 8))
    backbone.num_features = 8
    method = LeJEPA(backbone, dim=6, projector_width=16, num_slices=32, test="watson", directions="sobol")
    views = [torch.randn(20, 3, 2, 2) for _ in range(2)]
    with torch.no_grad():
        terms = method(views, 2)
        z = encode_views(nn.Sequential(backbone, method.projector), views)
    expected = SIGReg(Watson(), 32, directions="sobol")(z)
    assert float(terms["sigreg"]) == pytest.approx(float(expected), rel=1e-5)
    assert float(expected) != pytest.approx(float(SIGReg(num_slices=32)(z)), rel=0.1)


def test_every_view_receives_gradient() -> None:
    z = torch.randn(3, 8, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: lejepa_loss(z, 2, Constant(), 0.1)["loss"], z)
    lejepa_loss(z, 2, SIGReg(num_slices=8), 0.1)["loss"].backward()
    assert (z.grad.abs().amax((1, 2)) > 0).all()


def test_equal_views_predict_perfectly() -> None:
    z = torch.randn(1, 8, 4).expand(3, -1, -1)
    assert float(lejepa_loss(z, 3, Constant(), 0.1)["prediction"]) == pytest.approx(0, abs=1e-12)


def test_centres_of_another_encoder_are_used_as_given() -> None:
    z, centres = torch.randn(2, 8, 4), torch.randn(8, 4)
    expected = nn.functional.mse_loss(z, centres.expand(2, -1, -1))
    torch.testing.assert_close(lejepa_loss(z, 2, Constant(), 0.1, centres)["prediction"], expected)


def test_a_predictor_comes_before_the_comparison_with_the_centres_and_sigreg_does_not_see_it() -> None:
    method = LeJEPA(create_backbone("resnet10-tiny", 1, 8), dim=4, projector_width=8, num_slices=8, predictor_width=6)
    views = [torch.randn(6, 1, 8, 8) for _ in range(2)]
    z = encode_views(nn.Sequential(method.backbone, method.projector), views)
    guesses = torch.stack([method.predictor(torch.cat(list(z)))[6 * v : 6 * v + 6] for v in range(2)])
    expected = nn.functional.mse_loss(guesses, z.mean(0).expand(2, -1, -1))
    terms = method(views, 2)
    torch.testing.assert_close(terms["prediction"], expected)
    same = SIGReg(num_slices=8)
    torch.testing.assert_close(terms["sigreg"], same(z))
    terms["loss"].backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in method.predictor.parameters())


def test_without_a_predictor_training_starts_and_steps_as_if_there_were_none() -> None:
    def made(width: int) -> LeJEPA:
        torch.manual_seed(0)
        return LeJEPA(create_backbone("resnet10-tiny", 1, 8), dim=4, projector_width=8, predictor_width=width)

    plain, other = made(0).state_dict(), made(6).state_dict()
    assert {name for name in other if name not in plain} == {name for name in other if name.startswith("predictor.")}
    assert all(torch.equal(plain[name], other[name]) for name in plain if not name.startswith("density"))
    z = torch.randn(2, 8, 4)
    given = lejepa_loss(z, 2, Constant(), 0.1, predictions=z)
    assert torch.equal(lejepa_loss(z, 2, Constant(), 0.1)["loss"], given["loss"])


def test_half_precision_is_computed_in_float32() -> None:
    z = torch.randn(2, 64, 8).bfloat16()
    terms = lejepa_loss(z, 2, SIGReg(num_slices=16), 0.1)
    reference = lejepa_loss(z.float(), 2, SIGReg(num_slices=16), 0.1)
    assert terms["loss"].dtype == torch.float32
    torch.testing.assert_close(terms["loss"], reference["loss"])


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_the_projector_has_as_many_layers_as_asked(layers: int) -> None:
    linear = [m for m in projector_mlp(10, 20, 5, layers) if isinstance(m, nn.Linear)]
    widths = [10, *[20] * (layers - 1), 5]
    assert [(m.in_features, m.out_features) for m in linear] == list(pairwise(widths))


def test_views_of_different_sizes_come_back_in_their_order() -> None:
    class Mean(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mean((2, 3))

    views = [torch.full((2, 3, side, side), float(i)) for i, side in enumerate([8, 4, 8, 4, 4])]
    assert encode_views(Mean(), views)[:, 0, 0].tolist() == [0, 1, 2, 3, 4]


def test_transformers_centre_on_global_views_and_other_networks_on_all() -> None:
    assert LeJEPA(create_backbone("vit-narrow", 1, 8), dim=4).global_centres
    assert not LeJEPA(create_backbone("resnet10-narrow", 1, 8), dim=4).global_centres


def test_the_weight_average_follows_the_encoder_and_is_not_trained() -> None:
    method = LeJEPA(create_backbone("resnet10-narrow", 1, 8), dim=4, projector_width=8, num_slices=8, swa=0.9)
    views = [torch.randn(6, 1, 8, 8) for _ in range(2)]
    method(views, 2)["loss"].backward()
    assert method.average is not None
    assert all(p.grad is None for p in method.average.parameters())
    method.after_step()  # the first copy
    before = method.projector[0].weight.detach().clone()
    with torch.no_grad():
        method.projector[0].weight.add_(1)
    method.after_step()
    torch.testing.assert_close(method.average.module[1][0].weight, before + 0.1)


def test_a_single_point_cloud_is_pushed_apart() -> None:
    """What SIGReg is for: from a nearly collapsed start, gradient descent on the loss restores unit variance."""
    torch.manual_seed(0)
    z = (0.05 * torch.randn(128, 4)).requires_grad_()
    sigreg = SIGReg(num_slices=64)
    optimiser = torch.optim.Adam([z], lr=0.05)
    for _ in range(150):
        optimiser.zero_grad()
        lejepa_loss(torch.stack([z, z]), 2, sigreg, 0.05)["loss"].backward()
        optimiser.step()
    covariance = z.detach().T.cov()
    torch.testing.assert_close(covariance, torch.eye(4), atol=0.25, rtol=0)


def test_bad_arguments_are_named() -> None:
    z = torch.zeros(2, 4, 3)
    for argument, call in {
        "z": lambda: lejepa_loss(z[0], 1, Constant()),
        "num_global": lambda: lejepa_loss(z, 3, Constant()),
        "weight": lambda: lejepa_loss(z, 2, Constant(), 1.5),
        "projector_layers": lambda: LeJEPA(nn.Identity(), projector_layers=4),
        "centre": lambda: LeJEPA(nn.Identity(), centre="middle"),
        "swa": lambda: LeJEPA(nn.Identity(), swa=1.0),
        "test: expected one of watson, ": lambda: LeJEPA(nn.Identity(), test="watsn"),
        "directions must be one of gaussian, sobol": lambda: LeJEPA(nn.Identity(), directions="random"),
        "predictor_width": lambda: LeJEPA(nn.Identity(), predictor_width=-1),
        "method": lambda: methods.get("lejeppa"),
        "wieght": lambda: methods.create("lejepa", nn.Identity(), wieght=1),
    }.items():
        with pytest.raises(ValueError, match=f"^{argument}"):
            call()
