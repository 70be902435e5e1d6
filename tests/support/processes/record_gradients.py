"""Trains as `train.py` does, and writes the gradients of the first step and all parameters after
the last to the file named by RECORD; with AVERAGE=1 in the wrong way that peers fell for."""

import os
import sys

import torch

from vocagno.training import loop
from vocagno.training import step as stepping
from vocagno.training.main import main

gradients, start = {}, {}
update = stepping.Stepper._update


def recording(self):
    student = self.accelerator.unwrap_model(self.student)
    if not gradients:
        for name, parameter in student.named_parameters():
            gradients[name] = parameter.grad.clone()
            start[name] = parameter.detach().clone()
    return update(self)


def run(self):
    complete = original_run(self)
    if self.accelerator.is_main_process:
        student = self.accelerator.unwrap_model(self.student)
        end = {name: parameter.detach() for name, parameter in student.named_parameters()}
        processes = self.accelerator.num_processes
        record = {"gradients": gradients, "start": start, "end": end, "processes": processes}
        torch.save(record, os.environ["RECORD"])
    return complete


stepping.Stepper._update = recording
original_run, loop.Training.run = loop.Training.run, run

if os.environ.get("AVERAGE"):  # each micro-batch by its own count, then the mean of those

    class AveragingStudent(loop.GuidedStudent):
        def forward(self, labels, **tensors):
            output = super().forward(labels=labels, **tensors)
            return output._replace(loss=output.loss / (labels >= 0).sum())

    loop.GuidedStudent = AveragingStudent
    stepping.loss_scale = lambda num_processes, accumulation, count: 1.0

sys.exit(main())
