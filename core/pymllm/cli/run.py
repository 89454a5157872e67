"""``pymllm run``: serve a model, or answer one prompt (``--prompt``) or a file of prompts (``--batch``)."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pymllm.cli.common import add_config_arguments, compose_arguments
from pymllm.errors import ConfigError

if TYPE_CHECKING:
    from pymllm.sampling import SamplingParams

SAMPLING_OPTIONS = ("max_tokens", "temperature", "top_p", "seed")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """[CONFIG] [key=value ...] and what to do instead of serving."""
    add_config_arguments(parser)
    instead = parser.add_argument_group("instead of serving")
    instead.add_argument("--prompt", metavar="TEXT", help="answer TEXT on standard output; - reads standard input")
    instead.add_argument("--image", metavar="FILE", action="append", help="picture to the prompt; may be repeated")
    instead.add_argument("--video", metavar="FILE", action="append", help="video to the prompt; may be repeated")
    instead.add_argument("--system", metavar="TEXT", help="system message, with --prompt")
    instead.add_argument("--raw", action="store_true", help="continue the prompt as it is, without the chat template")
    instead.add_argument("--batch", metavar="IN.jsonl", help="answer every line of a file")
    instead.add_argument("--output", metavar="OUT.jsonl", help="where the answers of --batch go")
    instead.add_argument("--force", action="store_true", help="replace OUT.jsonl if it exists")
    instead.add_argument("--quiet", action="store_true", help="no log lines, progress or statistics")
    sampling = parser.add_argument_group("sampling, with --prompt or --batch")
    sampling.add_argument("--max-tokens", type=int, metavar="N")
    sampling.add_argument("--temperature", type=float, metavar="T", help="0 takes the likeliest token")
    sampling.add_argument("--top-p", type=float, metavar="P")
    sampling.add_argument("--seed", type=int, metavar="N")


def execute(args: argparse.Namespace) -> int:
    """Raises PymllmError for what the user can fix. Returns 1 if an answer failed."""
    _check(args)
    config = compose_arguments(args)
    from pymllm.log import setup_logging

    setup_logging("warning" if args.quiet else config.log.level)
    if args.prompt is not None:
        from pymllm.cli.one_answer import answer_one

        return answer_one(config, args, sampling_params(args))
    if args.batch is not None:
        from pymllm.cli.batch import answer_file

        return answer_file(config, args, given_options(args))
    from pymllm.server import serve

    return serve(config)


def given_options(args: argparse.Namespace) -> dict[str, Any]:
    """The sampling options that were given, by their SamplingParams names."""
    return {name: value for name in SAMPLING_OPTIONS if (value := getattr(args, name)) is not None}


def sampling_params(args: argparse.Namespace) -> SamplingParams:
    """Raises RequestError for a value out of range."""
    from pymllm.sampling import SamplingParams

    return SamplingParams(**given_options(args))


def _check(args: argparse.Namespace) -> None:
    """Every option must have an effect. Raises ConfigError."""
    if args.prompt is not None and args.batch is not None:
        raise ConfigError("--prompt and --batch exclude each other; give one")
    if args.batch is not None and args.output is None:
        raise ConfigError("--batch needs --output OUT.jsonl")
    if args.raw and args.system is not None:
        raise ConfigError("--system needs the chat template, which --raw turns off")
    needs: dict[str, tuple[str, ...]] = {
        "prompt": ("image", "video", "system", "raw"),
        "batch": ("output", "force"),
        "prompt or --batch": (*SAMPLING_OPTIONS, "quiet"),
    }
    given = {"prompt": args.prompt is not None, "batch": args.batch is not None}
    given["prompt or --batch"] = any(given.values())
    for mode, options in needs.items():
        for option in options:
            if getattr(args, option) not in (None, False) and not given[mode]:
                raise ConfigError(f"--{option.replace('_', '-')} has an effect only with --{mode}")
    for option in ("image", "video"):
        for file in getattr(args, option) or []:
            if ":" not in file and not Path(file).is_file():  # URLs are for the loader
                raise ConfigError(f"--{option} {file}: there is no such file")
