"""Uploads folders to the Hugging Face hub, or to another server with its API (`HF_ENDPOINT`)."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vocagno.errors import InputError

_REMEDIES = {
    401: "there is no valid token: run `hf auth login`, or set HF_TOKEN",
    403: "the token may not write there: use one with write access, or another name",
}


class HubError(InputError):
    """The hub refused a request; the message names repository, reason and remedy."""


class HubUnreachableError(HubError):
    """The hub cannot be reached or failed; the same request may succeed later."""


@dataclass(frozen=True, slots=True)
class HubRepository:
    """A repository on the hub."""

    name: str
    """NAMESPACE/NAME, or NAME, which the hub puts in the namespace of the token."""
    kind: Literal["model", "dataset"]
    private: bool
    """True if only its owners see it. Has no effect on a repository that exists."""

    def create(self) -> str:
        """Creates the repository unless it exists. Returns: its whole name. Raises: HubError."""
        from huggingface_hub import HfApi

        try:
            options = {"private": self.private, "repo_type": self.kind}
            return str(HfApi().create_repo(self.name, exist_ok=True, **options).repo_id)
        except Exception as error:  # the types differ between the hub's clients
            raise self._hub_error(error) from error

    def push(self, folder: Path) -> str:
        """Uploads the files of a folder as a commit; creates the repository if it does not exist.

        Returns: the address of the commit.
        Raises: HubError, with the command that uploads the folder again.
        """
        from huggingface_hub import HfApi

        try:
            repository = self.create()
            options = {"repo_type": self.kind, "commit_message": f"Upload {self.kind} by vocagno"}
            commit = HfApi().upload_folder(repo_id=repository, folder_path=folder, **options)
        except Exception as error:
            hub_error = error if isinstance(error, HubError) else self._hub_error(error)
            remedy = f"The files are in {folder}. To push them again: {self.command(folder)}"
            raise type(hub_error)(f"{hub_error}. {remedy}") from error
        return str(commit.commit_url)

    def command(self, folder: Path) -> str:
        """Returns the command that uploads a folder to this repository."""
        words = ["hf", "upload", self.name, str(folder), "."]
        words += ["--repo-type", "dataset"] if self.kind == "dataset" else []
        words += ["--private"] if self.private else []
        return shlex.join(words)

    def _hub_error(self, error: Exception) -> HubError:
        """Makes the error to raise from what a client of the hub raised.

        Statuses of 500 or more, and 429 (too many requests), may pass: HubUnreachableError.
        """
        from huggingface_hub import constants

        status = getattr(getattr(error, "response", None), "status_code", None)
        lines = str(getattr(error, "server_message", None) or error).strip().partition("\n")
        answer = lines[0].rstrip(".")
        prefix = f"push_to_hub: {self.name}: "
        if isinstance(status, int) and status < 500 and status != 429:
            reason = _REMEDIES.get(status, answer or "refused")
            return HubError(f"{prefix}status {status} of {constants.ENDPOINT}: {reason}")
        if isinstance(error, ValueError):  # a wrong name, or a card that the hub does not take
            return HubError(prefix + answer)
        reason = f"{type(error).__name__}: {answer}"
        return HubUnreachableError(f"{prefix}{constants.ENDPOINT} failed: {reason}")
