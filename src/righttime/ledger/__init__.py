"""What is true: numbered states, positions, pins, batch ids and receipts, in one small transactional file.

In: states to write down, from commits and materializations; pins and receipts, from queries.
Out: the newest durable state, on open; older ones, receipts and known losses, on request.
Promise: a state exists with everything it names or not at all; what the ledger does not name does not exist.
"""
