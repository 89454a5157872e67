"""The hooks: one for each kind of plugin.

A plugin implements the hook of its kind in a *light* module, the one that its entry point names::

    # pymllm_cache_lfu/plugin.py
    from pymllm.plugin import CachePolicySpec, hookimpl

    @hookimpl
    def pymllm_cache() -> CachePolicySpec:
        return CachePolicySpec(factory="pymllm_cache_lfu.policy:LfuCache", summary="least often used")

    # pyproject.toml
    [project.entry-points."pymllm.v1"]
    "cache.lfu" = "pymllm_cache_lfu.plugin"

Rules that hold for all four:

- The entry point is named ``"<kind>.<name>"``; the name is what a configuration writes (``cache: lfu``).
- A hook takes no arguments, has no side effects, and returns exactly one spec of its kind.
- The light module imports neither torch nor a kernel library: it is imported to compose a
  configuration and to choose among plugins, in processes that never run a model. What is heavy stands
  behind the import strings of the spec.
- A module may implement several hooks if several entry points name it.
- It is loaded again in every process, and only where it is selected.
"""

from __future__ import annotations

import pluggy

from pymllm.plugin import AttentionSpec, CachePolicySpec, ModelSpec, QuantSpec

hookspec = pluggy.HookspecMarker("pymllm")


@hookspec
def pymllm_model() -> ModelSpec:  # type: ignore[empty-body]
    """Describe a model.

    ``architectures`` lists the entries of config.json's ``architectures`` that it serves; ``model: auto``
    takes the plugin that lists the checkpoint's. ``factory`` names a class that follows
    :class:`pymllm.interfaces.Model` and is called as ``factory(config, context)``. ``processor``, for a model that
    takes images or videos, names a :class:`pymllm.interfaces.MediaProcessor` that is called likewise, and whose module
    does not import torch.
    """


@hookspec
def pymllm_quant() -> QuantSpec:  # type: ignore[empty-body]
    """Describe a quantization method.

    ``formats`` lists what it reads of a checkpoint's ``quantization_config``: a ``quant_method`` ("awq")
    or a ``quant_method/format`` pair ("compressed-tensors/int-quantized"); ``quant: auto`` takes the
    plugin that lists the checkpoint's. ``factory`` names something that is called as
    ``factory(options, context)`` and returns a :class:`pymllm.interfaces.QuantMethod`.
    """


@hookspec
def pymllm_attention() -> AttentionSpec:  # type: ignore[empty-body]
    """Describe an attention backend.

    ``attention: auto`` takes, of the backends that cover the model, the one with the highest
    ``priority`` whose ``probe`` passes. ``probe`` names a function ``probe(device) -> str | None`` that
    really runs a kernel on that device and returns None, or one line that says why it cannot.
    ``factory`` names a class that follows :class:`pymllm.interfaces.AttentionBackend` and is called as
    ``factory(options, context)``.
    """


@hookspec
def pymllm_cache() -> CachePolicySpec:  # type: ignore[empty-body]
    """Describe a cache policy.

    ``config`` is a subclass of :class:`pymllm.plugin.CacheOptions`, so every policy has ``page_size``.
    ``factory`` names a class that follows :class:`pymllm.interfaces.CachePolicy` and is called as
    ``factory(options, context)``. There is no ``auto``: the default is the name in
    :class:`pymllm.config.CacheConfig`.
    """
