"""The model card of a quantized checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from pymllm.quantize.judge import Figure
from pymllm.quantize.plan import Plan
from pymllm.quantize.scheme import Scheme


def write_card(
    out: Path, name: str, scheme: Scheme, plan: Plan, calibration: str, figures: Sequence[Figure], command: str
) -> None:
    """name: of the original. calibration: what was read. figures: none where it was not judged."""
    from importlib.metadata import version

    packages = ("pymllm", "llmcompressor", "compressed-tensors", "transformers", "torch")
    sizes = {"whole rows" if size is None else f"groups of {size}": len(names) for size, names in plan.groups.items()}
    lines = [
        "---",
        "tags: [compressed-tensors, pymllm]",
        "---",
        "",
        f"# {name}, {scheme.name}",
        "",
        f"{scheme.summary}. Made with",
        "",
        "```",
        command,
        "```",
        "",
        "| | |",
        "|---|---|",
        *(f"| layers in {told} | {count} |" for told, count in sizes.items()),
        f"| linear layers in full precision | {len(plan.kept)} |",
        f"| calibration | {calibration} |",
        f"| made | {datetime.now(timezone.utc):%Y-%m-%d}, {', '.join(f'{one} {version(one)}' for one in packages)} |",
        "",
    ]
    if figures:
        lines += ["| | original | quantized |", "|---|---|---|"]
        lines += [f"| {one.name} | {one.original:.4g} | {one.quantized:.4g} |" for one in figures]
    else:
        lines.append("It was not compared with the original.")
    lines += ["", *(f"- {note}" for note in plan.notes)]
    (out / "README.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
