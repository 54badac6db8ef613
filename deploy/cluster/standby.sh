#!/usr/bin/env bash
# Copies the primary once, and follows it from then on. To promote it: pg_ctl promote -D /var/lib/postgresql/data
set -euo pipefail
data=/var/lib/postgresql/data
if [ ! -s "$data/PG_VERSION" ]; then
    pg_basebackup --dbname 'host=primary user=tailrace application_name=standby' --pgdata "$data" --write-recovery-conf --wal-method stream
    chmod 0700 "$data"
fi
exec postgres -D "$data" -c max_connections=200
