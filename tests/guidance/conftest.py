"""Runs of methods on a small corpus, and rows of a few documents."""

import pytest


@pytest.fixture
def config(tmp_path, tokenizer_files, tokenizers, same_vocabulary_model):
    from method_runs import config_writer

    return config_writer(tmp_path, tokenizer_files, tokenizers, same_vocabulary_model)


@pytest.fixture
def rows(tmp_path, tokenizer_files):
    from method_runs import prepared

    return prepared(tmp_path, tokenizer_files)
