"""The gradients of the gated norm: a program takes some rows, tile by tile, each read once and written once.

n = x rstd,   rstd = (mean(x^2) + eps)^-1/2        dn = do weight silu(z)      dx = rstd (dn - n mean(n dn))
dz = do n weight silu'(z)                          dweight = sum of do n silu(z), over all rows
"""

import triton
import triton.language as tl
from checks import INTERPRETED, require, require_dimensions
from sums import add_parts, silu_terms

PROGRAMS = 1024  # at most about so many, each with tile after tile: as many parts of dweight are added


def blocking(size: int) -> tuple[int, int]:
    """(rows of a tile, num_warps): the one place to tune."""
    return (2048, 1) if INTERPRETED else (max(1, 2048 // size), 4)


@triton.jit
def norm_kernel(
    x_ptr, z_ptr, weight_ptr, do_ptr, dx_ptr, dz_ptr, parts_ptr, rows, tiles, eps,
    x_token, x_head, z_token, z_head, do_token, do_head,
    H: tl.constexpr, D: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    d = tl.arange(0, BD)
    weight = tl.load(weight_ptr + d, mask=d < D, other=0.0).to(tl.float32)[None, :]
    dweight = tl.zeros([BD], dtype=tl.float32)
    for tile in range(tiles):
        row = (tl.program_id(0).to(tl.int64) * tiles + tile) * BR + tl.arange(0, BR)
        inside = (row < rows)[:, None] & (d < D)[None, :]
        token, head = row // H, row % H
        x_at = (token * x_token + head * x_head)[:, None] + d[None, :]
        z_at = (token * z_token + head * z_head)[:, None] + d[None, :]
        do_at = (token * do_token + head * do_head)[:, None] + d[None, :]
        x = tl.load(x_ptr + x_at, mask=inside, other=0.0).to(tl.float32)
        z = tl.load(z_ptr + z_at, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(do_ptr + do_at, mask=inside, other=0.0).to(tl.float32)

        rstd = 1.0 / tl.sqrt(tl.sum(x * x, axis=1) / D + eps)
        rstd = tl.where(row < rows, rstd, 0.0)[:, None]  # with eps 0 that of no row is infinite
        on, off = silu_terms(z)
        n = x * rstd
        through = dy * n
        dweight += tl.sum(through * (z * on), axis=0)
        dn = dy * weight * (z * on)
        along = tl.sum(n * dn, axis=1) / D
        dx = rstd * (dn - n * along[:, None])
        dz = through * weight * (on * (1.0 + z * off))
        at = row[:, None] * D + d[None, :]
        tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), mask=inside)
        tl.store(dz_ptr + at, dz.to(dz_ptr.dtype.element_ty), mask=inside)
    tl.store(parts_ptr + tl.program_id(0) * D + d, dweight, mask=d < D)


def gated_rms_norm_backward(x, z, weight, eps, do, dx, dz, dweight):
    """gdn_gated_rms_norm_backward: x, z, do, dx, dz [tokens, heads, D], weight [D]; dweight [D] in float32. Tokens and
    heads of inputs may stand apart."""
    require_dimensions(3, x=x)
    (T, H, D), shape = x.shape, x.shape
    for name, y in (("x", x), ("z", z), ("do", do)):
        require(name, y, shape, x, rows=True)
    require("weight", weight, (D,), x)
    for name, y, like in (("dx", dx, x), ("dz", dz, z)):
        require(name, y, shape, x, (like.dtype,))
    require("dweight", dweight, (D,), x, (dweight.new_empty(0).float().dtype,))
    rows = T * H
    BD = triton.next_power_of_2(max(D, 1))
    BR, num_warps = blocking(BD)
    tiles = max(1, triton.cdiv(rows, BR * PROGRAMS))
    programs = triton.cdiv(rows, BR * tiles) if D else 0
    parts = dweight.new_empty((programs, 1, D))
    if programs:
        norm_kernel[(programs,)](
            x, z, weight, do, dx, dz, parts, rows, tiles, 1e-6 if eps is None else float(eps),
            *x.stride()[:2], *z.stride()[:2], *do.stride()[:2], H=H, D=D, BR=BR, BD=BD, num_warps=num_warps,
        )  # fmt: skip
    if D:
        add_parts(parts, None, dweight)
