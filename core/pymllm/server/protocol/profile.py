"""POST /start_profile and POST /stop_profile, named as SGLang's and vLLM's."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from pymllm.server.protocol.base import Body, Neutral


class StartProfileRequest(Body):
    """What to profile. output_dir: folder of the trace. num_steps: steps of the engine, then the profile ends by
    itself. with_stack: record Python functions too, which slows the engine's Python down."""

    unsupported: ClassVar[Neutral] = {
        "activities": (["CPU", "GPU"], ["GPU", "CPU"]),
        "start_step": (0,),
        "profile_by_stage": (False,),
        "profile_stages": ([],),
        "record_shapes": (False,),
        "merge_profiles": (False,),
        "profile_prefix": (),
    }

    output_dir: str | None = Field(default=None, min_length=1, max_length=4096)
    num_steps: int | None = Field(default=None, ge=1)
    with_stack: bool = False


class StopProfileRequest(Body):
    """An empty object."""
