"""Hashes of names."""

import os
import sys

import pytest

from vocagno.system.files import digest


def test_the_hash_of_an_ordinary_name_stays():
    """Caches and stores have these hashes."""
    assert digest("model", b"1") == "3dcbb1b8bf6f13ec2892ae3b07838a77"
    assert digest("Modèle 😊") == digest("Modèle 😊".encode()) == "0df0ebc9df40cc9f398ad72d36e4ecd6"


@pytest.mark.skipif(sys.platform != "linux", reason="its names of files are bytes")
def test_a_name_that_is_not_utf_8_has_a_hash():
    assert digest(os.fsdecode(b"model-\xff")) == digest(b"model-\xff")
