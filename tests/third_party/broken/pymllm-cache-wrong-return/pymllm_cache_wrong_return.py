"""Returns a dict instead of a spec."""

from __future__ import annotations

from typing import Any

from pymllm.plugin import hookimpl


@hookimpl
def pymllm_cache() -> dict[str, Any]:
    return {"factory": "pymllm_cache_wrong_return:Policy"}
