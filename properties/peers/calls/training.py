"""Losses and optimizers of PyTorch, on its own arrays.

Nothing but NumPy and the libraries is imported, these inside the functions, so that this file runs alone.
"""

from __future__ import annotations

from typing import Any


def torch_cross_entropy(
    logits: Any, targets: Any, *, weights: Any = None, ignore_index: int = -100, label_smoothing: float = 0.0, reduction: str
) -> Any:  # fmt: skip
    """torch.nn.functional.cross_entropy, rows as one batch."""
    import torch

    loss = torch.nn.functional.cross_entropy(logits.reshape(targets.numel(), logits.shape[-1]), targets.reshape(-1), weight=weights,
                                             ignore_index=ignore_index, label_smoothing=label_smoothing, reduction=reduction)  # fmt: skip
    return loss.reshape(targets.shape) if reduction == "none" else loss


def torch_cross_entropy_backward(
    logits: Any, targets: Any, dloss: Any, *, weights: Any = None, ignore_index: int = -100, label_smoothing: float = 0.0, reduction: str
) -> Any:  # fmt: skip
    """Its gradient by automatic differentiation."""
    import torch

    z = logits.detach().clone().requires_grad_()
    loss = torch_cross_entropy(z, targets, weights=weights, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction=reduction)
    (gradient,) = torch.autograd.grad(loss, z, dloss)
    return gradient


def torch_distillation(
    student: Any, teacher: Any, targets: Any, *, temperature: float, alpha: float, divergence: str, ignore_index: int = -100
) -> Any:  # fmt: skip
    """torch.nn.functional.kl_div with batchmean over the rows that count, and cross_entropy."""
    import torch
    from torch.nn import functional

    counts = targets.reshape(-1) != ignore_index
    s, t = (z.reshape(targets.numel(), z.shape[-1])[counts] for z in (student, teacher))
    if not len(s):
        return torch.full((), float("nan"), dtype=student.dtype)
    log_s, log_t = (torch.log_softmax(z / temperature, dim=-1) for z in (s, t))
    p, q = (log_t, log_s) if divergence == "forward_kl" else (log_s, log_t)
    soft = functional.kl_div(q, p, reduction="batchmean", log_target=True)
    return alpha * temperature**2 * soft + (1 - alpha) * functional.cross_entropy(s, targets.reshape(-1)[counts])


def torch_distillation_backward(
    student: Any, teacher: Any, targets: Any, dloss: Any, *, temperature: float, alpha: float, divergence: str, ignore_index: int = -100
) -> Any:  # fmt: skip
    """Its gradient by automatic differentiation; 0 where no row counts."""
    import torch

    z = student.detach().clone().requires_grad_()
    loss = torch_distillation(z, teacher, targets, temperature=temperature, alpha=alpha, divergence=divergence, ignore_index=ignore_index)
    return torch.autograd.grad(loss, z, dloss)[0] if loss.requires_grad else torch.zeros_like(z)


def _torch_adamw(form: dict[str, bool], param: Any, grad: Any, m: Any, v: Any, step: int, options: dict[str, Any]) -> Any:
    import torch

    p = torch.nn.Parameter(param.clone())
    p.grad = grad.clone()
    optimizer = torch.optim.AdamW([p], lr=options["lr"], betas=(options["beta1"], options["beta2"]), eps=options["eps"],
                                  weight_decay=options["weight_decay"], **form)  # fmt: skip
    optimizer.state[p] = {"step": torch.tensor(float(step - 1)), "exp_avg": m.clone(), "exp_avg_sq": v.clone()}
    optimizer.step()
    state = optimizer.state[p]
    return p.detach(), state["exp_avg"], state["exp_avg_sq"]


def torch_adamw(
    param: Any, grad: Any, m: Any, v: Any, *, step: int, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float
) -> Any:  # fmt: skip
    """torch.optim.AdamW, one tensor after another."""
    options = {"lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": weight_decay}
    return _torch_adamw({"foreach": False, "fused": False}, param, grad, m, v, step, options)


def torch_adamw_foreach(
    param: Any, grad: Any, m: Any, v: Any, *, step: int, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float
) -> Any:  # fmt: skip
    """The same, all tensors of a list at once."""
    options = {"lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": weight_decay}
    return _torch_adamw({"foreach": True}, param, grad, m, v, step, options)


def torch_adamw_fused(
    param: Any, grad: Any, m: Any, v: Any, *, step: int, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float
) -> Any:  # fmt: skip
    """The same, all operations in one kernel."""
    options = {"lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": weight_decay}
    return _torch_adamw({"fused": True}, param, grad, m, v, step, options)


def torch_clip_grad_norm(grads: Any, *, max_norm: float) -> Any:
    """torch.nn.utils.clip_grad_norm_ on parameters that carry copies of the gradients."""
    import torch

    parameters = [torch.nn.Parameter(torch.zeros_like(g)) for g in grads]
    for parameter, g in zip(parameters, grads):
        parameter.grad = g.clone()
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    return [parameter.grad for parameter in parameters], norm
