"""The training script of the demo: its files, its packed forward pass, and a checkpoint that is a real Qwen3-VL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from multiprocessing import Value
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import AutoTokenizer

from pymllm_model_qwen3_vl.demo.held_out import held_out
from qwen3_vl import Transformers

TRAINING = Path(__file__).parents[1] / "training"
EASY = ("--kinds", "size", "--most-shapes", "1", "--most-side", "64", "--names", "2", "--workers", "0")


def train(*words: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(TRAINING / "train.py"), *words, *EASY, "--pictures", "4", "--group", "2"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """Two steps of an easy training: the checkpoint, the state, and what was printed."""
    folder = tmp_path_factory.mktemp("trained")
    out, state = folder / "model", folder / "state.pt"
    return out, state, train(str(out), "--steps", "2", "--state", str(state))


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(TRAINING))
    import demo_files
    import demo_forward
    import demo_network
    import demo_samples

    class Modules:
        files, forward, network, samples = demo_files, demo_forward, demo_network, demo_samples

    return Modules


def test_it_learns_for_as_many_steps_as_it_is_told_and_goes_on(trained: tuple[Path, Path, str], tmp_path: Path) -> None:
    _, state, printed = trained
    assert "step 2: loss" in printed
    assert "in bf16: accuracy" in printed
    assert torch.load(state, weights_only=True)["step"] == 2
    assert "step 3: loss" in train(str(tmp_path / "model"), "--steps", "3", "--state", str(state))


def test_the_checkpoint_is_small_and_of_widths_that_quantize(trained: tuple[Path, Path, str]) -> None:
    out = trained[0]
    config = json.loads((out / "config.json").read_text())
    text, vision = config["text_config"], config["vision_config"]
    assert config["architectures"] == ["Qwen3VLForConditionalGeneration"]
    for heads in ("num_attention_heads", "num_key_value_heads"):
        assert text[heads] * text["head_dim"] % 128 == 0
    assert text["hidden_size"] % 128 == text["intermediate_size"] % 128 == text["vocab_size"] % 128 == 0
    assert vision["hidden_size"] % 64 == vision["intermediate_size"] % 64 == 0
    assert vision["hidden_size"] // vision["num_heads"] == 64
    assert len(vision["deepstack_visual_indexes"]) >= 2
    assert config["tie_word_embeddings"] is True
    assert (out / "model.safetensors").stat().st_size <= 10_000_000
    with safe_open(out / "model.safetensors", "pt") as file:
        tensors = [file.get_tensor(name) for name in file.keys()]  # noqa: SIM118
    assert {tensor.dtype for tensor in tensors} == {torch.bfloat16}
    assert sum(tensor.numel() for tensor in tensors) <= 5_000_000
    assert json.loads((out / "generation_config.json").read_text())["do_sample"] is False


def test_the_tokenizer_takes_any_text(trained: tuple[Path, Path, str]) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(trained[0])
    assert len(tokenizer) <= 1000
    for text in ("What colour is the red star?", "图中有多少个圆形?", "Zoë's 漢字 😀\t\n  x = 3.14", "\u0000ﾊﾛｰ"):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(ids) == text
    for question in held_out():
        assert len(tokenizer(question.answer)["input_ids"]) <= 6
    for special in ("im_start", "im_end", "vision_start", "vision_end", "image_pad", "video_pad"):
        assert len(tokenizer(f"<|{special}|>")["input_ids"]) == 1


def test_the_same_words_give_the_same_tokenizer(modules: Any) -> None:
    assert modules.files.make_tokenizer().to_str() == modules.files.make_tokenizer().to_str()


def test_the_packed_forward_pass_is_that_of_transformers(modules: Any, tmp_path: Path) -> None:
    """Questions that share a picture, and groups of pictures of different sizes, against each question alone."""
    tokenizer = modules.files.make_tokenizer()
    torch.manual_seed(0)
    model = modules.network.make_model(tokenizer).eval()
    model.save_pretrained(tmp_path)
    modules.files.write_files(tmp_path, tokenizer, model.config.vision_config)
    reference = Transformers(tmp_path)
    chat: Any = reference.processor.tokenizer
    rng = np.random.default_rng(5)
    samples = [modules.samples._sample(rng, modules.samples.Course()) for _ in range(3)]
    groups = [modules.samples.Writer(tokenizer).group([sample]) for sample in samples]
    with torch.no_grad():
        logits, wanted = modules.forward.answer_logits(model, groups, torch.device("cpu"))
    done = 0
    for pixels, asked in samples:
        for question, answer in asked:
            content = [{"type": "image"}, {"type": "text", "text": question}]
            prompt = chat.apply_chat_template(
                [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
            )
            expected = reference(f"{prompt}{answer}<|im_end|>", [pixels])
            count = len(chat(answer)["input_ids"]) + 1
            assert wanted[done : done + count].tolist() == expected.token_ids[-count:]
            torch.testing.assert_close(
                logits[done : done + count], expected.logits[-count - 1 : -1], rtol=1e-4, atol=1e-4
            )
            done += count
    assert done == len(logits)


def test_a_conversation_is_that_of_transformers(modules: Any, tmp_path: Path) -> None:
    tokenizer = modules.files.make_tokenizer()
    modules.files.write_files(tmp_path, tokenizer, modules.network.make_model(tokenizer).config.vision_config)
    chat: Any = AutoTokenizer.from_pretrained(tmp_path)
    turns = [("What shape is the red one?", "star"), ("有几个图形?", "1")]
    messages: list[dict[str, Any]] = []
    for question, answer in turns:
        media = [] if messages else [{"type": "image"}]
        messages.append({"role": "user", "content": [*media, {"type": "text", "text": question}]})
        messages.append({"role": "assistant", "content": answer})
    text = chat.apply_chat_template(messages, tokenize=False).removesuffix("\n")
    expected = chat(text.replace("<|image_pad|>", "<|image_pad|>" * 6))["input_ids"]
    tokens, positions, segments, _ = modules.samples.Writer(tokenizer)._sequence(turns, (2, 3), chat=True)
    assert tokens == expected
    assert set(segments) == {0}
    assert positions[:, -1].tolist() == [len(tokens) - 1 - 6 + 3] * 3


def test_the_data_never_ends_and_is_repeatable(modules: Any) -> None:
    course = modules.samples.Course(pictures=2)
    tokenizer = modules.files.make_tokenizer()
    first, second, later = (
        next(iter(modules.samples.Samples(course, tokenizer, Value("d", 1.0), run))) for run in (0, 0, 1)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, second))
    assert first.pixels.shape != later.pixels.shape or not torch.equal(first.pixels, later.pixels)
