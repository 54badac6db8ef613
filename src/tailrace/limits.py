"""Limits and defaults. Every limit has a name and a reason; a request beyond one gets 4xx or 503."""

from __future__ import annotations

from typing import Final

KiB: Final = 1024
MiB: Final = 1024 * KiB

# -- requests
HEAD_BYTES_MAX: Final = 32 * KiB  # request line and header fields; more is 431
HEADERS_MAX: Final = 100  # fields per request, and trailers; more is 431
AWS_HEAD_BYTES_MAX: Final = 16 * KiB  # of a request to the DynamoDB API; more is 400, as in the service
CHUNK_EXTENSION_BYTES_MAX: Final = 4 * KiB  # of all chunks of one body; they are ignored; more is 431
BODY_BYTES_MAX: Final = 16 * MiB  # one request's body; more is 413
INBOUND_BYTES_MAX: Final = 256 * MiB  # partly received bodies of all connections; more is 503
HEAD_TIMEOUT_S: Final = 10.0  # from the first byte of a request to the end of its head
BODY_TIMEOUT_S: Final = 30.0  # for the body, renewed while it arrives at BODY_RATE_MIN
BODY_RATE_MIN: Final = 16 * KiB  # bytes per second below which a body counts as stalled
IDLE_TIMEOUT_S: Final = 75.0  # a kept-alive connection without a request
CONNECTIONS_MAX: Final = 10_000  # open connections; the next one gets 503 and is closed
SERVER_TOKEN_CHARACTERS_MIN: Final = 16  # of the server token, which grants all permissions
PIPELINE_MAX: Final = 64  # requests of one connection at once, or begun in one turn of the loop; then reading pauses
LINGER_S: Final = 2.0  # how long input is read and discarded after an error response
READER_BUFFER_MAX: Final = 1 * MiB  # unsent bytes of one live reader; with more it is disconnected
UNSENT_BYTES_MAX: Final = 256 * MiB  # unsent responses in total; the longest stalled clients are disconnected
UNSENT_CONNECTION_MAX: Final = 32 * MiB  # and of one connection, besides its last response; then it is disconnected
SHUTDOWN_S: Final = 5.0  # live readers are ended and running requests finished within this time

# -- streams
PATH_BYTES_MAX: Final = 1024  # a stream's path, percent-decoded
CONTENT_TYPE_BYTES_MAX: Final = 256
STREAM_SEQ_BYTES_MAX: Final = 256
PRODUCER_ID_BYTES_MAX: Final = 256
PRODUCER_NUMBER_MAX: Final = 2**53 - 1  # exact in JavaScript
TTL_S_MAX: Final = 10**10  # about 317 years
POSITION_MAX: Final = 10**16 - 1  # the largest position that an offset can express
SEGMENT_BYTES: Final = 64 * KiB  # of entries in one row, or one entry: a read of any of them reads the row
SEGMENT_ENTRIES: Final = 1_024  # and how many entries
SEALED_BYTES: Final = 256 * KiB  # of entries in one row that was sealed: long reads take few rows
SEALED_ENTRIES: Final = 4_096  # and how many entries
STAGED_BYTES_MIN: Final = 4 * KiB  # a smaller segment is staged: an index page for it would be larger than itself
STAGED_BYTES_MAX: Final = 32 * KiB  # so is a smaller one of a stream: large rows are sent as they are
STAGED_ROWS: Final = 8_192  # staged segments from which on the oldest are sealed
STAGED_ROW_BYTES: Final = 512  # of staged segments that count as another one: 4 MiB are sealed, however few
STAGED_AGE_S: Final = 10  # older ones are sealed where fewer will do
STAGED_LOG_ROWS: Final = 256  # so many for each log: joined, they are a segment that need not be larger
STAGED_LISTED_ROWS: Final = 4 * STAGED_ROWS  # listed in memory, with deleted ones, before the list is made anew
SEAL_ROWS: Final = 4_096  # of them are sealed in one step, so that writers wait milliseconds at most
SEAL_BYTES: Final = 1 * MiB  # and how many bytes
RECENT_BYTES: Final = 64 * MiB  # of memory for segments that were written or read recently
RECENT_SEGMENT_BYTES_MAX: Final = 1 * MiB  # a larger one is not kept there: it would evict too many
PAGE_BYTES: Final = 4 * MiB  # a catch-up response has at most this (or one message), in whole messages
SLICE_BYTES: Final = 256 * KiB  # read at once, between turns of the event loop
SLICE_ENTRIES: Final = 1_024  # and how many entries
PAGE_SLICE_BYTES: Final = 1 * MiB  # of a stream read at once for a catch-up response: it is sent as it is stored
PAGE_SLICE_ENTRIES: Final = 16_384  # and how many entries, in up to SLICE_ENTRIES rows
PAGE_PART_BYTES: Final = 32 * KiB  # of rows in a catch-up response on average that are sent one by one, not joined
PAGE_ENTRIES: Final = 65_536  # appends in one catch-up response, however small
LONG_POLL_TIMEOUT_S: Final = 30.0
EVENT_BYTES: Final = 256 * KiB  # of entries in one SSE event that is encoded at once; larger ones are sent in slices
SSE_RECYCLE_S: Final = 60.0  # an SSE response ends about then; clients reconnect and caches can collapse them
SSE_HEARTBEAT_S: Final = 15.0  # a comment line, so that proxies and readers see that the connection is alive
WAITERS_MAX: Final = 20_000  # live readers of one server; the next one gets 429
FORK_DEPTH_MAX: Final = 64  # length of a chain of forks: one read may go through all of them
FEED_FILTER_CHARACTERS_MAX: Final = 2_000  # where= of a reader
FEED_FILTER_SLICES: Final = 64  # read for one page of a reader with a filter: rare matches are found over several pages

