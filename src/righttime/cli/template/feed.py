"""Sample changes for the streams of this project: `python feed.py [PURCHASES [WAREHOUSE]]`. Put what reads your own sources in its place."""

import os
import random
import sys
import time
import tomllib
from datetime import date
from decimal import Decimal
from pathlib import Path

import righttime as rt
from flows.sales import sales
from righttime.errors import RowExists

ITEMS = {1: ("pen", "office"), 2: ("ink", "office"), 3: ("tea", "kitchen"), 4: ("cup", "kitchen"), 5: ("atlas", "books")}
STORES = ("Aalborg", "Brno", "Cork")


def main(count: int, warehouse: str | None = None) -> None:
    os.chdir(Path(__file__).parent)  # where righttime.toml is: it names the warehouse, and its settings count
    # While `righttime run --keep --listen` has it open, it is fed at that address.
    with rt.open(warehouse or project_warehouse()) as wh:
        wh.create_streams(sales)
        try:
            wh.stream("item").insert([{"item_id": key, "title": title, "category": category} for key, (title, category) in ITEMS.items()])
        except RowExists:  # not the first time
            # An update by key: from now on sales of cups are sales of another version of the item.
            wh.stream("item").update([{"item_id": 4, "title": "cup", "category": f"sale of {date.today()}, {time.strftime('%X')}"}])
        sold = [sell(wh) for _ in range(count)]
        if sold:
            last = sold[-1][0]
            wh.stream("line").update([{**last, "qty": last["qty"] + 1}])  # the till made a mistake
    # A service may keep flows, which load it when they are asked.
    what_now = "" if (warehouse or project_warehouse()).startswith("righttime://") else "; nothing is loaded yet"
    print(f"appended {count} purchases with {sum(map(len, sold))} lines{what_now}")


def project_warehouse() -> str:
    """Return the warehouse that righttime.toml names."""
    return tomllib.loads(Path("righttime.toml").read_text(encoding="utf-8"))["project"].get("warehouse", "warehouse")


def sell(wh: rt.Warehouse) -> list[dict]:
    """Append one purchase and its lines: one transaction of the till, in both streams or in none."""
    number = time.time_ns()
    lines = [
        {"purc_id": number, "item_id": item, "qty": random.randint(1, 5), "price": Decimal(random.randint(100, 2000)) / 100}
        for item in random.sample(sorted(ITEMS), k=random.randint(1, 3))
    ]
    purchase = {"purc_id": number, "day": date.today(), "store": random.choice(STORES)}
    wh.append({"purchase": [purchase], "line": lines}, transaction=f"till-{number}")
    return lines


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 20, *sys.argv[2:3])
    except rt.WarehouseLocked as error:
        listening = "righttime run --keep --listen 127.0.0.1:8815"
        sys.exit(f"error [{error.code}] {error} Flows that are kept are fed where they listen: `{listening}`, `python feed.py 20 righttime://127.0.0.1:8815`.")
    except rt.RightTimeError as error:
        sys.exit(f"error [{error.code}] {error}")
