"""Writes pictures and questions: some of the held-out ones, to try the demo model on, or others, to calibrate with.

python -m pymllm_model_qwen3_vl.demo FOLDER [--count N] [--others]
"""

from __future__ import annotations

import argparse
import json
from itertools import islice
from pathlib import Path

from PIL import Image

from pymllm_model_qwen3_vl.demo.held_out import QUESTIONS, held_out, others


def main() -> None:
    """Write PNG files and questions.jsonl, and print the question and the answer of each."""
    parser = argparse.ArgumentParser(
        prog="python -m pymllm_model_qwen3_vl.demo",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=12, metavar="N", help=f"of {QUESTIONS:,}; default: 12")
    parser.add_argument("--others", action="store_true", help="none of the held-out ones; for pymllm quantize --calib")
    args = parser.parse_args()
    if not 0 < args.count <= QUESTIONS:
        parser.error(f"--count {args.count}: there are {QUESTIONS} questions")
    try:
        args.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"'{args.folder}' cannot be made: {error.strerror}")
    lines = []
    for number, question in enumerate(islice(others() if args.others else held_out(), args.count)):
        file = args.folder / f"{number:04}.png"
        Image.fromarray(question.images[0]).save(file)
        lines.append(json.dumps({"image": file.name, "text": question.text, "answer": question.answer}))
        print(f"{file}: {question.text} ({question.answer})")
    (args.folder / "questions.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
