"""Values as JSON has them, damaged in one place."""

ODD = (
    None,
    "x",
    "a\nb\ud800",
    True,
    -7,
    0,
    1e308,
    float("nan"),
    -float("inf"),
    [],
    [1],
    {},
    10**30,
)
ODD += (10**400, {"a": 1})
_REMOVED = object()


def mutations(value):
    """The value with each of its parts, and itself, replaced by each of `ODD`, or removed."""
    yield from ODD
    if not isinstance(value, dict | list):
        return
    for key, part in list(value.items() if isinstance(value, dict) else enumerate(value)):
        for changed in (_REMOVED, *mutations(part)):
            copy = value.copy()
            if changed is _REMOVED:
                del copy[key]
            else:
                copy[key] = changed
            yield copy