# -- subscriptions
CONTROL_BODY_BYTES_MAX: Final = 2 * MiB  # a request to __ds/, which is parsed at once; more is 413
SUBSCRIPTIONS_MAX: Final = 10_000
SUBSCRIPTION_ID_BYTES_MAX: Final = 256
SUBSCRIPTION_LINKS_MAX: Final = 10_000  # streams one subscription follows
LEASE_MS_MIN: Final = 1_000
LEASE_MS_MAX: Final = 600_000
LEASE_MS: Final = 30_000
WEBHOOK_TIMEOUT_S: Final = 30.0  # for one delivery, connection included
WEBHOOK_ANSWER_BYTES_MAX: Final = 64 * KiB
WEBHOOKS_AT_ONCE_MAX: Final = 64
WEBHOOK_RETRY_S_MIN: Final = 1.0
WEBHOOK_RETRY_S_MAX: Final = 60.0
WEBHOOK_RETRY_JITTER: Final = 0.2  # of a retry's delay, up or down
WEBHOOK_URL_BYTES_MAX: Final = 2048
DESCRIPTION_BYTES_MAX: Final = 4 * KiB  # a subscription's description
WORKER_NAME_BYTES_MAX: Final = 256  # the worker that claims a wake
PATTERN_SEGMENTS_MAX: Final = 64  # a subscription's pattern
WAKE_TOKEN_S: Final = 24 * 3600  # the lease ends much earlier; this covers a worker that extends its lease all day
WAKE_TOKEN_BYTES_MAX: Final = 4 * KiB
RETIRED_KEY_MS: Final = (
    24 * 3600 * 1000
)  # a retired signing key stays published; receivers accept signatures for minutes
PUBLISHED_KEYS_MAX: Final = 8  # signing keys published at once

