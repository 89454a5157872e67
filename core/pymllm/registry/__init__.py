"""Finds plugins from package metadata, and imports one only when it is selected.

A plugin that is broken, outdated or in conflict with another harms nothing until it is selected; a
selected one is a :class:`pymllm.errors.PluginError` of one line that names the distribution, the cause
and the cure. Nothing is ever silently replaced by something else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pymllm.errors import PluginError
from pymllm.plugin import AttentionSpec, ModelSpec, PluginSpec
from pymllm.registry.discovery import API_VERSION, GROUP, KINDS, PluginInfo, scan
from pymllm.registry.faults import Fault
from pymllm.registry.loading import check_reference, load_object, load_spec
from pymllm.spelling import did_you_mean

if TYPE_CHECKING:
    from pymllm.interfaces.compression import Compression
    from pymllm.interfaces.evaluation import Evaluation
    from pymllm.interfaces.media import ProcessorFactory

__all__ = ["API_VERSION", "GROUP", "KINDS", "PluginInfo", "PluginProblem", "PluginState", "Registry"]

State = Literal["ok", "conflict", "outdated", "broken"]


@dataclass(frozen=True)
class PluginProblem:
    """Why a plugin cannot be used. message: one line that names distribution, cause and cure."""

    info: PluginInfo
    state: State
    cause: str
    message: str

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True)
class PluginState:
    """A line of ``pymllm plugins``. cause: empty when ok; summary: known once the plugin was imported."""

    info: PluginInfo
    state: State
    cause: str = ""
    summary: str = ""


class Registry:
    """The plugins that are installed.

    path: where distributions are looked for, as sys.path (the default).
    """

    def __init__(self, path: Sequence[str] | None = None) -> None:
        self._path = path
        self._installed: list[PluginInfo] | None = None
        self._specs: dict[PluginInfo, PluginSpec] = {}

    def installed(self) -> list[PluginInfo]:
        """Every declared plugin, also those that cannot be used, sorted by kind and name. Imports none."""
        if self._installed is None:
            self._installed = scan(self._path)
        return list(self._installed)

    def find(self, kind: str, name: str) -> PluginInfo:
        """The plugin of that kind and name. Raises PluginError when there is none, when there are several,
        and when it is for another version of the contract. Imports nothing."""
        named = [info for info in self.installed() if (info.kind, info.name) == (kind, name)]
        if not named:
            raise PluginError(self._unknown(kind, name))
        usable = [info for info in named if info.group == GROUP] or named
        problem = self._metadata_problem(usable[0])
        if problem:
            raise PluginError(problem.message)
        return usable[0]

    def load(self, kind: str, name: str) -> PluginSpec:
        """Import the light module of one plugin. Raises PluginError."""
        return self._load(self.find(kind, name))

    def factory(self, kind: str, name: str, spec: PluginSpec) -> Any:
        """Import the implementation of a loaded plugin. Raises PluginError."""
        return self._object(self.find(kind, name), spec.factory)

    def probe(self, name: str, spec: AttentionSpec) -> Callable[..., str | None]:
        """Import the probe of a loaded attention plugin. Raises PluginError."""
        probe: Callable[..., str | None] = self._object(self.find("attention", name), spec.probe)
        return probe

    def processor(self, name: str, spec: ModelSpec) -> ProcessorFactory | None:
        """Import the media processor's factory of a loaded model plugin; None if it has none. Raises PluginError."""
        return self._object(self.find("model", name), spec.processor) if spec.processor else None

    def evaluation(self, name: str, spec: ModelSpec) -> Evaluation | None:
        """Import what gives the questions of a loaded model plugin; None if it has none. Raises PluginError."""
        return self._object(self.find("model", name), spec.evaluation) if spec.evaluation else None

    def compression(self, name: str, spec: ModelSpec) -> Compression | None:
        """Import what a loaded model plugin knows of quantizing its models; None if nothing. Raises PluginError."""
        return self._object(self.find("model", name), spec.compression) if spec.compression else None

    def candidates(self, kind: str) -> tuple[list[tuple[PluginInfo, PluginSpec]], list[PluginProblem]]:
        """All usable plugins of one kind with their specs, and what is wrong with the others. Imports the
        light modules of that kind alone, each guarded."""
        usable: list[tuple[PluginInfo, PluginSpec]] = []
        problems: list[PluginProblem] = []
        for info in self._current():
            if info.kind != kind:
                continue
            outcome = self._metadata_problem(info) or self._guarded(info)
            if isinstance(outcome, PluginProblem):
                problems.append(outcome)
            else:
                usable.append((info, outcome))
        return usable, problems

    def check(self, *, load: bool = True) -> list[PluginState]:
        """The state of every plugin. With ``load``, light modules are imported and import strings checked;
        without, only what metadata tells (ok, conflict, outdated)."""
        states = []
        for info in self._current():
            outcome: PluginProblem | PluginSpec | None = self._metadata_problem(info)
            if outcome is None and load:
                outcome = self._guarded(info, deep=True)
            if isinstance(outcome, PluginProblem):
                states.append(PluginState(info, outcome.state, outcome.cause))
            else:
                states.append(PluginState(info, "ok", summary=outcome.summary if outcome else ""))
        return states

    def _current(self) -> list[PluginInfo]:
        """Without the old entries of a distribution that also offers the plugin to this version."""
        offered = {(info.distribution, info.kind, info.name) for info in self.installed() if info.group == GROUP}
        return [
            info
            for info in self.installed()
            if info.group == GROUP or (info.distribution, info.kind, info.name) not in offered
        ]

    def _load(self, info: PluginInfo) -> PluginSpec:
        outcome = self._guarded(info)
        if isinstance(outcome, PluginProblem):
            raise PluginError(outcome.message)
        return outcome

    def _guarded(self, info: PluginInfo, deep: bool = False) -> PluginSpec | PluginProblem:
        try:
            if info not in self._specs:
                self._specs[info] = load_spec(info)
            spec = self._specs[info]
            if deep:
                check_reference(info, "the factory", spec.factory)
                if isinstance(spec, AttentionSpec):
                    check_reference(info, "the probe", spec.probe)
                if isinstance(spec, ModelSpec) and spec.processor:
                    check_reference(info, "the processor", spec.processor)
                if isinstance(spec, ModelSpec) and spec.evaluation:
                    check_reference(info, "the evaluation set", spec.evaluation)
                if isinstance(spec, ModelSpec) and spec.compression:
                    check_reference(info, "the compression", spec.compression)
            return spec
        except Fault as fault:
            return _problem(info, "broken", fault)

    def _object(self, info: PluginInfo, reference: str) -> Any:
        try:
            return load_object(info, reference)
        except Fault as fault:
            raise PluginError(_problem(info, "broken", fault).message) from fault

    def _metadata_problem(self, info: PluginInfo) -> PluginProblem | None:
        if info.kind not in KINDS or not info.name:
            cause = f"has an entry point '{info.entry_point.name}', which is not of the form KIND.NAME"
            return _problem(info, "broken", Fault(cause, f"KIND is one of {', '.join(KINDS)}"))
        if info.group != GROUP:
            cure = f"pip install -U {info.distribution if info.api < API_VERSION else 'pymllm'}"
            cause = f"is written for plugin API {info.api}, but this pymllm speaks API {API_VERSION}"
            return _problem(info, "outdated", Fault(cause, f"upgrade: {cure}"))
        rivals = [
            other
            for other in self.installed()
            if (other.kind, other.name, other.group) == (info.kind, info.name, GROUP) and other != info
        ]
        if rivals:
            cause = f"has the same name as one of {', '.join(other.source for other in rivals)}"
            names = sorted([info.distribution, *(other.distribution for other in rivals)])
            cure = f"uninstall all but one of them (pip uninstall {names[-1]})"
            return _problem(info, "conflict", Fault(cause, cure))
        return None

    def _unknown(self, kind: str, name: str) -> str:
        if kind not in KINDS:
            return f"there is no plugin kind '{kind}': it is one of {', '.join(KINDS)}"
        known = [info.name for info in self.installed() if info.kind == kind]
        other = next((info.kind for info in self.installed() if info.name == name and info.kind in KINDS), None)
        hint = did_you_mean(name, known) or (f" There is a {other} plugin of that name." if other else "")
        listed = ", ".join(dict.fromkeys(known)) or "none"
        return f"no {kind} plugin is named '{name}'.{hint} Installed: {listed} (see 'pymllm plugins')"


def _problem(info: PluginInfo, state: State, fault: Fault) -> PluginProblem:
    message = f"{info.kind} plugin '{info.name}' ({info.source}) {fault}"
    return PluginProblem(info, state, str(fault), message)
