"""A module that is not there is told by what the user must install, at both steps of laziness."""

from __future__ import annotations

import pytest

from pymllm.errors import PluginError
from pymllm.registry import Registry
from sites import Site

SPEC = """
from pymllm.plugin import CachePolicySpec, hookimpl

@hookimpl
def pymllm_cache():
    return CachePolicySpec(factory="{factory}")
"""


def refusal(site: Site) -> str:
    with pytest.raises(PluginError) as caught:
        Registry([str(site.path)]).load("cache", "mine")
    return str(caught.value)


def factory_refusal(site: Site, factory: str) -> str:
    site.add_plugin("cache.mine", "cache_mine", SPEC.format(factory=factory))
    registry = Registry([str(site.path)])
    spec = registry.load("cache", "mine")
    with pytest.raises(PluginError) as caught:
        registry.factory("cache", "mine", spec)
    return str(caught.value)


def test_the_package_that_is_imported(site: Site) -> None:
    site.add_plugin("cache.mine", "cache_mine", "import nobody_has_this.part")
    assert refusal(site).endswith(
        "needs the package 'nobody_has_this', which is not installed; pip install nobody_has_this"
    )


def test_the_requirement_whose_package_has_another_name(site: Site) -> None:
    (site.path / "cache_mine.py").write_text("import nobody_has_this")
    point = ("pymllm.v1", "cache.mine", "cache_mine")
    requires = ["Nobody-Distribution>=2", "pluggy", 'windows-thing; sys_platform == "nowhere"', "x; extra == 'gpu'"]
    site.add_metadata("cache-mine", [point], requires=requires)
    assert refusal(site).endswith("; pip install Nobody-Distribution")


def test_a_part_that_an_installed_package_lacks(site: Site) -> None:
    site.add_plugin("cache.mine", "cache_mine", "import pluggy.of_another_version")
    assert "needs the module 'pluggy.of_another_version', which the installed 'pluggy' lacks" in refusal(site)


def test_the_plugin_itself(site: Site) -> None:
    site.add_metadata("cache-mine", [("pymllm.v1", "cache.mine", "cache_mine")])
    assert "has no module 'cache_mine'; install it again" in refusal(site)


def test_the_implementation_needs_a_package(site: Site) -> None:
    (site.path / "cache_heavy.py").write_text("import nobody_has_this")
    message = factory_refusal(site, "cache_heavy:Policy")
    assert message.startswith("cache plugin 'mine' (cache-mine 0.1.0) needs the package 'nobody_has_this'")


def test_the_implementation_raises(site: Site) -> None:
    (site.path / "cache_heavy.py").write_text("raise OSError('libcudart.so.99: cannot open')")
    message = factory_refusal(site, "cache_heavy:Policy")
    assert "fails to import cache_heavy:Policy: OSError: libcudart.so.99: cannot open" in message


def test_the_implementation_lacks_the_attribute(site: Site) -> None:
    (site.path / "cache_heavy.py").write_text("")
    assert "has no attribute 'Policy'" in factory_refusal(site, "cache_heavy:Policy")


def test_a_check_sees_a_missing_implementation_without_importing_it(site: Site) -> None:
    site.add_plugin("cache.mine", "cache_mine", SPEC.format(factory="cache_heavy:Policy"))
    registry = Registry([str(site.path)])
    (state,) = registry.check()
    assert (state.state, "there is no module 'cache_heavy'" in state.cause) == ("broken", True)
    (site.path / "cache_heavy.py").write_text("raise AssertionError('imported')")
    assert [state.state for state in Registry([str(site.path)]).check()] == ["ok"]


MODEL_SPEC = """
from pymllm.plugin import ModelSpec, hookimpl

@hookimpl
def pymllm_model():
    return ModelSpec(factory="model_mine:__name__", processor="{processor}")
"""


def test_a_media_processor_is_loaded_and_checked_as_the_implementation_is(site: Site) -> None:
    site.add_plugin("model.mine", "model_mine", MODEL_SPEC.format(processor="model_pixels:Processor"))
    registry = Registry([str(site.path)])
    spec = registry.load("model", "mine")
    (state,) = registry.check()
    assert (state.state, "names the processor 'model_pixels:Processor'" in state.cause) == ("broken", True)
    (site.path / "model_pixels.py").write_text("import nobody_has_this")
    with pytest.raises(PluginError, match=r"model plugin 'mine'.*needs the package 'nobody_has_this'"):
        registry.processor("mine", spec)  # type: ignore[arg-type]


def test_a_model_of_text_alone_has_no_media_processor(site: Site) -> None:
    site.add_plugin("model.mine", "model_mine", MODEL_SPEC.format(processor=""))
    registry = Registry([str(site.path)])
    (state,) = registry.check()
    assert state.state == "ok"
    assert registry.processor("mine", registry.load("model", "mine")) is None  # type: ignore[arg-type]
