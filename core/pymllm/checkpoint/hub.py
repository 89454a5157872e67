"""Snapshots of model hubs: Hugging Face (huggingface_hub) and ModelScope (modelscope, an optional extra)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pymllm.config import Hub, LoadFormat, ModelConfig
from pymllm.errors import CheckpointError

_METADATA = ["*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken"]
_NOT_NEEDED = ["*/*", "consolidated*.safetensors"]


def fetch_snapshot(name: str, model: ModelConfig) -> Path:
    """The local folder of hub id ``name`` at ``model.revision``, downloaded as far as it is needed.

    Without a network a snapshot that was downloaded before is used. Raises CheckpointError, in one line,
    when the repository is unknown, gated or out of reach.
    """
    if model.load_format == LoadFormat.gguf:
        raise CheckpointError(f"download the one .gguf file of '{name}' that you want, and set model.path to it")
    patterns = list(_METADATA)
    if model.load_format != LoadFormat.random:
        patterns.append("*.safetensors")
    if model.trust_remote_code:
        patterns.append("*.py")
    if model.hub == Hub.modelscope:
        return _modelscope(name, model.revision, patterns)
    return _huggingface(name, model.revision, patterns)


def _huggingface(name: str, revision: str | None, patterns: list[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    snapshot = _snapshot(snapshot_download, name, revision, patterns)
    try:
        return snapshot(False)
    except GatedRepoError as error:
        raise CheckpointError(f"'{name}' is gated: accept its terms on the hub, then run `hf auth login`") from error
    except RepositoryNotFoundError as error:
        raise CheckpointError(
            f"no folder '{name}' and no such repository on the hub: check model.path, or log in if it is private"
        ) from error
    except RevisionNotFoundError as error:
        raise CheckpointError(f"'{name}' has no revision '{revision}': check model.revision") from error
    except HFValidationError as error:
        raise CheckpointError(f"no folder '{name}', and it is not a hub id (owner/name) either") from error
    except Exception as error:  # the HTTP library, and so the classes of its errors, differ by version
        return _cached(name, revision, snapshot, error)


def _modelscope(name: str, revision: str | None, patterns: list[str]) -> Path:
    try:
        from modelscope import snapshot_download
    except ImportError as error:
        raise CheckpointError(f"model.hub: modelscope needs `pip install 'pymllm[modelscope]'` ({error})") from error
    snapshot = _snapshot(snapshot_download, name, revision, patterns)
    try:
        return snapshot(False)
    except Exception as error:  # its errors are plain HTTP ones, without a class per cause
        return _cached(name, revision, snapshot, error)


def _snapshot(
    download: Callable[..., str], name: str, revision: str | None, patterns: list[str]
) -> Callable[[bool], Path]:
    """A call of a hub's snapshot_download; its argument says whether only the local cache may be used."""

    def snapshot(local: bool) -> Path:
        return Path(
            download(
                name,
                revision=revision,
                allow_patterns=patterns,
                ignore_patterns=_NOT_NEEDED,
                local_files_only=local,
            )
        )

    return snapshot


def _cached(name: str, revision: str | None, snapshot: Callable[[bool], Path], cause: Exception) -> Path:
    """The snapshot of an earlier download, or the reason why there is nothing."""
    try:
        return snapshot(True)
    except Exception as error:
        what = f"'{name}'" if revision is None else f"'{name}' at '{revision}'"
        raise CheckpointError(
            f"the hub cannot be reached and {what} is not in its local cache: connect once, or set model.path "
            f"to a folder ({_first_line(cause)})"
        ) from error


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__
