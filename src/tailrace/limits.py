"""Every limit has a name and a reason. What exceeds one is refused with 4xx or 503; nothing grows without end."""

from __future__ import annotations

from typing import Final

KiB: Final = 1024
MiB: Final = 1024 * KiB

# -- requests
HEAD_BYTES_MAX: Final = 32 * KiB  # request line and header fields; more is 431
HEADERS_MAX: Final = 100  # fields per request, and trailers; more is 431
AWS_HEAD_BYTES_MAX: Final = 16 * KiB  # of a request to the DynamoDB API; more is 400, as in the service
CHUNK_EXTENSION_BYTES_MAX: Final = 4 * KiB  # of all chunks of one body, which nobody reads; more is 431
BODY_BYTES_MAX: Final = 16 * MiB  # one request's body; more is 413
INBOUND_BYTES_MAX: Final = 256 * MiB  # bodies that have arrived in part, of all connections; more is 503
HEAD_TIMEOUT_S: Final = 10.0  # from the first byte of a request to the end of its head
BODY_TIMEOUT_S: Final = 30.0  # for the body, renewed while it arrives at BODY_RATE_MIN
BODY_RATE_MIN: Final = 16 * KiB  # bytes per second below which a body counts as stalled
IDLE_TIMEOUT_S: Final = 75.0  # a kept-alive connection with nothing under way
CONNECTIONS_MAX: Final = 10_000  # open connections; the next is answered 503 and closed
SERVER_TOKEN_CHARACTERS_MIN: Final = 16  # of the token that may do everything; a shorter one is refused at the start
PIPELINE_MAX: Final = 64  # requests of one connection under way at once; then reading pauses
LINGER_S: Final = 2.0  # after an error answer, how long what the client still sends is read and dropped
READER_BUFFER_MAX: Final = 1 * MiB  # unsent bytes of one live reader; more, and it is dropped
UNSENT_BYTES_MAX: Final = 256 * MiB  # responses that clients have not taken yet, in total; the oldest stalls are cut
UNSENT_CONNECTION_MAX: Final = 32 * MiB  # and of one connection, beside its last response; more, and it is cut
SHUTDOWN_S: Final = 5.0  # live readers are ended and requests under way answered within this

# -- streams
PATH_BYTES_MAX: Final = 1024  # a stream's path, percent-decoded
CONTENT_TYPE_BYTES_MAX: Final = 256
STREAM_SEQ_BYTES_MAX: Final = 256
PRODUCER_ID_BYTES_MAX: Final = 256
PRODUCER_NUMBER_MAX: Final = 2**53 - 1  # what JavaScript counts exactly
TTL_S_MAX: Final = 10**10  # about 317 years
POSITION_MAX: Final = 10**16 - 1  # what the wire form of an offset holds
PAGE_BYTES: Final = 4 * MiB  # a catch-up answer holds at most this (or one message), cut between messages
SLICE_BYTES: Final = 256 * KiB  # read in one go between turns of the event loop
SLICE_ENTRIES: Final = 1_024  # and how many entries
PAGE_ENTRIES: Final = 65_536  # appends in one catch-up answer, however small they are
LONG_POLL_TIMEOUT_S: Final = 30.0
EVENT_BYTES: Final = 256 * KiB  # of entries in one SSE event that is encoded in one go; larger ones are sent in slices
SSE_RECYCLE_S: Final = 60.0  # an SSE answer ends about then; clients reconnect and caches can collapse them
SSE_HEARTBEAT_S: Final = 15.0  # a comment line, so that proxies and readers see that the line is alive
WAITERS_MAX: Final = 20_000  # live readers of one server; the next is answered 429
FORK_DEPTH_MAX: Final = 64  # a fork of a fork of ...; bounds what one read has to stitch

# -- subscriptions
CONTROL_BODY_BYTES_MAX: Final = 2 * MiB  # a request to __ds/, which is parsed in one go; more is 413
SUBSCRIPTIONS_MAX: Final = 10_000
SUBSCRIPTION_ID_BYTES_MAX: Final = 256
SUBSCRIPTION_LINKS_MAX: Final = 10_000  # streams one subscription follows
LEASE_MS_MIN: Final = 1_000
LEASE_MS_MAX: Final = 600_000
LEASE_MS: Final = 30_000
WEBHOOK_TIMEOUT_S: Final = 30.0  # for one delivery, connection included
WEBHOOK_ANSWER_BYTES_MAX: Final = 64 * KiB
WEBHOOKS_AT_ONCE_MAX: Final = 64
RETRY_S_MIN: Final = 1.0
RETRY_S_MAX: Final = 60.0

# -- tables: what DynamoDB allows, so that what works here works there
ITEM_BYTES_MAX: Final = 400 * KiB  # one item, names included
TOKEN_S: Final = 600  # how long a client request token is remembered
TOKEN_CHARACTERS_MAX: Final = 36
TRANSACTION_BYTES_MAX: Final = 64 * MiB  # items of one transaction, as they were and as they become; more is TooLarge

