"""A process that feeds the shop and asks for its sales until it is killed; what it was told is on its output, line by line.

In: `python -m tests.support.flow_crash FOLDER SEED ROUNDS`, with a crash point armed in the environment.
Out: `append TIME`, `answer CUT SALES-AS-JSON`, `done`.
Promise: a line is written only after the call it tells of has returned.
"""

import json
import sys

from tests.support.flow_shop import Customers, open_shop, sales_flow, sales_of


def main(folder: str, seed: int, rounds: int) -> None:
    """Feed, ask, and store now and then."""
    with open_shop(folder, background_idle_s=0) as wh:
        customers = Customers(seed)
        customers.resume(wh)
        with wh.run(sales_flow()):
            for number in range(rounds):
                for _ in range(customers.dice.randint(1, 3)):
                    _say("append", wh.append(customers.transaction()).time_us)
                answer = wh.read("sales", wait="120s")
                _say("answer", answer.receipt.cut_us, json.dumps(sorted(map(list, sales_of(answer.rows()).items()))))
                if number % 3 == 1:
                    wh.materialize("sales", wait="120s")
    _say("done")


def _say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
