"""A teacher that vLLM computes in this process.

vLLM must be installed next to vocagno, in the build for the device at hand.
"""

import os
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vocagno.config.teacher import TeacherConfig
from vocagno.errors import ConfigError, InputError, naming
from vocagno.models.loading import teacher_settings, torch_dtype
from vocagno.models.weights import largest_input
from vocagno.teacher.candidates import ScoredWindow, code_candidates
from vocagno.teacher.configured import Engine
from vocagno.teacher.windows import Window, losses_of, windows_to_score

ROOM = 2
"""The number of tokens that vLLM needs besides `teacher.context`.

They are a window's last token, which our own scorer does not read, and one to generate, because it
generates at least one.
"""
_SEQUENCES = 256
"""The most windows that vLLM computes at a time."""
_PASSES = 32
"""The number of forward passes between two reports of progress."""
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # in this process, which SIGTERM can stop
    "VLLM_LOGGING_LEVEL": "ERROR",  # it warns of the tokenizer that it need not have
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # stdout is for results
    "VLLM_NO_USAGE_STATS": "1",
}
"""Environment variables of vLLM, which are set unless the user has set them."""


class VllmError(InputError):
    """vLLM gave log-probabilities of other tokens than it was asked for."""


class VllmEngine(Engine):
    """An engine that runs vLLM in this process, on its first device."""

    def check(self) -> None:
        """Checks that vLLM is installed and that the model can read `teacher.context` with it.

        Raises: ConfigError if not, or in a launch of several processes.
        """
        config = self.teacher.config
        if find_spec("vllm") is None:
            raise ConfigError(
                "teacher.engine: vllm is not installed; install the build for your device next to "
                "vocagno (CUDA: pip install vllm), or use teacher.engine: transformers"
            )
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ConfigError(
                "teacher.engine: vllm: is not for a launch of several processes; start the same "
                "command once for each GPU, with CUDA_VISIBLE_DEVICES"
            )
        limit = largest_input(teacher_settings(config))
        if limit is not None and config.context + ROOM > limit:
            raise ConfigError(
                f"teacher.context: {config.context} tokens, and teacher.engine: vllm needs {ROOM} "
                f"more, but the teacher reads at most {limit}; set teacher.context to at most "
                f"{limit - ROOM}"
            )

    def load(self) -> "VllmScorer":
        """Loads the model on its device. Raises: ConfigError if vLLM cannot load it."""
        teacher = self.teacher
        return VllmScorer(teacher.config, teacher.spans.vocabulary_size, teacher.device)


class VllmScorer:
    """A `Scorer` that runs vLLM in this process."""

    def __init__(self, config: TeacherConfig, vocabulary_size: int, device: torch.device) -> None:
        """Loads the model, from safetensors only.

        Args: vocabulary_size: the number of ids of the teacher's tokenizer.
        Raises: ConfigError if vLLM cannot load the model, or the tokenizer has more ids.
        """
        rows = teacher_settings(config).get_text_config().vocab_size
        if rows < vocabulary_size:
            raise ConfigError(
                f"teacher.tokenizer: {vocabulary_size} ids, but teacher.model has {rows}: they do "
                "not belong together"
            )
        for name, value in _ENVIRONMENT.items():
            # Before the import, which sets up vLLM's logging.
            os.environ.setdefault(name, value)
        with naming("teacher.engine: vllm"):
            from vllm import LLM, SamplingParams

            self._llm = LLM(
                config.model,
                dtype=str(torch_dtype(config.dtype, device)).removeprefix("torch."),
                max_model_len=config.context + ROOM,
                max_num_batched_tokens=config.batch_tokens,
                max_num_seqs=min(_SEQUENCES, config.batch_tokens),
                max_logprobs=max(1, config.candidates),
                enforce_eager=device.type == "cpu",
                # Tokens of a cached prefix are not computed, so they would have no
                # log-probabilities.
                enable_prefix_caching=False,
                # Raw: before temperature and penalties, which a model's generation_config may set.
                logprobs_mode="raw_logprobs",
                generation_config="vllm",
                load_format="safetensors",
                skip_tokenizer_init=True,
            )
            self._params = SamplingParams(
                max_tokens=1,
                temperature=1.0,
                prompt_logprobs=config.candidates,
                flat_logprobs=True,
                detokenize=False,
            )
        self._candidates = config.candidates, vocabulary_size
        self._group_tokens = _PASSES * config.batch_tokens

    def score(
        self, windows: Sequence[Window]
    ) -> Iterator[tuple[int, NDArray[np.float32] | ScoredWindow]]:
        """Yields number and losses of each window that requests any, in their order."""
        from vllm import TokensPrompt

        numbers = windows_to_score(windows)
        # In groups, as `generate` returns when all of its prompts are done: progress would be that
        # of a whole shard.
        ends = np.cumsum([len(windows[number].ids) for number in numbers])
        groups = dict(zip(numbers, (ends // self._group_tokens).tolist(), strict=True))
        for _, numbers_of_group in groupby(numbers, key=groups.__getitem__):
            group = [*numbers_of_group]  # in which vLLM forms its own batches
            prompts = [TokensPrompt(prompt_token_ids=windows[n].ids.tolist()) for n in group]
            outputs = self._llm.generate(prompts, self._params, use_tqdm=False)
            for number, output in zip(group, outputs, strict=True):
                yield number, _losses(windows[number], output.prompt_logprobs, *self._candidates)


def _losses(
    window: Window, flat: Any, candidates: int, num_ids: int
) -> NDArray[np.float32] | ScoredWindow:
    """The requested losses of a window, and the candidates if there are any.

    Args: flat: vLLM's `FlatLogprobs` of the window.
    Raises: VllmError if they are not those of the ids in the window.
    """
    starts, ends = (np.array(getattr(flat, f"{end}_indices", ())) for end in ("start", "end"))
    # The first token has no log-probability; each other one has its own, then the candidates'.
    is_same = len(starts) == len(window.ids) and bool((ends - starts == 1 + candidates)[1:].all())
    if is_same:
        rows = starts[1:]
        is_same = np.array_equal(np.array(flat.token_ids)[rows], window.ids[1:])
    if not is_same:
        raise VllmError(
            "teacher.engine: vllm gives log-probabilities of other tokens than it was asked for; "
            "use teacher.engine: transformers"
        )

    def error(words: str) -> VllmError:
        return VllmError(f"teacher.engine: vllm {words}")

    places = rows[window.asked_from - 1 :, None] + np.arange(1 + candidates)
    log_p = np.array(flat.logprobs, np.float64)[places]
    losses = losses_of(log_p[:, 0], error)
    if not candidates:
        return losses
    ids = np.array(flat.token_ids, np.int64)[places]
    return ScoredWindow(losses, *code_candidates(ids, log_p, candidates, num_ids, error))
