"""Three durabilities, chosen per commit, and what a crash leaves of each.

Run: python examples/durability.py [folder]
"""

import os
import signal
import subprocess
import sys
import tempfile

import righttime as rt


def load_and_die(folder: str) -> None:
    """Commit one row of each kind, then die as in a power cut."""
    wh = rt.open(folder)
    wh.create_table("payment", "id INT, kept STRING")
    load = wh.producer(name="bank")
    load.insert("payment", (1, "stored in the Delta table"))
    load.commit(durability="warehouse")
    load.insert("payment", (2, "written to the log"))
    load.commit(durability="log")
    load.insert("payment", (3, "only in memory"))
    load.commit(durability="memory")
    os.kill(os.getpid(), signal.SIGKILL)


def main(folder: str) -> None:
    ended = subprocess.run([sys.executable, __file__, folder, "--die"], check=False)
    print("the loader ended with", ended.returncode)
    with rt.open(folder) as wh:
        for row in sorted(wh.read("payment")):
            print(row)
        for loss in wh.losses():
            print(f"lost: {loss.rows} row, commit {loss.first} of {loss.source}")


if __name__ == "__main__":
    place = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="righttime-")
    (load_and_die if "--die" in sys.argv else main)(place)
