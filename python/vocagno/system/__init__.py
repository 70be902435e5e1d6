"""Deals with the operating system: files, processes, signals; and loads modules lazily."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Makes the `__getattr__` of a package (PEP 562) that imports a module when one of its names is
    first used.

    Args:
        package: the name of the package.
        names: the public names that each module defines, separated by spaces.
    """
    modules = {name: module for module, public in names.items() for name in public.split()}

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(import_module(modules[name]), name)
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"{package}.{name} needs {error.name}: pip install '.[train]'", name=error.name
            ) from error

    return find