# -- tables: the limits of DynamoDB, so that applications can move there
ITEM_BYTES_MAX: Final = 400 * KiB  # one item, names included
PARTITION_KEY_BYTES_MAX: Final = 2048
SORT_KEY_BYTES_MAX: Final = 1024
BACKUPS_MAX: Final = 1_000  # of tables in one database, made by CreateBackup
TRANSFERS_MAX: Final = 1_000  # exports and imports that are recorded; the oldest that have ended are forgotten
TRANSFERS_ACTIVE_MAX: Final = 50  # exports and imports in progress at once
TRANSFER_TOKEN_S: Final = 8 * 3600  # how long the client token of an export or import is remembered
EXPORT_FILE_BYTES: Final = 32 * MiB  # of JSON in one data file of an export, before compression; it is made in memory
IMPORT_FILES_MAX: Final = 50_000  # objects below the prefix of an import
IMPORT_RECORD_BYTES_MAX: Final = 8 * MiB  # of one line of JSON or record of CSV: more than any item takes
IMPORT_ERRORS_LOGGED: Final = 20  # of one import, in the log of the server
TABLES_MAX: Final = 2_500  # of one database; more is LimitExceeded
TABLE_NAME_CHARACTERS_MIN: Final = 1  # also an index's name; the DynamoDB API requires 3
TABLE_NAME_CHARACTERS_MAX: Final = 255
LIST_TABLES_MAX: Final = 100  # tables named in one response
LOCAL_INDEXES_MAX: Final = 5  # of one table
GLOBAL_INDEXES_MAX: Final = 20  # of one table
KEY_PARTS_MAX: Final = 4  # attributes of a global index's partition key, and of its sort key
KEY_ATTRIBUTE_CHARACTERS_MAX: Final = 255  # the name of a key attribute, or of the TTL attribute
PROJECTED_ATTRIBUTES_MAX: Final = 100  # attributes named in the projections of all indexes together
CAPACITY_UNITS_MAX: Final = 10**12  # of provisioned throughput
TAGS_MAX: Final = 50  # of one table
TAG_KEY_CHARACTERS_MAX: Final = 128
TAG_VALUE_CHARACTERS_MAX: Final = 256
EXPRESSION_BYTES_MAX: Final = 4 * KiB  # the text of one expression
EXPRESSION_OPERATORS_MAX: Final = 300  # operators and functions in one expression
EXPRESSION_CALLS_DEPTH_MAX: Final = 32  # nested function calls in a condition; more than two are never valid
EXPRESSION_PATH_STEPS_MAX: Final = 32  # steps of a document path
EXPRESSIONS_PARSED_MAX: Final = 1_024  # parsed texts cached per grammar
EXPRESSIONS_BOUND_MAX: Final = 1_024  # expressions without placeholders, cached ready to use
IN_OPERANDS_MAX: Final = 100  # operands of IN
STATEMENT_CHARACTERS_MAX: Final = 8_192  # the text of one PartiQL statement
STATEMENT_DEPTH_MAX: Final = 64  # nested parentheses in a PartiQL statement, which bounds the parser's recursion
STATEMENT_READS_MAX: Final = 50  # ranges of keys that one PartiQL SELECT reads, one for each value of IN or part of OR
STATEMENTS_PARSED_MAX: Final = 256  # parsed PartiQL statements cached
STATEMENT_CACHED_CHARACTERS_MAX: Final = (
    1_024  # longer statements are not cached: a tree takes a hundred times its text
)
BATCH_STATEMENTS_MAX: Final = 25  # PartiQL statements in one batch
LIST_INDEX_MAX: Final = 2**31 - 1  # an index into a list, in a document path
PLACEHOLDER_BYTES_MAX: Final = 255  # a #name or :value
ITEM_PAGE_BYTES: Final = 1 * MiB  # one page of a query or a scan, or one item
ITEM_SLICE_S: Final = 0.01  # how long one slice of a page examines items on the event loop: filters may be slow
LOOP_ITEM_BYTES_MAX: Final = 64 * KiB  # an item examined on the event loop; larger ones are read in a thread
BATCH_GET_KEYS_MAX: Final = 100
BATCH_GET_BYTES_MAX: Final = 1 * MiB + 400 * KiB - 3  # one response; the remaining keys are returned as unprocessed
TRANSACT_GET_BYTES_MAX: Final = 4 * MiB
TRANSACT_ACTIONS_MAX: Final = 100  # actions of one transaction
EXPIRED_ITEM_S_MAX: Final = 5 * 365 * 24 * 3600  # a TTL further in the past is taken for a mistake; the item stays
TOKEN_S: Final = 600  # how long a client request token is remembered
TOKEN_CHARACTERS_MAX: Final = 36
TRANSACTION_BYTES_MAX: Final = 64 * MiB  # items of one transaction, as they were and as they become; more is TooLarge

# -- transactions
TRANSACTION_OPERATIONS_MAX: Final = 1_000  # operations of one transaction
TRANSACTION_READS_MAX: Final = 10_000  # rows that one transaction has read: its commit reads them again
TRANSACTION_READS_BYTES_MAX: Final = 16 * MiB  # and their bytes
TRANSACTION_BODY_BYTES_MAX: Final = 4 * MiB  # a request to /v1/api/transaction, which is parsed at once; more is 413
TRANSACTION_LOOP_READS: Final = 32  # a transaction that has read more rows runs in a thread
TRANSACTION_ATTEMPTS: Final = 10  # of a function that runs in a transaction, while it conflicts with others
TRANSACTION_PAUSE_S_MAX: Final = 1.0  # between two of them, at most

