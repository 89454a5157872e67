"""Asks the held-out questions of a checkpoint through transformers alone: its processor, its model, its ``generate``.

    PYTHONPATH=core:plugins/models/qwen3-vl/src python plugins/models/qwen3-vl/training/evaluate.py FOLDER

Prints the accuracy by kind, to be compared with that of ``pymllm eval``.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import AutoTokenizer, Qwen3VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from pymllm_model_qwen3_vl.demo.held_out import held_out


def main() -> None:
    """Print the accuracy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model: Any = Qwen3VLForConditionalGeneration.from_pretrained(args.folder, dtype=getattr(torch, args.dtype))
    tokenizer: Any = AutoTokenizer.from_pretrained(args.folder)
    processor: Any = Qwen2VLImageProcessorPil.from_pretrained(args.folder)
    model = model.to(device).eval()
    right, asked = Counter[str](), Counter[str]()
    for question in held_out():
        seen = processor(images=[Image.fromarray(question.images[0])], return_tensors="pt")
        content = [{"type": "image"}, {"type": "text", "text": question.text}]
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
        )
        count = int(seen["image_grid_thw"].prod()) // model.config.vision_config.spatial_merge_size**2
        prompt = tokenizer(text.replace("<|image_pad|>", "<|image_pad|>" * count), return_tensors="pt")
        inputs = {name: tensor.to(device) for name, tensor in {**prompt, **seen}.items()}
        inputs["mm_token_type_ids"] = (inputs["input_ids"] == model.config.image_token_id).int()
        answer = model.generate(**inputs, max_new_tokens=32, do_sample=False)[0, prompt["input_ids"].shape[1] :]
        asked[question.kind] += 1
        right[question.kind] += tokenizer.decode(answer, skip_special_tokens=True) == question.answer
    for kind, count in sorted(asked.items()):
        print(f"{kind:12} {count:6} {100 * right[kind] / count:8.2f} %")
    print(f"{'all':12} {asked.total():6} {100 * right.total() / asked.total():8.2f} %")


if __name__ == "__main__":
    main()
