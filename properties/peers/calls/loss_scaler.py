"""PyTorch's gradient scaler behind the calls of the contract.

Nothing but NumPy and the libraries is imported, these inside the functions, so that this file runs alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

SMALLEST = 2.0**-126                                                            # the smallest normal number of float32


class TorchGradScaler:
    """torch.amp.GradScaler on a CPU. The optimizer that it steps calls what `step` was given."""

    refuses_small_scales = True

    def __init__(self, *, init_scale: float = 2.0**16, growth_factor: float = 2.0, backoff_factor: float = 0.5,
                 growth_interval: int = 2000) -> None:
        import torch

        self.scaler = torch.amp.GradScaler("cpu", init_scale=float(init_scale), growth_factor=growth_factor, backoff_factor=backoff_factor,
                                           growth_interval=growth_interval)  # fmt: skip
        self.scaler.scale(torch.zeros(()))                                      # its scale exists from the first loss on
        self.optimizer: Any = None

    @property
    def value(self) -> float:
        """The scale."""
        return float(self.scaler.get_scale())

    def scale(self, loss: Any) -> Any:
        """The loss times the scale."""
        import torch

        return self.scaler.scale(torch.as_tensor(loss))

    def unscale(self, grads: Any) -> tuple[list[Any], bool]:
        """Gradients unscaled where parameters carry them, and what the scaler noted of them."""
        import torch

        if not grads:
            raise NotImplementedError("torch.optim refuses an empty list of parameters")
        parameters = [torch.nn.Parameter(torch.zeros(g.shape)) for g in grads]
        for parameter, g in zip(parameters, grads):
            parameter.grad = torch.tensor(g)
        self.optimizer = torch.optim.SGD(parameters)
        self.scaler.unscale_(self.optimizer)
        state = self.scaler._found_inf_per_device(self.optimizer)
        return [parameter.grad for parameter in parameters], any(found.item() > 0 for found in state.values())

    def step(self, update: Callable[[], Any], grads: Any) -> bool:
        """Whether the scaler had the optimizer step."""
        taken = []

        def stepping() -> None:
            taken.append(True)
            update()

        self.optimizer.step = stepping
        self.scaler.step(self.optimizer)
        return bool(taken)

    def update(self, found_inf: bool) -> None:
        """The scaler's own update, by what it noted itself."""
        if self.refuses_small_scales and found_inf and self.value * self.scaler.get_backoff_factor() < SMALLEST:
            raise NotImplementedError("the scale would leave the normal numbers, and may become 0 (docs/findings.md)")
        self.scaler.update()

    def state(self) -> Any:
        """Its checkpoint."""
        return self.scaler.state_dict()

    def load(self, state: Any) -> None:
        """Go on from a checkpoint."""
        self.scaler.load_state_dict(state)


class TorchGradScalerOfAnySize(TorchGradScaler):
    """The same, with scales that become too small for float32."""

    refuses_small_scales = False
