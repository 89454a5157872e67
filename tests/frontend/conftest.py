"""Real tokenizers of the common families, made on the spot, and a scripted engine client."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from pymllm.engine.client import Deliver, EngineClient
from pymllm.engine.messages import EngineInfo, EngineRequest, EngineStats, Profile, ProfileRequest, TokenOutput
from pymllm.errors import QueueFullError
from pymllm.testing.tiny import make_tokenizer

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_level() -> PreTrainedTokenizerFast:
    """GPT-2's family (pymllm's tiny checkpoints): bytes as characters, 288 tokens."""
    return PreTrainedTokenizerFast(
        tokenizer_object=make_tokenizer(),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=CHATML,
        clean_up_tokenization_spaces=False,
    )


def byte_fallback() -> PreTrainedTokenizerFast:
    """Llama 2's family: SentencePiece BPE, unknown characters as <0xNN> tokens, one leading space dropped."""
    words = ["▁", "▁the", "▁quick", "h", "e", "l", "o", "w", "r", "d", "a", "é", "▁he", "llo", "!", "."]
    tokens = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)], *words]
    merges = [("h", "e"), ("▁", "he"), ("l", "l"), ("ll", "o")]
    tokens += [left + right for left, right in merges if left + right not in tokens]
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<unk>", "<s>", "</s>")])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", clean_up_tokenization_spaces=False
    )


def metaspace() -> PreTrainedTokenizerFast:
    """T5's family: Unigram with the Metaspace decoder."""
    pieces = ["▁the", "▁", "▁cat", "s", "at", "▁sat", "c", "a", "t", "h", "e", "é", "你", "好", "!"]
    vocab = [("<unk>", 0.0), ("</s>", 0.0), *[(piece, -1.0 - index / 10) for index, piece in enumerate(pieces)]]
    tokenizer = Tokenizer(models.Unigram(vocab, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    tokenizer.add_special_tokens([AddedToken("</s>", special=True, normalized=False)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>", clean_up_tokenization_spaces=False
    )


class ScriptedClient(EngineClient):
    """An engine whose answers are written down: the test says when which output of a request arrives."""

    def __init__(self, vocab_size: int = 288, max_context: int = 64, accept: int = 1000) -> None:
        self.info = EngineInfo(
            model="scripted", architecture="none", dtype="float32", kv_dtype="float32", device="cpu",
            vocab_size=vocab_size, max_context=max_context, max_request_tokens=max_context, capacity_tokens=256,
            page_size=16, pages=16, page_bytes=1, weight_bytes=1, step_peak_bytes=1, max_batch_tokens=16,
            max_running_requests=4, parameters=1, choices=[],
        )  # fmt: skip
        self.requests: dict[str, EngineRequest] = {}
        self.aborted: list[str] = []
        self._deliver: dict[str, Deliver] = {}
        self._accept = accept

    def submit(self, request: EngineRequest, deliver: Deliver) -> None:
        if len(self.requests) >= self._accept:
            raise QueueFullError("the queue is full")
        self.requests[request.id] = request
        self._deliver[request.id] = deliver

    def say(self, id: str, tokens: Iterable[int] = (), **fields: object) -> None:
        """Deliver one output of a request, as the engine's thread would."""
        self._deliver[id](TokenOutput(id=id, token_ids=list(tokens), **fields))  # type: ignore[arg-type]

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    def stats(self) -> EngineStats:
        return EngineStats()

    def reset_cache(self) -> int:
        return 0

    def start_profile(self, wanted: ProfileRequest) -> Profile:
        raise NotImplementedError

    def stop_profile(self) -> Profile:
        raise NotImplementedError

    @property
    def alive(self) -> bool:
        return True

    def close(self) -> None:
        self._deliver.clear()


@pytest.fixture
def client() -> ScriptedClient:
    return ScriptedClient()


@pytest.fixture
def full_client() -> ScriptedClient:
    """Refuses the third request."""
    return ScriptedClient(accept=2)


@pytest.fixture(scope="session")
def tokenizers() -> dict[str, PreTrainedTokenizerFast]:
    return {"byte_level": byte_level(), "byte_fallback": byte_fallback(), "metaspace": metaspace()}
