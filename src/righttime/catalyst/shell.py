"""The catalyst inside one process: memory tables, the head and the leases, behind one lock.

In: commits, flushes and rollbacks of producers; demands, looks and registrations of queries; notices of the mover.
Out: cuts, looks (the min/max of every lane) and slices of rows.
Promise: whatever one call makes visible becomes visible at once, in one state; no call does file work under the lock,
except the mover's ledger transaction, which is the commit point.
"""

from righttime.catalyst.cuts import Cuts
from righttime.catalyst.flow_side import FlowSide
from righttime.catalyst.looks import Looks
from righttime.catalyst.producer_side import ProducerSide


class Catalyst(ProducerSide, FlowSide, Cuts, Looks):
    """All sides of it, over one memory. Safe to call from any thread."""
