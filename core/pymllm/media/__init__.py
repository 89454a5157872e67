"""From untrusted references to pictures and videos to checked pixels; nothing in here knows a model.

:mod:`~pymllm.media.parts` reads content parts, :mod:`~pymllm.media.loader` turns what they name into
:class:`Picture` and :class:`Video`. Whatever is wrong with a part is a RequestError that names it.
"""

from pymllm.media.parts import PART_TYPES, offline_image, offline_video, parse_part
from pymllm.media.picture import Media, Picture, Video
from pymllm.media.reference import ImageReference, Reference, VideoReference

__all__ = [
    "PART_TYPES",
    "ImageReference",
    "Media",
    "Picture",
    "Reference",
    "Video",
    "VideoReference",
    "offline_image",
    "offline_video",
    "parse_part",
]