# -- change streams
CHANGES_AGE_S: Final = 7 * 24 * 3600  # default retention of a change stream: by age
CHANGES_COUNT: Final = 1_000_000  # and by number of records
CHANGE_PAGE_RECORDS: Final = 1_000  # records read at once, unless a limit is given
CHANGE_PAGE_BYTES: Final = 1 * MiB  # and their bytes, or one transaction
CURSORS_MAX: Final = 100  # named cursors of one stream: every trim reads all of them
CURSOR_NAME_BYTES_MAX: Final = 256
POLL_RECORDS_MAX: Final = 10_000  # the maximum `limit` of one GET with after_sequence
HOLD_BYTES: Final = 1024 * MiB  # how much a cursor keeps from being trimmed, by default
HOLD_BYTES_MAX: Final = 2**53 - 1  # and at most: exact in JavaScript

# -- topics
LEASE_SKEW_MS: Final = 5_000  # by which the clock of one process may be behind that of another that made a lease
TOPICS_MAX: Final = 10_000
PARTITIONS_MAX: Final = 1_024  # of one topic: each is a log of its own
ROUTES_MAX: Final = 100  # of one table: each costs every write of it
GROUPS_MAX: Final = 1_000  # of one topic
GROUP_RANGES_MAX: Final = 2_000  # unacknowledged ranges of a group in a partition; every consume and ack reads them all
TOPIC_NAME_CHARACTERS_MAX: Final = 255
GROUP_NAME_BYTES_MAX: Final = 256  # also a consumer's
MESSAGE_BYTES_MAX: Final = 8 * MiB  # a published message
PUBLISH_MESSAGES_MAX: Final = 1_000  # in one request
CONSUME_MESSAGES_MAX: Final = 10_000  # in one response
CONSUME_BYTES: Final = 1 * MiB  # of messages in one response, or one message; the next one has the rest
ACK_RANGES_NOTED: Final = 100  # ranges of one acknowledgement that are recorded
ACKS_NOTED: Final = 50_000  # acknowledgements that wait in memory to be recorded; more are left out
ACKS_WRITTEN: Final = 1_000  # of them in one transaction
ACK_GROUPS_WRITTEN: Final = 32  # groups, each in a partition, whose record one transaction extends: others wait for it
ACK_RANGES_IN_ROW: Final = 256  # recorded ranges in a stored row
ACK_ROWS: Final = 64  # rows that are kept for each group and partition
ACKS_LISTED_MAX: Final = 1_000  # recorded acknowledgements in one response
CONSUMER_CONCURRENCY_MAX: Final = 10_000  # messages that one consumer processes at once: each is a task
VISIBILITY_MS_MIN: Final = 100
VISIBILITY_MS_MAX: Final = 12 * 3600 * 1000  # how long a message may be leased, or delayed
VISIBILITY_MS: Final = 60_000  # the default
CONSUME_TIMEOUT_S: Final = 30.0  # how long a consume waits for messages, by default
CONSUME_TIMEOUT_S_MAX: Final = 300.0  # and at most

# -- jobs and staged writes
JOBS_MAX: Final = 10_000
JOB_NAME_BYTES_MAX: Final = 256  # also of a query that writes in batches
JOB_TEXT_BYTES_MAX: Final = 4 * KiB  # a job's source, target or message
JOB_DEFINITION_BYTES_MAX: Final = 256 * KiB
JOB_LOGS_MAX: Final = 10_000  # logs in which one job has positions, or that one request names
STAGES_MAX: Final = 10_000  # waiting for their commit
STAGES_BYTES_MAX: Final = 4096 * MiB  # and their bytes; at most half of either for one principal
STAGE_BYTES_MAX: Final = 64 * MiB  # of rows in one stage
STAGE_CHUNKS_MAX: Final = 1_024  # requests that one stage is sent in
STAGE_S: Final = 24 * 3600  # how long a stage waits for its commit after its last chunk
COMMIT_ROWS_MAX: Final = 1_000_000  # that one commit of stages appends, while other writers wait
COMMIT_ITEMS_MAX: Final = 100_000  # rows for a table that one transaction writes; a larger commit is several
COMMIT_BYTES_MAX: Final = 256 * MiB  # of the rows of one transaction
COMMIT_SLICE_ITEMS: Final = 20_000  # rows in each transaction of a larger commit: other writers take turns with them
COMMIT_SLICE_BYTES: Final = 32 * MiB  # and about their bytes
COMMIT_IDLE_S: Final = 30  # after which a commit that its client has left half done is continued by the server
SINK_S: Final = 90 * 24 * 3600  # how long the last batch of a query is remembered

