"""A policy of your own: two methods say when lazily committed rows move.

Run: python examples/own_policy.py [folder]
"""

import sys
import tempfile

import righttime as rt


class EveryTenCommits:
    """Move rows with every tenth commit."""

    def __init__(self) -> None:
        self.asked = 0

    def should_flush(self) -> bool:
        self.asked += 1
        return self.asked >= 10

    def flushed(self) -> None:
        self.asked = 0


def main(folder: str) -> None:
    # The policy is also asked between commits; an hour keeps this example to its commits.
    with rt.open(folder, policy_poll_s=3600) as wh:
        wh.create_table("tick", "number INT")
        with wh.producer(name="clock", policy=EveryTenCommits()) as load:
            for number in range(1, 25):
                load.insert("tick", (number,))
                load.commit()
            status = wh.status()
            print("commits:", status.producers[0].last_commit)
            print("rows in memory:", status.tables[0].rows_hot)
            print("rows held back:", status.producers[0].rows_unflushed)
            print("rows in an answer:", len(wh.read("tick")))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="righttime-"))
