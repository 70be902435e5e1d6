"""Processes that hold one teacher between them: all read the same texts, the first one writes."""

import os
from datetime import timedelta
from typing import Any

import torch

from vocagno.errors import ConfigError

PATIENCE = timedelta(days=30)
"""How long processes wait for work that may take hours: for the first one's word, which may wait
for shards of other launches, and for benchmarks."""


class Together:
    """The processes of this launch. The first one says what is to be read, the others follow.

    To be left as a context: a process that ended with the connections open would crash.
    """

    def __init__(self) -> None:
        """Raises: ConfigError if the processes were not started by a launcher."""
        if "RANK" not in os.environ:
            raise ConfigError(
                "teacher.tensor_parallel: needs a launcher that starts the processes, such as "
                "`accelerate launch -m vocagno ...` or torchrun"
            )
        self._began = not torch.distributed.is_initialized()
        if self._began:
            torch.distributed.init_process_group()
        self.leads: bool = torch.distributed.get_rank() == 0
        self._words: Any = torch.distributed.new_group(backend="gloo", timeout=PATIENCE)

    def say(self, word: str | None) -> str | None:
        """The first process's word, on every process; None means that there is nothing to do."""
        words = [word]
        torch.distributed.broadcast_object_list(words, src=0, group=self._words)
        return words[0]

    def __enter__(self) -> "Together":
        return self

    def __exit__(self, *_: object) -> None:
        if self._began:
            torch.distributed.destroy_process_group()
