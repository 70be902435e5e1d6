"""Values as JSON has them, damaged in one place."""

_NUMBERS = (-7, 0, 1e308, float("nan"), -float("inf"), 10**30, 10**400)
ODD = (None, True, "x", "a\nb\ud800", *_NUMBERS, [], [1], {}, {"a": 1})
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
