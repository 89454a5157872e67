"""Video files: frames, times and turns as the file says, and no way out of the decoding process."""

from __future__ import annotations

import io
import json
import struct
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from media_files import film
from pymllm.config import MediaConfig
from pymllm.errors import RequestError
from pymllm.media import Media, Video, VideoReference, offline_video
from pymllm.media.budget import Budget
from pymllm.media.film_process import decode
from pymllm.media.films import decode_film
from pymllm.media.source import Encoded
from pymllm.media.videos import decode_video

av = pytest.importorskip("av")

Load = Callable[..., list[Media]]

COUNT, RATE = 24, 8
COLOURS = [(10 * i, 250 - 10 * i, 40 + 5 * (i % 7)) for i in range(COUNT)]
FRAMES = [np.full((48, 64, 3), colour, np.uint8) for colour in COLOURS]
MP4 = film(FRAMES, RATE)


def video(load: Load, data: bytes, settings: dict[str, Any] | None = None, **sampling: Any) -> Video:
    [video] = load(replace(offline_video(data, "here"), **sampling), **(settings or {}))
    assert isinstance(video, Video)
    assert not video.frames.flags.writeable
    return video


def numbers(taken: Video) -> list[int]:
    """Which frames they are, by their colour."""
    middle = taken.frames[:, taken.height // 2, taken.width // 2].astype(int)
    return [int(abs(np.array(COLOURS) - colour).sum(1).argmin()) for colour in middle]


@pytest.mark.parametrize(
    ("codec", "container"),
    [
        ("libx264", "mp4"),
        ("mpeg4", "mp4"),
        ("libx264", "mov"),
        ("libvpx-vp9", "webm"),
        ("libvpx", "webm"),
        ("libx264", "matroska"),
    ],
)
@pytest.mark.parametrize("asked", [{"fps": 2.0}, {"num_frames": 24}])
def test_frames_and_times(load: Load, codec: str, container: str, asked: dict[str, Any]) -> None:
    if codec not in av.codec.codecs_available:
        pytest.skip(f"this PyAV has no {codec}")
    taken = video(load, film(FRAMES, RATE, codec, container), **asked)
    # As transformers samples: evenly from the first to the last; 24 frames at 8 a second last 3 seconds.
    expected = [0, 5, 9, 14, 18, 23] if "fps" in asked else list(range(24))
    assert numbers(taken) == expected
    assert taken.timestamps == pytest.approx([number / RATE for number in expected], abs=1e-3)
    assert taken.duration == pytest.approx(3.0, abs=0.01)
    assert taken.fps == pytest.approx(len(expected) / 3.0, abs=0.01)
    assert abs(taken.frames[:, 24, 32].astype(int) - np.array(COLOURS)[expected]).max() <= 12


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"num_frames": 1}, [0]),
        ({"num_frames": 2}, [0, 23]),
        ({"num_frames": 4}, [0, 8, 15, 23]),
        ({"num_frames": 100}, list(range(24))),
        ({"fps": 100.0}, list(range(24))),
        ({"fps": 0.1}, [0]),
        ({"fps": 0.1, "min_frames": 4}, [0, 8, 15, 23]),
        ({}, [0, 5, 9, 14, 18, 23]),
    ],
)
@pytest.mark.parametrize("gop", [1, 5, 100])
def test_sampling(asked: dict[str, Any], expected: list[int], gop: int) -> None:
    """Wherever key frames are: those between two frames are what the decoder jumps to. (In this process.)"""
    reference = VideoReference("", Encoded(b""), **asked)
    pieces = list(decode("MP4", io.BytesIO(film(FRAMES, RATE, gop=gop)), reference, MediaConfig()))
    plan = json.loads(pieces[0][4:])
    assert plan["times"] == [number / RATE for number in expected]
    frames = np.stack([np.frombuffer(piece, np.uint8).reshape(48, 64, 3) for piece in pieces[2::2]])
    assert numbers(Video.of(frames, plan["times"], plan["duration"])) == expected


