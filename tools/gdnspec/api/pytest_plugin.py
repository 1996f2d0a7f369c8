"""A marker for pytest: `@pytest.mark.gdnspec("gdn_decode_k_last")` gives a test every workload as a case of its own.

@pytest.mark.gdnspec("gdn_decode_k_last", suite="conformance")
def test_my_kernel(workload):
    workload.check(my_kernel).raise_for_status()
"""

from typing import Any

import pytest

ARGUMENT = "workload"


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker."""
    config.addinivalue_line(
        "markers", f"gdnspec(definition, suite='smoke'): run the test once per workload; it takes `{ARGUMENT}`"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One case per workload of the suite."""
    marker = metafunc.definition.get_closest_marker("gdnspec")
    if marker is None:
        return
    if ARGUMENT not in metafunc.fixturenames:
        raise pytest.Collector.CollectError(
            f"{metafunc.definition.nodeid}: a test with the marker gdnspec takes `{ARGUMENT}`"
        )
    cases = _cases(metafunc.definition.nodeid, *marker.args, **marker.kwargs)
    metafunc.parametrize(ARGUMENT, cases, ids=[case.name for case in cases])


def _cases(where: str, definition: str = "", suite: str = "smoke", **more: Any) -> list[Any]:
    from gdnspec import SpecError
    from gdnspec.api.spec import definition as spec

    if not definition or more:
        raise pytest.Collector.CollectError(f"{where}: the marker is gdnspec(definition, suite='smoke')")
    try:
        return list(spec(definition).workloads(suite))
    except SpecError as error:
        raise pytest.Collector.CollectError(f"{where}: {error}") from None
