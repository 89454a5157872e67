"""pymllm against transformers' ``generate`` on a CPU, taking turns.

    python benchmarks/compare_transformers.py configs/quickstart.yaml

Both get the same weights (those that pymllm reads from its checkpoint), dtype, threads, prompts (random token
ids) and 128 new greedy tokens, with end tokens switched off. Two comparisons: one request, and requests of
different lengths at once, which transformers takes as one left-padded batch with an attention mask. Each is
warmed up, then they alternate; medians count. transformers has a process of its own, since two pools of OpenMP
threads in one process slow each other down even when only one of them works. Greedy tokens are compared: in
16-bit floats the order of additions decides near ties, after which answers go separate ways, so the share that
agrees is reported as it is.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from pymllm import LLM, SamplingParams
from pymllm.bench.results import append_line, engine_metadata, run_metadata
from pymllm.bench.stats import Spread, spread
from pymllm.bench.workload import LAST_ID, random_ids
from pymllm.cli.machine import facts

Tokens = list[list[int]]
Timed = tuple[float, Tokens]


def main() -> None:
    """Compare, print, and keep the figures if asked to."""
    args = arguments()
    settings = {"batch 1": [args.one], f"{len(args.several)} requests": args.several}
    with LLM(args.config, {"log.level": "warning"}) as llm, Transformers(llm) as transformers:
        print(
            f"{llm.info.model} in {llm.info.dtype}, {torch.get_num_threads()} threads, {args.new_tokens} new tokens\n"
        )
        rng = random.Random(0)
        for name, lengths in settings.items():
            prompts = [random_ids(rng, length, min(LAST_ID, llm.info.vocab_size - 1)) for length in lengths]
            if args.only in name:
                figures = compare(llm, transformers, prompts, args.new_tokens, args.rounds)
                show(name, lengths, figures)
                keep(args, llm, name, lengths, figures)


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
    parser.add_argument("--only", default="", metavar="NAME", help='settings whose name has this, such as "batch 1"')
    parser.add_argument("--result-filename", type=Path, help="append JSON lines")
    return parser.parse_args()


class Transformers:
    """``generate`` in a process of its own, with the checkpoint that an LLM has loaded."""

    def __init__(self, llm: LLM) -> None:
        spawning = multiprocessing.get_context("spawn")
        self._pipe, other_end = spawning.Pipe()
        arguments = (other_end, llm.config.model, llm.info.dtype)
        self._process = spawning.Process(target=serve_transformers, args=arguments, daemon=True)
        self._process.start()
        other_end.close()

    def __enter__(self) -> Transformers:
        return self

    def __exit__(self, *error: object) -> None:
        self._pipe.close()
        self._process.join()

    def generate(self, prompts: Tokens, new_tokens: int) -> Timed:
        """Seconds (measured over there) and greedy tokens. Raises EOFError if the process has failed."""
        self._pipe.send((prompts, new_tokens))
        seconds, tokens = self._pipe.recv()
        return seconds, tokens


def serve_transformers(pipe: Connection, section: Any, dtype: str) -> None:
    """The other process: (prompts, new tokens) -> (seconds, tokens), until the pipe closes."""
    model = load_transformers(section, getattr(torch, dtype))
    while True:
        try:
            prompts, new_tokens = pipe.recv()
        except EOFError:
            return
        start = time.perf_counter()
        tokens = transformers_generate(model, prompts, new_tokens)
        pipe.send((time.perf_counter() - start, tokens))


def load_transformers(section: Any, dtype: torch.dtype) -> Any:
    """transformers' model with the checkpoint's weights. Raises ValueError if a name does not fit."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from pymllm.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(section)
    fields = {**checkpoint.config}
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    missing, unexpected = model.load_state_dict({n: t.to(dtype) for n, t in checkpoint.tensors()}, strict=False)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    if unexpected or set(missing) - tied:
        raise ValueError(f"weights do not fit: missing {missing}, unexpected {unexpected}")
    model.tie_weights()
    return model


