"""Learned ratios by which keys and values of two prompt branches are mixed."""

import torch
from torch import Tensor, nn


class Mixing(nn.Module):
    """K = (1 - alpha) K_first + alpha K_second with alpha = |theta| / (theta_init + |theta|), the same for V.

    One theta for keys and one for values per layer (Bitune, section 2). theta starts at theta_init, alpha at 0.5.
    Computed in float32 whatever the model's dtype. theta has shape [1]: DeepSpeed cannot broadcast 0-dim parameters.
    """

    def __init__(self, theta_init: float, device: torch.device | None = None) -> None:
        super().__init__()
        self.theta_init = theta_init
        self.theta_key = nn.Parameter(torch.full((1,), theta_init, dtype=torch.float32, device=device))
        self.theta_value = nn.Parameter(torch.full((1,), theta_init, dtype=torch.float32, device=device))

    def alpha(self, theta: Tensor) -> Tensor:
        size = theta.float().abs()
        return size / (self.theta_init + size)

    def forward(
        self, first_key: Tensor, second_key: Tensor, first_value: Tensor, second_value: Tensor
    ) -> tuple[Tensor, Tensor]:
        return _mix(first_key, second_key, self.alpha(self.theta_key)), _mix(
            first_value, second_value, self.alpha(self.theta_value)
        )


def _mix(first: Tensor, second: Tensor, alpha: Tensor) -> Tensor:
    return torch.lerp(first.float(), second.float(), alpha).to(first.dtype)
