"""Optional packages, and the extra of gdnspec that installs them."""

from importlib.util import find_spec

from gdnspec.model.errors import NotInstalled


def needs(extra: str, *modules: str) -> None:
    """Raises `NotInstalled` with the install command if a module of an extra is missing."""
    lacking = [name for name in modules if find_spec(name) is None]
    if lacking:
        said = f"{', '.join(lacking)}, which {'is' if len(lacking) == 1 else 'are'} not installed"
        raise NotInstalled(f"this command needs {said}: pip install 'gdnspec[{extra}]'")