# -- change streams
CURSORS_MAX: Final = 100  # named cursors of one stream: each is looked at whenever it is trimmed
CURSOR_NAME_BYTES_MAX: Final = 256
POLL_RECORDS_MAX: Final = 10_000  # records that one GET with after_sequence and limit may ask for
HOLD_BYTES: Final = 1024 * MiB  # how much a cursor keeps from being trimmed, unless told
HOLD_BYTES_MAX: Final = 2**53 - 1  # and what it can be told: what JavaScript counts exactly

# -- topics
TOPICS_MAX: Final = 10_000
PARTITIONS_MAX: Final = 1_024  # of one topic: each is a log of its own
ROUTES_MAX: Final = 100  # of one table: each costs every write of it
GROUPS_MAX: Final = 1_000  # of one topic
TOPIC_NAME_CHARACTERS_MAX: Final = 255
GROUP_NAME_BYTES_MAX: Final = 256  # also a consumer's
MESSAGE_BYTES_MAX: Final = 8 * MiB  # a published message
PUBLISH_MESSAGES_MAX: Final = 1_000  # in one request
CONSUME_MESSAGES_MAX: Final = 10_000  # in one answer
CONSUME_BYTES: Final = 1 * MiB  # of messages in one answer, or one message; the next one has the rest
CONSUMER_CONCURRENCY_MAX: Final = 10_000  # messages that one consumer has in work at once: each is a task
VISIBILITY_MS_MIN: Final = 100
VISIBILITY_MS_MAX: Final = 12 * 3600 * 1000  # how long a message may be held, or kept back
CONSUME_TIMEOUT_S: Final = 30.0  # how long a consume waits for messages, unless told
CONSUME_TIMEOUT_S_MAX: Final = 300.0  # and what it can be told

# -- jobs, and what they stage
JOBS_MAX: Final = 10_000
JOB_NAME_BYTES_MAX: Final = 256  # also a query's that writes in batches
JOB_TEXT_BYTES_MAX: Final = 4 * KiB  # a job's source, target or message
JOB_DEFINITION_BYTES_MAX: Final = 256 * KiB
JOB_LOGS_MAX: Final = 10_000  # whose positions one job has, or one request names
STAGES_MAX: Final = 10_000  # that wait for their commit
STAGES_BYTES_MAX: Final = 4096 * MiB  # and their bytes; one principal's are at most half of either
STAGE_BYTES_MAX: Final = 64 * MiB  # of rows in one stage
STAGE_CHUNKS_MAX: Final = 1_024  # requests that one stage is sent in
STAGE_S: Final = 24 * 3600  # how long a stage waits for its commit after its last chunk
COMMIT_ROWS_MAX: Final = 1_000_000  # that one commit of stages appends, while other writers wait
COMMIT_ITEMS_MAX: Final = 20_000  # likewise rows for a table, which cost more: each is looked up, indexed, recorded
COMMIT_BYTES_MAX: Final = 256 * MiB  # and their bytes
SINK_S: Final = 90 * 24 * 3600  # how long it is remembered which batch of a query was written last

# -- cold storage
COLD_FILE_BYTES: Final = 256 * MiB  # about when a Parquet file is full and the next one begins; compaction makes such
COLD_GROUP_ROWS: Final = 50_000  # of one row group: what a reader holds in memory
COLD_GROUP_BYTES: Final = 16 * MiB  # and about its bytes, or one row
COLD_FOOTERS: Final = 1_024  # of Parquet files, kept in memory
COLD_MERGE_FILES: Final = 64  # files that one step of compaction merges
COLD_COMMIT_TRIES: Final = 20  # of a commit that others get ahead of; then Unavailable
COLD_VACUUM_HOURS: Final = 7 * 24  # how long a file that nothing lists is kept: somebody may list or read it
SHELF_BYTES: Final = 64 * MiB  # of cold entries kept in memory
SHELF_RUN_BYTES: Final = 4 * MiB  # entries kept and dropped together, or one entry
SHELF_RUN_ENTRIES: Final = 20_000
COLD_THREADS: Final = 8  # that wait for cold storage on behalf of requests
COLD_WAITING_MAX: Final = 1_000  # requests that wait for them; the next is answered 503
SHELF_BYTES_MIN: Final = 16 * MiB  # what the shelf can be set to at least
SHELF_FETCHES_MAX: Final = 4  # reads of cold storage under way at once; the others wait

# -- materialized views
VIEW_SQL_CHARACTERS_MAX: Final = 16_384  # of a view's SELECT
VIEW_ENTRIES: Final = 4_000  # groups, values and rows of one delta, where it can be cut: other writers wait for it
VIEW_ENTRIES_MAX: Final = 20_000  # and where it is of one transaction, which cannot
VIEW_HELD_BYTES: Final = 8 * MiB  # of a join's rows in one answer to the job
VIEW_CLEAR_ROWS: Final = 1_000  # removed in one step before a view is filled anew

