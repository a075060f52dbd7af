"""What flows: rows, their schema, their commits and the time they carry.

In: rows and declarations from users.
Out: encoded chunks, positions and cuts that every other package speaks in.
Promise: pure values; no files, threads or engines.
"""
