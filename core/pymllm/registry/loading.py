"""Imports one plugin and asks its hook; what is wrong with it is told as a Fault."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pluggy

from pymllm import hookspecs
from pymllm.plugin import PluginSpec, import_object
from pymllm.registry.discovery import PluginInfo
from pymllm.registry.faults import Fault, explain, reinstall, repair
from pymllm.registry.rules import spec_problem
from pymllm.spelling import did_you_mean


def load_spec(info: PluginInfo) -> PluginSpec:
    """Import the light module of a plugin and ask its hook. Raises Fault."""
    try:
        module = info.entry_point.load()
    except (Exception, SystemExit) as error:
        raise explain(info, error, "import") from error
    spec = _ask(info, module)
    problem = spec_problem(info.kind, spec)
    if problem:
        raise Fault(problem, repair(info))
    return spec


def load_object(info: PluginInfo, reference: str) -> Any:
    """Import ``"package.module:Attribute"`` of a plugin. Raises Fault."""
    try:
        return import_object(reference)
    except (Exception, SystemExit) as error:
        raise explain(info, error, f"import {reference}") from error


def check_reference(info: PluginInfo, what: str, reference: str) -> None:
    """See that an import string names a module that exists, without importing that module. Raises Fault."""
    module = reference.partition(":")[0]
    try:
        missing = find_spec(module) is None
    except (Exception, SystemExit) as error:
        raise explain(info, error, f"import {module}") from error
    if missing:
        raise Fault(f"names {what} '{reference}', but there is no module '{module}'", reinstall(info))


def _ask(info: PluginInfo, module: Any) -> Any:
    """Call the module's one hook of its kind. A manager of its own keeps plugins from meeting."""
    hook = f"pymllm_{info.kind}"
    manager = pluggy.PluginManager("pymllm")
    manager.add_hookspecs(hookspecs)
    try:
        manager.register(module)
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise _invalid_hook(info, manager, module, error) from error
    callers = [caller.name for caller in manager.get_hookcallers(module) or ()]
    if hook not in callers:
        if callers:
            cause = f"implements {', '.join(callers)}, but its entry point '{info.entry_point.name}' needs {hook}"
        elif hasattr(module, hook):
            cause = f"has a {hook} that is not marked with @hookimpl"
        else:
            cause = f"does not implement the hook {hook}"
        raise Fault(cause, repair(info))
    try:
        results = getattr(manager.hook, hook)()
    except (Exception, SystemExit) as error:
        raise explain(info, error, f"run its hook {hook}") from error
    return results[0] if results else None


def _invalid_hook(info: PluginInfo, manager: pluggy.PluginManager, module: Any, error: Exception) -> Fault:
    known = [name for name in vars(hookspecs) if name.startswith("pymllm_")]
    for caller in manager.get_hookcallers(module) or ():
        if not caller.has_spec():
            hint = did_you_mean(caller.name, known).lstrip(" ")
            return Fault(f"implements '{caller.name}', which is no hook of pymllm", hint or repair(info))
    text = " ".join(str(error).split())
    return Fault(f"has a hook of the wrong form: {text}", repair(info))
