"""What a checkpoint's config may say: nulls are missing keys, and what is not computed is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from pymllm.errors import CheckpointError
from pymllm.layers import DecoderConfig

CONFIG: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
}


def test_missing_and_null_keys_have_transformers_defaults() -> None:
    nulls = dict.fromkeys(["num_key_value_heads", "head_dim", "rms_norm_eps", "tie_word_embeddings", "layer_types"])
    expected = DecoderConfig(64, 128, 2, 4, kv_heads=4, head_dim=16, vocabulary=100, eps=1e-6, tied=False)
    assert DecoderConfig.read(CONFIG) == DecoderConfig.read({**CONFIG, **nulls}) == expected
    assert DecoderConfig.read(CONFIG, head_dim=128).head_dim == 128
    assert DecoderConfig.read({**CONFIG, "head_dim": 32}, head_dim=128).head_dim == 32


@pytest.mark.parametrize(
    "config",
    [
        {"use_sliding_window": False, "sliding_window": 32},
        {"use_sliding_window": True, "sliding_window": None},
        {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 2},
        {"use_sliding_window": True, "sliding_window": 32, "layer_types": ["full_attention"] * 2},
        {"hidden_act": None, "pretraining_tp": 2, "attention_dropout": 0.1},
    ],
)
def test_keys_without_effect_are_accepted(config: dict[str, Any]) -> None:
    assert DecoderConfig.read({**CONFIG, **config}) == DecoderConfig.read(CONFIG)


@pytest.mark.parametrize(
    "config, message",
    [
        ({"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 1}, "use_sliding_window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "'sliding_attention'"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"hidden_size": None}, "no 'hidden_size'"),
        ({"vocab_size": "many"}, "vocab_size = 'many'"),
        ({"num_hidden_layers": True}, "num_hidden_layers = True"),
        ({"num_hidden_layers": 0}, "layers = 0"),
        ({"num_key_value_heads": 3}, "num_key_value_heads 3"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(config: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        DecoderConfig.read({**CONFIG, **config})
