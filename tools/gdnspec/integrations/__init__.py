"""Adapters to libraries that people run: `gdnspec.integrations.<library>`.

Their code is about the operators of families, so it is no part of the tools. A checkout has it in its folder
integrations/; a wheel has it here.
"""

from gdnspec.paths import PACKAGE, data_root

if data_root() != PACKAGE / "data":
    __path__.append(str(data_root() / "integrations"))
