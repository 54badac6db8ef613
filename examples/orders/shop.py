"""A shop that keeps its orders in a table, and three readers that see only its changes.

    python examples/orders/shop.py [DIRECTORY]

Several tills sell at the same time. Meanwhile a follower maintains the turnover of each customer, and another a copy of
the table; when the shop closes, a third replays all changes from the beginning. All three must agree with the table.
"""

import random
import sys
import tempfile
import threading
from collections import Counter

import tailrace
from tailrace import Check, Put, Update

ARTICLES = {"lamp": 45, "chair": 120, "desk": 300, "rug": 80}
CUSTOMERS = ("ann", "bob", "cleo", "dora")
TILLS, ORDERS = 3, 40  # the number of tills, and of orders at each
CLOSED = "closed"  # the last order: a reader that has it has all


def sell(db, till):
    """Sell until the day is over: an order and the article's stock change together, or not at all."""
    choose = random.Random(till)
    orders = db.table("orders")
    for number in range(ORDERS):
        name, article = choose.choice(CUSTOMERS), choose.choice(list(ARTICLES))
        order = {"id": f"{till}-{number}", "customer": name, "status": "new", "total": ARTICLES[article]}
        try:
            db.transact_write(
                [
                    Update("stock", article, "SET pieces = pieces - :n", condition="pieces >= :n", values={"n": 1}),
                    Put("orders", order),
                    Check("orders", CLOSED, "attribute_not_exists(id)"),
                ]
            )
        except tailrace.errors.TransactionCanceled:
            continue  # sold out
        if choose.random() < 0.2:
            orders.delete(order["id"])  # the customer cancels
        elif choose.random() < 0.5:
            orders.update(order["id"], "SET #t = #t - :less", names={"t": "total"}, values={"less": 5})


def applied(change, copy):
    """Apply the change to a copy of the table."""
    if change.new is None:
        del copy[change.keys["id"]]
    else:
        copy[change.keys["id"]] = change.new


def count(orders, sums):
    """Maintain the turnover: subtract the old total, add the new one."""
    for change in orders.follow():
        if change.keys["id"] == CLOSED:
            return
        for item, sign in ((change.old, -1), (change.new, 1)):
            if item is not None:
                sums[item["customer"]] += sign * item["total"]


def mirror(orders, copy):
    """Maintain a copy: a snapshot, then every change after it."""
    sequence, items = orders.snapshot()
    copy.update((item["id"], item) for item in items)
    for change in orders.follow(after=sequence):
        applied(change, copy)
        if change.keys["id"] == CLOSED:
            return


def replayed(orders):
    """The table, rebuilt from all its changes."""
    copy, after = {}, None
    while changes := orders.changes(after=after):
        for change in changes:
            applied(change, copy)
        after = changes[-1].sequence
    return copy


def main(directory):
    with tailrace.open(directory) as db:
        orders = db.create_table("orders", partition_key="id", stream="NEW_AND_OLD_IMAGES")
        db.create_table("stock", partition_key="article")
        db.batch_write([Put("stock", {"article": article, "pieces": 25}) for article in ARTICLES])

        sums, copy = Counter(), {}
        readers = [threading.Thread(target=count, args=(orders, sums))]
        readers += [threading.Thread(target=mirror, args=(orders, copy))]
        tills = [threading.Thread(target=sell, args=(db, till)) for till in range(TILLS)]
        for thread in readers + tills:
            thread.start()
        for thread in tills:
            thread.join()
        orders.put({"id": CLOSED})
        for thread in readers:
            thread.join()

        table = {item["id"]: item for item in orders.scan()}
        assert copy == table, "the mirror differs"
        assert replayed(orders) == table, "the replay differs"
        turnover = Counter()
        for order in table.values():
            turnover[order.get("customer")] += order.get("total", 0)
        assert all(turnover[name] == sums[name] for name in CUSTOMERS), "the sums differ"

        print(f"{len(table) - 1} orders, {orders.stream_info().count} changes; mirror, replay and sums agree")
        for name in CUSTOMERS:
            print(f"  {name:6} {sums[name]:6}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(temporary)
