"""pymllm: plugin-based serving of large language and vision-language models.

The offline API is two names, ``LLM`` and ``SamplingParams``; both are imported on first use so that
``import pymllm`` stays free of torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams", "__version__"]

if TYPE_CHECKING:
    from pymllm.llm import LLM
    from pymllm.sampling import SamplingParams


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from pymllm.llm import LLM

        return LLM
    if name == "SamplingParams":
        from pymllm.sampling import SamplingParams

        return SamplingParams
    raise AttributeError(f"module 'pymllm' has no attribute '{name}'")
