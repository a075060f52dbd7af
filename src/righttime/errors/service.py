"""Errors of services and of the way to them.

In: what a service answered, or that it did not.
Out: one class for each outcome, with its code and the way out.
Promise: as all errors of righttime; the tree is drawn in the package's docstring.
"""

from righttime.errors.groups import ServiceError


class ServiceUnreachable(ServiceError):
    """The service at {target} did not answer within {waited_s:.1f} s: {reason}. Start it or correct the address, then call again."""

    code = "service.unreachable"
    retryable = True


class ServiceBusy(ServiceError):
    """The service has {used} {what} open, which is its bound ({setting}). Close some, or call again later."""

    code = "service.busy"
    retryable = True


class ServiceStopping(ServiceError):
    """The service at {target} is stopping and takes no new work. Call again when it has been started anew."""

    code = "service.stopping"
    retryable = True


class ServiceFailed(ServiceError):
    """The service failed in a way that it has no name for: {reason}. Look into its log; this is a bug in righttime."""

    code = "service.failed"


class SessionLost(ServiceError):
    """The service does not know the session of producer {source!r} any more, because it was restarted or heard nothing for too long; {lost}.
    Close the producer, open it again, and load that again; Warehouse.losses() names what is lost."""

    code = "session.lost"


class AccessDenied(ServiceError):
    """The service refuses to {action}: {reason}. Give a token that allows it (token= or RIGHTTIME_TOKEN)."""

    code = "access.denied"


class ClocksApart(ServiceError):
    """The clock of {target} is {ahead_s:.1f} s behind the others, over the bound {bound_s} s ({bound}).
    Set the clocks of the machines, or {remedy}."""

    code = "service.clocks_apart"


class NameClaimed(ServiceError):
    """The name {name!r} is not declared, because another client of the group is declaring it: {reason}. Call again; the name may be given by then."""

    code = "name.claimed"
    retryable = True


class BadMessage(ServiceError):
    """The service got something that is no message of righttime: {reason}. Use the same version of righttime on both sides."""

    code = "message.bad"


class MessageTooLarge(ServiceError):
    """A message of {size} bytes is over the bound {bound} (message_bytes_max). Commit in smaller parts, or raise the bound of the service."""

    code = "message.too_large"
