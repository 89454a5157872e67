"""Trains the demo model from nothing, on one GPU or a CPU, within a limit of time.

    PYTHONPATH=core:plugins/models/qwen3-vl/src python plugins/models/qwen3-vl/training/train.py OUT --seconds 480

Writes a checkpoint in the Hugging Face layout (bf16 safetensors, tokenizer, processor files) to OUT.
"""

from __future__ import annotations

import argparse
import copy
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from itertools import islice
from math import cos, pi
from multiprocessing import Value
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from demo_files import make_tokenizer, write_files
from demo_forward import answer_logits
from demo_judge import Judge, Score
from demo_network import make_model
from demo_samples import Course, Samples
from demo_writing import Group, Writer
from torch.utils.data import DataLoader

from pymllm_model_qwen3_vl.demo.questions import KINDS_OF_QUESTIONS
from pymllm_model_qwen3_vl.demo.scenes import Variety
from pymllm_model_qwen3_vl.demo.words import COLOURS, KINDS

AVERAGED = 500
"""Steps that the averaged weights, which are judged and saved, look back to: they swing less than the last ones."""


def main() -> None:
    """Train, and print what is learned."""
    args = _arguments()
    torch.manual_seed(args.seed)
    # Before any worker is started, which would each take all cores.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if torch.cuda.is_available():
        torch.set_num_threads(2)  # the cores are the workers'
    Trainer(args).run()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of the checkpoint")
    parser.add_argument("--seconds", type=float, default=480, help="in all, over every run with the same --state")
    parser.add_argument("--steps", type=int, default=10**9, help="end earlier, after so many")
    parser.add_argument("--goal", type=float, default=0.97, help="save whenever a better accuracy than this is reached")
    parser.add_argument("--rate", type=float, default=1.5e-3, help="the highest learning rate")
    parser.add_argument("--pictures", type=int, default=512, help="of a step")
    parser.add_argument("--questions", type=int, default=9, help="of a picture, at most")
    parser.add_argument("--group", type=int, default=64, help="pictures of equal size in a step")
    parser.add_argument("--workers", type=int, default=max((os.cpu_count() or 1) - 1, 1), help="0: none")
    parser.add_argument("--judge-every", type=int, default=400, help="steps")
    parser.add_argument("--state", type=Path, help="file to go on from, and to keep the state of the training in")
    parser.add_argument("--seed", type=int, default=0)
    easier = parser.add_argument_group("an easier task")
    easier.add_argument("--kinds", default=",".join(KINDS_OF_QUESTIONS), help="of questions, between commas")
    easier.add_argument("--most-shapes", type=int, default=6)
    easier.add_argument("--most-side", type=int, default=224, help="pixels")
    easier.add_argument("--names", type=int, default=10, help="how many colours and kinds of shapes there are, at most")
    return parser.parse_args()


