#!/usr/bin/env bash
# Runs once, when the primary's directory is made: the standby may connect, and commits wait for it from the next start on. With
# only one standby, writes stop while it is away: have two, and ANY 1 (a, b).
set -euo pipefail
echo 'host replication tailrace all scram-sha-256' >> "$PGDATA/pg_hba.conf"
psql --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" --command "ALTER SYSTEM SET synchronous_standby_names = 'standby'"
