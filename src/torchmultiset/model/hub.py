"""Predictors on the Hugging Face Hub: a repository there is the folder of a predictor, model card included."""

from __future__ import annotations

from pathlib import Path

__all__ = ["PREFIX", "pull", "push"]

PREFIX = "hf://"
_FILES = ["predictor.json", "weights-*.safetensors", "README.md"]


def pull(address: str) -> Path:
    """Fetch a model, or find it among those that were fetched before.

    Args:
        address: ``hf://owner/name``, or ``hf://owner/name@revision``.

    Returns:
        A folder for `Predictor.load`, which executes nothing in it.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    name, _, revision = address.removeprefix(PREFIX).partition("@")
    try:
        return Path(snapshot_download(name, revision=revision or None, allow_patterns=_FILES))
    except HFValidationError as error:
        raise ValueError(f"{address} is no address of a model: write hf://owner/name") from error
    except (HfHubHTTPError, LocalEntryNotFoundError) as error:
        raise FileNotFoundError(f"{address} cannot be fetched: {str(error).splitlines()[0]}") from error


def push(folder: str | Path, name: str, *, private: bool = False) -> str:
    """Put a predictor on the hub, as whoever is logged in there (``hf auth login``).

    Args:
        folder: Where `Predictor.save` wrote it.
        name: ``owner/name`` of the repository, which is made if need be.
        private: Whether only its owner sees a repository that is made.

    Returns:
        Its address in a browser.
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
        raise ValueError(f"{name!r} is no name of a repository: write owner/name") from error
    except (HfHubHTTPError, LocalTokenNotFoundError) as error:
        raise OSError(f"the hub refuses {name}: {str(error).splitlines()[0]}") from error
    return str(address)
