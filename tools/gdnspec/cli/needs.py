"""Optional packages, and the extra of gdnspec that installs them."""

from importlib.util import find_spec

from gdnspec.model.errors import SpecError


def needs(extra: str, *modules: str) -> None:
    """Raises `SpecError` with the install command if a module of an extra is missing."""
    lacking = [name for name in modules if find_spec(name) is None]
    if lacking:
        raise SpecError(f"this command needs {', '.join(lacking)}: pip install 'gdnspec[{extra}]'")
