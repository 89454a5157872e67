"""What went wrong with ``${...}`` in a value, without OmegaConf's terms."""

from __future__ import annotations

import re

from omegaconf.errors import (
    GrammarParseError,
    InterpolationKeyError,
    OmegaConfBaseException,
    UnsupportedInterpolationType,
)


def one_line(exception: BaseException) -> str:
    """The first line of an exception's message (OmegaConf appends lines of its own)."""
    text = str(getattr(exception, "msg", None) or exception)
    return (text.splitlines() or [type(exception).__name__])[0]


def reference_problem(exception: OmegaConfBaseException) -> str:
    """One clause for a message."""
    text = one_line(exception)
    quoted = re.search(r"'([^']*)'", text)
    if isinstance(exception, GrammarParseError):
        return "'${' starts a reference that is not finished or not valid; write \\${ for the characters themselves"
    if isinstance(exception, InterpolationKeyError) and quoted:
        cure = f" (a variable of the environment is ${{oc.env:{quoted[1]}}})" if quoted[1].isupper() else ""
        return f"it refers to '{quoted[1]}', which this configuration does not have{cure}"
    if isinstance(exception, UnsupportedInterpolationType):
        return f"'${{{text.split()[-1]}:...}}' is not known; a variable of the environment is ${{oc.env:NAME}}"
    if quoted and text.endswith('not found"') and "Environment variable" in text:
        return f"the environment variable {quoted[1]} is not set"
    if "ecursive" in text:
        return "it refers to itself"
    return f"its reference cannot be resolved: {text.replace('interpolation', 'reference')}"


def conversion_problem(exception: OmegaConfBaseException, expected: str) -> str:
    """One clause for a reference that was resolved to a value of a wrong type."""
    reference = re.search(r"interpolation '(.*?)':", one_line(exception))
    value = re.search(r"[Vv]alue '(.*)'(?: of type|,)", one_line(exception))
    return f"expected {expected}, but {reference[1] if reference else 'its reference'} is " + (
        f"'{value[1]}'" if value else "not"
    )
