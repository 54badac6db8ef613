"""Every page of the console: its name, its address, and a text that is there when it has loaded."""

from __future__ import annotations

import json
from urllib.parse import urlencode

KEY = json.dumps({"id": "o-0007"})
TOTALS = "SELECT status, count(*) AS orders, sum(total) AS total FROM orders GROUP BY status ORDER BY total DESC"

PAGES: dict[str, tuple[str, str]] = {
    "overview": ("#/overview", "healthy"),
    "streams": ("#/streams", "logs/web-0"),
    "stream": ("#/streams/logs%2Fweb-0", '"request":7'),
    "forks": ("#/streams/docs%2Freadme?tab=forks", "docs/readme-draft-2"),
    "stream-settings": ("#/streams/docs%2Freadme?tab=settings", "Tail offset"),
    "tables": ("#/tables", "customers"),
    "table": ("#/tables/orders", "sku-"),
    "empty-table": ("#/tables/empty", "This table has no items yet"),
    "changes": ("#/tables/orders?tab=changes", "INSERT"),
    "past": ("#/tables/orders?tab=at&sequence=20", "The table after sequence"),
    "table-settings": ("#/tables/orders?tab=settings", "shop.large_orders"),
    "item": (f"#/tables/orders/item?{urlencode({'key': KEY})}", "packed"),
    "topics": ("#/topics", "shop.large_orders"),
    "topic": ("#/topics/shop.new_orders", "From tables to groups"),
    "messages": ("#/topics/shop.new_orders?tab=messages", '"customer"'),
    "groups": ("#/topics/shop.new_orders?tab=groups", "billing"),
    "dead-letters": ("#/topics/shop.new_orders?tab=dead", "Send all shown again"),
    "choose": ("#/follow", "Choose a write"),
    "follow": ("#/follow?table=orders&sequence=20", "The change record"),
    "sql": (f"#/sql?{urlencode({'q': TOTALS})}", "3 rows"),
    "pipeline": ("#/pipeline", "63 entries of 1 log"),
    "views": ("#/pipeline?tab=views", "totals"),
    "cold": ("#/pipeline?tab=cold", "No log is kept in cold storage yet"),
    "users": ("#/access", "cashier"),
    "keys": ("#/access?tab=keys", "shop"),
    "audit": ("#/access?tab=audit", "CreateUser"),
    "index": ("#/tables/customers?tab=settings", "by_city"),
    "you": ("#/access?tab=me", "Permissions"),
}
