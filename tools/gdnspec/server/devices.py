"""The GPUs of this machine, found without loading what computes on them."""

import os


def gpus() -> list[str]:
    """What CUDA_VISIBLE_DEVICES is to be for each; none where there is none."""
    told = os.environ.get("CUDA_VISIBLE_DEVICES")
    if told is not None:
        return [name.strip() for name in told.split(",") if name.strip() not in ("", "-1")]
    try:
        import pynvml

        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return [str(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
    except Exception:  # the package, the library or the driver is missing: all the same here
        return []
