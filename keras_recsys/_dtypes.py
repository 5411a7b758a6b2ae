"""Dtypes in which long sums and norms run."""


def wide_dtype(dtype):
    """`"float32"` for the half precisions, which lose the tail of a long sum."""
    return "float32" if dtype in ("float16", "bfloat16") else dtype
