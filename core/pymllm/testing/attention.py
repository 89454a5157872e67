"""The conformance kit of attention backends. Subclass it, build your backend in ``make_backend``, run pytest::

    class TestMyAttention(AttentionBackendConformance):
        @pytest.fixture
        def make_backend(self):
            return lambda context: MyAttention(MyOptions(), context)

        @pytest.fixture
        def device(self):                     # default: the CPU
            return torch.device("cuda")

        @pytest.fixture(params=[torch.bfloat16, torch.float16], ids=str)
        def dtype(self, request):             # default: float32 and bfloat16
            return request.param

        @pytest.fixture
        def kv_dtype(self):                   # default: the cache is kept as activations are
            return KVDtype.fp8

Every case is compared with float64 NumPy (:mod:`pymllm.testing.attention_reference`) on the inputs as the
dtype rounds them, keys and values as the cache keeps them. Before each case the whole cache is filled with NaN:
memory that a request did not write must not show. Shapes and dtypes that the backend's capabilities refuse are
skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from pymllm.interfaces import AttentionBackend, AttentionCapabilities, AttentionContext, KVDtype, KVGroup
from pymllm.testing.attention_layers import Norm, Rotary
from pymllm.testing.attention_prompts import PaddedPrompts
from pymllm.testing.attention_reference import attention, rms_norm, rotate
from pymllm.testing.attention_rig import Request, Rig, array, assert_close, tensor_bytes

MakeBackend = Callable[[AttentionContext], AttentionBackend]
MakeRig = Callable[..., Rig]


@dataclass(frozen=True)
class Shape:
    """head_dim, page_size (tokens), query heads, key/value heads."""

    head_dim: int
    page_size: int
    heads: int
    kv_heads: int

    def __str__(self) -> str:
        return f"d{self.head_dim}-p{self.page_size}-{self.heads}:{self.kv_heads}"


USUAL = Shape(64, 16, 9, 3)
SHAPES = [
    USUAL,
    Shape(64, 1, 4, 4),
    Shape(128, 64, 8, 2),
    Shape(128, 16, 7, 1),
    Shape(16, 16, 4, 2),
    Shape(72, 16, 2, 2),
    Shape(256, 32, 2, 1),
    Shape(20, 5, 6, 2),
]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}
SLACK = {KVDtype.fp8: 0.02, KVDtype.int8: 0.02, KVDtype.int4: 0.2}
"""Where keys are rounded to activations before the cache rounds them, to bits so few that it may come out otherwise:
the steps of the cache's numbers are about 0.1, 0.02 and 0.35, and one in ten components of a key or less is a step
away, in either direction."""


class AttentionBackendConformance:
    """What every attention backend must do. See :mod:`pymllm.interfaces.attention` for the rules it checks."""

    @pytest.fixture
    def make_backend(self) -> MakeBackend:
        """``make_backend(context)`` builds the backend under test. Override this fixture."""
        raise NotImplementedError("override the fixture make_backend in your subclass of AttentionBackendConformance")

    @pytest.fixture
    def device(self) -> torch.device:
        """Where the backend runs."""
        return torch.device("cpu")

    @pytest.fixture(params=[torch.float32, torch.bfloat16], ids=str)
    def dtype(self, request: pytest.FixtureRequest) -> torch.dtype:
        """The activation dtypes that are tested, one after another."""
        dtype: torch.dtype = request.param
        return dtype

    @pytest.fixture
    def kv_dtype(self) -> KVDtype:
        """How the cache is kept, in all cases but those that are about it."""
        return KVDtype.auto

    @pytest.fixture
    def tolerance(self, dtype: torch.dtype) -> float:
        """Largest error, relative to the largest value (at least 1). Widen it only with a reason."""
        return TOLERANCE[dtype]

    @pytest.fixture
    def make_rig(
        self, make_backend: MakeBackend, device: torch.device, dtype: torch.dtype, kv_dtype: KVDtype
    ) -> MakeRig:
        """Builds the backend for a shape; skips the test if its capabilities refuse the shape."""
        usual = kv_dtype

        def make(
            shape: Shape = USUAL, pages: int = 48, scale: float | None = None, kv_dtype: KVDtype | None = None
        ) -> Rig:
            plain = _context(shape, device, dtype)
            context = replace(plain, kv_dtype=kv_dtype or usual)
            reason = make_backend(plain).capabilities.refuse(context)
            if reason is not None:
                pytest.skip(f"the backend {reason}")
            backend = make_backend(context)
            tokens = pages * USUAL.page_size
            return Rig(backend, shape.heads, max(24, -(-tokens // shape.page_size)), scale=scale)

        return make

    @pytest.fixture(params=SHAPES, ids=str)
    def rig(self, request: pytest.FixtureRequest, make_rig: MakeRig) -> Rig:
        """The backend for each of the kit's shapes."""
        return make_rig(request.param)

    # Values

    def test_a_whole_prompt(self, rig: Rig, tolerance: float) -> None:
        rig.check([(rig.request(150), 150)], tolerance)

    def test_a_prompt_in_chunks(self, rig: Rig, tolerance: float) -> None:
        request = rig.request(150)
        whole = rig.step([(replace(request, pages=rig.take(150)), 150)])
        parts = [rig.check([(request, count)], tolerance)[0] for count in (1, 6, 32, 1, 110)]
        assert_close(np.concatenate(parts), whole[0], tolerance)

    def test_decodes_across_a_page_end(self, rig: Rig, tolerance: float) -> None:
        request = rig.request(3 * rig.page_size + 3)
        rig.step([(request, 2 * rig.page_size)])
        while request.done < len(request.q):
            rig.check([(request, 1)], tolerance)

    def test_a_first_token_alone(self, rig: Rig, tolerance: float) -> None:
        rig.check([(rig.request(1), 1)], tolerance)

    def test_a_mixed_batch(self, rig: Rig, tolerance: float) -> None:
        parts = _mixed(rig)
        rig.check(parts, tolerance)
        rig.check([(request, 1) for request, _ in reversed(parts) if request.done < len(request.q)], tolerance)

    def test_alone_as_in_a_batch(self, rig: Rig, tolerance: float) -> None:
        parts = _mixed(rig)
        before = [request.done for request, _ in parts]
        together = rig.step(parts)
        for (request, count), done, out in zip(parts, before, together):
            request.done = done
            assert_close(rig.step([(request, count)])[0], out, tolerance)

    def test_many_decodes_of_all_lengths(self, make_rig: MakeRig, tolerance: float) -> None:
        rig = make_rig(pages=600)
        lengths = [2, 500, 17, 16, 33, 180, 64, 700, 3, 250, 251, 15, 128, 499, 90, 31]
        requests = [rig.request(length + 1) for length in lengths]
        for request in requests:
            rig.step([(request, len(request.q) - 2)])
        rig.check([(request, 1) for request in requests], tolerance)
        rig.check([(request, 1) for request in requests[::-2]], tolerance)

    def test_a_long_prompt_after_a_long_prefix(self, make_rig: MakeRig, tolerance: float) -> None:
        rig = make_rig(pages=100)
        request = rig.request(1201)
        rig.step([(request, 700)])
        rig.check([(request, 500)], tolerance)
        rig.check([(request, 1)], tolerance)

    def test_scores_keep_their_precision(self, make_rig: MakeRig, tolerance: float) -> None:
        rig = make_rig(pages=60, scale=0.11)
        request = rig.request(802, sharpness=16.0)
        rig.check([(request, 300)], tolerance)
        rig.check([(request, 501)], tolerance)
        rig.check([(request, 1)], tolerance)

    def test_prompts_padded_for_a_graph(self, make_rig: MakeRig, tolerance: float) -> None:
        """On a GPU they are captured and replayed; see ``AttentionBatch.graph_key``."""
        rig = make_rig(pages=120)
        if not rig.backend.capabilities.prefill_capture:
            pytest.skip("prompts cannot be captured with this backend")
        graph = PaddedPrompts(rig, requests=4, tokens=160)
        graph.check([(rig.request(97), 90), (rig.request(31), 31), (rig.request(2), 2)], tolerance)
        graph.check([(rig.request(160), 160)], tolerance)
        after_a_prefix = [rig.request(tokens) for tokens in (300, 41, 70, 18)]
        for request, done in zip(after_a_prefix, (250, 16, 1, 15)):
            rig.step([(request, done)])
        graph.check([(request, count) for request, count in zip(after_a_prefix, (50, 25, 69, 3))], tolerance)
        rig.check([(rig.request(5), 5)], tolerance)  # an eager step in between changes nothing
        graph.check([(rig.request(33), 33)], tolerance)

    # Memory

    def test_requests_share_pages(self, rig: Rig, tolerance: float) -> None:
        shared = 2 * rig.page_size
        first = rig.request(shared + 3)
        rig.step([(first, shared + 1)])
        second = rig.request(shared + 5, pages=[*first.pages[:2], *rig.take(5)])
        second.k[:shared], second.v[:shared], second.done = first.k[:shared], first.v[:shared], shared
        rig.check([(second, 3), (first, 1)], tolerance)
        rig.check([(first, 1), (second, 1)], tolerance)

    def test_nan_of_one_request_stays_its_own(self, make_rig: MakeRig, tolerance: float) -> None:
        rig = make_rig()
        broken, sound, short = rig.request(61), rig.request(131), rig.request(4)
        broken.k.fill_(float("nan"))
        broken.v.fill_(float("nan"))
        for request in (broken, sound, short):
            rig.step([(request, len(request.q) - 2)])
        parts = [(broken, 1), (sound, 1), (short, 1)]
        found = rig.step(parts)
        if rig.backend.context.kv_dtype is not KVDtype.fp8:  # a kernel need not know the NaN of 8 bits
            assert np.isnan(found[0]).all()
        for (request, count), out in zip(parts[1:], found[1:]):
            assert_close(out, rig.expected(request, count), tolerance)

    def test_padded_rows_touch_only_page_zero(self, make_rig: MakeRig, tolerance: float) -> None:
        rig = make_rig(pages=12)
        requests = [rig.request(40), rig.request(23), rig.request(70)]
        for request in requests:
            rig.step([(request, len(request.q) - 2)])
        rig.check([(request, 1) for request in requests], tolerance, padded_rows=5)
        rig.check([(request, 1) for request in requests], tolerance)

    def test_layers_keep_apart(self, make_rig: MakeRig, tolerance: float) -> None:
        rig = make_rig()
        pages = rig.take(50)
        requests = [rig.request(50, pages=pages) for _ in rig.layers]
        for index, request in enumerate(requests):
            rig.check([(request, 49)], tolerance, layer=index)
        for index, request in enumerate(requests):
            rig.check([(request, 1)], tolerance, layer=index)

    def test_copied_pages_hold_the_same(self, rig: Rig, tolerance: float) -> None:
        request = rig.request(2 * rig.page_size + 2)
        for layer in (1, 0):
            request.done = 0
            rig.step([(request, 2 * rig.page_size)], layer=layer)
        target = rig.take(len(request.q))
        rig.backend.copy_pages(request.pages[:2], target[:2])
        rig.poison(request.pages[:2])
        for layer in range(2):
            moved = replace(request, pages=target)
            rig.check([(moved, 2)], tolerance, layer=layer)

    @pytest.mark.parametrize("shape", [USUAL, SHAPES[3]], ids=str)
    def test_a_page_takes_what_page_bytes_says(self, make_rig: MakeRig, shape: Shape) -> None:
        rig = make_rig(shape)
        backend, group = rig.backend, rig.group
        backend.allocate(group, 1)
        before = tensor_bytes()
        backend.allocate(group, 201)
        assert tensor_bytes() - before == pytest.approx(200 * backend.page_bytes(group), rel=0.005)

    def test_another_allocation_replaces_the_first(self, make_rig: MakeRig, tolerance: float) -> None:
        rig = make_rig()
        rig.backend.allocate(rig.group, rig.pages)
        rig.poison(range(rig.pages))
        rig.check([(rig.request(33), 33)], tolerance)

    # The cache's dtypes

    @pytest.mark.parametrize("wanted", [KVDtype.bf16, KVDtype.fp8, KVDtype.int8, KVDtype.int4], ids=lambda x: x.value)
    def test_keys_and_values_are_kept_as_asked(self, make_rig: MakeRig, tolerance: float, wanted: KVDtype) -> None:
        rig = make_rig(kv_dtype=wanted)
        parts = _mixed(rig)
        rig.check(parts, tolerance)
        moved = parts[1][0]
        target = rig.take(len(moved.q))
        rig.backend.copy_pages(moved.pages, target)
        rig.poison(moved.pages)
        moved.pages = target
        rig.check([(request, 1) for request, _ in parts if request.done < len(request.q)], tolerance)

    def test_8_bit_floats_keep_what_is_too_large_as_their_largest(self, make_rig: MakeRig, tolerance: float) -> None:
        rig = make_rig(scale=1e-3, kv_dtype=KVDtype.fp8)
        request = rig.request(40)
        for values in (request.k, request.v):
            values.mul_(300)
        assert float(request.v.abs().max()) > 600
        rig.check([(request, 38)], tolerance)
        rig.check([(request, 1)], tolerance)

    def test_every_8_bit_float_is_read_as_it_is(self, make_rig: MakeRig) -> None:
        rig = make_rig(kv_dtype=KVDtype.fp8)
        every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).to(rig.dtype).nan_to_num(1.0)
        requests = [rig.request(1) for _ in range(2)]
        for request, values in zip(requests, (every, every.flip(0))):
            request.v.view(-1).copy_(values[: request.v.numel()])
        # A token that sees itself alone gets its own values.
        for request, found in zip(requests, rig.step([(request, 1) for request in requests])):
            expected = np.repeat(array(request.v), found.shape[1] // request.v.shape[1], axis=1)
            np.testing.assert_allclose(found, expected, rtol=1e-3)

    @pytest.mark.parametrize("wanted", [KVDtype.int8, KVDtype.int4], ids=lambda x: x.value)
    def test_codes_of_constants_and_extremes(self, make_rig: MakeRig, tolerance: float, wanted: KVDtype) -> None:
        rig = make_rig(kv_dtype=wanted)
        requests = [rig.request(1) for _ in range(6)]
        values = [request.v for request in requests]
        values[0].zero_()
        values[1].fill_(-0.375)
        values[2].fill_(1e-30)
        values[3].fill_(6e4)
        values[4].view(-1)[::5] = -6e4
        values[5].mul_(1e-3)
        # A token that sees itself alone gets its own values, whatever the others have.
        for request, found in zip(requests, rig.step([(request, 1) for request in requests])):
            expected = rig.expected(request, 1)
            limit = tolerance * float(np.abs(expected).max()) + 1e-7
            np.testing.assert_allclose(found, expected, rtol=0, atol=limit)

    # The producer, and attention without pages

    @pytest.mark.parametrize("rotary", [None, 1.0, 0.5])
    @pytest.mark.parametrize("norms", [False, True])
    def test_forward_norms_rotates_and_attends(
        self, make_rig: MakeRig, tolerance: float, norms: bool, rotary: float | None
    ) -> None:
        rig = make_rig()
        layer, size = replace(rig.layers[0]), rig.group.head_dim
        if norms:
            layer.q_norm, layer.k_norm = (Norm(1 + 0.2 * rig.random(size), eps, rig.device) for eps in (1e-6, 0.1))
        if rotary is not None:
            layer.rope = Rotary(int(size * rotary), rig.device)
        pages, qkv = rig.take(40), rig.random(40, (layer.heads + 2 * layer.kv_heads) * size)
        q, k, v = np.split(array(qkv).reshape(40, -1, size), [layer.heads, layer.heads + layer.kv_heads], axis=1)
        if norms:
            q = rms_norm(q, array(layer.q_norm.weight), layer.q_norm.eps)
            k = rms_norm(k, array(layer.k_norm.weight), layer.k_norm.eps)
        if rotary is not None:
            q, k = (rotate(x, np.arange(40.0), Rotary.base, layer.rope.rotary_dim) for x in (q, k))
        expected = attention(q, rig.kept(k), rig.kept(v), layer.scale).reshape(40, -1)
        for start, end in ((0, 37), (37, 38), (38, 40)):
            rig.backend.plan(rig.batch([end - start], [end], [pages]))
            positions = torch.arange(start, end, device=rig.device)
            found = rig.backend.forward(layer, rig.put(qkv[start:end]), positions)
            slack = SLACK.get(rig.backend.context.kv_dtype, 0.0)
            assert_close(array(found), expected[start:end], 3 * tolerance + slack)

    @pytest.mark.parametrize("lengths", [[37], [16, 16, 16], [5, 130, 1, 64, 5]], ids=str)
    def test_packed_sequences_attend_within_themselves(self, rig: Rig, tolerance: float, lengths: list[int]) -> None:
        layer, size = rig.layers[0], rig.group.head_dim
        starts = [0, *np.cumsum(lengths).tolist()]
        q = rig.random(starts[-1], layer.heads, size)
        k, v = (rig.random(starts[-1], layer.kv_heads, size) for _ in "kv")
        out = torch.empty_like(rig.put(q))
        rig.backend.varlen(rig.put(q), rig.put(k), rig.put(v), out, starts, 0.2)
        found = array(out)
        for start, end in pairwise(starts):
            rows = slice(start, end)
            expected = attention(array(q[rows]), array(k[rows]), array(v[rows]), 0.2, causal=False)
            assert_close(found[rows], expected, tolerance)

    # Capabilities

    def test_it_says_what_it_cannot_do(
        self, make_backend: MakeBackend, device: torch.device, dtype: torch.dtype
    ) -> None:
        contexts = [_context(shape, device, dtype) for shape in SHAPES]
        can: AttentionCapabilities = make_backend(contexts[0]).capabilities
        assert any(can.refuse(context) is None for context in contexts), "no shape of the kit is covered"
        assert "meta" in str(can.refuse(replace(contexts[0], device=torch.device("meta"))))
        assert "complex64" in str(can.refuse(replace(contexts[0], dtype=torch.complex64)))
        covered = next(context for context in contexts if can.refuse(context) is None)
        for kind in set(KVDtype) - can.kv_dtypes - {KVDtype.bf16}:
            assert f"attention.kv_dtype: {kind.value}" in str(can.refuse(replace(covered, kv_dtype=kind)))


def _context(shape: Shape, device: torch.device, dtype: torch.dtype) -> AttentionContext:
    group = KVGroup("full", 2, shape.kv_heads, shape.head_dim)
    return AttentionContext(device, dtype, shape.page_size, {"full": group})


def _mixed(rig: Rig) -> list[tuple[Request, int]]:
    """A decode, a chunk with a prefix, a new prompt, a decode of a short and of a long context."""
    state = [(40, 39, 1), (90, 35, 50), (30, 0, 30), (3, 1, 1), (120, 118, 1), (60, 20, 3)]
    parts = []
    for tokens, done, count in state:
        request = rig.request(tokens)
        if done:
            rig.step([(request, done)])
        parts.append((request, count))
    return parts