def test_as_transformers_samples(load: Load) -> None:
    from transformers.video_utils import VideoMetadata

    processor = pytest.importorskip("transformers.models.qwen3_vl.video_processing_qwen3_vl").Qwen3VLVideoProcessor
    rate = Fraction(30000, 1001)
    taken = video(load, film(FRAMES, rate), fps=10.0)
    indices = processor.sample_frames(
        processor(), VideoMetadata(total_num_frames=24, fps=float(rate), duration=24 / float(rate)), fps=10.0
    )
    assert numbers(taken) == list(indices)
    assert taken.timestamps == pytest.approx([index / float(rate) for index in indices], abs=1e-4)


@pytest.mark.parametrize(
    ("matrix", "turn"),
    [
        ((0x10000, 0, 0, 0x10000), lambda p: p),
        ((0, 0x10000, -0x10000, 0), lambda p: np.rot90(p, -1, (1, 2))),  # shown a quarter clockwise
        ((-0x10000, 0, 0, -0x10000), lambda p: np.rot90(p, 2, (1, 2))),
        ((0, -0x10000, 0x10000, 0), lambda p: np.rot90(p, 1, (1, 2))),
    ],
)
def test_turned_upright(load: Load, matrix: tuple[int, ...], turn: Callable[[np.ndarray], np.ndarray]) -> None:
    """The track header's matrix (ISO 14496-12, 8.3.2), written by hand over the one that says nothing."""
    picture = np.zeros((48, 64, 3), np.uint8)
    picture[:24, :32], picture[:24, 32:], picture[24:, :32] = 250, (250, 0, 0), (0, 0, 250)
    data = film([picture] * 4)
    a, b, c, d = matrix
    plain = struct.pack(">9i", 0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)
    at = data.index(plain, data.index(b"tkhd"))
    turned = data[:at] + struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 0x40000000) + data[at + 36 :]
    taken = video(load, turned, num_frames=1)
    expected = turn(picture[None])
    assert taken.frames.shape == expected.shape
    assert abs(taken.frames[:, 4::8, 4::8].astype(int) - expected[:, 4::8, 4::8]).max() <= 12


def sound() -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as output:
        stream = output.add_stream("aac", rate=44100)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.rate = 44100
        output.mux(stream.encode(frame))
        output.mux(stream.encode())
    return file.getvalue()


def box(name: bytes) -> int:
    return MP4.index(name) - 4


def patched(name: bytes, offset: int, content: bytes) -> bytes:
    """The file with other bytes at ``offset`` of a box's content."""
    at = box(name) + 8 + offset
    return MP4[:at] + content + MP4[at + len(content) :]


