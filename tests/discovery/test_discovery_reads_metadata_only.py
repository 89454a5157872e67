"""What is installed is known from metadata alone; how a distribution came to be found does not matter."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pymllm.errors import PluginError
from pymllm.registry import Registry
from sites import Site

GOOD = """
from pymllm.plugin import CachePolicySpec, hookimpl

@hookimpl
def pymllm_cache():
    return CachePolicySpec(factory="collections:OrderedDict")
"""


def names(registry: Registry) -> list[tuple[str, str, str]]:
    return [(info.kind, info.name, info.distribution) for info in registry.installed()]


def test_nothing_is_imported(site: Site) -> None:
    site.add_plugin("cache.trap", "cache_trap", "raise AssertionError('imported')")
    registry = Registry([str(site.path)])
    info = registry.find("cache", "trap")
    assert (info.distribution, info.version, info.group) == ("cache-trap", "0.1.0", "pymllm.v1")
    assert [state.state for state in registry.check(load=False)] == ["ok"]
    with pytest.raises(PluginError, match="AssertionError: imported"):
        registry.load("cache", "trap")


def test_sorted_by_kind_then_name(site: Site) -> None:
    for entry in ("cache.b", "cache.a", "quant.z", "model.m"):
        site.add_plugin(entry, entry.replace(".", "_"), GOOD)
    found = [(kind, name) for kind, name, _ in names(Registry([str(site.path)]))]
    assert found == [("model", "m"), ("quant", "z"), ("cache", "a"), ("cache", "b")]


def test_one_distribution_found_twice_is_one(site: Site, tmp_path: Path) -> None:
    site.add_plugin("cache.mine", "cache_mine", GOOD)
    again = tmp_path / "again"
    shutil.copytree(site.path, again)
    # setuptools leaves an .egg-info beside the source of an editable install, under another spelling
    egg = tmp_path / "source" / "Cache.Mine.egg-info"
    egg.mkdir(parents=True)
    (egg / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: Cache.Mine\nVersion: 0.1.0\n")
    (egg / "entry_points.txt").write_text("[pymllm.v1]\ncache.mine = cache_mine\n")
    registry = Registry([str(site.path), str(again), str(egg.parent)])
    assert names(registry) == [("cache", "mine", "cache-mine")]
    assert registry.load("cache", "mine").factory == "collections:OrderedDict"


def test_two_distributions_of_one_name_conflict_and_neither_wins(site: Site) -> None:
    site.add_plugin("cache.same", "cache_first", GOOD)
    site.add_plugin("cache.same", "cache_second", GOOD)
    registry = Registry([str(site.path)])
    with pytest.raises(PluginError, match=r"cache-first 0\.1\.0.*cache-second 0\.1\.0.*uninstall"):
        registry.load("cache", "same")
    usable, problems = registry.candidates("cache")
    assert usable == []
    assert [problem.state for problem in problems] == ["conflict", "conflict"]


def test_a_distribution_that_serves_two_versions_is_not_outdated(site: Site) -> None:
    (site.path / "cache_both.py").write_text(GOOD)
    site.add_metadata(
        "cache-both", [("pymllm.v0", "cache.both", "cache_old"), ("pymllm.v1", "cache.both", "cache_both")]
    )
    registry = Registry([str(site.path)])
    assert registry.load("cache", "both").factory == "collections:OrderedDict"
    assert [state.state for state in registry.check()] == ["ok"]


@pytest.mark.parametrize("entry", ["cash.lfu", "lfu", "cache."])
def test_a_wrong_entry_point_name_is_told_and_harmless(site: Site, entry: str) -> None:
    site.add_plugin(entry, "odd_name", "raise AssertionError('imported')")
    site.add_plugin("cache.good", "cache_good", GOOD)
    registry = Registry([str(site.path)])
    causes = {state.info.distribution: (state.state, state.cause) for state in registry.check()}
    assert causes["odd-name"][0] == "broken"
    assert f"'{entry}', which is not of the form KIND.NAME" in causes["odd-name"][1]
    assert causes["cache-good"] == ("ok", "")
    assert registry.load("cache", "good")


def test_unreadable_metadata_of_others_is_harmless(site: Site) -> None:
    site.add_plugin("cache.good", "cache_good", GOOD)
    (site.add_metadata("garbled", []) / "entry_points.txt").write_bytes(b"[pymllm.v1]\n\xff\xfe= not ]text[\n")
    nameless = site.path / "nameless-1.dist-info"
    nameless.mkdir()
    (nameless / "entry_points.txt").write_text("[pymllm.v1]\ncache.nameless = nameless\n")
    assert ("cache", "good", "cache-good") in names(Registry([str(site.path)]))


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(PluginError, match="no plugin kind 'cash': it is one of model, quant, attention, cache"):
        Registry().load("cash", "radix")
