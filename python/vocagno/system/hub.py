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
    """Whether only its owners see it. Has no effect on a repository that exists."""

    def create(self) -> str:
        """Creates the repository unless it exists. Returns: its whole name. Raises: HubError."""
        from huggingface_hub import HfApi

        try:
            options = {"private": self.private, "repo_type": self.kind}
            return str(HfApi().create_repo(self.name, exist_ok=True, **options).repo_id)
        except Exception as error:  # the types differ between the hub's clients
            raise self._refused(error) from error

    def push(self, folder: Path) -> str:
        """Uploads the files of a folder as a commit; creates the repository if it does not exist.

        Returns: the address of the commit.
        Raises: HubError, with the command that uploads the folder again.
        """
        from huggingface_hub import HfApi

        try:
            repository = self.create()
            given = {"repo_type": self.kind, "commit_message": f"Upload {self.kind} by vocagno"}
            done = HfApi().upload_folder(repo_id=repository, folder_path=folder, **given)
        except Exception as error:
            refused = error if isinstance(error, HubError) else self._refused(error)
            again = f"The files are in {folder}. To push them again: {self.command(folder)}"
            raise type(refused)(f"{refused}. {again}") from error
        return str(done.commit_url)

    def command(self, folder: Path) -> str:
        """The command that uploads a folder to this repository."""
        words = ["hf", "upload", self.name, str(folder), "."]
        words += ["--repo-type", "dataset"] if self.kind == "dataset" else []
        words += ["--private"] if self.private else []
        return shlex.join(words)

    def _refused(self, error: Exception) -> HubError:
        from huggingface_hub import constants

        status = getattr(getattr(error, "response", None), "status_code", None)
        lines = str(getattr(error, "server_message", None) or error).strip().partition("\n")
        said = lines[0].rstrip(".")
        what = f"push_to_hub: {self.name}: "
        if isinstance(status, int) and status < 500 and status != 429:
            reason = _REMEDIES.get(status, said or "refused")
            return HubError(f"{what}status {status} of {constants.ENDPOINT}: {reason}")
        if isinstance(error, ValueError):  # a wrong name, or a card that the hub does not take
            return HubError(what + said)
        reason = f"{type(error).__name__}: {said}"
        return HubUnreachableError(f"{what}{constants.ENDPOINT} failed: {reason}")