# -- users, access keys and tokens
ACCESS_PATTERNS_MAX: Final = 100  # patterns in one principal's grant
ACCESS_PATTERN_BYTES_MAX: Final = 1_100  # the longest path of a stream, and its kind
USERS_MAX: Final = 10_000  # of one database; they are listed in one response
USER_NAME_BYTES_MAX: Final = 256
SESSIONS_MAX: Final = 50  # of one user; a new one ends the oldest
PASSWORD_CHARACTERS_MIN: Final = 8
PASSWORD_BYTES_MAX: Final = 1 * KiB
ACCESS_KEYS_MAX: Final = 1_000  # of one database; they are listed in one response
PRINCIPAL_BYTES_MAX: Final = 256  # the name of the principal of an access key
SIGNATURE_SKEW_S: Final = 15 * 60  # how much the clocks of client and server may differ
PRESIGNED_S_MAX: Final = 7 * 24 * 3600  # how long a presigned URL is valid
SIGNING_KEYS_MAX: Final = 1_024  # derived signing keys cached
ACCESS_TOKEN_BYTES_MAX: Final = 8 * KiB  # a JSON Web Token
REFRESH_TOKEN_BYTES_MAX: Final = 1 * KiB
ACCESS_TOKEN_S: Final = 3_600  # default lifetime of the access token of a login
REFRESH_TOKEN_S: Final = 7 * 24 * 3_600  # by default a session ends this long after its last refresh
TOKEN_LEEWAY_S: Final = 30  # how much the clock of an external issuer may differ
RSA_BITS_MIN: Final = 2_048  # an external issuer's RSA key; shorter keys are ignored
LOGIN_USER_FREE: Final = 5  # login attempts on one user from one address before the first wait
LOGIN_PEER_FREE: Final = 20  # attempts from one address, which many people may share
LOGIN_ANYWHERE_FREE: Final = 20  # attempts on one user from all addresses
LOGIN_WAIT_S_MIN: Final = 1.0  # the first wait; each further attempt doubles it
LOGIN_WAIT_S_MAX: Final = 60.0
LOGIN_ANYWHERE_WAIT_S_MAX: Final = 10.0  # shorter: one guess a minute from anywhere must not lock a user out
LOGIN_FORGET_S: Final = 900.0  # attempts are forgotten after this time without another one
LOGIN_TRACKED_MAX: Final = 10_000  # attempt counters of each kind
LOGIN_TRUSTED_S: Final = 7 * 86_400.0  # how long an address is trusted after a successful login
LOGIN_TRUSTED_MAX: Final = 10  # trusted addresses of one user; the least recently used is evicted

# -- cold storage
COLD_FILE_BYTES: Final = 256 * MiB  # target size of a Parquet file, also of compaction
COLD_GROUP_ROWS: Final = 50_000  # of one row group, which a reader holds in memory
COLD_GROUP_BYTES: Final = 16 * MiB  # and about its bytes, or one row
COLD_FOOTERS: Final = 1_024  # of Parquet files, kept in memory
COLD_MERGE_FILES: Final = 64  # files that one step of compaction merges
COLD_COMMIT_TRIES: Final = 20  # of a commit that conflicts with others; then Unavailable
COLD_VACUUM_HOURS: Final = 7 * 24  # how long an unlisted file is kept: a reader or a commit in progress may use it
COLD_CACHE_BYTES: Final = 64 * MiB  # of cold entries kept in memory
COLD_CACHE_SEGMENT_BYTES: Final = 4 * MiB  # entries cached and evicted together, or one entry
COLD_CACHE_SEGMENT_ENTRIES: Final = 20_000
COLD_THREADS: Final = 8  # threads that read cold storage for requests
COLD_WAITING_MAX: Final = 1_000  # requests that wait for them; the next one gets 503
COLD_CACHE_BYTES_MIN: Final = 16 * MiB  # what the cold cache can be set to at least
COLD_CACHE_FETCHES_MAX: Final = 4  # concurrent reads of cold storage; others wait
COLD_FETCHES_MAX: Final = 200  # cold reads for one command or query; each brings it further

