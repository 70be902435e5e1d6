"""The training loop on Accelerate: one loop for every method.

A step is: its micro-batches are loaded, their counts added up over all processes (on the host),
then forward and backward through each, the loss scaled by one count for the whole step.
"""

import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from vocagno.config import Config, GuidanceConfig
from vocagno.progress import Progress
from vocagno.rows import RowStore
from vocagno.score_index import MatchedScores
from vocagno.stopping import StopRequest
from vocagno.training.checkpoint import Checkpoints, MetricsLog, publish_folder, written_whole
from vocagno.training.data import (
    COUNTS,
    Batch,
    Collator,
    MicroBatches,
    RowOrder,
    ValidationBatches,
    ahead,
    loader,
)
from vocagno.training.guidance import kept_count
from vocagno.training.isolation import check_isolation
from vocagno.training.layers import compile_layers
from vocagno.training.live import LivePieces, LiveTeacher
from vocagno.training.loading import (
    check_positions,
    load_student,
    transformers_tokenizer,
)
from vocagno.training.materials import Materials
from vocagno.training.metrics import Window, check_window
from vocagno.training.optimization import (
    build_optimizer,
    gradient_norm,
    learning_rate,
    loss_scale,
    set_learning_rate,
)
from vocagno.training.processes import HostSum, agreed
from vocagno.training.scorer import Pass
from vocagno.training.student import SUMS, GuidedStudent
from vocagno.training.student_tokenizer import StudentTokenizer


