"""Contents of folders."""

LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize 9\n" % (b"0" * 64)
"""What a clone without Git LFS holds in place of a large file."""
LFS_WORDS = "is a pointer to the file, not the file; run `git lfs pull` there"
"""What is said of it."""


def contents(store):
    """Every file of a store, but for its locks."""
    return {path.name: path.read_bytes() for path in store.iterdir() if path.is_file()}
