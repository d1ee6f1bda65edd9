"""A vector times a matrix, as vector instructions: the inner loop of the compiled chain.

numba's own loops spend most of such a small product on loop heads and overlap checks; written as LLVM vectors
with sums kept in registers it takes a third to a quarter of the time.

numba's cache on disk looks at the file of a loop, not at this one: after a change here, remove
inference/chain/kernels/__pycache__.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

LANES = 16  # columns at a time; tables are padded to a multiple
CACHED = 128  # from here on a table overflows the nearest cache, and wider reads do not pay
DEEP = 4  # rows at a time, each with a register of its own

Combine = Callable[[ir.IRBuilder, ir.Value, ir.Value, ir.Value], ir.Value]


def _multiply_add(builder: ir.IRBuilder, total: ir.Value, weight: ir.Value, row: ir.Value) -> ir.Value:
    return builder.fadd(total, builder.fmul(weight, row, flags=("contract",)), flags=("contract",))


def _add_max(builder: ir.IRBuilder, best: ir.Value, weight: ir.Value, row: ir.Value) -> ir.Value:
    candidate = builder.fadd(weight, row)
    return builder.select(builder.fcmp_ordered(">", candidate, best), candidate, best)


def _larger(builder: ir.IRBuilder, left: ir.Value, right: ir.Value) -> ir.Value:
    return builder.select(builder.fcmp_ordered(">", left, right), left, right)


def _sum(builder: ir.IRBuilder, left: ir.Value, right: ir.Value) -> ir.Value:
    return builder.fadd(left, right)


def _splat(builder: ir.IRBuilder, scalar: ir.Value, lanes: ir.VectorType) -> ir.Value:
    """A number in every lane."""
    index = ir.IntType(32)
    one = builder.insert_element(ir.Constant(lanes, ir.Undefined), scalar, ir.Constant(index, 0))
    zeros = ir.Constant(ir.VectorType(index, lanes.count), [0] * lanes.count)
    return builder.shuffle_vector(one, ir.Constant(lanes, ir.Undefined), zeros)


def _product(step: Combine, join: Callable[..., ir.Value], begin: float) -> Any:  # noqa: ANN401
    """The intrinsic that combines by `step` down the rows and by `join` over the registers."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:  # noqa: ANN401
        out, o, vector, i, table, rows, width = args
        kinds = signature.args
        number, index = context.get_value_type(kinds[0].dtype), context.get_value_type(types.intp)
        size, zero = kinds[0].dtype.bitwidth // 8, ir.Constant(index, 0)
        y, v, m = (
            context.make_array(kind)(context, builder, value).data
            for kind, value in ((kinds[0], out), (kinds[2], vector), (kinds[4], table))
        )

        def columns(count: int) -> None:
            """Go over the columns, so many at a time."""
            lanes = ir.VectorType(number, count)
            totals = [cgutils.alloca_once(builder, lanes) for _ in range(DEEP)]
            right = cgutils.for_range_slice(builder, zero, width, ir.Constant(index, count), index)
            with right as (j, _):
                for total in totals:
                    builder.store(ir.Constant(lanes, [begin] * count), total)
                down = cgutils.for_range_slice(builder, zero, rows, ir.Constant(index, DEEP), index)
                with down as (r, _):
                    for k, total in enumerate(totals):
                        at = builder.add(r, ir.Constant(index, k))
                        weight = _splat(builder, builder.load(builder.gep(v, [builder.add(i, at)])), lanes)
                        place = builder.gep(m, [builder.add(builder.mul(at, width), j)])
                        row = builder.load(builder.bitcast(place, lanes.as_pointer()), align=size)
                        builder.store(step(builder, builder.load(total), weight, row), total)
                result = builder.load(totals[0])
                for total in totals[1:]:
                    result = join(builder, result, builder.load(total))
                place = builder.gep(y, [builder.add(o, j)])
                builder.store(result, builder.bitcast(place, lanes.as_pointer()), align=size)

        even = builder.icmp_unsigned("==", builder.and_(width, ir.Constant(index, LANES)), zero)
        small = builder.icmp_unsigned("<", width, ir.Constant(index, CACHED))
        with builder.if_else(builder.and_(even, small)) as (twice, once):
            with twice:
                columns(2 * LANES)
            with once:
                columns(LANES)
        return context.get_dummy_value()

    def typed(typingctx, out, o, vector, i, table, rows, width):  # noqa: ANN001, ANN202
        return types.void(out, o, vector, i, table, rows, width), emit

    return intrinsic(typed)


# (out, o, vector, i, table, rows, width): of flat arrays, for every column j < width,
#     out[o + j] = sum_r vector[i + r] * table[r * width + j]        sum_product
#     out[o + j] = max_r vector[i + r] + table[r * width + j]        max_sum
# over r < rows; width is a multiple of LANES, rows of DEEP, all indices are intp.
sum_product = _product(_multiply_add, _sum, 0.0)
max_sum = _product(_add_max, _larger, float("-inf"))