def transformers_generate(model: Any, prompts: Tokens, new_tokens: int) -> Tokens:
    """Greedy continuation of a left-padded batch, exactly ``new_tokens`` each."""
    from transformers import GenerationConfig

    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    greedy = GenerationConfig(max_new_tokens=new_tokens, do_sample=False, pad_token_id=0, eos_token_id=None)
    with torch.inference_mode():
        found: Tokens = model.generate(ids, attention_mask=mask, generation_config=greedy)[:, width:].tolist()
    assert all(len(answer) == new_tokens for answer in found), "no end token is set"
    return found


def pymllm_generate(llm: LLM, prompts: Tokens, new_tokens: int) -> Timed:
    """The same through the offline API, with an empty prefix cache."""
    params = SamplingParams(temperature=0.0, max_tokens=new_tokens, ignore_eos=True)
    llm.frontend.client.reset_cache()
    start = time.perf_counter()
    outputs = llm.generate(prompts, params)
    return time.perf_counter() - start, [output.outputs[0].token_ids for output in outputs]


def compare(llm: LLM, transformers: Transformers, prompts: Tokens, new_tokens: int, rounds: int) -> dict[str, Any]:
    """Times of both, alternating, and how many greedy tokens agree."""
    _, ours = pymllm_generate(llm, prompts, new_tokens)  # also the warm-up
    _, theirs = transformers.generate(prompts, new_tokens)
    seconds: dict[str, list[float]] = {"pymllm": [], "transformers": []}
    for _ in range(rounds):
        seconds["pymllm"].append(pymllm_generate(llm, prompts, new_tokens)[0])
        seconds["transformers"].append(transformers.generate(prompts, new_tokens)[0])
    spreads = {name: spread(values) for name, values in seconds.items()}
    return {
        "seconds": spreads,
        "tok_s": {name: len(prompts) * new_tokens / times.median for name, times in spreads.items()},
        "ratio": spreads["transformers"].median / spreads["pymllm"].median,
        **agreement(ours, theirs),
    }


def agreement(ours: Tokens, theirs: Tokens) -> dict[str, Any]:
    """equal_answers: answers that are the same in every token. equal_until: share of tokens before the first
    difference of each answer, after which the contexts differ."""
    prefixes = [common_prefix(a, b) for a, b in zip(ours, theirs)]
    return {
        "equal_answers": sum(length == len(answer) for length, answer in zip(prefixes, theirs)),
        "equal_until": sum(prefixes) / sum(map(len, theirs)),
    }


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Leading tokens that two answers share."""
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def show(name: str, lengths: Sequence[int], figures: dict[str, Any]) -> None:
    """One setting."""
    print(f"{name}, prompts of {', '.join(map(str, lengths))} tokens")
    times: Spread
    for engine, times in figures["seconds"].items():
        rate = figures["tok_s"][engine]
        print(f"  {engine:13} {times.median:7.3f} s ({times.best:.3f} to {times.worst:.3f})  {rate:7.1f} tok/s")
    print(
        f"  pymllm is {figures['ratio']:.2f} times as fast; {figures['equal_answers']} of {len(lengths)} greedy answers"
    )
    print(
        f"  are equal, {100 * figures['equal_until']:.1f} % of the tokens come before a first difference\n", flush=True
    )


def keep(args: argparse.Namespace, llm: LLM, name: str, lengths: Sequence[int], figures: dict[str, Any]) -> None:
    """Append a line."""
    if args.result_filename is None:
        return
    setting = {"setting": name, "input_len": lengths, "output_len": args.new_tokens, "rounds": args.rounds}
    machine = {"cpu": facts()["cpu"]["model"], "threads": torch.get_num_threads()}
    head = {**run_metadata("compare_transformers", None), "machine": machine, "engine": engine_metadata(llm.info)}
    append_line(args.result_filename, {**head, **setting, **figures})


if __name__ == "__main__":
    main()
