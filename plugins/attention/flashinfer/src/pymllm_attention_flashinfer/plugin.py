"""What the plugin offers; nothing heavy is imported here."""

from dataclasses import dataclass
from enum import Enum

from pymllm.plugin import AttentionOptions, AttentionSpec, hookimpl


class Prefill(str, Enum):
    """The kernel of prefill chunks: FlashAttention-2 (any GPU), -3 (Hopper), or the faster one."""

    auto = "auto"
    fa2 = "fa2"
    fa3 = "fa3"


class Decode(str, Enum):
    """The kernel of decodes: that of the triton plugin, or one of the library's, on CUDA cores or on tensor cores.
    auto: triton's, which is the fastest."""

    auto = "auto"
    triton = "triton"
    cuda_cores = "cuda_cores"
    tensor_cores = "tensor_cores"


@dataclass
class FlashInferOptions(AttentionOptions):
    """Keys of ``attention`` under ``plugin: flashinfer``: which kernels run."""

    prefill: Prefill = Prefill.auto
    decode: Decode = Decode.auto


@hookimpl
def pymllm_attention() -> AttentionSpec:
    return AttentionSpec(
        config=FlashInferOptions,
        priority=20,
        probe="pymllm_attention_flashinfer.probe:probe",
        factory="pymllm_attention_flashinfer.backend:FlashInferAttention",
        summary="paged attention through FlashInfer, CUDA",
    )
