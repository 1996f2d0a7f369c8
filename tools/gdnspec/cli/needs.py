"""Optional packages: told by the extra that installs them."""

from importlib.util import find_spec

from gdnspec.model.errors import SpecError


def needs(extra: str, *modules: str) -> None:
    """Raises `SpecError` where a module of an extra is not installed."""
    lacking = [name for name in modules if find_spec(name) is None]
    if lacking:
        raise SpecError(f"this needs {', '.join(lacking)}: pip install 'gdnspec[{extra}]'")
