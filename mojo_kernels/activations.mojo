"""Activation functions in float32, on vectors of any width.

Every kernel calls these at one fixed width, so that a value's bits never depend on its lane, on
the rows beside it or on a loop's tail.
"""

from std.math import exp, log1p


@always_inline
def silu[
    W: SIMDLength, //
](x: SIMD[DType.float32, W]) -> SIMD[DType.float32, W]:
    """Returns `x * sigmoid(x)`.

    Parameters:
        W: Vector width.

    Args:
        x: The argument.

    Returns:
        The value of each lane.
    """
    return x / (1 + exp(-x))


@always_inline
def softplus[
    W: SIMDLength, //
](x: SIMD[DType.float32, W]) -> SIMD[DType.float32, W]:
    """Returns `log(1 + exp(x))`; `x` itself above 20, where they agree in float32.

    Parameters:
        W: Vector width.

    Args:
        x: The argument.

    Returns:
        The value of each lane.
    """
    return x.gt(20).select(x, log1p(exp(x)))
