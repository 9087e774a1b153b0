# pyright: reportCallIssue=false, reportOperatorIssue=false, reportArgumentType=false
"""What kernels that move tokens share: rows written with the norm that follows them.

R rows, C channels of them, WIDE the power of two that holds these.
"""

import triton
import triton.language as tl


@triton.jit
def store_normed(
    u, gain_ptr, shift_ptr, u_ptr, z_ptr, places, mask, eps,
    C: tl.constexpr, WIDE: tl.constexpr, NORM: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    """Write rows u (R, WIDE), which are zero outside of the C channels, and their norm."""
    kind = u_ptr.dtype.element_ty
    tl.store(u_ptr + places, u.to(kind), mask=mask)
    if NORM:
        cols = tl.arange(0, WIDE)
        real = cols < C
        centred = tl.where(real[None, :], u - (tl.sum(u, 1) / C)[:, None], 0.0)
        rstd = tl.rsqrt(tl.sum(centred * centred, 1) / C + eps)
        z = centred * rstd[:, None] * tl.load(gain_ptr + cols, mask=real, other=0.0).to(tl.float32)[None, :]
        if SHIFT:
            z += tl.load(shift_ptr + cols, mask=real, other=0.0).to(tl.float32)[None, :]
        tl.store(z_ptr + places, z.to(kind), mask=mask)
