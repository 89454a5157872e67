"""pymllm against transformers' ``generate`` on a CPU, in one process, taking turns.

    python benchmarks/compare_transformers.py configs/quickstart.yaml

Both get the same weights (those that pymllm reads from its checkpoint), dtype, threads, prompts (random token
ids) and 128 new greedy tokens, with end tokens switched off. Two comparisons: one request, and requests of
different lengths at once, which transformers takes as one left-padded batch with an attention mask. Each is
warmed up, then they alternate; medians count. Greedy tokens are compared: in 16-bit floats the order of
additions decides near ties, after which answers go separate ways, so the share that agrees is reported as it is.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from pymllm import LLM, SamplingParams
from pymllm.bench.results import append_line, engine_metadata, run_metadata
from pymllm.bench.stats import spread
from pymllm.bench.workload import random_ids
from pymllm.checkpoint import open_checkpoint
from pymllm.cli.machine import facts
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel

Tokens = list[list[int]]
Answer = Callable[[Tokens], Tokens]


def main() -> None:
    """Compare, print, and keep the figures if asked to."""
    args = arguments()
    with LLM(args.config, {"log.level": "warning"}) as llm:
        model = reference_model(llm)
        print(
            f"{llm.info.model} in {llm.info.dtype}, {torch.get_num_threads()} threads, {args.new_tokens} new tokens\n"
        )
        rng = random.Random(0)
        settings = {"batch 1": [args.one], f"{len(args.several)} requests": args.several}
        for name, lengths in settings.items():
            if args.only in name:
                prompts = [random_ids(rng, length, 10_000) for length in lengths]
                figures = compare(llm, model, prompts, args.new_tokens, args.rounds)
                show(name, lengths, figures)
                keep(args.result_filename, llm, name, lengths, args, figures)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", nargs="?", default="configs/quickstart.yaml")
    parser.add_argument("--one", type=int, default=128, metavar="TOKENS", help="prompt of the single request")
    parser.add_argument(
        "--several", type=int, nargs="+", default=[32, 64, 96, 160, 224, 320, 416, 512], metavar="TOKENS"
    )
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5, help="measured runs of each, at least 3")
    parser.add_argument(
        "--only", default="", metavar="NAME", help='run only settings whose name has this, e.g. "batch 1"'
    )
    parser.add_argument("--result-filename", type=Path, help="append JSON lines")
    return parser.parse_args()


def reference_model(llm: LLM) -> PreTrainedModel:
    """transformers' model with the checkpoint's weights in the engine's dtype. Every name must fit."""
    checkpoint = open_checkpoint(llm.config.model)
    fields = {**checkpoint.config}
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    dtype = getattr(torch, llm.info.dtype)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    state = {name: tensor.to(dtype) for name, tensor in checkpoint.tensors()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    if unexpected or set(missing) - tied:
        raise SystemExit(f"weights do not fit: missing {missing}, unexpected {unexpected}")
    model.tie_weights()
    return model


def compare(llm: LLM, model: PreTrainedModel, prompts: Tokens, new_tokens: int, rounds: int) -> dict[str, Any]:
    """Times of both, alternating, and how many greedy tokens agree."""
    params = SamplingParams(temperature=0.0, max_tokens=new_tokens, ignore_eos=True)

    def ours(batch: Tokens) -> Tokens:
        llm.frontend.client.reset_cache()
        return [output.outputs[0].token_ids for output in llm.generate(batch, params)]

    def theirs(batch: Tokens) -> Tokens:
        return transformers_generate(model, batch, new_tokens)

    answers = {"pymllm": ours(prompts), "transformers": theirs(prompts)}  # also the warm-up
    seconds: dict[str, list[float]] = {"pymllm": [], "transformers": []}
    for _ in range(rounds):
        seconds["pymllm"].append(timed(ours, prompts))
        seconds["transformers"].append(timed(theirs, prompts))
    return {
        "seconds": {name: spread(values) for name, values in seconds.items()},
        "tok_s": {name: len(prompts) * new_tokens / statistics.median(times) for name, times in seconds.items()},
        "ratio": statistics.median(seconds["transformers"]) / statistics.median(seconds["pymllm"]),
        **agreement(answers["pymllm"], answers["transformers"]),
    }


def transformers_generate(model: PreTrainedModel, prompts: Tokens, new_tokens: int) -> Tokens:
    """Greedy continuation of a left-padded batch, exactly ``new_tokens`` each."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    greedy = GenerationConfig(max_new_tokens=new_tokens, do_sample=False, pad_token_id=0, eos_token_id=None)
    with torch.inference_mode():
        found: Any = model.generate(ids, attention_mask=mask, generation_config=greedy)  # type: ignore[operator]
    assert found.shape[1] == width + new_tokens, "no end token is set"
    return found[:, width:].tolist()


def timed(answer: Answer, prompts: Tokens) -> float:
    """Seconds of one run."""
    start = time.perf_counter()
    answer(prompts)
    return time.perf_counter() - start


def agreement(ours: Tokens, theirs: Tokens) -> dict[str, Any]:
    """equal_answers: answers that are the same in every token. equal_until: share of tokens before the first
    difference of each answer, after which the contexts differ."""
    prefixes = [common_prefix(a, b) for a, b in zip(ours, theirs)]
    total = sum(map(len, theirs))
    return {
        "equal_answers": sum(length == len(answer) for length, answer in zip(prefixes, theirs)),
        "equal_until": sum(prefixes) / total,
    }


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Leading tokens that two answers share."""
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def show(name: str, lengths: Sequence[int], figures: dict[str, Any]) -> None:
    """One setting."""
    print(f"{name}, prompts of {', '.join(map(str, lengths))} tokens")
    for engine, times in figures["seconds"].items():
        rate = figures["tok_s"][engine]
        print(f"  {engine:13} {times.median:7.3f} s ({times.best:.3f} to {times.worst:.3f})  {rate:7.1f} tok/s")
    print(
        f"  pymllm is {figures['ratio']:.2f} times as fast; {figures['equal_answers']} of {len(lengths)} greedy answers"
    )
    print(
        f"  are equal, {100 * figures['equal_until']:.1f} % of the tokens come before a first difference\n", flush=True
    )


def keep(
    path: Path | None, llm: LLM, name: str, lengths: Sequence[int], args: argparse.Namespace, figures: dict[str, Any]
) -> None:
    """Append a line."""
    if path is None:
        return
    setting = {"setting": name, "input_len": lengths, "output_len": args.new_tokens, "rounds": args.rounds}
    machine = {"cpu": facts()["cpu"]["model"], "threads": torch.get_num_threads()}
    head = {**run_metadata("compare_transformers", None), "machine": machine, "engine": engine_metadata(llm.info)}
    append_line(path, {**head, **setting, **figures})


if __name__ == "__main__":
    main()
