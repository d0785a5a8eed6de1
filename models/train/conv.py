"""Causal depthwise convolution over time, with its gradient written out.

    y[t, c] = bias[c] + sum_k weight[c, 0, k] x[t - (d_conv - 1) + k, c]

x [batch, length, channels], zeros before the first row. On a CPU the in-place shifted products are
several times faster, forward and backward, than the grouped convolution of the library.
"""

import torch
from torch import Tensor


class _CausalConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        # taps[s] multiplies the row s steps back.
        taps = weight[:, 0].flip(1).t().contiguous()
        y = torch.addcmul(bias, x, taps[0])
        for s in range(1, len(taps)):
            y[:, s:].addcmul_(x[:, :-s], taps[s])
        return y

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        taps = weight[:, 0].flip(1).t().contiguous()
        grad_x = grad * taps[0]
        grad_taps = torch.empty_like(taps)
        grad_taps[0] = (grad * x).sum((0, 1))
        for s in range(1, len(taps)):
            grad_x[:, :-s].addcmul_(grad[:, s:], taps[s])
            grad_taps[s] = (grad[:, s:] * x[:, :-s]).sum((0, 1))
        return grad_x, grad_taps.t().flip(1)[:, None], grad.sum((0, 1))


def causal_conv(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The convolution; weight [channels, 1, d_conv], bias [channels], all of one dtype."""
    return _CausalConv.apply(x, weight, bias)
