"""The training loop on Accelerate: one loop for every method."""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import accelerate
from accelerate.utils import DistributedType

from vocagno.config.options import Config, TrainConfig, row_counts
from vocagno.data.rows import RowStore
from vocagno.data.store.format import RefusalLimit
from vocagno.errors import ConfigError
from vocagno.guidance.batch import GuidedBatch, check_coverage
from vocagno.guidance.collator import Collator, ahead, line_ends, loader
from vocagno.guidance.methods import method_of
from vocagno.guidance.methods.base import Method
from vocagno.guidance.pieces import SameRows, Scores
from vocagno.models.batching import check_isolation
from vocagno.models.loading import (
    checkpoint_activations,
    compile_layers,
    graphs_stay_whole,
    load_student,
    set_eos,
)
from vocagno.models.own_tokenizers import transformers_tokenizer
from vocagno.models.throughput import model_flops, peak_flops
from vocagno.system.collectives import HostSum, broadcast
from vocagno.system.progress import Progress
from vocagno.system.signals import StopRequest
from vocagno.teacher.live import LivePieces, LiveTeacher, RowTeacher, TextTeacher
from vocagno.teacher.transformers_engine import load_scorer
from vocagno.training.checkpoint import (
    Checkpoints,
    MetricsLog,
    latest_step,
    model_card,
    publish_folder,
    written_whole,
)
from vocagno.training.inputs import Inputs
from vocagno.training.monitoring import (
    SPIKE_RATIO,
    Log,
    Warnings,
    Watch,
    Window,
    describe_rows,
    tracking,
)
from vocagno.training.report import REPORT, keep_passages, write_report
from vocagno.training.run_log import METRICS, Entry
from vocagno.training.sample_pages import Sampler, write_page
from vocagno.training.sampler import MicroBatches, MixedOrder
from vocagno.training.step import (
    GuidedStudent,
    Stepper,
    build_optimizer,
    learning_rate,
    settle_optimizer,
)
from vocagno.training.validation import Evaluation, validate


