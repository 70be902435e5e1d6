"""A real vLLM server on the CPU of this machine, with a tiny random model.

`VOCAGNO_VLLM_PYTHON` names a Python that has vLLM; `make test-servers` makes one.
"""

import os
import signal
import subprocess
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

from families import FAMILIES
from runs import free_port
from tiny_models import tiny_llama

PYTHON = os.environ.get("VOCAGNO_VLLM_PYTHON")
NAME = "tiny"
"""Of the model on the server."""
READY_SECONDS = 300


def vllm_environment():
    """For processes with vLLM: on the CPU, one thread, no network."""
    return os.environ | {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
    }


def save_teacher(folder, seed=1):
    """A tiny Llama and its byte-level tokenizer, as vLLM can load them. Random weights are large,
    so that the losses of tokens differ."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = FAMILIES["byte-level"]()
    sizes = {"hidden_size": 64, "max_position_embeddings": 2048, "initializer_range": 0.3}
    model = tiny_llama(tokenizer.get_vocab_size(), seed, head_dim=32, **sizes)
    model.save_pretrained(folder)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>")
    wrapped.save_pretrained(folder)
    return folder


class VllmServer:
    """Serves the model in a folder until `kill` or the end of the block; `start` starts it again,
    at the same address."""

    def __init__(self, folder, log, *, max_model_len=514):
        self.folder, self.log = Path(folder), Path(log)
        self.max_model_len = max_model_len
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = None

    def start(self):
        """Returns when the server answers."""
        options = {
            "--model": self.folder.name,  # relative: the server names it in its answers
            "--served-model-name": NAME,
            "--dtype": "float32",
            "--max-model-len": self.max_model_len,
            "--host": "127.0.0.1",
            "--port": self.port,
        }
        words = [str(word) for pair in options.items() for word in pair]
        command = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", *words, "--enforce-eager"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=self.folder.parent,
                env=vllm_environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + READY_SECONDS
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                words = self.log.read_text(errors="replace")[-3000:]
                self.kill()
                raise AssertionError(f"the server did not start:\n{words}")
            time.sleep(0.5)

    def answers(self):
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as reply:
                return reply.status == 200
        except OSError:
            return False

    def kill(self):
        """SIGKILL, of the server and of the processes that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.kill()
