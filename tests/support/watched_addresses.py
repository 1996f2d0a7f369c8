"""Triton's interpreter looks at every address before it loads or stores."""

from typing import Any

import numpy as np
from torch import Tensor
from triton.runtime import interpreter


def watch_addresses() -> None:
    """From now on an address outside of the tensors that a kernel was given raises `IndexError`."""
    builder, launcher, given = interpreter.InterpreterBuilder, interpreter.GridExecutor, list[tuple[int, int]]()
    load, store, launch = builder.create_masked_load, builder.create_masked_store, launcher.__call__

    def check(what: str, pointers: Any, mask: Any) -> None:
        size = interpreter._get_np_dtype(pointers.get_element_ty()).itemsize
        addresses = pointers.data[mask.data.astype(bool)].astype(np.int64)
        inside = np.zeros(addresses.shape, dtype=bool)
        for begin, end in given:
            inside |= (addresses >= begin) & (addresses + size <= end)
        if not inside.all():
            raise IndexError(f"a {what} of {size} bytes is outside of all tensors of the kernel")

    def checked_load(self: Any, pointers: Any, mask: Any, *more: Any) -> Any:
        check("load", pointers, mask)
        return load(self, pointers, mask, *more)

    def checked_store(self: Any, pointers: Any, value: Any, mask: Any, *more: Any) -> Any:
        check("store", pointers, mask)
        return store(self, pointers, value, mask, *more)

    def launched(self: Any, *args: Any, **options: Any) -> Any:
        tensors = [x for x in (*args, *options.values()) if isinstance(x, Tensor)]
        given[:] = [(x.data_ptr(), x.data_ptr() + x.nbytes) for x in tensors]
        return launch(self, *args, **options)

    builder.create_masked_load, builder.create_masked_store, launcher.__call__ = checked_load, checked_store, launched
