"""Flows at work: cuts in, states out, over the streams, Spark and the catalyst.

In: declared flows, changes of streams, cuts that queries want.
Out: one commit in the catalyst for each job, in order, and what is known of the work.
Promise: what a flow shows at a cut is what its declaration makes of all changes up to the cut, and of no later one.
"""