# -- materialized views
VIEW_SQL_CHARACTERS_MAX: Final = 16_384  # of a view's SELECT
VIEW_SOURCES_MAX: Final = 32  # tables that a view reads
VIEW_ERROR_CHARACTERS_MAX: Final = 2_000  # of Spark's message about a SELECT that it refuses
VIEW_ROWS_MAX: Final = 400_000  # rows of a view that one transaction writes
VIEW_BATCHES: Final = 500  # batches of a view that are on record, for each source
VIEW_FILL_ROWS: Final = 20_000  # rows that one step of filling a view writes
VIEW_CLEAR_ROWS: Final = 1_000  # removed in one step before a view is rebuilt

# -- SQL
SQL_BODY_BYTES_MAX: Final = 4 * MiB  # a request to /v1/api/sql, which is parsed at once; more is 413
SQL_WRITE_ROWS_MAX: Final = 10_000  # that one UPDATE or DELETE changes, in one transaction; more is 413
SQL_WRITE_S: Final = 30.0  # how long it may take to find them; then 503
SELECT_WORKERS_MAX: Final = 4  # processes that run SELECT, each one statement at a time; other statements wait
SELECT_WORKER_BYTES_MAX: Final = 1024 * MiB  # memory of one of them, as the operating system counts it; more is 413
SELECT_DUCKDB_BYTES_MAX: Final = 512 * MiB  # of that, DuckDB's own memory limit
SELECT_WORKER_KEPT_BYTES: Final = 512 * MiB  # memory of a worker after a statement; a larger one is replaced
SELECT_WORKER_HELD_BYTES: Final = 64 * MiB  # of cached columns that a worker keeps for the next statement
SELECT_WORKER_IDLE_S: Final = 60.0  # how long an idle worker stays; one always stays
SELECT_SLICE_ROWS: Final = 1_000  # of tables that a SELECT reads in one transaction; more are read in pages
SELECT_SLICE_BYTES: Final = 2 * MiB  # likewise
SELECT_CACHE_BYTES: Final = 64 * MiB  # of decoded columns that are kept for later statements; half for one table
SELECT_POINTERS_MAX: Final = 20_000  # items that a SELECT finds by an index, in one transaction; for more it scans
SELECT_POINTED_BYTES: Final = 32 * MiB  # likewise
SELECT_RANGES_MAX: Final = 1_000  # of keys that a SELECT reads of a source: combinations of the values in its IN lists
SELECT_COLUMNS_MAX: Final = 2_000  # different attributes that a SELECT finds in a table without declared columns
SELECT_TREE_BYTES_MAX: Final = 16 * MiB  # of a statement's parse tree in DuckDB
SELECT_RESULT_ROWS_MAX: Final = 100_000  # of one statement
SELECT_RESULT_BYTES_MAX: Final = 64 * MiB  # of one statement, and of all statements of a request; more is 413
SELECT_ROW_BYTES_MAX: Final = 32 * MiB  # of one row, as Python's values
SELECT_ROWS_BYTES_MAX: Final = 256 * MiB  # of the rows of a result in Python, if they are not streamed
SELECT_RESULTS_BYTES_MAX: Final = 256 * MiB  # of results that are being sent; half for one principal; more is 429
SELECT_SEND_S: Final = 600.0  # how long a client may take to read a result; then it is disconnected
SELECTS_OF_ONE_MAX: Final = 2  # statements of one principal that run at once
SELECTS_WAITING_MAX: Final = 256  # requests of one principal that wait for their turn; more is 429
SELECTS_WAITING_BYTES_MAX: Final = 64 * MiB  # and the texts and parameters of all that wait
SELECT_WAIT_S: Final = 30.0  # how long a request waits for its turn; then 503

