"""The training script of the demo: its files, its packed forward pass, and a checkpoint that is a real Qwen3-VL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from multiprocessing import Value
from pathlib import Path
from shutil import copy
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import AutoTokenizer

from pymllm_model_qwen3_vl.demo.drawing import draw
from pymllm_model_qwen3_vl.demo.held_out import held_out
from pymllm_model_qwen3_vl.demo.scenes import Variety, make_scene
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
    import demo_writing

    class Modules:
        files, forward, network = demo_files, demo_forward, demo_network
        samples, writing = demo_samples, demo_writing

    return Modules


def test_it_learns_for_as_many_steps_as_it_is_told_and_goes_on(trained: tuple[Path, Path, str], tmp_path: Path) -> None:
    _, state, printed = trained
    assert "step 2: loss" in printed
    assert "in bf16: accuracy" in printed
    assert torch.load(state, weights_only=True)["step"] == 2
    copied = str(copy(state, tmp_path))
    assert "step 3: loss" in train(str(tmp_path / "model"), "--steps", "3", "--state", copied)


def test_it_goes_on_from_a_state_without_averages_and_with_halved_moments(
    trained: tuple[Path, Path, str], tmp_path: Path
) -> None:
    state = torch.load(trained[1], weights_only=True)
    del state["average"]
    for moments in state["optimizer"]["state"].values():
        moments.update({name: moments[name].bfloat16() for name in ("exp_avg", "exp_avg_sq")})
    torch.save(state, tmp_path / "state.pt")
    assert "step 3: loss" in train(str(tmp_path / "model"), "--steps", "3", "--state", str(tmp_path / "state.pt"))
    moments = torch.load(tmp_path / "state.pt", weights_only=True)["optimizer"]["state"][0]
    assert moments["exp_avg"].dtype == moments["exp_avg_sq"].dtype == torch.float32


def test_averaged_weights_are_what_is_saved(trained: tuple[Path, Path, str]) -> None:
    out, state, _ = trained
    kept = torch.load(state, weights_only=True)
    name = "model.language_model.layers.0.mlp.up_proj.weight"
    with safe_open(out / "model.safetensors", "pt") as file:
        saved = file.get_tensor(name)
    assert torch.equal(saved, kept["average"][name].bfloat16())
    assert not torch.equal(kept["average"][name], kept["model"][name])


def test_the_average_follows_the_weights(modules: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import train as script

    words = [str(tmp_path), *EASY, "--pictures", "4", "--group", "2", "--steps", "9"]
    monkeypatch.setattr(sys, "argv", ["train.py", *words])
    trainer = script.Trainer(script._arguments())
    batches = trainer._batches()
    norm = trainer.model.model.language_model.norm.weight
    expected = np.ones(len(norm))
    for step in range(3):
        trainer._learn(next(batches))
        expected += (norm.detach().double().numpy() - expected) / (1 + step / 10)
        trainer.step += 1
    averaged = trainer.average.model.language_model.norm.weight
    np.testing.assert_allclose(averaged.numpy(), expected, rtol=0, atol=1e-7)
    assert not np.array_equal(averaged.numpy(), norm.detach().numpy())
    assert all(parameter.is_leaf and not parameter.requires_grad for parameter in trainer.average.parameters())


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
    samples = [next(modules.samples.make_samples(rng, modules.samples.Course())) for _ in range(3)]
    groups = [modules.writing.Writer(tokenizer).group([sample]) for sample in samples]
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
    picture = np.zeros((64, 96, 3), dtype=np.uint8)
    group = modules.writing.Writer(tokenizer).group([(picture, turns)], Chats())
    assert group.tokens[0].tolist() == expected
    assert set(group.segments[0].tolist()) == {0}
    assert group.positions[:, 0, -1].tolist() == [len(expected) - 1 - 6 + 3] * 3


class Chats:
    """A generator of random numbers by which each picture's questions are a conversation."""

    def random(self) -> float:
        return 0.0


def test_pictures_of_the_training_are_resized_as_the_checkpoints_processor_does(modules: Any) -> None:
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(40):
        pixels = draw(make_scene(rng, Variety()), rng)
        rough, exact = modules.samples._roughly_resized(pixels), modules.samples.resized(pixels)
        assert rough.shape == exact.shape
        shares.append((rough != exact).mean())
        assert np.abs(rough.astype(int) - exact).max() <= 16
    assert np.mean(shares) < 0.05


def test_questions_without_room_are_left_out_in_training_only(modules: Any) -> None:
    asked = [(f"What colour is the large {name}?", "red") for name in ("star", "heart", "cross") * 4]
    samples = [(np.zeros((64, 64, 3), dtype=np.uint8), asked)]
    writer = modules.writing.Writer(modules.files.make_tokenizer())
    short, whole = writer.group(samples, np.random.default_rng(0)), writer.group(samples)
    begin = int((whole.segments[0] == 0).sum())
    assert short.tokens.shape[1] - begin <= modules.writing.ROOM < whole.tokens.shape[1] - begin
    assert short.tokens[0].tolist() == whole.tokens[0, : short.tokens.shape[1]].tolist()
    assert int(short.segments.max()) < int(whole.segments.max()) == len(asked)


def test_questions_about_a_picture_differ(modules: Any) -> None:
    rng = np.random.default_rng(0)
    for _ in range(40):
        for _, asked in modules.samples.make_samples(rng, modules.samples.Course(questions=9)):
            assert 0 < len(asked) <= 9
            assert len({question for question, _ in asked}) == len(asked)


def test_the_data_never_ends_and_is_repeatable(modules: Any) -> None:
    course = modules.samples.Course(pictures=2)
    tokenizer = modules.files.make_tokenizer()
    first, second, later = (
        next(iter(modules.samples.Samples(course, tokenizer, Value("d", 1.0), run))) for run in (0, 0, 1)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, second))
    assert first.pixels.shape != later.pixels.shape or not torch.equal(first.pixels, later.pixels)
