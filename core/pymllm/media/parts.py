"""OpenAI content parts as typed references; nothing is fetched or decoded here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, cast

import numpy as np

from pymllm.errors import RequestError
from pymllm.media.reference import Detail, ImageReference, Reference, VideoReference
from pymllm.media.source import Source, from_url, from_value

PART_TYPES = ("image_url", "image", "video_url", "video")
"""``type`` of the content parts that :func:`parse_part` reads."""

_MOST = 2**31 - 1
_LEAST_FPS, _MOST_FPS = 0.001, 1000.0


def parse_part(part: Mapping[str, Any], where: str, *, offline: bool = False) -> Reference:
    """The reference in a content part whose ``type`` is one of PART_TYPES::

        {"type": "image_url", "image_url": {"url": U, "detail": D}}     or "image_url": U
        {"type": "video_url", "video_url": {"url": U, "fps": X}}        or num_frames; or "video_url": U
        {"type": "image", "image": V}                                   offline only
        {"type": "video", "video": [V, V, ...], "fps": X}               or num_frames, or both
        {"type": "video", "video": V, "fps": X}                         a file, offline only; or num_frames

    Each takes ``min_pixels`` and ``max_pixels`` beside ``type``. Null is as good as absent.
    U: data:, http(s) or file: URL, or an absolute path. V: offline a path, URL, bytes, PIL image or NumPy array;
    otherwise U. where: the part's place, such as "messages[0].content[2]".
    Raises RequestError that begins with it; its ``field`` is the key in the part.
    """
    try:
        return _read({key: value for key, value in part.items() if value is not None}, where, offline)
    except RequestError as error:
        raise RequestError(f"{where}: {error}", f"{where}.{error.field}" if error.field else where) from None


def offline_image(value: object, where: str) -> ImageReference:
    """A picture that a Python caller gave: path, URL, bytes, PIL image or NumPy array. Raises RequestError."""
    return cast(ImageReference, parse_part({"type": "image", "image": value}, where, offline=True))


def offline_video(value: object, where: str) -> VideoReference:
    """A video that a Python caller gave: path, URL, bytes, array [F, H, W, 3] or list of frames. Raises
    RequestError."""
    return cast(VideoReference, parse_part({"type": "video", "video": value}, where, offline=True))


def _read(part: Mapping[str, Any], where: str, offline: bool) -> Reference:
    kind = part.get("type")
    if kind not in PART_TYPES:
        _fail("type", f"must be one of {', '.join(PART_TYPES)}")
    if kind == "image" and not offline:
        _fail("type", "'image' is for Python callers; send image_url with a URL or a data: URL")
    sampled = ("fps", "num_frames") if kind == "video" else ()
    _known(part, "", ("type", kind, "min_pixels", "max_pixels", *sampled))
    if kind not in part:
        _fail(kind, "must be given")
    pixels = _pixels(part)
    if kind == "image":
        return ImageReference(where, _source(part[kind], kind, offline), "auto", *pixels)
    if kind == "image_url":
        asked = _object(part[kind], kind, ("url", "detail"))
        return ImageReference(where, _url(asked, kind), _detail(asked), *pixels)
    if kind == "video_url":
        asked = _object(part[kind], kind, ("url", "fps", "num_frames"))
        return VideoReference(where, _url(asked, kind), *_sampling(asked, "video_url."), 1, *pixels)
    return VideoReference(where, _frames_or_file(part[kind], offline), *_sampling(part, ""), 1, *pixels)


def _object(given: object, name: str, keys: Sequence[str]) -> Mapping[str, Any]:
    if isinstance(given, str):
        return {"url": given}
    if not isinstance(given, Mapping):
        _fail(name, "must be an object with a url")
    _known(given, f"{name}.", keys)
    return {key: value for key, value in given.items() if value is not None}


def _known(given: Mapping[Any, Any], prefix: str, keys: Sequence[str]) -> None:
    """What is not understood is not skipped either."""
    for key in given:
        if key not in keys:
            shown = str(key).encode("ascii", "backslashreplace").decode()
            _fail(f"{prefix}{shown:.60}", f"is unknown; there are {', '.join(keys)}")


def _url(asked: Mapping[str, Any], name: str) -> Source:
    return _source(asked.get("url"), f"{name}.url", offline=False)


def _source(value: object, name: str, offline: bool) -> Source:
    if not offline and not isinstance(value, str):
        _fail(name, "must be a string")
    try:
        return from_value(value) if offline else from_url(str(value))
    except RequestError as error:
        raise RequestError(f"{name}: {error}", name) from None


def _frames_or_file(video: Any, offline: bool) -> Source | tuple[Source, ...]:
    if not isinstance(video, (list, tuple)) and not (isinstance(video, np.ndarray) and video.ndim == 4):
        if not offline:
            _fail("video", "must be a list of frames; send one file as video_url")
        return _source(video, "video", offline)
    if len(video) == 0:
        _fail("video", "must hold at least one frame")
    return tuple(_source(frame, f"video[{index}]", offline) for index, frame in enumerate(video))


def _detail(asked: Mapping[str, Any]) -> Detail:
    detail = asked.get("detail", "auto")
    if detail not in ("auto", "low", "high"):
        _fail("image_url.detail", "must be auto, low or high")
    return cast(Detail, detail)


def _pixels(part: Mapping[str, Any]) -> tuple[int | None, int | None]:
    low, high = _integer(part, "min_pixels", ""), _integer(part, "max_pixels", "")
    if low is not None and high is not None and low > high:
        _fail("min_pixels", f"is {low}, more than max_pixels, {high}")
    return low, high


def _sampling(asked: Mapping[str, Any], prefix: str) -> tuple[float | None, int | None]:
    fps, num_frames = asked.get("fps"), _integer(asked, "num_frames", prefix)
    if fps is None:
        return None, num_frames
    if isinstance(fps, bool) or not isinstance(fps, (int, float)) or not _LEAST_FPS <= fps <= _MOST_FPS:
        _fail(f"{prefix}fps", f"must be a number from {_LEAST_FPS:g} to {_MOST_FPS:g}")
    if num_frames is not None and not isinstance(asked.get("video"), (list, tuple, np.ndarray)):
        _fail(f"{prefix}num_frames", "cannot be given together with fps")
    return float(fps), num_frames


def _integer(given: Mapping[str, Any], key: str, prefix: str) -> int | None:
    value = given.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST:
        _fail(f"{prefix}{key}", f"must be an integer from 1 to {_MOST}")
    return int(value)


def _fail(name: str, message: str) -> NoReturn:
    raise RequestError(f"{name} {message}", name)
