"""The syntax of each statement, for ``\\h`` in the SQL shell; docs/reference/sql.md explains them."""

from __future__ import annotations

from typing import Final

SYNTAX: Final[dict[str, str]] = {
    "CREATE TOPIC": "CREATE TOPIC [IF NOT EXISTS] <topic> [PARTITIONS <partitions>] [WITH (<settings>)]",
    "DROP TOPIC": "DROP TOPIC [IF EXISTS] <topic>",
    "ALTER TOPIC ADD SOURCE": """\
ALTER TOPIC <topic> ADD SOURCE <table> [AS <name>] ON <events> [WHERE (<condition>)]
    [PARTITION BY (<expression>)] [WITH (<source settings>)]
ALTER TOPIC <topic> ADD OR REPLACE SOURCE <table> AS <name> ON <events> [WHERE (<condition>)]
    [PARTITION BY (<expression>)] [WITH (<source settings>)]""",
    "ALTER TOPIC DROP SOURCE": "ALTER TOPIC <topic> DROP SOURCE <table> [AS <name>] [ON <events>]",
    "ALTER TOPIC SET": "ALTER TOPIC <topic> SET (<settings>)",
    "ALTER TOPIC SET ALIAS": "ALTER TOPIC <topic> SET ALIAS { <alias> | NULL } [FORCE]",
    "ALTER TOPIC SET PARTITIONS": "ALTER TOPIC <topic> SET PARTITIONS <partitions>",
    "CLEAR TOPIC": "CLEAR TOPIC <topic>",
    "PUBLISH": """\
PUBLISH TO <topic> [PARTITION <partition>] [KEY <text>] [PRODUCER <text> EPOCH <number> SEQUENCE
    <number>] VALUES (<text>) [, ...]""",
    "CONSUME": """\
CONSUME FROM <topic> GROUP <group> [PARTITION { <partition> | ANY }] [FROM { LATEST | EARLIEST |
    OFFSET <offset> | <offset> }] [LIMIT <number>] [CONSUMER <consumer>] [VISIBILITY <seconds>]
CONSUME FROM <topic> [PARTITION <partition>] [FROM { LATEST | EARLIEST | OFFSET <offset> | <offset>
    }] [LIMIT <number>]""",
    "ACK": """\
ACK <topic> GROUP <group> [PARTITION <partition>] [CONSUMER <consumer>] [LEASE <text>] { UPTO OFFSET
    <offset> | OFFSETS (<offset> [, ...]) }""",
    "NACK": """\
NACK <topic> GROUP <group> [PARTITION <partition>] [CONSUMER <consumer>] [LEASE <text>] [OFFSET
    <offset> [TO <last offset>]] [DELAY <seconds>]""",
    "EXTEND": """\
EXTEND <topic> GROUP <group> [PARTITION <partition>] [CONSUMER <consumer>] [LEASE <text>] VISIBILITY
    <seconds>""",
    "RESET CONSUMER GROUP": """\
RESET CONSUMER GROUP <group> ON <topic> [PARTITION <partition>] TO { EARLIEST | LATEST | OFFSET
    <offset> | TIMESTAMP <time> }""",
    "DROP CONSUMER GROUP": "DROP CONSUMER GROUP <group> ON <topic>",
    "SHOW TOPICS": "SHOW TOPICS",
    "SHOW CONSUMER GROUPS": "SHOW CONSUMER GROUPS [ON <topic>]",
    "DESCRIBE TOPIC": "DESCRIBE TOPIC <topic>",
    "CREATE TABLE": """\
CREATE TABLE [IF NOT EXISTS] <table> (<column> { <type> PRIMARY KEY | <type> NOT NULL PRIMARY KEY }
    [, <another column> <type> [NOT NULL] [DEFAULT <constant>] [CHECK (<row condition>)]]) [WITH
    (<table settings>)]
CREATE TABLE <table> (<column> <type>, <another column> <type>, PRIMARY KEY (<column> [, <another
    column>]) [, [CONSTRAINT <constraint>] CHECK (<row condition>)])""",
    "DROP TABLE": "DROP TABLE [IF EXISTS] <table>",
    "ALTER TABLE ADD COLUMN": """\
ALTER TABLE <table> ADD [COLUMN] [IF NOT EXISTS] <another column> <type> [NOT NULL] [DEFAULT
    <constant>] [CHECK (<row condition>)]""",
    "ALTER TABLE DROP COLUMN": "ALTER TABLE <table> DROP [COLUMN] [IF EXISTS] <another column>",
    "ALTER TABLE RENAME COLUMN": "ALTER TABLE <table> RENAME [COLUMN] <another column> TO <column>",
    "ALTER TABLE CONSTRAINT": """\
ALTER TABLE <table> ADD [CONSTRAINT <constraint>] CHECK (<row condition>)
ALTER TABLE <table> DROP CONSTRAINT [IF EXISTS] <constraint>""",
    "ALTER TABLE SET": "ALTER TABLE <table> SET (<table settings>)",
    "CREATE INDEX": "CREATE INDEX [IF NOT EXISTS] <name> ON <table> (<column> [, <another column>])",
    "DROP INDEX": "DROP INDEX [IF EXISTS] <name> ON <table>",
    "ALTER TABLE ENABLE STREAM": """\
ALTER TABLE <table> ENABLE STREAM [WITH (view = { 'NEW_AND_OLD_IMAGES' | 'NEW_IMAGE' | 'OLD_IMAGE' |
    'KEYS_ONLY' })]""",
    "ALTER TABLE DISABLE STREAM": "ALTER TABLE <table> DISABLE STREAM",
    "INSERT": """\
INSERT [OR REPLACE] INTO <table> [(<columns>)] VALUES (<values>) [, ...] [RETURNING <returned>]
INSERT INTO <table> [(<columns>)] <select> [RETURNING <returned>]
INSERT INTO <table> [(<columns>)] VALUES (<values>) [, ...] ON CONFLICT [(<column>)] DO NOTHING
    [RETURNING <returned>]
INSERT INTO <table> [(<columns>)] VALUES (<values>) [, ...] ON CONFLICT [(<column>)] DO UPDATE SET
    <another column> = <expression> [WHERE <row condition>] [RETURNING <returned>]""",
    "UPDATE": """\
UPDATE <table> SET <column> = <expression> [, <another column> = <expression>] WHERE <row condition>
    [RETURNING <returned>]""",
    "DELETE": "DELETE FROM <table> WHERE <row condition> [RETURNING <returned>]",
    "TRUNCATE": "TRUNCATE [TABLE] <table>",
    "BEGIN": """\
BEGIN [TRANSACTION] [ISOLATION LEVEL SERIALIZABLE]
BEGIN WORK
START TRANSACTION [ISOLATION LEVEL SERIALIZABLE]""",
    "COMMIT": "COMMIT [{ TRANSACTION | WORK }]",
    "ROLLBACK": "ROLLBACK [{ TRANSACTION | WORK }]",
    "SHOW TABLES": "SHOW TABLES",
    "DESCRIBE TABLE": "DESCRIBE [TABLE] <table>",
    "EXPLAIN": """\
EXPLAIN { <select> | INSERT INTO <table> (<columns>) VALUES (<values>) | UPDATE <table> SET <column> =
    <expression> WHERE <row condition> | DELETE FROM <table> WHERE <row condition> }""",
    "CREATE MATERIALIZED VIEW": "CREATE MATERIALIZED VIEW [IF NOT EXISTS] <name> AS <select>",
    "ALTER MATERIALIZED VIEW": "ALTER MATERIALIZED VIEW <name> REFRESH",
    "DROP MATERIALIZED VIEW": "DROP MATERIALIZED VIEW [IF EXISTS] <name>",
    "EXPLAIN MATERIALIZED VIEW": "EXPLAIN MATERIALIZED VIEW <name>",
    "SHOW MATERIALIZED VIEWS": "SHOW MATERIALIZED VIEWS",
    "SELECT": """\
SELECT <query>
WITH <name> AS (SELECT <query>) SELECT <query>
FROM <table> [SELECT <query>]
VALUES (<values>) [, ...]""",
    "CREATE USER": """\
CREATE USER [IF NOT EXISTS] <user> [WITH] PASSWORD <password> [ROLE { reader | user | service | dba | system
    }] [ACCESS (<pattern> [, ...])]""",
    "ALTER USER": """\
ALTER USER <user> [SET] { PASSWORD <password> | ROLE service | ACCESS (<pattern>) | ACCESS NULL |
    ENABLE | DISABLE }""",
    "DROP USER": "DROP USER [IF EXISTS] <user>",
}


def matching(text: str) -> dict[str, str]:
    """The statements whose name begins with this text, or has a word of it."""
    wanted = " ".join(text.upper().rstrip(";").split())
    beginning = {name: syntax for name, syntax in SYNTAX.items() if name.startswith(wanted)}
    return beginning or {name: syntax for name, syntax in SYNTAX.items() if wanted in name}