class Trainer:
    """One training."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.tokenizer = make_tokenizer()
        self.model: Any = make_model(self.tokenizer).to(self.device)
        self.average: Any = copy.deepcopy(self.model).requires_grad_(False)
        self.optimizer = _optimizer(self.model, self.device)
        self.step, self.elapsed, self.best = 0, 0.0, 0.0
        if args.state is not None and args.state.exists():
            self._restore()
        self.course = Course(
            Variety(tuple(KINDS)[: args.names], tuple(COLOURS)[: args.names], args.most_shapes, (64, args.most_side)),
            tuple(args.kinds.split(",")),
            args.questions,
            args.group,
        )
        self.progress = Value("d", self._progress())
        self.judge = Judge(self.course, Writer(self.tokenizer))
        count = sum(parameter.numel() for parameter in self.model.parameters())
        print(f"{count / 1e6:.2f} M parameters, {self.tokenizer.get_vocab_size()} tokens, on {self.device}", flush=True)

    def run(self) -> None:
        """Until the time or the steps are over."""
        args, batches = self.args, self._batches()
        before, since = self.elapsed, time.monotonic()
        shown, first = since, self.step
        losses: list[torch.Tensor] = []
        while self._progress() < 1:
            losses.append(self._learn(next(batches)))
            self.step += 1
            self.elapsed = before + time.monotonic() - since
            self.progress.value = self._progress()
            if self.step % args.judge_every and self._progress() < 1:
                continue
            loss = torch.stack(losses).mean().item()
            speed = (self.step - first) * args.pictures / (time.monotonic() - shown)
            self._report(f"loss {loss:.4f}, {speed:.0f} pictures/s")
            self.elapsed = before + time.monotonic() - since
            losses, shown, first = [], time.monotonic(), self.step
        if self.best == 0:
            self._save(self._score(self.average, self._autocast()))

    def _progress(self) -> float:
        return min(max(self.elapsed / self.args.seconds, self.step / self.args.steps), 1.0)

    def _batches(self) -> Iterator[list[Group]]:
        workers, cuda = self.args.workers, self.device.type == "cuda"
        samples = Samples(self.course, self.tokenizer, self.progress, run=self.step)
        ahead: dict[str, Any] = {"prefetch_factor": 4} if workers else {}
        loader = iter(DataLoader(samples, batch_size=None, num_workers=workers, pin_memory=cuda, **ahead))
        while True:
            yield list(islice(loader, max(self.args.pictures // self.args.group, 1)))

    def _learn(self, groups: list[Group]) -> torch.Tensor:
        self.model.train()
        for part in self.optimizer.param_groups:
            part["lr"] = self.args.rate * _warm(self.step) * (0.01 + 0.99 * (1 + cos(pi * self._progress())) / 2)
        with self._autocast():
            logits, wanted = answer_logits(self.model, groups, self.device)
        loss = F.cross_entropy(logits.float(), wanted)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self._follow()
        return loss.detach()

    @torch.no_grad()
    def _follow(self) -> None:
        """Move the averaged weights; over fewer steps at first, or what training began with would stay in them."""
        weight = 1 / min(AVERAGED, 1 + self.step / 10)
        torch._foreach_lerp_(list(self.average.parameters()), list(self.model.parameters()), weight)

    def _autocast(self, *, enabled: bool = True) -> AbstractContextManager[Any]:
        # A CPU may know bf16 only in software.
        return torch.autocast(self.device.type, torch.bfloat16, enabled=enabled and self.device.type == "cuda")

    def _score(self, model: Any, precision: AbstractContextManager[Any]) -> Score:
        model.eval()
        with precision:
            return self.judge(model, self.device)

    def _report(self, line: str) -> None:
        """Judge, print, and keep what is better than before."""
        score = self._score(self.average, self._autocast())
        print(f"{self.elapsed:.0f} s, step {self.step}: {line}, {score}", flush=True)
        if score.accuracy >= max(self.args.goal, self.best + 1e-9):
            self._save(score)
        if self.args.state is not None:
            self._keep()

    def _save(self, score: Score) -> None:
        self.best = score.accuracy
        rounded = copy.deepcopy(self.average).bfloat16()
        rounded.save_pretrained(self.args.out)
        write_files(self.args.out, self.tokenizer, self.model.config.vision_config)
        print(f"saved to {self.args.out}; in bf16: {self._score(rounded, self._autocast(enabled=False))}", flush=True)

    def _keep(self) -> None:
        names = ("step", "elapsed", "best")
        parts = ("model", "average", "optimizer")
        state = {name: getattr(self, name).state_dict() for name in parts}
        torch.save({**state, **{name: getattr(self, name) for name in names}}, self.args.state)

    def _restore(self) -> None:
        state = torch.load(self.args.state, map_location=self.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.average.load_state_dict(state.get("average", state["model"]))
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.elapsed, self.best = state["step"], state["elapsed"], state["best"]


def _warm(step: int) -> float:
    return min((step + 1) / 200, 1.0)


def _optimizer(model: Any, device: torch.device) -> torch.optim.AdamW:
    """Weights of matrices decay; norms and biases do not."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 0.02}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.98), fused=device.type == "cuda")


if __name__ == "__main__":
    main()
