"""What is wrong with a plugin, told so that the user knows the cause and the cure."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec

from packaging.requirements import InvalidRequirement, Requirement

from pymllm.registry.discovery import PluginInfo, normalized


class Fault(Exception):
    """Why a plugin cannot be used: ``cause`` (a verb phrase) and ``cure`` (an imperative)."""

    def __init__(self, cause: str, cure: str) -> None:
        super().__init__(f"{cause}; {cure}")
        self.cause = cause
        self.cure = cure


def explain(info: PluginInfo, error: BaseException, action: str) -> Fault:
    """What an exception that a plugin raised while it did ``action`` (an infinitive) means for the user."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        return _missing_module(info, error.name)
    return Fault(f"fails to {action}: {describe(error)}", repair(info))


def describe(error: BaseException) -> str:
    """An exception's type and message in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def repair(info: PluginInfo) -> str:
    """The cure when the plugin's own code is at fault."""
    return f"repair it or uninstall it (pip uninstall {info.distribution})"


def reinstall(info: PluginInfo) -> str:
    """The cure when files of the plugin are not there."""
    return f"install it again (pip install --force-reinstall --no-deps {info.distribution})"


def _missing_module(info: PluginInfo, module: str) -> Fault:
    package = module.partition(".")[0]
    if package == info.entry_point.module.partition(".")[0]:
        return Fault(f"has no module '{module}'", reinstall(info))
    if package != module and find_spec(package) is not None:
        return Fault(f"needs the module '{module}', which the installed '{package}' lacks", f"pip install -U {package}")
    absent = _absent_requirements(info)
    if absent and normalized(package) not in map(normalized, absent):
        names = " ".join(absent)  # the import name says little of the distribution's (yaml is of PyYAML)
    else:
        names = package
    return Fault(f"needs the package '{package}', which is not installed", f"pip install {names}")


def _absent_requirements(info: PluginInfo) -> list[str]:
    absent = []
    for text in info.requires:
        try:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                distribution(requirement.name)
        except InvalidRequirement:
            continue
        except PackageNotFoundError:
            absent.append(requirement.name)
    return absent