# -- bulk reads
BULK_ENTRIES: Final = 10_000  # entries, or items, in one Arrow batch
BULK_BYTES: Final = 8 * MiB  # of entries in one Arrow batch, unless a single one is larger
BULK_READS_MAX: Final = 2  # batches, and pages of items, read from the database at once; others wait
BULK_PIECES_MAX: Final = 1_000  # into which a range is split by its records: a few lookups for each
BULK_COLD_READS_MAX: Final = 4  # batches that wait for cold storage at once, in addition; others wait
BULK_BUSY: Final = 0.3  # share of a core that the event loop may use before bulk reads pause between batches
BULK_REST: Final = 6.0  # how long they pause when it uses a whole core, as a multiple of a batch's time
BULK_LOGS_MAX: Final = 10_000  # partitions in one request about logs, or in its answer; ask again for further ones
BULK_WAIT_S: Final = 30.0  # how long a scan of items waits for its turn; then it gets 503
EXPORTS_MAX: Final = 8  # concurrent exports of items; others wait, then get 503
EXPORT_PAGE_BYTES: Final = 2 * MiB  # of items in one page of an export; as JSON, twice, up to 24 times that
EXPORT_S: Final = 3600.0  # how long an export of items may take in total
EXPORT_IMAGES_BYTES: Final = 1024 * MiB  # old images kept for one export, on disk; with more it fails

# -- the clock
CLOCK_JUMP_S: Final = 300.0  # after a larger forward step of the clock, deletion by age waits
CLOCK_CONFIRM_S: Final = 3600.0  # how long the clock must keep the new time after a larger step until it is followed
CLOCK_NOTE_S: Final = 60.0  # how often the time is recorded while there are writes, for comparison at the next start

# -- workers: the bus between processes
BUS_FRAME_BYTES: Final = 1 * MiB  # of commands in one frame
BUS_FRAME_BYTES_MAX: Final = 512 * MiB  # a longer frame ends the link
BUS_WAITING_MAX: Final = 16_384  # commands of one worker that are not answered; more is 503
BUS_WAITING_BYTES_MAX: Final = 128 * MiB  # and their bytes
BUS_WINDOW_BYTES: Final = 32 * MiB  # of one worker's commands that are not answered; then its link is not read from
BUS_UNSENT_BYTES_MAX: Final = 128 * MiB  # that a worker has not read; then its link is cut off, and it connects again
BUS_BEAT_S: Final = 0.5  # how often the writer tells workers its state
BUS_TTL_S: Final = 3.0  # without an answer of the writer, cached credentials are checked again
BUS_RETRY_S: Final = 0.02  # before a lost link is made again
BUS_RETRY_S_MAX: Final = 3.0  # the same, after the writer has refused several in a row
WRITER_WAIT_S: Final = 15.0  # how long writes wait for a writer that is being replaced; then 503
WORKERS_MAX: Final = 256  # processes that serve HTTP

# -- the writer
WRITE_QUEUE_MAX: Final = 16_384  # commands waiting for the next commit; more is 503
WRITE_QUEUE_BYTES_MAX: Final = 256 * MiB  # and their bytes
BATCH_COMMANDS_MAX: Final = 1_024  # commands in one commit
BATCH_BYTES_MAX: Final = 16 * MiB  # bytes in one commit
BATCH_LOOP_S: Final = 0.01  # how long commands of one commit run on the event loop; the others wait for the next one
BATCH_TOGETHER_MAX: Final = 64  # commands of one kind that are run together, between two looks at that time
LOOP_BYTES: Final = 64 * KiB  # a larger command runs in a thread, with the others in its commit
LOOP_COMMIT_S: Final = 0.001  # commits of one command may run on the event loop if they take less than this
LOOP_COMMITS_MIN: Final = 256  # so many of them, before one does
LOOP_STALL_S: Final = 0.02  # a commit that took longer would be noticed by readers
LOOP_STALL_COMMITS: Final = 10_000  # so many more after one of those
LOOP_ACTIONS: Final = 4  # likewise a transaction of more actions
LOOP_WRITES: Final = 25  # and a batch of more writes
LOOP_MESSAGES: Final = 200  # and a publish of more messages
DISK_RESERVE_BYTES: Final = 8 * MiB  # the reserve for deleting on a full disk: a checkpoint of the write-ahead log fits
DISK_RESERVE_SHARE: Final = 16  # at most this fraction of the disk: a sixteenth
DISK_RESERVE_BYTES_MIN: Final = 64 * KiB  # a smaller reserve is of no use
BACKUP_PAGES: Final = 4_096  # of the database copied between two progress reports
BACKUP_CHUNK_BYTES: Final = 1 * MiB  # chunks of the database: a changed byte stores one again
BACKUP_COLD_CHUNK_BYTES: Final = 16 * MiB  # chunks of files in cold storage, which never change: few large objects
BACKUP_THREADS: Final = 8  # chunks read or written at once
BACKUP_MANIFEST_BYTES_MAX: Final = 256 * MiB  # a larger manifest is not read
BACKUP_UNUSED_S: Final = 24 * 3600  # age of an object that nothing refers to before it is removed from a bucket
ROW_CACHE_MAX: Final = 65_536  # committed rows of one table kept in memory
RECENT_ITEMS_BYTES: Final = 32 * MiB  # of memory for items that were read or written lately
JSON_CACHE_BYTES: Final = 32 * MiB  # of items that were read lately, as they are stored and as JSON
SWEEP_DUE: Final = 100  # rows of a list of work that one search of housekeeping reads
SWEEP_STREAMS: Final = 1_000  # streams, tables or topics that one search of housekeeping examines
SWEEP_BYTES: Final = 4 * MiB  # approximately removed in one step
SWEEP_ENTRIES: Final = 5_000  # entries removed in one step, so that writers wait milliseconds at most
SWEEP_ITEMS: Final = 250  # items that one step deletes or adds to an index
SWEEP_ROWS: Final = 2_000  # rows of a dropped table that one step removes
METRIC_SERIES_MAX: Final = 2_000  # partitions, and groups in partitions, with metrics of their own