class Training:
    """A run from its stores to its final model; `run` goes on from the latest checkpoint."""

    def __init__(
        self,
        config: Config,
        accelerator: Accelerator,
        materials: Materials,
        tokenizer: StudentTokenizer,
    ) -> None:
        self.config, self.accelerator = config, accelerator
        self.materials = materials
        self.final_tokenizer = transformers_tokenizer(tokenizer)
        model = load_student(config.student, tokenizer.spans.vocabulary_size, config.train.seed)
        check_positions(model, config.data.seq_len, "data.seq_len", "student")
        if config.data.isolate:
            check_isolation(model)
        student = GuidedStudent(model, config.guidance, config.train.head_loss)
        if config.train.gradient_checkpointing:
            model.activation_checkpointing_enable({"use_reentrant": False})
        if config.train.compile:
            compile_layers(model)
        # One call for both, as FSDP2 wants it. The loader is not prepared: its batches already are
        # those of this process.
        self.student, self.optimizer = accelerator.prepare(
            student, build_optimizer(student, config.optimizer)
        )
        self.live = None
        if materials.texts is not None:
            self.live = LiveTeacher(config, accelerator.device)
        self.host_sum = HostSum(accelerator, config.train.collective_timeout)
        self.checkpoints = Checkpoints(
            config.output / "checkpoints", accelerator, config.train.keep_checkpoints
        )

    def run(self) -> bool:
        """Trains to the end, or until SIGTERM; True if the run is complete."""
        with StopRequest() as self.stop:
            return self._run()

    def _run(self) -> bool:
        config = self.config
        first_step = agreed(self.checkpoints.latest())
        if first_step:
            self.checkpoints.load(first_step)
        self.log = self._metrics_log(first_step)
        batches = ahead(map(self._planned, self._loader(first_step)))
        window = None
        main = self.accelerator.is_main_process
        total = config.train.steps
        with Progress("training", total, unit="steps", show=main, start=first_step) as progress:
            for step in range(first_step, total):
                window = window or Window(self.accelerator.device)
                stopped = self._step(step, batches, window)
                done = step + 1
                saving = done % config.train.checkpoint_every == 0 or done == total or stopped
                if done % config.train.log_every == 0 or saving:  # checked before it is saved
                    self._report(done, window, progress)
                    window = None
                if done % config.train.eval_every == 0 or done == total:
                    self._validate(done)
                if saving:
                    self.checkpoints.save(done)
                if stopped and done < total:
                    return False
                progress.at(done)
        self._publish()
        return True

    def _metrics_log(self, first_step: int) -> MetricsLog | None:
        """The log, on the one process that writes it."""
        if not self.accelerator.is_main_process:
            return None
        return MetricsLog(self.config.output / "metrics.jsonl", first_step)

    def _loader(self, first_step: int) -> Any:
        accelerator, train, rows = self.accelerator, self.config.train, self.materials.rows
        order = RowOrder(len(rows), train.seed)
        batches = MicroBatches(
            order, train, first_step, accelerator.process_index, accelerator.num_processes
        )
        scores: MatchedScores | LivePieces | None = self.materials.scores
        if self.live is not None:
            assert self.materials.texts is not None
            scores = LivePieces(self.materials.texts, self.live.reader)
        collator = Collator(scores, self.config.guidance, self.config.data)
        return loader(rows, batches, collator, self.config.data.num_workers)

    def _planned(self, batch: Batch) -> tuple[Batch, list[Pass]]:
        """A micro-batch, and what a live teacher has to do for it."""
        if self.live is None or batch.live is None:
            return batch, []
        return batch, self.live.passes(batch.live)

    def _step(
        self, step: int, batches: Iterator[tuple[Batch, list[Pass]]], window: "Window"
    ) -> bool:
        """One optimizer step; True if any process was told to stop."""
        accelerator, config = self.accelerator, self.config
        accumulation = config.train.accumulation(accelerator.num_processes)
        started = time.monotonic()
        micro_batches = list(islice(batches, accumulation))
        window.add_wait(time.monotonic() - started)
        local = torch.stack([batch.counts for batch, _ in micro_batches])
        stop = torch.tensor([int(self.stop.received)])
        shared = self.host_sum(torch.cat([local.flatten(), stop]))
        counts = step_counts(shared[:-1].view_as(local), config.guidance)
        denominator = counts["predicted" if config.guidance.normalize == "tokens" else "kept"]
        scale = loss_scale(accelerator.num_processes, accumulation, denominator)
        set_learning_rate(self.optimizer, learning_rate(step, config.train.steps, config.optimizer))
        num_passes = [len(passes) for _, passes in micro_batches]
        if config.teacher.shard:  # all hold one teacher: it runs as often on each
            num_passes = self.host_sum.largest(torch.tensor(num_passes)).tolist()
        for (batch, passes), count in zip(micro_batches, num_passes, strict=True):
            tensors = batch.to(accelerator.device)
            if self.live is not None and batch.live is not None:
                with window.teacher_time.measured():
                    losses = self.live.losses(batch.live, passes, count)
                tensors["teacher_loss"] = losses
            with accelerator.accumulate(self.student):
                loss, sums, _ = self.student(**tensors, num_kept=self._num_kept(batch))
                accelerator.backward(loss * scale)
                window.add_sums(sums)
        window.add_step(counts, self._update())
        return bool(shared[-1] > 0)

    def _num_kept(self, batch: Batch) -> int | None:
        """How many tokens of a micro-batch will be kept, unless others' tokens decide it, too."""
        if self.config.guidance.scope == "step" and self.accelerator.num_processes > 1:
            return None
        return int(batch.counts[COUNTS.index("kept")])

    def _update(self) -> Tensor:
        """Clips, steps, clears; the norm of the gradient before clipping."""
        limit = self.config.optimizer.max_grad_norm
        parameters = list(self.student.parameters())
        if limit is None:
            norm = gradient_norm(parameters)
        else:
            norm = self.accelerator.clip_grad_norm_(parameters, limit)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return norm

    def _report(self, done: int, window: "Window", progress: Progress) -> None:
        """Writes the window's metrics, and stops the run if they are not those of one."""
        sums = self.host_sum(window.sums.cpu())
        entry = window.entry(done, dict(zip(SUMS, sums.tolist(), strict=True)))
        entry["lr"] = learning_rate(done - 1, self.config.train.steps, self.config.optimizer)
        if self.log:
            self.log.write(entry)
        progress.at(done, f"loss {entry['loss']:.3f}, kept {entry['kept_fraction']:.0%}")
        check_window(entry, self.config.guidance)

    def _validate(self, done: int) -> None:
        """Logs the mean loss over the held-out text."""
        if self.materials.validation is None:
            return
        started = time.monotonic()
        total, count = self._validation_sums(self.materials.validation)
        entry = {
            "step": done,
            "validation_loss": total / max(1, count),
            "validation_tokens": int(count),
            "validation_seconds": round(time.monotonic() - started, 3),
        }
        if self.log:
            self.log.write(entry)

    @torch.no_grad()
    def _validation_sums(self, rows: RowStore) -> tuple[float, float]:
        accelerator = self.accelerator
        batches = ValidationBatches(
            len(rows), self.config.train.micro_batch, accelerator.process_index,
            accelerator.num_processes,
        )  # fmt: skip
        collator = Collator(None, self.config.guidance, self.config.data)
        total = torch.zeros((), dtype=torch.float64, device=accelerator.device)
        count = 0
        self.student.eval()
        for batch in loader(rows, batches, collator, self.config.data.num_workers):
            tensors = batch.to(accelerator.device)
            total += self.student(**tensors)[1][SUMS.index("nll")]
            count += int(batch.counts[COUNTS.index("predicted")])
        self.student.train()
        sums = self.host_sum(torch.stack([total.cpu(), torch.tensor(float(count)).double()]))
        return float(sums[0]), float(sums[1])

    def _publish(self) -> None:
        """Writes the final model and tokenizer as `from_pretrained` reads them."""
        accelerator, final = self.accelerator, final_folder(self.config)
        state = accelerator.get_state_dict(self.student)
        if accelerator.is_main_process:
            temporary = final.with_suffix(".tmp")
            model = accelerator.unwrap_model(self.student).model
            prefix = "model."
            weights = {name.removeprefix(prefix): tensor for name, tensor in state.items()}
            with written_whole(temporary):
                model.save_pretrained(temporary, state_dict=weights)
                self.final_tokenizer.save_pretrained(temporary)
                publish_folder(temporary, final)
        accelerator.wait_for_everyone()


def step_counts(counts: Tensor, guidance: GuidanceConfig) -> dict[str, int]:
    """The counts of an optimizer step, by the names in COUNTS.

    Args:
        counts: (micro-batches of a process, len(COUNTS)) summed over all processes.
    """
    total = dict(zip(COUNTS, counts.sum(0).tolist(), strict=True))
    if guidance.scope == "step":  # ranked over all processes, which no single one can count
        competing, included = (counts[:, COUNTS.index(name)] for name in ("competing", "included"))
        total["kept"] = int((kept_count(competing, guidance.top_fraction) + included).sum())
    return total


def final_folder(config: Config) -> Path:
    """Where the trained model lies when the run is complete."""
    return config.output / "final"
