"""On a GPU, in bfloat16, features and logits stay close to the same weights computed in float32 on the host; and a step
without media replays as a CUDA graph."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pymllm.engine.cuda.graph import no_garbage_collection
from pymllm.engine.cuda.media import MediaGraphs
from pymllm.interfaces import ForwardBatch, MediaItem, ProcessorContext
from pymllm.interfaces.attention import GraphKey
from pymllm.layers import VarlenStack
from pymllm.testing import make_tiny_vision_checkpoint
from pymllm.testing.batch import Chunk, forward_batch
from pymllm.testing.harness import Harness, attention_plugin, load_model
from pymllm.testing.media_prompt import MediaPrompt, clip, picture
from pymllm.testing.model import LOW_PRECISION_BOUNDS, difference
from pymllm_model_qwen3_vl.model import Qwen3VLModel
from pymllm_model_qwen3_vl.processor import Qwen3VLProcessor

pytestmark = pytest.mark.gpu

BFLOAT16 = torch.bfloat16


@pytest.fixture(scope="module", params=[64, 72])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads and widths as kernels for GPUs want them; weights that bfloat16 holds exactly."""
    from safetensors.torch import load_file, save_file

    text = {
        "hidden_size": 128,
        "intermediate_size": 256,
        "head_dim": 64,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [12, 10, 10],
            "mrope_interleaved": True,
        },
    }
    vision = {"hidden_size": 2 * request.param, "out_hidden_size": 128}
    folder = make_tiny_vision_checkpoint(tmp_path_factory.mktemp("gpu"), vision=vision, **text)
    tensors = load_file(folder / "model.safetensors")
    rounded = {name: (0.3 * tensor if tensor.dim() > 1 else tensor) for name, tensor in tensors.items()}
    save_file({name: tensor.to(BFLOAT16).float() for name, tensor in rounded.items()}, folder / "model.safetensors")
    return folder


@pytest.fixture(params=["triton", "flashinfer", "torch"])
def harness(request: pytest.FixtureRequest, checkpoint: Path) -> Harness:
    if request.param == "flashinfer":
        pytest.importorskip("flashinfer")
    make_attention = attention_plugin(request.param)
    return load_model(
        checkpoint, Qwen3VLModel, dtype=BFLOAT16, make_attention=make_attention, page_size=16, device="cuda"
    )


def prompt(harness: Harness, checkpoint: Path) -> MediaPrompt:
    config: Any = json.loads((checkpoint / "config.json").read_text())
    processor = Qwen3VLProcessor(config, ProcessorContext(checkpoint, encode=lambda text: list(text.encode())))
    image, video = config["image_token_id"], config["video_token_id"]
    tokens = [5, 6, image, 7, 8, video, 9, image]
    media = [picture(0, 90, 130), clip(1, 3, 64, 64), picture(2, 150, 80)]
    return MediaPrompt.make(harness, processor, tokens, media)


def logits(harness: Harness, prompt: MediaPrompt) -> Tensor:
    return harness.run(prompt.chunk(harness.page_list(len(prompt.placed.token_ids))))[0].float().cpu()


def test_features_and_logits_are_close_to_float32(harness: Harness, checkpoint: Path) -> None:
    exact = load_model(checkpoint, Qwen3VLModel)
    found, expected = prompt(harness, checkpoint), prompt(exact, checkpoint)
    for own, features in zip(found.features, expected.features):
        assert difference(own.cpu(), features) <= LOW_PRECISION_BOUNDS[BFLOAT16]
    assert difference(logits(harness, found), logits(exact, expected)) <= LOW_PRECISION_BOUNDS[BFLOAT16]


@torch.inference_mode()
def test_encoding_does_not_wait_for_the_device(harness: Harness, checkpoint: Path) -> None:
    """Once lengths were planned: a backend may wait for that."""
    if type(harness.backend).__module__.startswith("pymllm_attention_torch"):
        pytest.skip("plain PyTorch sends the lengths in every layer")
    items = [harness.model.example_media(tokens) for tokens in (12, 6)]
    harness.model.encode_media(items)
    torch.cuda.set_sync_debug_mode("error")
    try:
        harness.model.encode_media(items)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@torch.inference_mode()
def test_the_tower_replays_in_graphs(harness: Harness, checkpoint: Path) -> None:
    """Padded, whatever was in the padding before; what is larger than any graph is computed without one."""
    [stack] = [module for module in harness.model.modules() if isinstance(module, VarlenStack)]
    graphs = MediaGraphs(stack, harness.backend, [64, 256])
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with no_garbage_collection(), torch.cuda.stream(stream):
        pool = torch.cuda.graph_pool_handle()
        for size in (256, 64):
            graphs.capture(size, pool)
    torch.cuda.current_stream().wait_stream(stream)
    exact = load_model(checkpoint, Qwen3VLModel)
    shapes = [(128, 448), (96, 160), (64, 64), (256, 256)]  # 224, 60, 16 and 256 patches
    for shape in shapes:
        item = noise(*shape)
        on_device = replace(item, pixels=item.pixels.cuda())
        stack.replay = graphs
        [replayed] = harness.model.encode_media([on_device])
        stack.replay = None
        [launched] = harness.model.encode_media([on_device])
        [expected] = exact.model.encode_media([item])
        assert difference(replayed.float().cpu(), expected) <= LOW_PRECISION_BOUNDS[BFLOAT16]
        assert difference(launched.float().cpu(), expected) <= LOW_PRECISION_BOUNDS[BFLOAT16]
    large = noise(544, 544)
    large = replace(large, pixels=large.pixels.cuda())
    [launched] = harness.model.encode_media([large])
    stack.replay = graphs
    [replayed] = harness.model.encode_media([large])
    assert torch.equal(replayed, launched)


def noise(height: int, width: int) -> MediaItem:
    """An image of the checkpoint's patches of 16 pixels."""
    generator = torch.Generator().manual_seed(height * width)
    pixels = torch.randint(256, (1, height, width, 3), dtype=torch.uint8, generator=generator)
    return MediaItem("image", pixels, (1, height // 16, width // 16))


@torch.inference_mode()
def test_a_step_without_media_replays_as_a_graph(harness: Harness) -> None:
    """Two decodes whose positions change between replays."""
    if not harness.backend.capabilities.graph_capture:
        pytest.skip("the backend cannot be captured")
    pages = [harness.page_list(40, skip=10 * row) for row in range(2)]
    for own in pages:
        harness.run(Chunk(list(range(20)), own))
    batch: ForwardBatch = forward_batch(
        [Chunk([7], own, start=20) for own in pages], harness.page_size, "cuda", axes=harness.model.position_axes
    )
    shifted = batch.positions - 5

    def forward() -> Tensor:
        return harness.model.logits(harness.model(batch))

    batch.attention.graph_key = GraphKey(2, 2)
    harness.backend.plan(batch.attention)
    expected = [forward().clone()]
    own = batch.positions.clone()
    batch.positions.copy_(shifted)
    expected.append(forward().clone())
    batch.positions.copy_(own)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        forward()
        with torch.cuda.graph(graph, stream=stream):
            captured = forward()
    torch.cuda.current_stream().wait_stream(stream)
    for positions, logits in zip((own, shifted), expected):
        batch.positions.copy_(positions)
        graph.replay()
        assert torch.equal(captured, logits)