class Training:
    """A run from its stores to its final model; `run` resumes from the latest checkpoint."""

    def __init__(self, inputs: Inputs, accelerator: accelerate.Accelerator, run: str) -> None:
        """Loads student and teacher, and gives the student to Accelerate.
        Args: run: identity of the run, the same on all processes (`configuration.run_identity`)."""
        self.inputs = inputs
        config = inputs.config
        self.config: Config = config
        self.train: TrainConfig = config.train
        # Student and collator each make theirs, from the same options.
        self.method: Method = method_of(config.guidance, inputs.targets)
        self.accelerator = accelerator
        self.final_tokenizer: Any = transformers_tokenizer(inputs.tokenizer)
        student = self._new_student()
        model = student.model
        self.student: Any
        self.optimizer: Any
        # One call for both, as FSDP2 wants it. The loader is not prepared: its batches already are
        # those of this process.
        self.student, self.optimizer = accelerator.prepare(
            student, build_optimizer(student, config.optimizer, accelerator.device)
        )
        self.live_teacher: LiveTeacher | None = self._load_live_teacher()
        self.student.train()  # a model that was loaded is not
        self.host_sum: HostSum = HostSum(accelerator, self.train.collective_timeout)
        self.stepper: Stepper = Stepper(
            self.train,
            config.optimizer,
            self.method,
            accelerator,
            self.student,
            self.optimizer,
            self.live_teacher,
            self.host_sum,
            is_teacher_shared=inputs.live_teacher is not None and inputs.live_teacher.config.shard,
        )
        self.collator: Collator = self._collator()
        self.sampler: Sampler | None = None
        if inputs.samples:
            tokenizers = inputs.tokenizer, inputs.sample_teacher
            self.sampler = Sampler(inputs.samples, *tokenizers, self.collator, self.live_teacher)
        self.flops: float = model_flops(model, config.data.seq_len)
        self.evaluation: Evaluation | None = None
        if config.eval.every is not None:
            folder = config.output / "evaluations"
            self.evaluation = Evaluation(
                config.eval, folder, accelerator, model, self.final_tokenizer, self.host_sum
            )
        # `rows_of` takes any step, so it does not matter at which one the run resumes.
        self.watch: Watch = Watch(self._batches(0), inputs.rows, config.data.seq_len, self.host_sum)
        self.warnings: Warnings = Warnings(config.guidance, self.train.steps)
        self.checkpoints: Checkpoints = Checkpoints(
            config.output / "checkpoints",
            accelerator,
            self.train.keep_checkpoints,
            run,
        )
        self.log: MetricsLog | None = None
        """The log on the first process, once the run is under way; None on the others."""
        self.usual_loss: float | None = None
        """The mean loss of the window before, with which spikes are compared."""
        self.stop: StopRequest = StopRequest()
        self.track: Log = lambda entry: None

    def _new_student(self) -> GuidedStudent:
        """Loads the student, and sets up checkpointing of activations and compiled layers.

        Raises: ConfigError for a model that does not know what the configuration asks of it.
        """
        inputs, config, train = self.inputs, self.config, self.train
        model = load_student(config.student, inputs.settings, train.seed)
        set_eos(model, inputs.tokenizer.eos_id)
        if config.data.isolate:
            check_isolation(model, config.data.seq_len)
        # Before layers are compiled: it verifies the head by forward passes of another shape.
        student = GuidedStudent(model, config.guidance, inputs.targets)
        if train.gradient_checkpointing:
            if not model.supports_gradient_checkpointing:
                name = type(model).__name__
                raise ConfigError(f"train.gradient_checkpointing: {name} does not know it")
            checkpoint_activations(model)
        if train.compile:
            compile_layers(model)
        return student

    def run(self) -> bool:
        """Trains to the end, or until SIGTERM. Returns: True if the run is complete."""
        graphs = graphs_stay_whole() if self.train.compile else nullcontext()
        tracker = tracking(
            self.accelerator, self.train.project, self.config.output.name, self.config.as_options()
        )
        with self.stop, graphs, tracker as self.track:
            return self._run()

    def burst(self, seconds: float) -> dict[str, Any]:
        """Takes steps for some seconds, and saves nothing.

        Returns: a line of `metrics.jsonl` about these steps. The first one, in which the device
            warms up, counts only if there is no other.
        """
        with self.stop:
            micro_batches = self._micro_batches(self._batches(0))
            first, done = Window(self.accelerator.device, self.method), 1
            self._step(0, micro_batches, first)
            first.sums()  # waits for the device
            began, window = time.monotonic(), Window(self.accelerator.device, self.method)
            while time.monotonic() - began < seconds and done < self.train.steps:
                self._step(done, micro_batches, window)
                window.sums()  # waits, so that the clock sees the step and not its launch
                done += 1
        counted = window if window.records else first
        return counted.entry(done, counted.sums())

    def _run(self) -> bool:
        """Resumes or begins, trains, saves and publishes. Returns: True if the run is complete."""
        train, main = self.train, self.accelerator.is_main_process
        if main:
            self.checkpoints.clean()
        # The first process decides: a shared folder may show the others an older listing.
        first_step = broadcast(latest_step(self.checkpoints.folder))
        if first_step:
            self.checkpoints.load(first_step)
            if self.accelerator.distributed_type != DistributedType.DEEPSPEED:
                settle_optimizer(self.optimizer, self.accelerator.device)
            if main:
                print(f"resuming from step {first_step:,}", file=sys.stderr)
        if main:
            self.log = MetricsLog(self.config.output / METRICS, first_step)
        self.usual_loss = broadcast(self.log.last_loss if self.log else None)
        if broadcast(self.log.evaluated_step if self.log else None) != first_step:
            # A stop after the step was saved leaves no time for its benchmarks.
            self._evaluate_if_due(first_step)
        micro_batches = self._micro_batches(self._batches(first_step))
        window, total = None, train.steps
        with Progress("training", total, unit="steps", show=main, start=first_step) as progress:
            if not first_step and self.config.student.model is not None:
                self._validate(0, progress)  # what the student has learnt before
            for step in range(first_step, total):
                window = window or Window(self.accelerator.device, self.method)
                stopped = self._step(step, micro_batches, window)
                done = step + 1
                saving = done % train.checkpoint_every == 0 or done == total or stopped
                if done % train.log_every == 0 or saving:  # checked before it is saved
                    self._report(done, window, progress)
                    window = None
                aside = time.monotonic()  # validation, pages and checkpoints are no time of steps
                if done % train.eval_every == 0 or done == total:
                    self._validate(done, progress)
                if train.sample_every and done % train.sample_every == 0:
                    self._write_sample_page(done)
                if saving:
                    self.checkpoints.save(done)
                if stopped and done < total:
                    return False
                self._evaluate_if_due(done)  # saved by now: it may outlast the grace of a SIGTERM
                if window is not None:  # the speed of a window is that of its steps only
                    window.started += time.monotonic() - aside
                progress.at(done)
        self._publish()
        self._report_run()
        return True

    def _batches(self, first_step: int) -> MicroBatches:
        """The rows of this process, from a step on."""
        accelerator, train = self.accelerator, self.train
        counts = row_counts(self.config.data.corpora).values()
        sizes = map(len, self.inputs.rows.stores.values())
        order = MixedOrder(list(sizes), list(counts), train.seed)
        return MicroBatches(
            order, train, first_step, accelerator.process_index, accelerator.num_processes
        )

    def _micro_batches(self, batches: MicroBatches) -> Iterator[GuidedBatch]:
        """Collates the micro-batches of all remaining steps, one step ahead of the device."""
        num_workers = self.config.data.num_workers
        collated = loader(self.inputs.rows, batches, self.collator, num_workers)
        accumulation = self.train.accumulation(self.accelerator.num_processes)
        return ahead(map(self._plan, collated, batches.samples()), accumulation)

    def _load_live_teacher(self) -> LiveTeacher | None:
        """Loads the live teacher, if the run has one: one that reads texts, or the rows."""
        inputs, teacher = self.inputs, self.inputs.live_teacher
        if teacher is None:
            return None
        scorer = load_scorer(teacher.config, teacher.spans, teacher.device)
        guidance, device = self.config.guidance, self.accelerator.device
        if inputs.live_texts is not None:
            return TextTeacher(scorer, guidance, device)
        vocabulary_size = inputs.tokenizer.spans.vocabulary_size
        return RowTeacher(scorer, guidance, device, self.config.data, vocabulary_size)

    def _collator(self) -> Collator:
        """The collator of training, with the teacher's scores from wherever the run has them."""
        inputs, config = self.inputs, self.config
        scores: Scores | None = inputs.stored_scores()
        if inputs.live_teacher is not None and inputs.live_texts is not None:
            documents = inputs.rows.document_ends[-1]
            limit = RefusalLimit("data.train", documents, config.data.max_refused)
            scores = LivePieces(inputs.live_texts, inputs.live_teacher.reader, limit)
        elif inputs.live_teacher is not None:
            scores = SameRows()
        ends = line_ends(inputs.tokenizer.spans, config.guidance)
        return Collator(scores, config.guidance, config.data, ends, inputs.targets)

    def _plan(self, batch: GuidedBatch, samples: range) -> GuidedBatch:
        """Prepares a micro-batch on the host, ahead of its step.

        Args: samples: the numbers of its samples in the run, from which methods draw at random.
        """
        sample_tensors: dict[str, Any] = self.method.for_samples(self.train.seed, samples)
        if self.accelerator.device.type == "cuda":
            sample_tensors = {name: tensor.pin_memory() for name, tensor in sample_tensors.items()}
        passes = self.live_teacher.plan(batch.live_text, samples) if self.live_teacher else []
        return replace(batch, passes=passes, **sample_tensors)

    def _step(self, step: int, micro_batches: Iterator[GuidedBatch], window: Window) -> bool:
        """Takes the next micro-batches and one optimizer step with them.

        Returns: True if any process got a signal to stop.
        """
        accumulation = self.train.accumulation(self.accelerator.num_processes)
        started = time.monotonic()
        of_step = list(islice(micro_batches, accumulation))
        window.waited += time.monotonic() - started
        return self.stepper.step(step, of_step, window, stop=self.stop.received)

    def _report(self, done: int, window: Window, progress: Progress) -> None:
        """Writes the metrics of a window, and says what is unusual about them.

        Raises: GuidanceError for a loss or gradient that is not finite, and for batches that the
            host and the device see differently; an error of `check_coverage` or of a live teacher.
        """
        sums = self.host_sum(window.sums())
        spikes = self.watch.look(window, sums, self.usual_loss)
        if self.live_teacher is not None:
            self.live_teacher.check(self.host_sum, done)
        entry = window.entry(done, sums)
        self.usual_loss = entry["loss"]
        entry["lr"] = learning_rate(done - 1, self.train.steps, self.config.optimizer)
        if spikes:
            entry["spikes"] = spikes
        peak = peak_flops(self.accelerator.device, self.train.precision)
        # The rate is that of all processes, and the peak that of one device.
        if peak is not None:
            rate = entry["tokens_per_s"] / self.accelerator.num_processes
            entry["mfu"] = round(rate * self.flops / peak, 4)
        self._write(entry)
        if self.log:
            for spike in spikes:
                rows = describe_rows(spike["rows"])
                progress.say(
                    f"step {spike['step']}: a loss of {spike['loss']:.3f}, over {SPIKE_RATIO} "
                    f"times the loss before; the run continues; {rows}"
                )
            for warning in self.warnings.look(Entry.of(entry)):
                progress.say(warning)
        progress.at(done, progress_note(entry))
        counts = window.counts
        if self.live_teacher is None:
            # With stored scores, missing documents were checked before the run.
            counts = counts._replace(missing=0)
        check_coverage(counts, self.config.guidance, f"step {done}")

    def _validate(self, done: int, progress: Progress) -> None:
        """Logs and prints the mean loss of the held-out text, if there is any."""
        if not self.inputs.validation:
            return
        losses = self.validate(self.inputs.validation)
        self._write({"step": done, **losses})
        if self.log:
            text = f"step {done:,}: held-out loss {losses['validation_loss']:.4f}"
            if by_name := losses.get("validation_losses"):
                text += f" ({', '.join(f'{name} {loss:.4f}' for name, loss in by_name.items())})"
            progress.say(text)

    def validate(self, held_out: Mapping[str, RowStore]) -> dict[str, Any]:
        """The student's mean loss over each store of rows (`training.validation.validate`)."""
        config = self.config
        collator = Collator(None, config.guidance, config.data)  # held-out text has no scores
        arguments = self.train, collator, self.accelerator, self.host_sum, config.data.num_workers
        return validate(self.student, held_out, *arguments)

    def _evaluate_if_due(self, done: int) -> None:
        """Runs the benchmarks every `eval.every` steps and after the last one."""
        every = self.config.eval.every
        if self.evaluation is None or every is None:
            return
        if done % every == 0 or done == self.train.steps:
            self._write(self.evaluation.run(self.student, done))

    def _write(self, entry: dict[str, Any]) -> None:
        """Gives a line to the log, on the first process, and to the trackers."""
        if self.log:
            self.log.write(entry)
        self.track(entry)

    def _write_sample_page(self, done: int) -> None:
        """Writes the page of what the teacher chooses in the sample documents after a step."""
        assert self.sampler is not None  # `train.sample_every` without documents was refused
        # Every process: they may share one student.
        passages = self.sampler.passages(self.student, self.accelerator.device)
        if self.accelerator.is_main_process:
            page = self.config.output / "samples" / f"step_{done}.html"
            write_page(page, passages, done)

    def _report_run(self) -> None:
        """Writes the page of the run. The model is on disk by now: a failure costs the page."""
        passages = []
        if self.sampler is not None:
            passages = self.sampler.passages(self.student, self.accelerator.device)
        if self.accelerator.is_main_process:
            output = self.config.output
            keep_passages(output, passages)
            write_report([output], output / REPORT)

    def _publish(self) -> None:
        """Writes the final model, its tokenizer and its README, for `from_pretrained`."""
        accelerator, final = self.accelerator, final_folder(self.config.output)
        state = accelerator.get_state_dict(self.student)  # gathers shards: every process calls it
        if accelerator.is_main_process:
            temporary = final.with_suffix(".tmp")
            model = accelerator.unwrap_model(self.student).model
            prefix = "model."
            weights = {name.removeprefix(prefix): tensor for name, tensor in state.items()}
            with written_whole(temporary):
                model.save_pretrained(temporary, state_dict=weights)
                self.final_tokenizer.save_pretrained(temporary)
                card = model_card(self.config.output)
                (temporary / "README.md").write_text(card, encoding="utf-8")
                publish_folder(temporary, final)
        accelerator.wait_for_everyone()


def progress_note(entry: dict[str, Any]) -> str:
    """The progress bar's note on the last window."""
    parts = [
        f"loss {entry['loss']:.3f}",
        f"lr {entry['lr']:.1e}",
        f"{entry['tokens_per_s']:,.0f} tokens/s",
        f"kept {entry['kept_fraction']:.0%}",
    ]
    parts += [f"mfu {entry['mfu']:.0%}"] if "mfu" in entry else []
    return ", ".join(parts)


def final_folder(output: Path) -> Path:
    """The folder of the trained model, which exists only if the run is complete."""
    return output / "final"
