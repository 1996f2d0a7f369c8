"""Optional packages, and the extra of gdnspec that installs them."""

from importlib.util import find_spec

from gdnspec.model.errors import SpecError

# What runs kernels. Commands that only read files work without.
RUNNING = ("torch", "triton", "numpy", "safetensors")
INSTALL = "pip install 'gdnspec[run]', or first the torch for your CUDA version from pytorch.org"


def needs(extra: str, *modules: str) -> None:
    """Raises `SpecError` with the install command if a module of an extra is missing."""
    lacking = [name for name in modules if find_spec(name) is None]
    if lacking:
        raise SpecError(f"this command needs {', '.join(lacking)}: pip install 'gdnspec[{extra}]'")
