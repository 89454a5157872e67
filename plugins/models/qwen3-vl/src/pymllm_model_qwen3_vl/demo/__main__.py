"""Writes some of the held-out pictures, and their questions, to try the demo model on:

python -m pymllm_model_qwen3_vl.demo FOLDER [--count N]
"""

from __future__ import annotations

import argparse
from itertools import islice
from pathlib import Path

from PIL import Image

from pymllm_model_qwen3_vl.demo.held_out import QUESTIONS, held_out


def main() -> None:
    """Write PNG files, and print the question and the answer of each."""
    parser = argparse.ArgumentParser(
        prog="python -m pymllm_model_qwen3_vl.demo",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=12, metavar="N", help=f"of {QUESTIONS:,}; default: 12")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for number, question in enumerate(islice(held_out(), args.count)):
        file = args.folder / f"{number:04}.png"
        Image.fromarray(question.images[0]).save(file)
        print(f"{file}: {question.text} ({question.answer})")


if __name__ == "__main__":
    main()
