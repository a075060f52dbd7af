"""Errors of righttime: what all have in common, and the groups to catch them by.

In: the facts of one failure, by name.
Out: an exception with a code, the facts, and whether the same call may succeed later.
Promise: an error can be pickled, and its message ends with the way out.
"""

from typing import Any, ClassVar


class RightTimeError(Exception):
    """Something went wrong in righttime. See the error's code and context."""

    code: ClassVar[str] = "righttime"
    retryable: ClassVar[bool] = False

    def __init__(self, **context: Any) -> None:
        self.context = context
        super().__init__(self._message())

    def _message(self) -> str:
        template = " ".join((type(self).__doc__ or "").split())
        try:
            return template.format(**self.context)
        except (KeyError, IndexError):
            details = ", ".join(f"{name}={value!r}" for name, value in self.context.items())
            return f"{template} [{details}]"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.context))


def _rebuild(kind: type[RightTimeError], context: dict[str, Any]) -> RightTimeError:
    return kind(**context)


class InputError(RightTimeError):
    """The input cannot be accepted. Nothing changed; correct it and call again."""

    code = "input"


class ContractError(RightTimeError):
    """The answer that was asked for cannot be given. See the context."""

    code = "contract"


class CommitError(RightTimeError):
    """The commit did not happen. The transaction is as it was; commit again or roll back."""

    code = "commit"


class WarehouseError(RightTimeError):
    """The warehouse cannot be used. See the context."""

    code = "warehouse"


class ServiceError(RightTimeError):
    """The service cannot be used. See the context."""

    code = "service"


class ReceiptError(RightTimeError):
    """The receipt cannot be used. See the context."""

    code = "receipt"
