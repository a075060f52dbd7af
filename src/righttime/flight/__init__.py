"""The service: one warehouse behind Arrow Flight, and the client that makes it look like an open one.

In: one engine on the side of the service; `righttime://host:port` on the side of its users.
Out: the same producers, answers and receipts as in one process.
Promise: whatever happens to a connection, a commit happens at most once, and an outcome that nobody knows is said to be unknown.
"""
