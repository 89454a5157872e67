"""Tokens, text and log-probabilities of the HTTP routes, against transformers on the same checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

PROMPT = "on the other hand"
COUNT = 12


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> dict[str, Any]:
    """Greedy continuation and the log-probabilities of prompt and continuation, [tokens, vocabulary]."""
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    prompt = tokenizer(PROMPT)["input_ids"]
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        out = model.generate(ids, max_new_tokens=COUNT, do_sample=False, eos_token_id=None)[0]
        logprobs = model(out[None]).logits[0].log_softmax(-1)
    answer = out[len(prompt) :].tolist()
    return {
        "tokenizer": tokenizer,
        "prompt": prompt,
        "answer": answer,
        "text": tokenizer.decode(answer, skip_special_tokens=True),
        "logprobs": [None, *(logprobs[i, token].item() for i, token in enumerate(out.tolist()[1:]))],
        "top": [None, *(logprobs[i].topk(2) for i in range(len(out) - 1))],
    }


GREEDY = {"temperature": 0, "max_tokens": COUNT, "ignore_eos": True}


def test_generate_gives_the_greedy_tokens(http: httpx.Client, reference: dict[str, Any]) -> None:
    sampling = {"temperature": 0, "max_new_tokens": COUNT, "ignore_eos": True}
    answer = http.post("/generate", json={"text": PROMPT, "sampling_params": sampling}).json()
    assert answer["output_ids"] == reference["answer"]
    assert answer["text"] == reference["text"]
    assert answer["meta_info"]["prompt_tokens"] == len(reference["prompt"])
    assert answer["meta_info"]["completion_tokens"] == COUNT
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": COUNT}


def test_echo_scores_prompt_and_answer(http: httpx.Client, reference: dict[str, Any]) -> None:
    body = {"prompt": PROMPT, "echo": True, "logprobs": 2, **GREEDY}
    choice = http.post("/v1/completions", json=body).json()["choices"][0]
    scores = choice["logprobs"]
    assert choice["text"] == PROMPT + reference["text"]
    assert scores["token_logprobs"][0] is None
    assert scores["top_logprobs"][0] is None
    assert scores["token_logprobs"][1:] == pytest.approx(reference["logprobs"][1:], abs=1e-3)
    for found, top in zip(scores["top_logprobs"][1:], reference["top"][1:]):
        assert sorted(found.values(), reverse=True)[:2] == pytest.approx(top.values.tolist(), abs=1e-3)
    # Pieces of this vocabulary are whole characters here: offsets are where each token's text begins.
    pieces = [reference["tokenizer"].decode([token]) for token in reference["prompt"]]
    starts = [len("".join(pieces[:i])) for i in range(len(pieces))]
    assert scores["text_offset"][: len(pieces)] == starts
    assert scores["tokens"][: len(pieces)] == pieces


def test_a_prompt_can_be_scored_without_an_answer(http: httpx.Client, reference: dict[str, Any]) -> None:
    body = {"prompt": reference["prompt"], "echo": True, "logprobs": 0, "max_tokens": 0}
    answer = http.post("/v1/completions", json=body).json()
    choice = answer["choices"][0]
    assert choice["text"] == PROMPT
    count = len(reference["prompt"])
    assert choice["logprobs"]["token_logprobs"][1:] == pytest.approx(reference["logprobs"][1:count], abs=1e-3)
    assert answer["usage"]["completion_tokens"] == 0
    assert choice["finish_reason"] == "length"


def test_prompt_logprobs_have_vllms_form(http: httpx.Client, reference: dict[str, Any]) -> None:
    body = {"prompt": PROMPT, "prompt_logprobs": 2, "max_tokens": 1}
    found = http.post("/v1/completions", json=body).json()["choices"][0]["prompt_logprobs"]
    assert found[0] is None
    for position in range(1, len(reference["prompt"])):
        token = reference["prompt"][position]
        entry = found[position][str(token)]
        assert entry["logprob"] == pytest.approx(reference["logprobs"][position], abs=1e-3)
        assert entry["decoded_token"] == reference["tokenizer"].decode([token])
        best = str(reference["top"][position].indices[0].item())
        assert found[position][best]["rank"] == 1


def test_generate_gives_sglangs_logprobs(http: httpx.Client, reference: dict[str, Any]) -> None:
    body = {
        "input_ids": reference["prompt"],
        "sampling_params": {"temperature": 0, "max_new_tokens": COUNT, "ignore_eos": True},
        "return_logprob": True,
        "top_logprobs_num": 2,
        "logprob_start_len": 1,
    }
    meta = http.post("/generate", json=body).json()["meta_info"]
    count = len(reference["prompt"])
    assert [one[1] for one in meta["input_token_logprobs"]] == reference["prompt"][1:]
    assert [one[0] for one in meta["input_token_logprobs"]] == pytest.approx(reference["logprobs"][1:count], abs=1e-3)
    assert [one[1] for one in meta["output_token_logprobs"]] == reference["answer"]
    assert [one[0] for one in meta["output_token_logprobs"]] == pytest.approx(reference["logprobs"][count:], abs=1e-3)
    assert [len(one) for one in meta["output_top_logprobs"]] == [2] * COUNT


def test_chat_logprobs_spell_the_bytes_of_each_token(http: httpx.Client, reference: dict[str, Any]) -> None:
    body = {"messages": [{"role": "user", "content": PROMPT}], "logprobs": True, "top_logprobs": 3, **GREEDY}
    choice = http.post("/v1/chat/completions", json={**body, "skip_special_tokens": False}).json()["choices"][0]
    content = choice["logprobs"]["content"]
    assert len(content) == COUNT
    spelled = b"".join(bytes(one["bytes"]) for one in content)
    assert spelled.decode(errors="replace") == choice["message"]["content"]
    for one in content:
        assert len(one["top_logprobs"]) == 3
        assert one["top_logprobs"][0]["logprob"] == one["logprob"]  # greedy: the chosen one is the likeliest


def test_chat_renders_the_checkpoints_template(http: httpx.Client, reference: dict[str, Any]) -> None:
    messages = [{"role": "system", "content": "short"}, {"role": "user", "content": [{"type": "text", "text": "hé"}]}]
    plain = [messages[0], {"role": "user", "content": "hé"}]
    text = reference["tokenizer"].apply_chat_template(plain, tokenize=False, add_generation_prompt=True)
    expected = reference["tokenizer"](text, add_special_tokens=False)["input_ids"]
    tokens = http.post("/tokenize", json={"messages": messages}).json()["tokens"]
    assert tokens == expected
    answer = http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1}).json()
    assert answer["usage"]["prompt_tokens"] == len(expected)


def test_tokenize_and_detokenize_agree_with_the_tokenizer(http: httpx.Client, reference: dict[str, Any]) -> None:
    text = "the é 🙂 <|im_end|>"
    expected = reference["tokenizer"](text)["input_ids"]
    found = http.post("/tokenize", json={"prompt": text, "return_token_strs": True}).json()
    assert found["tokens"] == expected
    assert found["count"] == len(expected)
    assert found["max_model_len"] == 32768
    assert found["token_strs"] == reference["tokenizer"].convert_ids_to_tokens(expected)
    assert http.post("/tokenize", json={"prompt": text}).json()["token_strs"] is None
    assert http.post("/detokenize", json={"tokens": expected}).json() == {"prompt": text}
