"""User functions on their way to Spark's workers.

In: a function of the user's program.
Out: nothing, or the error that sending it would raise.
Promise: code of the user's project is sent as it is; workers need not find its files.
"""

import sys
import sysconfig
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.serializers import CloudPickleSerializer

_PACKAGE = Path(__file__).parent.parent
_INSTALLED = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]


def check_portable(function: Any) -> None:
    """Make sure that workers can run the function: its module goes with it, unless it is installed there too."""
    module = sys.modules.get(getattr(function, "__module__", None) or type(function).__module__)
    place = getattr(module, "__file__", None)
    if module is not None and place is not None and not any(Path(place).is_relative_to(folder) for folder in (_PACKAGE, *_INSTALLED)):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    CloudPickleSerializer().dumps(function)  # type: ignore[no-untyped-call]
