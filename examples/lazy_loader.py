"""A lazy loader: commits cost almost nothing, and rows move only when a query needs them.

Run: python examples/lazy_loader.py [folder]
"""

import sys
import tempfile

import righttime as rt


def main(folder: str) -> None:
    with rt.open(folder) as wh:
        wh.create_table("reading", "sensor INT, value DOUBLE")
        with wh.producer(name="sensors", policy=rt.OnDemand()) as load:
            for number in range(1, 1001):
                load.insert("reading", (number % 10, float(number)))
                if number % 100 == 0:
                    load.commit()
            print("held back by the loader:", wh.status().producers[0].rows_unflushed)

            # An hour is fresh enough: nothing has to move.
            print("rows, at most an hour old:", len(wh.read("reading", freshness="1h")))
            # Everything committed before now: the loader is asked for it, and delivers.
            answer = wh.read("reading", freshness="0s")
            print("rows, everything until now:", len(answer))
            print("held back by the loader:", wh.status().producers[0].rows_unflushed)
            print("last commit inside:", answer.receipt.cut[0].last_inside.number)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="righttime-"))
