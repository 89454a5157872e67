"""The conformance kit of models. Subclass it, name a small checkpoint and your factory, and run pytest::

    class TestMyModel(ModelConformance):
        @pytest.fixture
        def checkpoint(self, tmp_path):
            return make_tiny_checkpoint(tmp_path / "llama", "llama")

        @pytest.fixture
        def factory(self):
            return MyModel

It needs pytest, and a model that transformers knows, or an override of ``reference``. The checkpoint should be random,
with large weights: a trained one hides mistakes of a layer or two.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pymllm.errors import CheckpointError
from pymllm.interfaces import Model
from pymllm.layers import Attention
from pymllm.testing.batch import Chunk
from pymllm.testing.harness import Harness, MakeAttention, load_model
from pymllm.testing.reference import ReferenceAttention

Factory = Callable[..., Model]
Reference = Callable[[torch.dtype, torch.dtype, list[int]], Tensor]

FLOAT32_BOUND = 1e-4
"""Of max |logit|: largest difference to transformers in float32."""

LOW_PRECISION_BOUNDS = {torch.bfloat16: 0.1, torch.float16: 0.015}
"""Of max |logit|: largest difference to the same weights computed in float32."""

LOW_PRECISION_SHARE = 1.5
"""The root mean square of that difference, at most this many times transformers' own in the same dtype."""

BATCH_BOUND = 1e-5
"""Of max |logit|: largest difference between two ways to batch the same tokens, in float32."""


def difference(logits: Tensor, reference: Tensor) -> float:
    """max |logits - reference| / max |reference|."""
    return float((logits.float() - reference.float()).abs().max() / reference.abs().max())


