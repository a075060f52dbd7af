"""The operators of a flow on signed sets: what a drain computes on Spark.

In: the changes of one drain as `Signed`, and what earlier drains left as state parts.
Out: the changes of the outcome as `Signed`, and rows to append to each state part.
Promise: summed up to any job, the outcome is what the plain operator gives on the inputs summed up to that job, however jobs were grouped into drains.
"""
