"""The gradients of the gated norm: a program takes some rows, tile by tile, each read once and written once.

n = x rstd,   rstd = (mean(x^2) + eps)^-1/2        dn = do weight silu(z)      dx = rstd (dn - n mean(n dn))
dz = do n weight silu'(z)                          dweight = sum of do n silu(z), over all rows
"""

import triton
import triton.language as tl
from checks import INTERPRETED, require, require_dimensions
from silu import silu_terms
from sums import add_parts

PROGRAMS = 396  # three on each of 132 multiprocessors, as many as fit; each has tile after tile


def blocking(size: int) -> tuple[int, int]:
    """(rows of a tile, num_warps): the one place to tune."""
    return (2048, 1) if INTERPRETED else (max(1, 2048 // size), 4)


@triton.jit
def rows_at(ptr, tile, rows, by_token, by_head, H: tl.constexpr, D: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr):
    """Tile of rows, as they lie: heads of tokens."""
    row = tile * BR + tl.arange(0, BR)
    d = tl.arange(0, BD)
    at = (row // H * by_token + row % H * by_head)[:, None] + d[None, :]
    return tl.load(ptr + at, mask=(row < rows)[:, None] & (d < D)[None, :], other=0.0)


@triton.jit
def norm_kernel(
    x_ptr, z_ptr, weight_ptr, do_ptr, dx_ptr, dz_ptr, parts_ptr, rows, tiles, eps,
    x_token, x_head, z_token, z_head, do_token, do_head,
    H: tl.constexpr, D: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    d = tl.arange(0, BD)
    weight = tl.load(weight_ptr + d, mask=d < D, other=0.0).to(tl.float32)[None, :]
    dweight = tl.zeros([BR, BD], dtype=tl.float32)
    first = tl.program_id(0).to(tl.int64) * tiles
    next_x = rows_at(x_ptr, first, rows, x_token, x_head, H, D, BR, BD)
    next_z = rows_at(z_ptr, first, rows, z_token, z_head, H, D, BR, BD)
    next_dy = rows_at(do_ptr, first, rows, do_token, do_head, H, D, BR, BD)
    for tile in range(tiles):
        x, z, dy = next_x.to(tl.float32), next_z.to(tl.float32), next_dy.to(tl.float32)
        # While this tile is computed, the next one is on its way.
        later = tl.where(tile + 1 < tiles, rows, 0)
        next_x = rows_at(x_ptr, first + tile + 1, later, x_token, x_head, H, D, BR, BD)
        next_z = rows_at(z_ptr, first + tile + 1, later, z_token, z_head, H, D, BR, BD)
        next_dy = rows_at(do_ptr, first + tile + 1, later, do_token, do_head, H, D, BR, BD)

        row = (first + tile) * BR + tl.arange(0, BR)
        rstd = 1.0 / tl.sqrt(tl.sum(x * x, axis=1) / D + eps)
        rstd = tl.where(row < rows, rstd, 0.0)[:, None]  # with eps 0 that of no row is infinite
        sigmoid, slope = silu_terms(z)
        gate = z * sigmoid
        n = x * rstd
        through = dy * n
        dweight += through * gate
        dn = dy * weight * gate
        along = tl.sum(n * dn, axis=1) / D
        dx = rstd * (dn - n * along[:, None])
        dz = through * weight * slope
        at = row[:, None] * D + d[None, :]
        inside = (row < rows)[:, None] & (d < D)[None, :]
        tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), mask=inside)
        tl.store(dz_ptr + at, dz.to(dz_ptr.dtype.element_ty), mask=inside)
    tl.store(parts_ptr + tl.program_id(0) * D + d, tl.sum(dweight, axis=0), mask=d < D)


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