# -- SQL
SQL_BODY_BYTES_MAX: Final = 4 * MiB  # a request to /v1/api/sql, which is parsed in one go; more is 413
SELECT_WORKERS_MAX: Final = 4  # processes that run SELECT, each one statement at a time; other statements wait
SELECT_WORKER_BYTES_MAX: Final = 1024 * MiB  # memory of one of them, as the operating system counts it; more is 413
SELECT_DUCKDB_BYTES_MAX: Final = 512 * MiB  # of that, what DuckDB tries to keep to
SELECT_WORKER_KEPT_BYTES: Final = 512 * MiB  # memory of a worker after a statement; one that has more is replaced
SELECT_WORKER_IDLE_S: Final = 60.0  # how long a worker that is not used stays; one stays for good
SELECT_SLICE_ROWS: Final = 1_000  # of tables, that a SELECT reads in one transaction; more, and it reads them in pages
SELECT_SLICE_BYTES: Final = 2 * MiB  # likewise
SELECT_COLUMNS_MAX: Final = 2_000  # of a table that has none declared: different attributes that a SELECT finds
SELECT_TREE_BYTES_MAX: Final = 16 * MiB  # of a statement as DuckDB reads it
SELECT_RESULT_ROWS_MAX: Final = 100_000  # of one statement
SELECT_RESULT_BYTES_MAX: Final = 64 * MiB  # of one statement, and of all statements of a request; more is 413
SELECT_ROW_BYTES_MAX: Final = 32 * MiB  # of one row, as Python's values
SELECT_ROWS_BYTES_MAX: Final = 256 * MiB  # of the rows of a result in Python, where they are not streamed
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
BULK_PIECES_MAX: Final = 1_000  # into which a range is cut by its records: a few lookups for each
BULK_COLD_READS_MAX: Final = 4  # batches that wait for cold storage at once, beside those; others wait
BULK_BUSY: Final = 0.3  # of a core: what the event loop may spend before bulk reads rest between batches
BULK_REST: Final = 6.0  # how long they rest when it spends all of one, in times of what a batch took
BULK_WAIT_S: Final = 30.0  # how long a scan of items waits for its turn; then it is answered 503
EXPORTS_MAX: Final = 8  # exports of items under way at once; others wait, then 503
EXPORT_PAGE_BYTES: Final = 2 * MiB  # of items in one page of an export; as JSON, twice, up to 24 times that
EXPORT_S: Final = 3600.0  # how long an export of items may take, all in all
EXPORT_IMAGES_BYTES: Final = 1024 * MiB  # of items that changed before an export read them, on disk; more, and it ends

# -- the clock
CLOCK_JUMP_S: Final = 300.0  # how far ahead the clock may step, or be at a start, and deletion by age follows at once
CLOCK_CONFIRM_S: Final = 3600.0  # how long the clock must keep to the new time after a larger step until it follows
CLOCK_NOTE_S: Final = 60.0  # how often the time is recorded while there are writes, to be compared at the next start

# -- the writer
WRITE_QUEUE_MAX: Final = 16_384  # commands waiting for the next commit; more is 503
WRITE_QUEUE_BYTES_MAX: Final = 256 * MiB  # and the bytes they carry
BATCH_COMMANDS_MAX: Final = 1_024  # commands in one commit
BATCH_BYTES_MAX: Final = 16 * MiB  # bytes in one commit
BATCH_LOOP_S: Final = 0.01  # how long commands of one commit run on the event loop; the others wait for the next
LOOP_BYTES: Final = 64 * KiB  # a command that carries more runs on a thread, and what shares its commit with it
LOOP_ACTIONS: Final = 4  # likewise a transaction of more actions
LOOP_WRITES: Final = 25  # and a batch of more writes
DISK_RESERVE_BYTES: Final = 8 * MiB  # set aside for deleting on a full disk: a checkpoint of the write-ahead log fits
DISK_RESERVE_SHARE: Final = 16  # and at most this part of the disk: a sixteenth
DISK_RESERVE_BYTES_MIN: Final = 64 * KiB  # less is not worth being set aside
BACKUP_PAGES: Final = 4_096  # of the database copied between two reports of progress
BACKUP_CHUNK_BYTES: Final = 1 * MiB  # of the database: what a backup stores anew if a byte of it changed
BACKUP_COLD_CHUNK_BYTES: Final = 16 * MiB  # of a file of cold storage, which never changes: few large objects
BACKUP_THREADS: Final = 8  # chunks read or written at once
BACKUP_MANIFEST_BYTES_MAX: Final = 256 * MiB  # a list of files that is larger is no list of files
BACKUP_UNUSED_S: Final = 24 * 3600  # age of an object that nothing refers to before it is removed from a bucket
ROW_CACHE_MAX: Final = 65_536  # committed rows of one table kept in memory
SWEEP_STREAMS: Final = 1_000  # streams with retention looked at in one round of housekeeping
SWEEP_BYTES: Final = 4 * MiB  # about how much is removed in one step
SWEEP_ENTRIES: Final = 5_000  # entries removed in one step, so that writers wait milliseconds at most
