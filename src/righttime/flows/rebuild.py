"""Building the targets of a flow anew: from all changes there ever were, in parts of bounded size, and shown as one job.

In: a job that builds anew.
Out: what it puts in the place of its targets.
Promise: no part takes more changes than a drain may hold. The parts have numbers of their own, which end with the job's: nobody ever goes on with the state
of some of them, because a generation of state counts from its published job on, and begins in an empty folder as long as there is none.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from righttime.flows.content import TargetContent
from righttime.flows.feed import Feed
from righttime.flows.inputs import prepare
from righttime.flows.jobs import Engine, FlowJob
from righttime.telemetry import get_log

log = get_log("flow")


@dataclass(slots=True)
class Rebuilt:
    """What a job that builds anew makes of its targets."""

    contents: Mapping[str, TargetContent]
    unmet: dict[str, int] = field(default_factory=dict)


def horizons(feed: Feed, streams: Sequence[str], after_us: int, up_to_us: int, *, rows_max: int) -> list[int]:
    """Return where to part an interval of time so that no part has too many changes; the last is its end. A single commit is never parted."""
    found = []
    while after_us < up_to_us:
        after_us = feed.horizon(streams, after_us, up_to_us, rows_max=rows_max)
        found.append(after_us)
    return found


def rebuild(
    job: FlowJob, streams: Sequence[str], feed: Feed, engine: Engine, contents: Mapping[str, TargetContent], *, rows_max: int, go_on: Callable[[int, int], bool]
) -> Rebuilt | None:
    """Compute what the targets become; `go_on` is told of the parts that are done and of all, and says whether to go on. None if it is not."""
    ends = horizons(feed, streams, job.after_us, job.horizon_us, rows_max=rows_max)
    made, after_us = Rebuilt(contents), job.after_us
    for done, up_to_us in enumerate(ends):
        if not go_on(done, len(ends)):
            return None
        part = FlowJob(job.number - len(ends) + 1 + done, after_us, up_to_us, up_to_us, job.kind, feed.rows(streams, after_us, up_to_us), part_of=job.number)
        after_us = up_to_us
        if not part.rows_in:
            continue
        prepare(part, feed.streams)
        drained = engine.drain([part])
        for table, lines in drained.of_job(part.number):
            contents[table].add(lines)
        drained.close()
        for name, rows in drained.unmet(part.number).items():
            made.unmet[name] = made.unmet.get(name, 0) + rows
        if engine.is_scattered:
            engine.compact(part.number)  # a crash takes back all parts or none
    return made
