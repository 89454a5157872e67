"""The process that decodes one video file: the file on its standard input, frames on its standard output.

Started and watched by :mod:`pymllm.media.films`. It writes messages of JSON, each behind its length (4 bytes, big
endian): ``{}`` once it has started; height, width, times and duration; then ``{}`` before the bytes of each frame. At
any point instead ``{"error": sentence}``, whose sentence is empty for a broken file.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import struct
import sys
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np

from pymllm.config import MediaConfig
from pymllm.errors import RequestError
from pymllm.media.checks import check_size
from pymllm.media.picture import Pixels
from pymllm.media.reference import VideoReference
from pymllm.media.sampling import check_duration, frame_count, spread
from pymllm.media.source import Encoded

if TYPE_CHECKING:
    from av import VideoFrame
    from av.container import InputContainer
    from av.video.stream import VideoStream

CODECS = ("h264", "hevc", "vp8", "vp9", "libvpx", "libvpx-vp9", "av1", "libdav1d", "mpeg4")
"""FFmpeg's decoders that are opened; it has hundreds."""

_DEMUXERS = {"MP4": "mov", "WebM": "matroska"}
_MEMORY = 4 * 1024**3
_THREADS = 4
_MAX_RATE = 1000
"""Frames a second, at which packets are still counted."""


def main() -> None:
    """Decode what standard input holds, as ``sys.argv[1]`` says (JSON: kind, video, config)."""
    import av  # noqa: F401 - that it cannot be imported is no fault of the file

    output = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    output.write(_message({}))
    output.flush()
    try:
        task = json.loads(sys.argv[1])
        config = MediaConfig(**task["config"])
        _limit_resources(config)
        with os.fdopen(0, "rb") as file:
            for piece in decode(task["kind"], file, VideoReference("", Encoded(b""), **task["video"]), config):
                output.write(piece)
                output.flush()
    except RequestError as error:
        output.write(_message({"error": str(error)}))
    except Exception:  # whatever FFmpeg makes of a stranger's bytes
        output.write(_message({"error": ""}))
    output.flush()


def decode(kind: str, file: BinaryIO, video: VideoReference, config: MediaConfig) -> Iterator[bytes]:
    """What is written to the output. Raises RequestError, and whatever PyAV raises."""
    with _open(kind, file, config) as container:
        timeline = _timeline(container, _stream(container, config), config)
    duration = timeline.duration
    check_duration(duration, config)
    indices = spread(len(timeline.starts), frame_count(video, len(timeline.starts), duration, config))
    file.seek(0)
    with _open(kind, file, config) as container:
        shape: tuple[int, ...] = ()
        for frame in _frames(container, _stream(container, config), [timeline.starts[i] for i in indices], timeline):
            pixels = _upright(frame)
            if not shape:
                shape = pixels.shape
                times = [timeline.seconds(index) for index in indices]
                yield _message({"height": shape[0], "width": shape[1], "times": times, "duration": duration})
            if pixels.shape != shape:
                raise RequestError("the frames of the video are not all of one size")
            yield _message({})
            yield pixels.tobytes()


@dataclass(frozen=True)
class _Timeline:
    """starts: of each frame, rising, in units of ``unit`` seconds. keys: (start, place to seek) of those that are
    decoded without others. lone: duration if there is but one frame."""

    starts: Sequence[int]
    keys: Sequence[tuple[int, int]]
    unit: Fraction
    lone: float

    @property
    def duration(self) -> float:
        """Of all frames at their mean rate, seconds."""
        count = len(self.starts)
        return self.seconds(-1) * count / (count - 1) if count > 1 else self.lone

    def seconds(self, index: int) -> float:
        return float((self.starts[index] - self.starts[0]) * self.unit)


def _open(kind: str, file: BinaryIO, config: MediaConfig) -> InputContainer:
    import av

    options = {"protocol_whitelist": "", "codec_whitelist": ",".join(CODECS), "max_pixels": str(config.max_pixels)}
    return cast("InputContainer", av.open(file, format=_DEMUXERS[kind], options=options))


def _stream(container: InputContainer, config: MediaConfig) -> VideoStream:
    stream = container.streams.best("video")
    if stream is None:
        raise RequestError("the file holds no video")
    stream = cast("VideoStream", stream)
    codec = stream.codec_context
    if codec.name not in CODECS:
        raise RequestError(f"the video is coded as {codec.name}, which is not supported")
    if not codec.width or not codec.height:  # to find it, FFmpeg may have to decode, which a large one fails at
        limit = f"{config.max_pixels} pixels (media.max_pixels)"
        raise RequestError(f"the size of its frames cannot be read, or is more than {limit}")
    check_size(codec.width, codec.height, config.max_pixels)
    codec.options = {"max_pixels": str(config.max_pixels)}
    codec.thread_count = _THREADS
    codec.thread_type = "AUTO"
    return stream


def _timeline(container: InputContainer, stream: VideoStream, config: MediaConfig) -> _Timeline:
    """Read without decoding."""
    starts: set[int] = set()
    keys: dict[int, int] = {}
    for packet in container.demux(stream):
        if packet.pts is None or packet.is_discard:
            continue
        starts.add(packet.pts)
        if packet.is_keyframe:
            keys[packet.pts] = packet.pts if packet.dts is None else packet.dts
        if len(starts) > config.max_video_seconds * _MAX_RATE:
            raise RequestError(f"the video has more than {len(starts) - 1} frames")
    if not starts:
        raise RequestError("the file holds no video")
    rate = float(stream.average_rate or 0) or 25.0
    return _Timeline(sorted(starts), sorted(keys.items()), Fraction(stream.time_base or 0), 1 / rate)


def _frames(
    container: InputContainer, stream: VideoStream, wanted: Sequence[int], timeline: _Timeline
) -> Iterator[VideoFrame]:
    """The frames that start then. Where a key frame lies between two of them, what is before it is skipped."""
    places = [start for start, _ in timeline.keys]
    position = timeline.starts[0]
    decoding = container.decode(stream)
    for start in wanted:
        key = bisect_right(places, start) - 1
        if key >= 0 and places[key] > position:
            container.seek(timeline.keys[key][1], stream=stream)
            decoding = container.decode(stream)
        frame = next((frame for frame in decoding if frame.pts is not None and frame.pts >= start), None)
        if frame is None or frame.is_corrupt:
            raise ValueError("a frame is missing or damaged")
        position = start
        yield frame


def _upright(frame: VideoFrame) -> Pixels:
    """RGB [H, W, 3], turned as the file says (phones record sideways)."""
    return np.ascontiguousarray(np.rot90(frame.to_ndarray(format="rgb24"), round(frame.rotation / 90) % 4))


def _limit_resources(config: MediaConfig) -> None:
    seconds = max(1, int(config.decode_timeout_seconds)) * _THREADS
    limits = {
        resource.RLIMIT_AS: _MEMORY,
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
    }
    for kind, most in limits.items():
        with contextlib.suppress(ValueError):  # the limit is lower already, or the system (macOS) has no such limit
            resource.setrlimit(kind, (most, most))


def _message(content: Mapping[str, Any]) -> bytes:
    encoded = json.dumps(content).encode()
    return struct.pack(">I", len(encoded)) + encoded