# -- lists and history, for people who look at a database
LISTING_MAX: Final = 1_000  # streams or tables in one page of a list
LISTING_EXAMINED: Final = 5_000  # names that one page examines; then it ends, and the next one goes on
STATUS_COUNT_MAX: Final = 10_000  # streams, tables or topics that the status counts; of more it says so
STATUS_GROUPS: Final = 10  # groups with the largest lag that the status has
SAMPLE_S: Final = 10.0  # between two samples of the server's state
SAMPLES_MAX: Final = 8_640  # of them kept in memory: 24 hours
AUDIT_LINES_MAX: Final = 1_000  # lines of the audit log that are kept in memory
HISTORY_ENTRIES: Final = 20_000  # transactions that one page of an item's history examines; the next one goes on
HISTORY_BYTES: Final = 16 * MiB  # and their bytes
HISTORY_VERSIONS_MAX: Final = 1_000  # versions of an item in one page
UNDONE_RECORDS_MAX: Final = 50_000  # changes that a read of a table's past undoes; an earlier moment is refused
UNDONE_BYTES_MAX: Final = 32 * MiB  # and their bytes
TRACED_MESSAGES: Final = 10_000  # messages that the trace of a write examines
TRACED_VIEW_ROWS: Final = 20  # rows of a view that it shows
TRACED_RECORDS: Final = 100  # records and messages that it shows

# -- a database in PostgreSQL
LEASE_TTL_S: Final = 3.0  # a leader that has not renewed its lease for so long is replaced
STANDBY_LOOK_S: Final = 0.1  # how often a server that waits looks whether the leader is there
STEP_DOWN_REST_S: Final = 5.0  # how long a server that has stepped down leaves the lease to others
CLUSTER_SECRET_CHARACTERS_MIN: Final = 32  # of the secret that servers of a cluster share
CLUSTER_SECRETS_MAX: Final = 4  # that are accepted at once, while one replaces another
BUS_HANDSHAKE_S: Final = 5.0  # for a server to connect to the leader and to prove that it has the secret
BUS_HANDSHAKES_MAX: Final = (
    64  # connections to the bus that have not proved it yet; the oldest is closed for another one
)
BUS_FORGET_S: Final = 600.0  # a server that was not connected for so long is forgotten; it joins as a new one
STEP_DOWN_S: Final = 15.0  # for another server to take over from one that steps down, before the request is 503
STEP_DOWN_DRAIN_S: Final = 10.0  # for a leader that steps down to finish what it has begun; new commands wait meanwhile
COMMIT_DECISION_S: Final = 30.0  # how long to try to find out what became of a commit whose answer was lost
POSTGRES_CONNECT_S: Final = 3  # for each host of the URL
POSTGRES_SILENCE_S: Final = 5  # a machine that acknowledges nothing for so long is lost; its connections end
POSTGRES_READERS_MAX: Final = 24  # connections that read
POSTGRES_READER_WAIT_S: Final = 10.0  # for one of them; then 503
READY_CHECK_S: Final = 1.0  # how long /readyz of a server of a cluster relies on its last query
READY_WAIT_S: Final = 3.0  # how long that query may take; then the server is not ready
SCAN_PAGE_BYTES: Final = 1 * MiB  # of rows that one statement of a scan fetches, approximately
