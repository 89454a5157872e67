"""Which kernel serves which requests; kernels are loaded, and built if need be, when they are first wanted."""

from __future__ import annotations

import torch

from pymllm_attention_flashinfer.kernels import CudaCoreDecode, Heads, PackedPrefill, PagedKernel, Prefill, Types
from pymllm_attention_flashinfer.plugin import Decode, FlashInferOptions
from pymllm_attention_flashinfer.policy import gathers_prompts, own_decode, prefill_generation
from pymllm_attention_flashinfer.requests import Requests

KINDS = {
    "cuda_cores": "decodes on CUDA cores",
    "tensor_cores": "decodes on tensor cores",
    "paged": "prefill from pages",
    "packed": "prefill from a packed copy",
}


class Kernels:
    """The kernels of a model, by head size and kind (a key of KINDS)."""

    def __init__(self, options: FlashInferOptions, types: Types, device: torch.device) -> None:
        """Raises ConfigError for an option that the device or the cache's dtype does not allow."""
        self.options = options
        self._types = types
        self._device = device
        self._generation = prefill_generation(options.prefill, device, types.kv)
        self._kernels: dict[tuple[int, str], PagedKernel] = {}

    def serving(self, heads: Heads, requests: Requests, *, captured: bool = False) -> PagedKernel:
        """The kernel for some requests of a step, all of them decodes or not."""
        if requests.decodes:
            own = own_decode(self.options.decode, heads)
            assert own is not None, "the triton plugin's decodes are not planned here"
            return self.kernel(heads.size, own)
        packed = self._generation == "fa3" and not captured and gathers_prompts(heads, requests)
        return self.kernel(heads.size, "packed" if packed else "paged")

    @property
    def decodes(self) -> bool:
        """Whether the library serves decodes."""
        return self.options.decode not in (Decode.auto, Decode.triton)

    @property
    def splits_prompts(self) -> bool:
        """Whether prompts may need memory for partial results."""
        return self._generation == "fa2"

    def kinds(self, heads: Heads) -> list[str]:
        """The kinds that a shape of heads may be served by, whatever the step."""
        own = own_decode(self.options.decode, heads)
        return [*([own] if own else []), "paged", *(["packed"] if self._generation == "fa3" else [])]

    def kernel(self, size: int, kind: str) -> PagedKernel:
        """A kernel, loaded. size: of a head. Raises PluginError if it cannot be built."""
        kernel = self._kernels.get((size, kind))
        if kernel is None:
            kernel = self._kernels[size, kind] = self._load(size, kind)
        return kernel

    def _load(self, size: int, kind: str) -> PagedKernel:
        where = (self._types, size, self._device)
        if kind == "cuda_cores":
            return CudaCoreDecode(*where)
        if kind == "tensor_cores":  # fa3 cannot split the keys of a request, which is what decodes live on
            return Prefill("fa2", *where, causal=False)
        chunks = Prefill(self._generation, *where)
        return PackedPrefill(chunks) if kind == "packed" else chunks
