"""Raw gates and the L2 norm around the rule, in PyTorch, in float32: to gates of the rule, and back."""

import torch

L2_EPSILON = 1e-6


def unit(x):
    """x in unit norm, and what it was multiplied by."""
    x = x.float()
    rstd = torch.rsqrt((x * x).sum(-1, keepdim=True) + L2_EPSILON)
    return x * rstd, rstd


def across(y, dy):
    """dy without its part along y, which moves no norm."""
    return dy - y * (y * dy).sum(-1, keepdim=True)


def gates_of(a, b, A_log, dt_bias):
    """log alpha and beta, and the slopes of either: with respect to a, and to b."""
    step = a.float() + dt_bias.float()
    rate = -A_log.float().exp()
    softplus = step.clamp(min=0) + torch.log1p(torch.exp(-step.abs()))  # without a threshold
    beta = torch.sigmoid(b.float())
    return rate * softplus, beta, rate * torch.sigmoid(step), beta * torch.sigmoid(-b.float())


def through_gates(rows, dg, dbeta, log_alpha, to_a, to_b, da, db, dA_log, ddt_bias):
    """From gradients of log alpha and beta to those of the raw gates and their parameters. Only `rows` [T, 1] belong to
    a sequence; what is behind them may be anything. Where log alpha is -inf, its slope may be, too, and dg is 0."""
    counted = rows & (log_alpha > -torch.inf)
    of_a = torch.where(counted, dg * to_a, 0.0)
    da.copy_(of_a)
    db.copy_(torch.where(rows, dbeta * to_b, 0.0))
    torch.sum(torch.where(counted, dg * log_alpha, 0.0), 0, out=dA_log)
    torch.sum(of_a, 0, out=ddt_bias)
