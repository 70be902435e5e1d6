"""The quickstart with few documents and steps."""

import yaml


def cut_down(monkeypatch, folder, names, **sizes):
    """Writes these of its configurations, cut down, to a folder, from which they are read then.
    Args: sizes: of its corpora."""
    from accelerate.state import AcceleratorState

    from vocagno.quickstart import students

    AcceleratorState._reset_state(reset_partial_state=True)
    whole = students.CONFIGS
    for name, value in {**sizes, "CONFIGS": folder}.items():
        monkeypatch.setattr(students, name, value)
    folder.mkdir()
    for name in names:
        config = yaml.safe_load((whole / f"{name}.yaml").read_text())
        config["train"].update(steps=4, log_every=2, eval_every=4, checkpoint_every=4)
        config["optimizer"]["warmup_steps"] = 1
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(config))
