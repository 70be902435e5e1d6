"""Contents of folders."""


def contents(store):
    """Every file of a store, but for its locks."""
    return {path.name: path.read_bytes() for path in store.iterdir() if path.is_file()}
