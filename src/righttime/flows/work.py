"""What the runner of a flow works with.

In: parts of the warehouse.
Out: one value that the runner and its cutter share.
Promise: none of it is the runner's own; it is there before the flow runs and after.
"""

from collections.abc import Callable
from dataclasses import dataclass

from righttime.catalyst.maintainer import Maintainer
from righttime.catalyst.shell import Catalyst
from righttime.flows.content import TargetContent
from righttime.flows.feed import Feed
from righttime.flows.jobs import Engine
from righttime.flows.taps import Taps
from righttime.settings import Settings


@dataclass(frozen=True, slots=True)
class Work:
    """What a runner works with. `taps` bring streams of tables up to a time, `content` begins what a job does to a target, `make_room` waits for memory as long
    as it is told, `relieve` stores targets and sums up state that have grown large. `rebuilt` is told, with the catalyst's lock held, that targets which were
    built anew are about to be shown, and from when on. `cores` is how many tasks Spark runs at once."""

    catalyst: Catalyst
    feed: Feed
    taps: Taps
    engine: Engine
    content: Callable[[str, bool], TargetContent]
    make_room: Callable[[str, int, float], None]
    relieve: Callable[[Maintainer], None]
    rebuilt: Callable[[int], None]
    settings: Settings
    cores: int