REFUSED: dict[str, tuple[bytes, dict[str, Any], str]] = {
    "the start alone": (MP4[:40], {}, "the MP4 file is cut off or broken"),
    "half": (MP4[: len(MP4) // 2], {}, "the MP4 file is cut off or broken"),
    "all but a byte": (MP4[:-1], {}, "the MP4 file is cut off or broken"),
    "no index": (MP4.replace(b"moov", b"voom"), {}, "the MP4 file is cut off or broken"),
    "no frames there": (patched(b"mdat", 0, b"\0" * 2000), {}, "the MP4 file is cut off or broken"),
    "a year between frames": (patched(b"stts", 12, struct.pack(">I", 2**30)), {}, "the video lasts "),
    "a codec that is not listed": (film(FRAMES, codec="mpeg2video", container="matroska"), {}, "is not supported"),
    "sound alone": (sound(), {}, "the file holds no video"),
    "webm's start alone": (b"\x1a\x45\xdf\xa3", {}, "the WebM file is cut off or broken"),
    "half a webm": (film(FRAMES, container="matroska")[:900], {}, "the WebM file is cut off or broken"),
    "noise in a webm": (b"\x1a\x45\xdf\xa3\x80\x18\x53\x80\x67\xff" + bytes(range(256)) * 9, {}, ""),
    "too long": (MP4, {"max_video_seconds": 2.9}, "the video lasts 3 seconds; at most 2.9 seconds are taken"),
    "too large": (MP4, {"max_pixels": 3000}, "cannot be read, or is more than 3000 pixels (media.max_pixels)"),
    "too large together": (MP4, {"max_request_pixels": 9999}, "together more than 9999 pixels"),
    "too slow": (MP4, {"decode_timeout_seconds": 0.01}, "it was not decoded within 0.01 seconds"),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", REFUSED)
def test_refused(load: Load, name: str) -> None:
    data, settings, sentence = REFUSED[name]
    with pytest.raises(RequestError) as refused:
        video(load, data, settings)
    assert str(refused.value).startswith("here: ")
    assert "\n" not in str(refused.value)
    assert sentence in str(refused.value)


TABLES = {
    "no samples": MP4.replace(b"stsz", b"zsts"),
    "no chunks": MP4.replace(b"stco", b"octs"),
    "a billion samples": patched(b"stsz", 4, struct.pack(">II", 1, 2**30)),
    "a billion durations": patched(b"stts", 4, struct.pack(">I", 2**30)),
    "a billion frames of one duration": patched(b"stts", 8, struct.pack(">I", 2**30)),
    "a billion chunks": patched(b"stco", 4, struct.pack(">I", 2**30)),
    "a billion samples in a chunk": patched(b"stsc", 12, struct.pack(">I", 2**30)),
    "no time between frames": patched(b"stts", 12, struct.pack(">I", 0)),
    "no time scale": patched(b"mdhd", 12, struct.pack(">I", 0)),
    "a canvas of 65535 x 65535": patched(b"mp4v", 24, b"\xff\xff\xff\xff"),
    "an unknown codec": MP4.replace(b"mp4v", b"xxxx"),
    "frames elsewhere": patched(b"stco", 8, struct.pack(">I", 2**31)),
    "a track of no handler": MP4.replace(b"vide", b"xxxx"),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", TABLES)
def test_tables_that_lie(load: Load, name: str) -> None:
    """Where FFmpeg knows better, it is a video of the frames that are there; otherwise it is refused."""
    assert TABLES[name] != MP4
    try:
        taken = video(load, TABLES[name], num_frames=24)
    except RequestError:
        return
    assert numbers(taken) == sorted(numbers(taken))
    assert abs(taken.frames[:, 24, 32].astype(int) - np.array(COLOURS)[numbers(taken)]).max() <= 12


def test_what_a_file_names_is_not_opened(load: Load, tmp_path: Path) -> None:
    """Formats that name other files or addresses are not read at all."""
    other = tmp_path / "other.mp4"
    other.write_bytes(MP4)
    for text in (f"ffconcat version 1.0\nfile '{other}'\n", f"#EXTM3U\n#EXTINF:1,\n{other}\n", f"<MPD>{other}</MPD>"):
        with pytest.raises(RequestError, match="not a video"):
            video(load, text.encode())


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_key_of_the_server_is_in_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """And it goes away with the request."""
    monkeypatch.setenv("PYMLLM_API_KEY", "secret")
    config = MediaConfig(decode_timeout_seconds=60)
    budget = Budget(config)
    large = film([np.random.default_rng(i).integers(0, 256, (480, 640, 3), np.uint8) for i in range(4)] * 40, 30)
    errors: list[Exception] = []

    def run() -> None:
        try:
            decode_film("MP4", large, VideoReference("", Encoded(b""), num_frames=160), config, budget)
        except RequestError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    process = _child("film_process")
    assert b"secret" not in (process / "environ").read_bytes()
    budget.cancel()
    thread.join(20)
    assert [str(error) for error in errors] == ["the request was aborted"]
    assert not process.exists()


def _child(name: str) -> Path:
    """The process whose command line holds the name, once it runs."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if name.encode() in (process / "cmdline").read_bytes():
                    return process
            except OSError:
                continue
    raise AssertionError("no such process")


def test_without_pyav(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    config = MediaConfig()
    with pytest.raises(RequestError, match=r"it lacks PyAV: pip install 'pymllm\[video\]'"):
        decode_video(MP4, VideoReference("", Encoded(b"")), config, Budget(config))


def test_settings_travel_as_json() -> None:
    from dataclasses import asdict

    assert MediaConfig(**json.loads(json.dumps(asdict(MediaConfig())))) == MediaConfig()
