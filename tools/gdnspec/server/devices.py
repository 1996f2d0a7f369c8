"""The GPUs of this machine, found without loading CUDA."""

import os


def gpus() -> list[str]:
    """The value of CUDA_VISIBLE_DEVICES for each GPU; an empty list without a GPU."""
    told = os.environ.get("CUDA_VISIBLE_DEVICES")
    if told is not None:
        return [name.strip() for name in told.split(",") if name.strip() not in ("", "-1")]
    try:
        import pynvml

        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return [str(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
    except Exception:  # without the package, the library or the driver there is no GPU to use
        return []
