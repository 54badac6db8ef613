"""The route table: every endpoint of the server, in one place.

A row is explained in `route.py`; `app.py` dispatches by it. `GET /openapi.json` and the endpoint tables of
docs/reference are generated from it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tailrace.access import Permission, Principal
from tailrace.http import (
    audit,
    bulk,
    cluster,
    codec,
    cold,
    consume,
    history,
    jobs,
    keys,
    listings,
    openapi,
    partitions,
    reading,
    retention,
    sessions,
    signing_keys,
    sql,
    stages,
    static,
    status,
    streams,
    subscriptions,
    system,
    tables,
    topics,
    transactions,
    users,
    views,
)
from tailrace.http.message import Answer, Request, Response
from tailrace.http.route import (
    ANY_METHOD,
    ANY_TYPE,
    ARROW,
    BYTES,
    CSS,
    EVENTS,
    HTML,
    JAVASCRIPT,
    JSON_OR_MSGPACK,
    MSGPACK,
    MSGPACK_OR_ARROW,
    OPEN,
    TEXT,
    WAKE_TOKEN,
    Route,
)

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from tailrace.http.services import Services
from tailrace.http.submitted import Work

READ: Final = (Permission.READ,)
WRITE: Final = (Permission.WRITE,)
CONSUME: Final = (Permission.CONSUME,)
ADMIN: Final = (Permission.ADMIN,)
JOBS: Final = (Permission.JOBS,)
READ_OR_CONSUME: Final = (*READ, *CONSUME)


def _row(method: str, path: str, summary: str, tag: str, **fields: Any) -> Route:
    return Route(method=method, path=path, summary=summary, tag=tag, **fields)


def _arrow(answer: Callable[..., Any], *query: str) -> Route:
    return _row("GET", "", "", "", answer=answer, query=query, response=ARROW)


def _sql(services: Services, request: Request, principal: Principal) -> Coroutine[Any, Any, Answer]:
    return services.sql(request, principal)


def _dynamodb(services: Services, request: Request, principal: Principal) -> Work:
    return services.dynamodb(request)


def _openapi(services: Services, request: Request, principal: Principal) -> Response:
    return openapi.response(ROUTES)


_STREAM: Final = "/v1/stream/{path*}"
_DS: Final = "/v1/stream/__ds"
_SUBSCRIPTION: Final = f"{_DS}/subscriptions/{{id}}"
_CHANGES: Final = "/v1/tables/{name}/stream"
_CURSOR: Final = "/v1/tables/{name}/cursors/{cursor}"
_API: Final = "/v1/api/topics"
_PARTITION: Final = "/v1/topics/{name}/{partition}/stream"


def _topics_api(action: str, summary: str, **fields: Any) -> Route:
    return _row("POST", f"{_API}/{action}", summary, "topics", also=(f"/api/topics/{action}",), **fields)


ROUTES: Final[tuple[Route, ...]] = (
    # -- streams, whose protocol lets clients add query parameters
    _row(
        "PUT", _STREAM, "Create a stream; no change if it exists with the same configuration.", "streams",
        parse=streams.parse_create, render=streams.render_created, permissions=WRITE, types=ANY_TYPE, query=None,
        body=BYTES, status=201, more=(200,),
    ),
    _row(
        "POST", _STREAM, "Append the body to a stream, close it, or both.", "streams",
        parse=streams.parse_append, render=streams.render_appended, permissions=WRITE, types=ANY_TYPE, query=None,
        body=BYTES, status=204, more=(200,),
    ),
    _row(
        "GET", _STREAM, "Read a stream: a page, a long-poll, an event stream, or a range as Arrow.", "streams",
        answer=streams.read, arrow=_arrow(bulk.stream, *bulk.RANGE_PARAMETERS), permissions=READ, types=ANY_TYPE,
        query=None, ignored=reading.PARAMETERS, response=(BYTES, EVENTS), more=(204, 304),
    ),
    _row(
        "HEAD", _STREAM, "Describe a stream in header fields.", "streams",
        parse=streams.parse_describe, render=streams.render_described,
        arrow=_arrow(bulk.stream, *bulk.RANGE_PARAMETERS), permissions=READ, types=ANY_TYPE, query=None,
    ),
    _row(
        "DELETE", _STREAM, "Delete a stream.", "streams",
        parse=streams.parse_delete, render=codec.no_content, permissions=WRITE, types=ANY_TYPE, query=None, status=204,
    ),
    _row(
        "GET", "/v1/streams", "List the streams, in pages.", "inspection", also=("/v1/streams/",),
        answer=listings.streams, permissions=READ, query=listings.STREAMS_PARAMETERS, response=listings.StreamsResponse,
    ),
    # -- subscriptions
    _row(
        "GET", f"{_DS}/jwks.json", "List the public keys of webhooks, as a JSON Web Key Set.", "subscriptions",
        answer=subscriptions.public_keys, access=OPEN, query=None, response=dict[str, Any],
    ),
    _row(
        "GET", f"{_DS}/subscriptions", "List subscriptions.", "subscriptions",
        also=(f"{_DS}/subscriptions/",), parse=subscriptions.parse_list, render=subscriptions.render_list, offload=True,
        permissions=READ, query=subscriptions.LIST_PARAMETERS, response=subscriptions.SubscriptionsResponse,
    ),
    _row(
        "PUT", _SUBSCRIPTION, "Create a subscription; no change if it exists with the same configuration.",
        "subscriptions", answer=subscriptions.put, permissions=WRITE, query=None,
        body=subscriptions.SubscriptionBody, response=subscriptions.SubscriptionResponse, status=201, more=(200,),
    ),
    _row(
        "GET", _SUBSCRIPTION, "Describe a subscription.", "subscriptions",
        parse=subscriptions.parse_get, render=subscriptions.render_described, offload=True, permissions=READ,
        query=None, response=subscriptions.SubscriptionResponse,
    ),
    _row(
        "DELETE", _SUBSCRIPTION, "Delete a subscription.", "subscriptions",
        parse=subscriptions.parse_delete, render=codec.no_content, permissions=WRITE, query=None, status=204,
    ),
    _row(
        "POST", f"{_SUBSCRIPTION}/streams", "Add streams to a subscription.", "subscriptions",
        parse=subscriptions.parse_add_streams, render=codec.no_content, permissions=WRITE, query=None,
        body=subscriptions.StreamsBody, status=204,
    ),
    _row(
        "DELETE", f"{_SUBSCRIPTION}/streams/{{path*}}", "Remove a stream from a subscription.", "subscriptions",
        parse=subscriptions.parse_remove_stream, render=codec.no_content, permissions=WRITE, query=None, status=204,
    ),
    _row(
        "POST", f"{_SUBSCRIPTION}/claim", "Claim the pending work of a subscription for a worker.", "subscriptions",
        answer=subscriptions.claim, permissions=WRITE, query=None, body=subscriptions.ClaimBody,
        response=subscriptions.WakeResponse,
    ),
    _row(
        "POST", f"{_SUBSCRIPTION}/callback", "Acknowledge a webhook's wake.", "subscriptions",
        parse=subscriptions.parse_callback, render=subscriptions.render_acked, access=WAKE_TOKEN, query=None,
        body=subscriptions.WakeBody, response=subscriptions.WakeAckResponse,
    ),
    _row(
        "POST", f"{_SUBSCRIPTION}/ack", "Acknowledge a claimed wake.", "subscriptions",
        parse=subscriptions.parse_ack, render=subscriptions.render_acked, access=WAKE_TOKEN, query=None,
        body=subscriptions.WakeBody, response=subscriptions.WakeAckResponse,
    ),
    _row(
        "POST", f"{_SUBSCRIPTION}/release", "Release a claimed wake, for another worker.", "subscriptions",
        parse=subscriptions.parse_release, render=codec.no_content, access=WAKE_TOKEN, query=None,
        body=subscriptions.WakeBody, status=204,
    ),
    # -- tables and their changes
    _row(
        "GET", "/v1/tables", "List the tables with their keys, indexes, sizes and routes, in pages.", "inspection",
        also=("/v1/tables/",), answer=listings.tables, permissions=READ, query=listings.TABLES_PARAMETERS,
        response=listings.TablesResponse,
    ),
    _row(
        "GET", _CHANGES, "Read the changes of a table: a page, a long-poll, an event stream, or a range as Arrow.",
        "tables", answer=tables.read, arrow=_arrow(bulk.table, *bulk.RANGE_PARAMETERS, "label"), permissions=READ,
        query=tables.READ_PARAMETERS, response=(list[tables.ChangeMessage], EVENTS), more=(204, 304),
    ),
    _row(
        "HEAD", _CHANGES, "Describe the change stream of a table in header fields.", "tables",
        parse=tables.parse_head, render=tables.render_head,
        arrow=_arrow(bulk.table, *bulk.RANGE_PARAMETERS, "label"), permissions=READ, query=tables.READ_PARAMETERS,
    ),
    _row(
        "PATCH", _CHANGES, "Alter the retention of the change stream.", "tables",
        answer=retention.alter, permissions=ADMIN, query=retention.PARAMETERS, body=retention.RetentionBody,
        response=retention.ChangeStreamResponse,
    ),
    _row(
        "GET", f"{_CHANGES}/info", "Describe the change stream and its cursors.", "tables",
        answer=retention.describe, permissions=READ, query=retention.PARAMETERS,
        response=retention.ChangeStreamResponse,
    ),
    _row(
        "POST", f"{_CHANGES}/prune", "Remove changes up to and including a sequence.", "tables",
        answer=retention.prune, permissions=ADMIN, query=retention.PARAMETERS, body=retention.PruneBody,
        response=retention.ChangeStreamResponse,
    ),
    _row(
        "GET", "/v1/tables/{name}/cursors", "List the named cursors.", "tables",
        parse=retention.parse_cursors, render=retention.render_cursors, permissions=READ, query=retention.PARAMETERS,
        response=retention.CursorsResponse,
    ),
    _row(
        "GET", _CURSOR, "Describe a cursor.", "tables",
        parse=retention.parse_cursors, render=retention.render_named_cursor, permissions=READ,
        query=retention.PARAMETERS, response=retention.CursorResponse,
    ),
    _row(
        "PUT", _CURSOR, "Save a cursor.", "tables",
        parse=retention.parse_save_cursor, render=retention.render_cursor, permissions=WRITE,
        query=retention.PARAMETERS, body=retention.CursorBody, response=retention.CursorResponse,
    ),
    _row(
        "DELETE", _CURSOR, "Drop a cursor.", "tables",
        parse=retention.parse_drop_cursor, render=retention.render_dropped_cursor, permissions=WRITE,
        query=retention.PARAMETERS, status=204,
    ),
    _row(
        "GET", "/v1/tables/{name}/items", "Read all items of a table as of one moment, as Arrow.", "logs",
        answer=bulk.items, permissions=READ, query=bulk.ITEMS_PARAMETERS, response=ARROW,
    ),
    _row(
        "GET", "/v1/tables/{name}/items/history", "Read the versions of an item, the newest first, in pages.",
        "inspection", answer=history.versions, permissions=READ, query=history.HISTORY_PARAMETERS,
        response=history.HistoryResponse,
    ),
    _row(
        "GET", "/v1/tables/{name}/at", "Read the items of a table as of an earlier moment, in pages.", "inspection",
        answer=history.past_items, permissions=READ, query=history.PAST_PARAMETERS, response=history.PastItemsResponse,
    ),
    _row(
        "GET", "/v1/tables/{name}/writes/{sequence}", "Follow a write: its record, messages, groups, views, files.",
        "inspection", answer=history.follow_write, permissions=READ, query=history.WRITE_PARAMETERS,
        response=history.WriteResponse,
    ),
    # -- transactions
    _row(
        "POST", "/v1/api/transaction", "Write rows, acknowledge, publish and append: all of it, or nothing.",
        "transactions", answer=transactions.transact, permissions=(*WRITE, *CONSUME),
        body=transactions.TransactionBody, response=transactions.TransactionResponse,
    ),
    _row(
        "POST", "/v1/api/transaction/read", "Read items, or the tail of a stream, within a transaction.",
        "transactions", answer=transactions.read, permissions=READ, body=transactions.TransactionReadBody,
        response=transactions.TransactionReadResponse,
    ),
    # -- topics
    _topics_api(
        "consume", "Consume messages as a member of a group; can wait for new ones.",
        answer=consume.consume, permissions=CONSUME, types=JSON_OR_MSGPACK, body=consume.ConsumeBody,
        response=(consume.ConsumeResponse, MSGPACK),
    ),
    _topics_api(
        "ack", "Acknowledge messages.",
        parse=consume.parse_ack, render=consume.render_acked, count=consume.count_acked, permissions=CONSUME,
        body=consume.AckBody, response=consume.AckResponse,
    ),
    _topics_api(
        "extend", "Extend the lease of messages.",
        parse=consume.parse_extend, render=consume.render_extended, permissions=CONSUME, body=consume.ExtendBody,
        response=consume.ExtendResponse,
    ),
    _topics_api(
        "nack", "Return messages to the group, to be delivered again.",
        parse=consume.parse_nack, render=consume.render_nacked, permissions=CONSUME, body=consume.NackBody,
        response=consume.NackResponse,
    ),
    _topics_api(
        "publish", "Publish messages, as JSON or MessagePack.",
        parse=topics.parse_publish, render=topics.render_published, count=topics.count_published, permissions=WRITE,
        types=JSON_OR_MSGPACK, body=topics.PublishBody, response=topics.PublishResponse,
    ),
    _row(
        "GET", "/v1/topics", "List the topics.", "topics",
        also=("/v1/topics/",), parse=topics.parse_list, render=topics.render_list, offload=True, permissions=READ,
        types=ANY_TYPE, response=topics.TopicsResponse,
    ),
    _row(
        "GET", "/v1/topics/{name}", "Describe a topic with its partitions, groups and routes.", "topics",
        parse=topics.parse_describe, render=topics.render_described, offload=True, permissions=READ, types=ANY_TYPE,
        response=topics.TopicDetailResponse,
    ),
    _row(
        "GET", "/v1/topics/{name}/acknowledgements", "List the last acknowledgements of a group: who, and when.",
        "topics", answer=topics.acknowledgements, permissions=CONSUME, types=ANY_TYPE, query=topics.ACKS_PARAMETERS,
        response=topics.AcksResponse,
    ),
    _row(
        "POST", "/v1/topics/{name}", "Publish the body as one message.", "topics",
        parse=topics.parse_publish_raw, render=topics.render_published_raw, count=topics.count_published,
        permissions=WRITE, types=ANY_TYPE, query=topics.PUBLISH_PARAMETERS, body=BYTES, status=204, more=(200,),
    ),
    _row(
        "GET", _PARTITION, "Read a partition: a page, a long-poll, an event stream, or a range as Arrow.", "topics",
        answer=partitions.read, arrow=_arrow(bulk.partition, *bulk.RANGE_PARAMETERS), permissions=CONSUME,
        types=ANY_TYPE, query=partitions.READ_PARAMETERS, response=(list[partitions.WireMessage], EVENTS),
        more=(204, 304),
    ),
    _row(
        "HEAD", _PARTITION, "Describe a partition in header fields.", "topics",
        parse=partitions.parse_head, render=partitions.render_head,
        arrow=_arrow(bulk.partition, *bulk.RANGE_PARAMETERS), permissions=CONSUME, types=ANY_TYPE,
        query=partitions.READ_PARAMETERS,
    ),
    # -- SQL and the DynamoDB API
    _row(
        "POST", "/v1/api/sql", "Run SQL statements.", "sql", answer=_sql,
        permissions=(*READ, *WRITE, *CONSUME, *ADMIN), body=sql.SqlBody, response=sql.SqlResponse,
    ),
    _row(
        "POST", "/", "The DynamoDB API: the operation is named by X-Amz-Target.", "dynamodb",
        answer=_dynamodb, complete=True, access=OPEN, types=ANY_TYPE, query=None, body=dict[str, Any],
        response=dict[str, Any],
    ),
    _row(
        "GET", "/", "The health check of the DynamoDB API; for browsers, the web console.", "dynamodb",
        answer=system.get_root, access=OPEN, types=ANY_TYPE, query=None, response=(TEXT, HTML), more=(304,),
    ),
    _row(ANY_METHOD, "/", "", "dynamodb", answer=_dynamodb, complete=True, access=OPEN, types=ANY_TYPE, query=None),
    # -- logs in bulk
    _row(
        "GET", "/v1/logs", "Describe the history of a table, topic or stream, by partition.", "logs",
        answer=bulk.describe, permissions=READ_OR_CONSUME, query=bulk.LOG_NAMES, response=bulk.LogResponse,
    ),
    _row(
        "GET", "/v1/logs/at", "Find the first offset at or after a timestamp, by partition.", "logs",
        answer=bulk.offsets_at, permissions=READ_OR_CONSUME, query=(*bulk.LOG_NAMES, "timestamp"),
        response=bulk.OffsetsResponse,
    ),
    _row(
        "POST", "/v1/logs", "Describe the histories of many tables, topics and streams.", "logs",
        answer=bulk.describe_many, permissions=READ_OR_CONSUME, body=bulk.LogsBody, response=bulk.LogsResponse,
    ),
    _row(
        "POST", "/v1/logs/advance", "Find the offsets that are a number of records ahead, by partition.", "logs",
        answer=bulk.advance, permissions=READ_OR_CONSUME, body=bulk.AdvanceBody, response=bulk.AdvanceResponse,
    ),
    _row(
        "GET", "/v1/logs/count", "Count the records of a range and split it into equal pieces.", "logs",
        answer=bulk.count, permissions=READ, query=(*bulk.LOG_NAMES, "first", "until", "pieces"),
        response=bulk.CountResponse,
    ),
    # -- staged writes
    _row(
        "POST", "/v1/stages", "Stage rows for a table, topic or stream.", "pipeline",
        also=("/v1/stages/",), answer=stages.stage, permissions=WRITE, types=MSGPACK_OR_ARROW, query=stages.PARAMETERS,
        body=MSGPACK, response=stages.StageResponse, status=201, more=(200,),
    ),
    _row(
        "POST", "/v1/stages/commit", "Write the rows of stages, once.", "pipeline",
        parse=stages.parse_commit, render=stages.render_committed, permissions=(*WRITE, *JOBS), types=JSON_OR_MSGPACK,
        body=stages.CommitBody, response=stages.CommitResponse,
    ),
    _row(
        "DELETE", "/v1/stages/{id}", "Drop staged rows.", "pipeline",
        answer=stages.drop, permissions=WRITE, types=JSON_OR_MSGPACK, status=204,
    ),
    # -- jobs
    _row(
        "GET", "/v1/jobs", "List the jobs.", "pipeline", also=("/v1/jobs/",),
        parse=jobs.parse_list, render=jobs.render_list, offload=True, permissions=READ, response=jobs.JobsResponse,
    ),
    _row(
        "GET", "/v1/jobs/{name}", "Describe a job and its positions.", "pipeline",
        parse=jobs.parse_get, render=jobs.render_job, offload=True, permissions=READ, response=jobs.JobResponse,
    ),
    _row(
        "PUT", "/v1/jobs/{name}", "Register a job.", "pipeline",
        parse=jobs.parse_register, render=jobs.render_job, permissions=ADMIN, body=jobs.RegisterJobBody,
        response=jobs.JobResponse,
    ),
    _row(
        "DELETE", "/v1/jobs/{name}", "Drop a job and its positions.", "pipeline",
        parse=jobs.parse_drop, render=codec.no_content, permissions=ADMIN, status=204,
    ),
    _row(
        "POST", "/v1/jobs/{name}/report", "Report the state of a job.", "pipeline",
        parse=jobs.parse_report, render=jobs.render_job, permissions=JOBS, body=jobs.ReportJobBody,
        response=jobs.JobResponse,
    ),
    _row(
        "POST", "/v1/jobs/{name}/pause", "Pause a job, until it is resumed.", "pipeline",
        parse=jobs.parse_pause, render=jobs.render_job, permissions=JOBS, response=jobs.JobResponse,
    ),
    _row(
        "POST", "/v1/jobs/{name}/resume", "Resume a paused job.", "pipeline",
        parse=jobs.parse_resume, render=jobs.render_job, permissions=JOBS, response=jobs.JobResponse,
    ),
    _row(
        "POST", "/v1/jobs/{name}/pin", "Set the positions where a job begins, unless they are set.", "pipeline",
        parse=jobs.parse_pin, render=jobs.render_positions, permissions=JOBS, body=jobs.PinBody,
        response=jobs.PositionsResponse,
    ),
    # -- cold storage
    _row(
        "GET", "/v1/cold", "Describe cold storage and the logs in it.", "pipeline", also=("/v1/cold/",),
        answer=cold.describe, permissions=READ, response=cold.ColdStorageResponse,
    ),
    _row(
        "POST", "/v1/cold/attach", "Keep the history of a log in cold storage from now on.", "pipeline",
        answer=cold.attach, permissions=ADMIN, body=codec.LogName, response=bulk.LogResponse,
    ),
    _row(
        "POST", "/v1/cold/detach", "Stop keeping the history of a log in cold storage.", "pipeline",
        answer=cold.detach, permissions=ADMIN, body=codec.LogName, response=bulk.LogResponse,
    ),
    _row(
        "POST", "/v1/cold/tiered", "Record the ranges that were written to cold storage.", "pipeline",
        parse=cold.parse_tiered, render=cold.render_generation, permissions=ADMIN, body=cold.TieredBody,
        response=cold.GenerationResponse,
    ),
    _row(
        "POST", "/v1/cold/forget", "Record the ranges that were removed from cold storage.", "pipeline",
        parse=cold.parse_forget, render=cold.render_starts, permissions=ADMIN, body=cold.ForgetColdBody,
        response=cold.StartsResponse,
    ),
    # -- views
    _row(
        "GET", "/v1/views", "List the materialized views.", "pipeline", also=("/v1/views/",),
        parse=views.parse_list, render=views.render_list, offload=True, permissions=READ, types=JSON_OR_MSGPACK,
        response=views.ViewsResponse,
    ),
    _row(
        "GET", "/v1/views/{name}", "Describe a view: its SELECT, its sources and its position in each.", "pipeline",
        parse=views.parse_get, render=views.render_view, permissions=READ, types=JSON_OR_MSGPACK,
        response=views.ViewResponse,
    ),
    _row(
        "POST", "/v1/views/{name}/apply", "Write staged rows to a view, with the ranges that they come from, once.",
        "pipeline", answer=views.apply, permissions=JOBS, types=JSON_OR_MSGPACK, body=MSGPACK,
        response=views.AppliedResponse,
    ),
    _row(
        "POST", "/v1/views/{name}/partials", "Read partial aggregates of an additive view, by key.", "pipeline",
        answer=views.partials, permissions=JOBS, types=JSON_OR_MSGPACK, body=MSGPACK, response=views.PartialsResponse,
    ),
    _row(
        "POST", "/v1/views/{name}/plan", "Report the plan of a view: its key, columns and strategy.", "pipeline",
        answer=views.plan, permissions=JOBS, types=JSON_OR_MSGPACK, body=MSGPACK, response=views.ViewResponse,
    ),
    _row(
        "POST", "/v1/views/{name}/fill", "Fill a view, step by step.", "pipeline",
        answer=views.fill, permissions=JOBS, types=JSON_OR_MSGPACK, body=MSGPACK, response=dict[str, Any],
    ),
    # -- logins, users and keys
    _row(
        "POST", "/v1/api/auth/login", "Log in with a password.", "access",
        answer=sessions.login, access=OPEN, body=sessions.LoginBody, response=sessions.SessionResponse,
    ),
    _row(
        "POST", "/v1/api/auth/refresh", "Refresh a session; a refresh token works once.", "access",
        answer=sessions.refresh, access=OPEN, body=sessions.RefreshBody, response=sessions.SessionResponse,
    ),
    _row(
        "POST", "/v1/api/auth/logout", "End a session.", "access",
        answer=sessions.logout, access=OPEN, body=sessions.LogoutBody, status=204,
    ),
    _row(
        "GET", "/v1/api/auth/me", "Describe the principal of the credentials.", "access",
        answer=sessions.me, response=sessions.PrincipalResponse,
    ),
    _row(
        "GET", "/v1/admin/users", "List the users.", "access", also=("/v1/admin/users/",),
        parse=users.parse_list, render=users.render_list, permissions=ADMIN, response=users.UsersResponse,
    ),
    _row(
        "POST", "/v1/admin/users", "Create a user.", "access", also=("/v1/admin/users/",),
        answer=users.create, permissions=ADMIN, body=users.CreateUserBody, response=users.UserResponse, status=201,
    ),
    _row(
        "GET", "/v1/admin/users/{name}", "Describe a user.", "access",
        parse=users.parse_get, render=users.render_found, permissions=ADMIN, response=users.UserResponse,
    ),
    _row(
        "PATCH", "/v1/admin/users/{name}", "Alter a user.", "access",
        answer=users.alter, permissions=ADMIN, body=users.AlterUserBody, response=users.UserResponse,
    ),
    _row(
        "DELETE", "/v1/admin/users/{name}", "Drop a user.", "access",
        parse=users.parse_drop, render=codec.no_content_stored, permissions=ADMIN, status=204,
    ),
    _row(
        "GET", "/v1/admin/keys", "List the access keys, without their secrets.", "access", also=("/v1/admin/keys/",),
        parse=keys.parse_list, render=keys.render_list, permissions=ADMIN, response=keys.KeysResponse,
    ),
    _row(
        "POST", "/v1/admin/keys", "Create an access key; its secret is shown this once.", "access",
        also=("/v1/admin/keys/",), parse=keys.parse_create, render=keys.render_created, permissions=ADMIN,
        body=keys.CreateKeyBody, response=keys.KeyResponse, status=201,
    ),
    _row(
        "PATCH", "/v1/admin/keys/{id}", "Disable or enable an access key.", "access",
        parse=keys.parse_switch, render=keys.render_key, permissions=ADMIN, body=keys.SwitchKeyBody,
        response=keys.KeyResponse,
    ),
    _row(
        "DELETE", "/v1/admin/keys/{id}", "Delete an access key.", "access",
        parse=keys.parse_delete, render=codec.no_content_stored, permissions=ADMIN, status=204,
    ),
    _row(
        "GET", "/v1/admin/signing-keys", "List the keys that webhooks are signed with.", "access",
        also=("/v1/admin/signing-keys/",), parse=signing_keys.parse_list, render=signing_keys.render_list,
        permissions=ADMIN, response=signing_keys.SigningKeysResponse,
    ),
    _row(
        "POST", "/v1/admin/signing-keys/rotate", "Sign webhooks with a new key from now on.", "access",
        parse=signing_keys.parse_rotate, render=signing_keys.render_rotated, permissions=ADMIN,
        response=signing_keys.SigningKeyResponse, status=201,
    ),
    _row(
        "GET", "/v1/admin/audit", "List the last lines of the audit log.", "access", also=("/v1/admin/audit/",),
        answer=audit.get_recent, permissions=ADMIN, response=audit.AuditResponse,
    ),
    # -- the server
    _row(
        "GET", "/console", "The web console.", "server", also=("/console/",),
        answer=static.get_console, access=OPEN, types=ANY_TYPE, query=None, response=HTML, more=(304,),
    ),
    _row(
        "GET", "/console/{file}", "A file of the web console.", "server",
        answer=static.get_file, access=OPEN, types=ANY_TYPE, query=None, response=(HTML, JAVASCRIPT, CSS), more=(304,),
    ),
    _row(
        "GET", "/healthz", "Check that the server is alive.", "server",
        answer=system.get_health, access=OPEN, query=None, response=system.StatusResponse,
    ),
    _row(
        "GET", "/readyz", "Check that the server accepts writes; 503 if it does not.", "server",
        answer=system.get_ready, access=OPEN, query=None, response=system.StatusResponse,
    ),
    _row(
        "GET", "/v1/cluster", "List the servers over this database: which one leads, and how far others are behind.",
        "inspection", answer=cluster.get_cluster, permissions=READ, response=cluster.ClusterResponse,
    ),
    _row(
        "POST", "/v1/cluster/step-down", "Let another server of the cluster lead.", "inspection",
        answer=cluster.step_down, permissions=ADMIN, response=cluster.ClusterResponse,
    ),
    _row(
        "GET", "/v1/status", "Describe the server: health, rates, latencies, sizes, groups that lag.", "inspection",
        answer=status.get, permissions=READ, response=status.ServerStatusResponse,
    ),
    _row(
        "GET", "/v1/status/samples", "Read the samples of the last 24 hours, by column.", "inspection",
        answer=status.get_samples, permissions=READ, query=status.SAMPLES_PARAMETERS, response=status.SamplesResponse,
    ),
    _row(
        "GET", "/metrics", "Read the metrics, in the text format of Prometheus.", "server",
        answer=system.get_metrics, query=None, response=TEXT,
    ),
    _row(
        "GET", "/openapi.json", "This list of endpoints, as an OpenAPI 3.1 document.", "server",
        answer=_openapi, access=OPEN, query=None, response=dict[str, Any],
    ),
)  # fmt: skip
