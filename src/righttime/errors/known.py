"""Names to choose from, for errors about a name that nothing has.

In: the name, and those that are known.
Out: a short text.
Promise: never longer than a few names, however many are known.
"""

from collections.abc import Iterable
from difflib import get_close_matches

_ALL_MAX = 12
_NEAR_MAX = 5


def known_names(name: str, known: Iterable[str]) -> str:
    """Return all names if they are few; of many those that look like the name, or the first, and how many there are besides."""
    names = list(known)
    if len(names) <= _ALL_MAX:
        return ", ".join(names) or "none"
    spelled = {each.lower(): each for each in names}
    near = [spelled[each] for each in get_close_matches(name.lower(), spelled, n=_NEAR_MAX)] or names[:_NEAR_MAX]
    return f"{', '.join(near)} and {len(names) - len(near)} others"
