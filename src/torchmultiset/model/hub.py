"""Download from and upload to the Hugging Face Hub: a repository is a predictor's folder, including the model card."""

from __future__ import annotations

from pathlib import Path

__all__ = ["PREFIX", "pull", "push"]

PREFIX = "hf://"
_FILES = ["predictor.json", "weights-*.safetensors", "README.md"]


def pull(address: str) -> Path:
    """Download a model, or find it in the local cache.

    Args:
        address: ``hf://owner/name``, or ``hf://owner/name@revision``.

    Returns:
        Folder of the predictor, for `Predictor.load`.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    name, _, revision = address.removeprefix(PREFIX).partition("@")
    try:
        return Path(snapshot_download(name, revision=revision or None, allow_patterns=_FILES))
    except HFValidationError as error:
        raise ValueError(f"{address} is not a valid address of a model: use hf://owner/name") from error
    except (HfHubHTTPError, LocalEntryNotFoundError) as error:
        raise FileNotFoundError(f"{address} cannot be downloaded: {str(error).splitlines()[0]}") from error


def push(folder: str | Path, name: str, *, private: bool = False) -> str:
    """Upload a predictor to the hub as the user who is logged in (``hf auth login``).

    Args:
        folder: Folder that `Predictor.save` wrote.
        name: ``owner/name`` of the repository, which is created if necessary.
        private: Whether a new repository is visible to its owner only.

    Returns:
        URL of the repository.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError

    if not Path(folder, "predictor.json").exists():
        raise FileNotFoundError(f"there is no predictor in {folder}: predictor.json is missing")
    api = HfApi()
    try:
        address = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, allow_patterns=_FILES)
    except HFValidationError as error:
        raise ValueError(f"{name!r} is not a valid name of a repository: use owner/name") from error
    except (HfHubHTTPError, LocalTokenNotFoundError) as error:
        raise OSError(f"the upload to {name} failed: {str(error).splitlines()[0]}") from error
    return str(address)
