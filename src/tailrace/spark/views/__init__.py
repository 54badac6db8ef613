"""Materialized views by Spark SQL: Catalyst plans the SELECT, and its plan is differentiated."""
