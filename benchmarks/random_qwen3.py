"""Writes what it takes to serve Qwen3 in true shapes with random weights: a configuration, and a tokenizer whose every
token has text, so that a benchmark's client sees each one.

    python benchmarks/random_qwen3.py 0.6b FOLDER
    pymllm run model.path=FOLDER model.load_format=random model.dtype=bfloat16 cache=chunk
"""

from __future__ import annotations

import argparse
import json
from itertools import islice, product
from pathlib import Path
from string import ascii_lowercase

from qwen3_offline import COMMON, SHAPES
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("size", choices=sorted(SHAPES))
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    config = {**COMMON, **SHAPES[args.size], "tie_word_embeddings": args.size != "8b"}
    (args.folder / "config.json").write_text(json.dumps(config))
    PreTrainedTokenizerFast(tokenizer_object=words(COMMON["vocab_size"])).save_pretrained(args.folder)


def words(size: int) -> Tokenizer:
    """A byte-level tokenizer: the 256 bytes, then words of four letters with a space before them."""
    letters = ("Ġ" + "".join(word) for word in product(ascii_lowercase, repeat=4))
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *islice(letters, size - 256)]
    tokenizer = Tokenizer(models.BPE(vocab={token: id for id, token in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


if __name__ == "__main__":
    main()
