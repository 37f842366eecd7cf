"""Losses under bf16 autocast, on any CPU: where it has no such instructions they are emulated."""

import pytest
import torch

from tests.distributed.cases import CASES, create, views


def second_step(name, variant, bfloat16):
    """Loss and gradient of the second step, when there is something in banks, and the state after it."""
    method = create(name, variant, torch.float32)
    torch.manual_seed(0)
    for step in range(2):
        method.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            loss = method(views(step, torch.float32), 2)["loss"]
        loss.backward()
        method.before_step()
        method.after_step()
    gradient = torch.cat([p.grad.flatten() for p in method.parameters() if p.grad is not None])
    return loss.detach(), gradient, method.state_dict()


@pytest.mark.parametrize(("name", "variant"), CASES)
def test_bfloat16_gives_nearly_the_gradient_of_float32_and_keeps_state_in_float32(name, variant):
    loss, gradient, state = second_step(name, variant, bfloat16=False)
    near, near_gradient, near_state = second_step(name, variant, bfloat16=True)
    assert near.dtype == torch.float32
    torch.testing.assert_close(near, loss, rtol=0.05, atol=0.05)
    assert torch.cosine_similarity(near_gradient, gradient, dim=0) > 0.95
    for key, value in state.items():
        assert near_state[key].dtype == value.dtype, key
        torch.testing.assert_close(near_state[key].isfinite(), value.isfinite(), msg=key)
