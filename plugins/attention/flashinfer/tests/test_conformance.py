"""The backend keeps the contract of attention backends. Needs a GPU: its kernels run nowhere else."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from pymllm.interfaces import KVDtype
from pymllm.plugin import AttentionOptions
from pymllm.testing.attention import SHAPES, AttentionBackendConformance, MakeBackend, MakeRig
from pymllm.testing.attention_rig import Rig, array, assert_close
from pymllm_attention_flashinfer.backend import FlashInferAttention
from pymllm_attention_flashinfer.plugin import Decode, FlashInferOptions, Prefill
from pymllm_attention_flashinfer.probe import probe

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(find_spec("flashinfer") is None, reason="needs flashinfer-python"),
]


class OnCuda(AttentionBackendConformance):
    """Every dtype and head size is a kernel that takes minutes to build: bfloat16, and two sizes, stand for all."""

    options: AttentionOptions

    @pytest.fixture
    def device(self) -> torch.device:
        return torch.device("cuda")

    @pytest.fixture
    def dtype(self) -> torch.dtype:
        return torch.bfloat16

    @pytest.fixture
    def make_backend(self) -> MakeBackend:
        # A kernel of the library's by name is refused with a cache of codes, which the triton plugin's read.
        usual = FlashInferOptions()
        return lambda context: FlashInferAttention(self.options if context.kv_bits is None else usual, context)

    @pytest.fixture(params=[shape for shape in SHAPES if shape.head_dim in (64, 128)], ids=str)
    def rig(self, request: pytest.FixtureRequest, make_rig: MakeRig) -> Rig:
        return make_rig(request.param)


class TestFa2(OnCuda):
    options = FlashInferOptions(prefill=Prefill.fa2)


class TestDecodesOnCudaCores(OnCuda):
    options = FlashInferOptions(prefill=Prefill.fa2, decode=Decode.cuda_cores)

    @pytest.fixture(params=[shape for shape in SHAPES if shape.head_dim in (64, 128) and shape.heads != 7], ids=str)
    def rig(self, request: pytest.FixtureRequest, make_rig: MakeRig) -> Rig:
        return make_rig(request.param)


class TestDecodesOnTensorCores(OnCuda):
    options = FlashInferOptions(prefill=Prefill.fa2, decode=Decode.tensor_cores)


class TestFp8(OnCuda):
    options = FlashInferOptions()

    @pytest.fixture
    def kv_dtype(self) -> KVDtype:
        return KVDtype.fp8


class TestCodes(OnCuda):
    """Served by the triton plugin's kernels."""

    options = FlashInferOptions()

    @pytest.fixture(params=[KVDtype.int8, KVDtype.int4], ids=lambda kind: kind.value)
    def kv_dtype(self, request: pytest.FixtureRequest) -> KVDtype:
        return request.param


class TestFp8DecodesOnTensorCores(TestFp8):
    options = FlashInferOptions(decode=Decode.tensor_cores)


@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU"
)
class TestFa3(OnCuda):
    options = FlashInferOptions()  # fa3, but for an fp8 cache

    def test_long_prompts_are_computed_from_a_packed_copy(self, make_rig: MakeRig, tolerance: float) -> None:
        rig = make_rig(SHAPES[2], pages=700)
        layer = rig.layers[0]
        requests = [rig.request(tokens) for tokens in (9000, 500)]
        for request, found in zip(requests, rig.step([(request, len(request.q)) for request in requests])):
            q, k, v = (x.to(rig.device).double() for x in (request.q, request.k, request.v))
            for head in range(layer.heads):
                of = head // (layer.heads // layer.kv_heads)
                scores = layer.scale * q[:, head] @ k[:, of].T
                later = torch.ones(scores.shape, dtype=torch.bool, device=rig.device).triu_(1)
                expected = scores.masked_fill_(later, float("-inf")).softmax(-1) @ v[:, of]
                assert_close(found[:, head], array(expected), tolerance)


def test_the_probe_passes() -> None:
    assert probe(torch.device("cuda")) is None
