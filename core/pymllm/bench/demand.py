"""What a step cannot do without: the bytes that a decode reads and the operations that a prefill computes."""

from __future__ import annotations

from torch import nn

from pymllm.engine.assemble import Assembled
from pymllm.interfaces.model import Model
from pymllm.interfaces.quant import Linear
from pymllm.layers.attention import Attention
from pymllm.layers.embedding import Embedding, TiedHead
from pymllm.layers.rope import Rope


def decode_bytes(parts: Assembled, batch_size: int, context: float) -> float:
    """Bytes that a decode step of ``batch_size`` requests reads at least: every weight once, and the keys and values
    of ``context`` tokens of each request. Activations, logits and what is written are left out."""
    return streamed_weight_bytes(parts.model) + batch_size * context * kv_token_bytes(parts)


def kv_token_bytes(parts: Assembled) -> float:
    """Bytes of KV that a token takes, in all layers."""
    return parts.info.page_bytes / parts.info.page_size


def streamed_weight_bytes(model: Model) -> int:
    """Bytes of the parameters and buffers that every step reads in full: all, tied ones once, without tables that
    it looks single rows up in (rotations, and the embedding unless the head reads that very tensor), and without what
    only encodes media."""
    left_out = {id(table) for module in model.modules() for table in _tables(module)}
    heads = [module for module in model.modules() if isinstance(module, TiedHead) and not _has_copy(module)]
    left_out -= {id(head.embedding.weight) for head in heads}
    if model.media_tower is not None:
        left_out |= {id(tensor) for tensor in (*model.media_tower.parameters(), *model.media_tower.buffers())}
    read = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers()) if id(tensor) not in left_out}
    return sum(tensor.numel() * tensor.element_size() for tensor in read.values())


def prefill_flops(parts: Assembled, batch_size: int, length: int) -> int:
    """Operations of a prefill of ``batch_size`` prompts of ``length`` tokens: two for each weight of the linear layers
    and token, the head (whatever projects to the vocabulary) for the last token alone; and causal attention, four
    for each component of a query head and each of the L (L + 1) / 2 pairs of a token with itself or an earlier one."""
    tower = parts.model.media_tower
    apart = {id(module) for module in tower.modules()} if tower is not None else set()
    modules = [module for module in parts.model.modules() if id(module) not in apart]
    layers = [module for module in modules if isinstance(module, Linear)]
    heads = [layer for layer in layers if _is_head(layer, parts.info.vocab_size)]
    every, last = sum(map(_weights, layers)), sum(map(_weights, heads))
    attention = [module for module in modules if isinstance(module, Attention)]
    components = sum(layer.heads * layer.head_dim for layer in attention)
    return batch_size * (2 * (every - last) * length + 2 * last + 2 * components * length * (length + 1))


def _is_head(layer: Linear, vocab_size: int) -> bool:
    return isinstance(layer, TiedHead) or (layer.spec is not None and sum(layer.spec.out_features) == vocab_size)


def _weights(layer: Linear) -> int:
    if isinstance(layer, TiedHead):
        return layer.embedding.weight.numel()
    if layer.spec is None:
        return sum(parameter.numel() for parameter in layer.parameters())
    return layer.spec.in_features * sum(layer.spec.out_features) // layer.spec.world


def _tables(module: nn.Module) -> list[object]:
    if isinstance(module, (Embedding, nn.Embedding)):
        return [module.weight]
    return [module.cos_sin] if isinstance(module, Rope) else []


def _has_copy(head: TiedHead) -> bool:
    return any(name == "copy" for name, _ in head.named_buffers(recurse=False))
