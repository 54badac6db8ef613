"""The build hook of wheels: adds the JavaScript client to the files of the web console, which uses it.

TAILRACE_COMPILE=1 adds the compiled modules, too (`tools/compiling.py`). Without it a wheel is pure Python and fits every
platform. An editable install is never compiled: an extension module would take precedence over the source that is
edited. It reads the client from the checkout.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledBuild(BuildHookInterface[Any]):
    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """mypyc, and the packages of the server: it reads their types."""
        return ["mypy[mypyc]>=1.13", *self.metadata.core.dependencies] if self._wanted() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        build_data["force_include"]["clients/js/tailrace.js"] = "tailrace/http/console/tailrace.js"
        if not self._wanted():
            return
        sys.path.insert(0, str(Path(self.root) / "tools"))
        import compiling

        if compiling.compiler() is None:
            raise RuntimeError("TAILRACE_COMPILE=1 needs a C compiler and the headers of Python")
        built = compiling.extensions(compiling.build())
        build_data["force_include"].update({str(path): name for path, name in built.items()})
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def _wanted(self) -> bool:
        return self.target_name == "wheel" and os.environ.get("TAILRACE_COMPILE", "") not in ("", "0")
