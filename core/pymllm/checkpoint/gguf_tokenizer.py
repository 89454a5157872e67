"""A tokenizer made from a GGUF file's metadata, which has a vocabulary but no tokenizer.json.

Two kinds: ``gpt2`` (byte-level BPE; Radford et al. 2019), whose rule for cutting text into words is named by
``tokenizer.ggml.pre``, and ``llama`` (SentencePiece BPE; Kudo and Richardson 2018), whose scores are
turned into ranked merges.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from pymllm.checkpoint.gguf_file import GgufFile
from pymllm.errors import CheckpointError

_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5  # tokenizer.ggml.token_type; 2 is unknown, 6 a byte
_SPACE = "\u2581"


@dataclass(frozen=True)
class WordRule:
    """How byte-level BPE cuts text into words before merging.

    pattern: alternatives, tried in order (None: GPT-2's own). digits: every digit is a word. compose: text is
    brought to Unicode NFC first. whole_words: a word that is a token is not merged from parts. bos: whether
    a beginning token is added where the file does not say.
    """

    pattern: str | None = None
    digits: bool = False
    compose: bool = False
    whole_words: bool = False
    bos: bool = False


def _split_pattern(digits: str) -> str:
    """The rule that Llama 3 and Qwen share, apart from how many digits make a word."""
    contractions = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    letters = r"[^\r\n\p{L}\p{N}]?\p{L}+"
    symbols = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
    return "|".join([contractions, letters, digits, symbols, r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])


_GPT2 = WordRule()
_SMOLLM = WordRule(digits=True)
_QWEN2 = WordRule(_split_pattern(r"\p{N}"), compose=True)
_LLAMA3 = WordRule(_split_pattern(r"\p{N}{1,3}"), whole_words=True, bos=True)
WORD_RULES = {
    "gpt-2": _GPT2,
    "gpt2": _GPT2,
    "smollm": _SMOLLM,
    "qwen2": _QWEN2,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
}


def build_tokenizer(file: GgufFile) -> PreTrainedTokenizerFast | None:
    """The tokenizer of a GGUF file, or None if it holds no vocabulary.

    Raises CheckpointError, naming it, for a kind or a word rule that is not supported: a near miss would
    give other token ids than the model was trained on.
    """
    kind = file.metadata.get("tokenizer.ggml.model", "none")
    if kind in ("none", "no_vocab") or "tokenizer.ggml.tokens" not in file.metadata:
        return None
    if kind == "gpt2":
        tokenizer, bos = _byte_level(file)
    elif kind == "llama":
        tokenizer, bos = _sentencepiece(file), True
    else:
        raise CheckpointError(
            f"{file.path} has a tokenizer of the kind '{kind}', where gpt2 and llama can be read: set "
            "model.tokenizer_path to a folder with its tokenizer.json"
        )
    _add_ends(tokenizer, file, bos)
    special = {f"{name}_token": _token(file, key) for name, key in _SPECIAL.items()}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        clean_up_tokenization_spaces=False,
        chat_template=file.metadata.get("tokenizer.chat_template"),
        **{name: token for name, token in special.items() if token is not None},
    )


_SPECIAL = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}


def _byte_level(file: GgufFile) -> tuple[Tokenizer, bool]:
    rule = _word_rule(file)
    # Fillers up to the embedding's size are no tokens: text must never become one.
    vocabulary = {
        token: index
        for index, (token, kind) in enumerate(zip(_tokens(file), _types(file), strict=True))
        if kind != _UNUSED
    }
    merges = [tuple(merge.split(" ", 1)) for merge in file.metadata.get("tokenizer.ggml.merges", [])]
    tokenizer = Tokenizer(_merging(file, vocab=vocabulary, merges=merges, ignore_merges=rule.whole_words))
    prefix = bool(file.metadata.get("tokenizer.ggml.add_space_prefix", False))
    steps: list[Any] = []
    if rule.digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if rule.pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(rule.pattern), "isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=rule.pattern is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if rule.compose:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    _add_tokens(tokenizer, file)
    return tokenizer, rule.bos


def _word_rule(file: GgufFile) -> WordRule:
    """Files older than ``tokenizer.ggml.pre`` are cut as their architecture's own tokenizer does."""
    name = file.metadata.get("tokenizer.ggml.pre", "default")
    if name == "default":
        return _QWEN2 if file.architecture.startswith("qwen") else _GPT2
    if name not in WORD_RULES:
        known = ", ".join(WORD_RULES)
        raise CheckpointError(
            f"{file.path} has tokenizer.ggml.pre '{name}', where {known} can be read: set model.tokenizer_path to a "
            "folder with its tokenizer.json"
        )
    return WORD_RULES[name]


def _sentencepiece(file: GgufFile) -> Tokenizer:
    tokens = _tokens(file)
    vocabulary = {token: index for index, token in enumerate(tokens)}
    model = _merging(
        file,
        vocab=vocabulary,
        merges=ranked_merges(tokens, file.metadata.get("tokenizer.ggml.scores", []), _types(file)),
        unk_token=_token(file, "unknown"),
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    prefix = bool(file.metadata.get("tokenizer.ggml.add_space_prefix", True))
    spaces = normalizers.Replace(" ", _SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces]) if prefix else spaces
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    _add_tokens(tokenizer, file)
    return tokenizer


def ranked_merges(tokens: list[str], scores: list[float], types: list[int]) -> list[tuple[str, str]]:
    """SentencePiece's BPE joins the neighbours whose union has the highest score; the same as merges, best
    first: every way to cut a token into two tokens, ranked by the token's score."""
    index = {token: i for i, token in enumerate(tokens) if types[i] == _NORMAL}
    ranked = []
    for token, i in index.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in index and right in index:
                ranked.append((-scores[i], index[left], index[right]))
    return [(tokens[left], tokens[right]) for _, left, right in sorted(ranked)]


def _merging(file: GgufFile, **settings: Any) -> models.BPE:
    try:
        return models.BPE(**settings)
    except Exception as error:  # the library raises nothing more special
        raise CheckpointError(f"{file.path} has merges that do not fit its vocabulary ({error})") from error


def _add_tokens(tokenizer: Tokenizer, file: GgufFile) -> None:
    """Control tokens are special (left out of decoded text on request); user-defined ones are only whole."""
    for kind, special in ((_CONTROL, True), (_USER_DEFINED, False)):
        chosen = [token for token, its in zip(_tokens(file), _types(file), strict=True) if its == kind]
        added = [AddedToken(token, normalized=False, special=special) for token in chosen]
        if special:
            tokenizer.add_special_tokens(added)
        else:
            tokenizer.add_tokens(added)


def _add_ends(tokenizer: Tokenizer, file: GgufFile, bos_default: bool) -> None:
    """What is put before and after a text that is encoded with its special tokens."""
    template = "$A"
    used = []
    for key, default in (("bos", bos_default), ("eos", False)):
        token = _token(file, key)
        if token is not None and file.metadata.get(f"tokenizer.ggml.add_{key}_token", default):
            template = f"{token} {template}" if key == "bos" else f"{template} {token}"
            used.append((token, int(file.metadata[f"tokenizer.ggml.{key}_token_id"])))
    if used:
        pieces = template.split(" ")
        tokenizer.post_processor = processors.TemplateProcessing(single=pieces, special_tokens=used)


def _token(file: GgufFile, key: str) -> str | None:
    """The text of the token whose id is ``tokenizer.ggml.<key>_token_id``."""
    index = file.metadata.get(f"tokenizer.ggml.{key}_token_id")
    tokens = _tokens(file)
    return tokens[index] if index is not None and 0 <= index < len(tokens) else None


def _tokens(file: GgufFile) -> list[str]:
    tokens: list[str] = file.metadata["tokenizer.ggml.tokens"]
    return tokens


def _types(file: GgufFile) -> list[int]:
    types: list[int] = file.metadata.get("tokenizer.ggml.token_type") or [_NORMAL] * len(_tokens(file))
    if len(types) != len(_tokens(file)):
        raise CheckpointError(
            f"{file.path} has {len(types)} token types for {len(_tokens(file))} tokens: fetch it again"
        )
    return types