class ModelConformance:
    """What every model must do. See :mod:`pymllm.interfaces.model` for the rules it checks."""

    @pytest.fixture
    def checkpoint(self) -> Path:
        """A checkpoint folder. Override this fixture."""
        raise NotImplementedError("override the fixture checkpoint in your subclass of ModelConformance")

    @pytest.fixture
    def factory(self) -> Factory:
        """The model's factory (the class itself). Override this fixture."""
        raise NotImplementedError("override the fixture factory in your subclass of ModelConformance")

    @pytest.fixture
    def make_attention(self) -> MakeAttention:
        """Builds the attention backend from its context; the kit's own unless overridden."""
        return ReferenceAttention

    @pytest.fixture
    def reference(self, checkpoint: Path) -> Reference:
        """``reference(stored, computed, tokens)`` -> logits [T, V]: weights rounded to one dtype, computed in another.
        This one is transformers'."""
        from transformers import AutoModelForCausalLM

        @cache
        def model(stored: torch.dtype, computed: torch.dtype) -> Any:
            loaded: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=stored)
            return loaded.to(computed)

        @torch.inference_mode()
        def logits(stored: torch.dtype, computed: torch.dtype, tokens: list[int]) -> Tensor:
            return model(stored, computed)(torch.tensor([tokens])).logits[0].float()

        return logits

    @pytest.fixture
    def harness(self, checkpoint: Path, factory: Factory, make_attention: MakeAttention) -> Harness:
        """The model in float32."""
        return load_model(checkpoint, factory, make_attention=make_attention)

    @pytest.fixture
    def prompt(self, harness: Harness) -> list[int]:
        """61 random tokens of the vocabulary."""
        generator = torch.Generator().manual_seed(7)
        text = harness.config.get("text_config") or harness.config
        return torch.randint(text["vocab_size"], (61,), generator=generator).tolist()

    # Loading

    def test_every_parameter_is_filled(self, harness: Harness) -> None:
        assert harness.unfilled == ()

    def test_a_tensor_that_nothing_takes_is_an_error(self, checkpoint: Path, factory: Factory, tmp_path: Path) -> None:
        folder = _edited(checkpoint, tmp_path, lambda tensors: tensors.update(stray=torch.ones(3)))
        with pytest.raises(CheckpointError, match="stray"):
            load_model(folder, factory)

    def test_a_missing_tensor_is_an_error(self, checkpoint: Path, factory: Factory, tmp_path: Path) -> None:
        removed: list[str] = []

        def remove(tensors: dict[str, Tensor]) -> None:
            removed.append(next(name for name in sorted(tensors) if "norm" in name))
            del tensors[removed[0]]

        folder = _edited(checkpoint, tmp_path, remove)
        with pytest.raises(CheckpointError, match=removed[0]):
            load_model(folder, factory)

    def test_memory_groups_are_what_the_layers_use(self, harness: Harness, factory: Any) -> None:
        used: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
        for module in harness.model.modules():
            if isinstance(module, Attention):
                used[module.group].append((module.index, module.kv_heads, module.head_dim))
        declared = {
            group.name: [(index, group.kv_heads, group.head_dim) for index in range(group.layers)]
            for group in factory.memory_groups(harness.config)
        }
        assert {name: sorted(layers) for name, layers in used.items()} == declared

    # Numbers

    def test_logits_equal_the_reference(self, harness: Harness, reference: Reference, prompt: list[int]) -> None:
        expected = reference(torch.float32, torch.float32, prompt)
        assert difference(harness.logits(prompt), expected) <= FLOAT32_BOUND

    def test_greedy_tokens_equal_the_reference(self, harness: Harness, reference: Reference, prompt: list[int]) -> None:
        expected: list[int] = []
        while len(expected) < 12:
            expected.append(int(reference(torch.float32, torch.float32, prompt + expected)[-1].argmax()))
        assert harness.greedy(prompt, 12) == expected

    @pytest.mark.parametrize("dtype", list(LOW_PRECISION_BOUNDS), ids=str)
    def test_low_precision_is_as_exact_as_the_reference(
        self,
        checkpoint: Path,
        factory: Factory,
        make_attention: MakeAttention,
        reference: Reference,
        prompt: list[int],
        dtype: torch.dtype,
    ) -> None:
        logits = load_model(checkpoint, factory, dtype=dtype, make_attention=make_attention).logits(prompt)
        exact, rounded = reference(dtype, torch.float32, prompt), reference(dtype, dtype, prompt)
        assert logits.dtype == dtype
        assert difference(logits, exact) <= LOW_PRECISION_BOUNDS[dtype]
        assert (logits.float() - exact).std() <= LOW_PRECISION_SHARE * (rounded - exact).std()

    # Batches

    @pytest.mark.parametrize("size", [1, 7, 16])
    def test_chunked_prefill_equals_whole(self, harness: Harness, prompt: list[int], size: int) -> None:
        whole, pages = harness.logits(prompt), harness.page_list(len(prompt))
        starts = range(0, len(prompt), size)
        parts = [harness.run(Chunk(prompt[start : start + size], pages, start))[0] for start in starts]
        assert difference(torch.cat(parts), whole) <= BATCH_BOUND

    def test_a_mixed_batch_equals_each_request_alone(self, harness: Harness, prompt: list[int]) -> None:
        """A decode, a later prefill chunk, a first prefill chunk and a request of one token share a step."""
        texts = [prompt[:30], prompt[5:44], prompt[::-1][:17], prompt[-1:]]
        computed = [29, 20, 0, 0]
        alone = [harness.logits(text)[start:] for text, start in zip(texts, computed)]
        pages = [harness.page_list(len(text), skip=16 * row) for row, text in enumerate(texts)]
        for text, own, start in zip(texts, pages, computed):
            if start:
                harness.run(Chunk(text[:start], own))
        together = harness.run(*(Chunk(text[start:], own, start) for text, own, start in zip(texts, pages, computed)))
        for row, logits in enumerate(together):
            assert difference(logits, alone[row]) <= BATCH_BOUND, f"request {row}"


def _edited(checkpoint: Path, target: Path, edit: Callable[[dict[str, Tensor]], None]) -> Path:
    """A copy of a checkpoint folder with the tensors of its first weight file edited."""
    folder = Path(shutil.copytree(checkpoint, target / "edited"))
    file = sorted(folder.glob("*.safetensors"))[0]
    tensors = load_file(file)
    edit(tensors)
    save_file(tensors, file)
    return folder
