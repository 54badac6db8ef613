/** @typedef {Record<string, any>} Item  Attributes by name, as JavaScript values. */
/**
 * A JavaScript value as an attribute of DynamoDB's JSON. Numbers, bigints and `Decimal` are N, `Uint8Array` is B, a
 * `Set` is a set of text, of numbers or of bytes.
 * @param {unknown} value
 * @returns {Record<string, any>}
 */
export function toAttribute(value: unknown): Record<string, any>;
/**
 * An item as attributes of DynamoDB's JSON; attributes that are undefined are left out.
 * @param {Item} item
 * @returns {Record<string, any>}
 */
export function toAttributes(item: Item): Record<string, any>;
/**
 * The JavaScript value of an attribute. A number that a JavaScript number cannot hold exactly is a `Decimal`.
 * @param {Record<string, any>} attribute
 * @returns {any}
 */
export function fromAttribute(attribute: Record<string, any>): any;
/**
 * @param {Record<string, any>} attributes
 * @returns {Item}
 */
export function fromAttributes(attributes: Record<string, any>): Item;
/**
 * The client of a Tailrace server, for browsers and Node 18 or newer: streams, tables, topics and SQL over HTTP.
 *
 * The rules of the module: a request is repeated only if that cannot change its effect; a reader continues at the last
 * offset that it has handed over; a message is acknowledged after its handler has returned, never before. Times are in
 * milliseconds. Every operation takes an AbortSignal.
 *
 * @module tailrace
 */
export const VERSION: "0.2.0";
/** @typedef {{ signal?: AbortSignal }} Abortable  `signal` ends the operation, which then rejects with its reason. */
/**
 * The one error of this module: of a server's response, or of a request that got none (`status` is 0).
 *
 * `code` is stable; `details` has further values of the response: `earliest_offset`, `line`, `item` and so on.
 */
export class TailraceError extends Error {
    /**
     * @param {string} message
     * @param {{ status?: number, code?: string, details?: Record<string, any>, retryAfterMs?: number, unsent?: boolean,
     *   cause?: unknown }} [facts]
     */
    constructor(message: string, facts?: {
        status?: number;
        code?: string;
        details?: Record<string, any>;
        retryAfterMs?: number;
        unsent?: boolean;
        cause?: unknown;
    });
    /** The HTTP status; 0 without a response. */
    status: number;
    /** `CONNECTION_FAILED` or `TIMEOUT` without a response. */
    code: string;
    /** @type {Record<string, any>} */
    details: Record<string, any>;
    /** How long the server asks to wait, in milliseconds. */
    retryAfterMs: number;
    /** Whether the request cannot have reached the server. */
    unsent: boolean;
    /** Whether the same request may succeed later: the server cannot be reached, is overloaded or is restarting. */
    get transient(): boolean;
}
/** A number with more digits than a JavaScript number holds; `String(decimal)` has all of them. */
export class Decimal {
    /** @param {string | number | bigint} digits */
    constructor(digits: string | number | bigint);
    text: string;
    toString(): string;
    toJSON(): string;
    valueOf(): number;
}
/** A part of a stream: messages, and where to read on. */
export class StreamPage {
    /**
     * @param {Uint8Array | string} content
     * @param {{ contentType: string, offset: string, upToDate: boolean, closed: boolean }} state
     */
    constructor(content: Uint8Array | string, state: {
        contentType: string;
        offset: string;
        upToDate: boolean;
        closed: boolean;
    });
    contentType: string;
    /** Where to read on. */
    offset: string;
    /** Whether there was nothing beyond this page. */
    upToDate: boolean;
    /** Whether there will never be anything beyond this page. */
    closed: boolean;
    /** Whether the page has no content. */
    get empty(): boolean;
    /** The content as bytes. */
    get bytes(): Uint8Array<ArrayBufferLike>;
    /** The content as text. */
    get text(): string;
    /**
     * The messages of a JSON stream.
     * @returns {any[]}
     */
    get messages(): any[];
    #private;
}
/**
 * @typedef {object} StreamState
 * @property {string} contentType
 * @property {string} offset  of the tail
 * @property {boolean} closed
 * @property {string} [earliestOffset]  the earliest offset that is retained, if messages were trimmed
 * @property {number} [ttlMs]
 * @property {number} [maxAgeMs]
 * @property {number} [maxBytes]
 */
/**
 * @typedef {object} CreateOptions
 * @property {string} [contentType]  that of the handle, if left out
 * @property {any} [body]  the first message
 * @property {number} [ttlMs]  the stream expires so long after it was last used; whole seconds
 * @property {number} [maxAgeMs]  messages are trimmed at this age; whole seconds
 * @property {number} [maxBytes]  messages are trimmed beyond this size
 * @property {boolean} [closed]  create it closed
 * @property {AbortSignal} [signal]
 */
/** @typedef {{ offset: string, duplicate: boolean }} Appended  The offset of the tail; whether it had been there. */
/** A stream. `append` takes a JSON value, text or bytes, by the content type. */
export class Stream {
    /**
     * @param {Connection} connection
     * @param {string} path
     * @param {string} contentType
     */
    constructor(connection: Connection, path: string, contentType: string);
    path: string;
    contentType: string;
    target: string;
    /**
     * Create the stream, if it does not exist with the same configuration. Returns the offset of its tail.
     * @param {CreateOptions} [options]
     */
    create(options?: CreateOptions): Promise<{
        offset: string;
        created: boolean;
    }>;
    /**
     * Append one message durably. It is not repeated if its outcome is unknown: use `producer` for that.
     * @param {any} message
     * @param {{ sequence?: string, close?: boolean, signal?: AbortSignal }} [options]  `sequence` must sort after the last
     *   one of the stream (`Stream-Seq`); `close` makes it the last message
     */
    append(message: any, options?: {
        sequence?: string;
        close?: boolean;
        signal?: AbortSignal;
    }): Promise<{
        offset: string;
    }>;
    /**
     * Append several messages, all or none.
     * @param {any[]} messages
     * @param {{ sequence?: string, close?: boolean, signal?: AbortSignal }} [options]
     */
    appendMany(messages: any[], options?: {
        sequence?: string;
        close?: boolean;
        signal?: AbortSignal;
    }): Promise<{
        offset: string;
    }>;
    /**
     * One page from `offset` on; with `wait`, when there is one or the server's timeout has passed.
     * @param {{ offset?: string, wait?: boolean, signal?: AbortSignal }} [options]
     */
    read({ offset, wait, signal }?: {
        offset?: string;
        wait?: boolean;
        signal?: AbortSignal;
    }): Promise<StreamPage>;
    /**
     * Pages with data as they arrive, until the stream is closed, each page once. After a disconnect or a restart of the
     * server it continues where it was.
     * @param {FollowOptions} [options]
     */
    follow(options?: FollowOptions): AsyncGenerator<StreamPage, void, void>;
    /**
     * The state of the stream.
     * @param {Abortable} [options]
     * @returns {Promise<StreamState>}
     */
    head({ signal }?: Abortable): Promise<StreamState>;
    /**
     * Close the stream: it takes no more messages, and readers come to an end. To close it again has no effect.
     * @param {Abortable} [options]
     */
    close({ signal }?: Abortable): Promise<{
        offset: string;
    }>;
    /**
     * Delete the stream.
     * @param {Abortable} [options]
     */
    delete({ signal }?: Abortable): Promise<void>;
    /**
     * A producer, whose messages are appended once, even if responses are lost.
     * @param {ProducerOptions} [options]
     * @returns {Producer<any, Appended>}
     */
    producer(options?: ProducerOptions): Producer<any, Appended>;
    #private;
}
/**
 * Writes messages in order and once each, even if responses are lost.
 *
 * Requests are numbered within an epoch and sent one after the other; a request is repeated under its number until there
 * is a response. Messages that are written meanwhile wait, and make up the next request together.
 * @template M, R
 */
export class Producer<M, R> {
    /**
     * @param {Connection} connection
     * @param {ProducerOptions} options
     * @param {ProducerTarget<M, R>} target
     */
    constructor(connection: Connection, options: ProducerOptions, target: ProducerTarget<M, R>);
    id: string;
    epoch: number;
    /**
     * Write a message; resolves when it is durable. If it rejects with a `transient` error, its outcome is unknown; with
     * `STALE_EPOCH`, a later run of this producer has taken over. An abort of a message that is being sent leaves its
     * outcome unknown, too.
     * @param {M} message
     * @param {Abortable} [options]
     * @returns {Promise<R>}
     */
    append(message: M, { signal }?: Abortable): Promise<R>;
    /** Wait until nothing is pending, whether it was written or has failed. */
    flush(): Promise<void>;
    /** Take no more messages, and wait for those that are pending. */
    close(): Promise<void>;
    #private;
}
/**
 * @typedef {object} Change  A change of a table.
 * @property {number} sequence  of the transaction
 * @property {number} index  within the transaction
 * @property {boolean} last  whether it is the last of its transaction
 * @property {"INSERT" | "MODIFY" | "REMOVE"} event
 * @property {string} table
 * @property {Item} keys
 * @property {Item | null} [old]  the item before
 * @property {Item | null} [new]  the item after
 * @property {string} at
 * @property {string} by  the principal that made it
 * @property {string} offset  where to follow on so that no change after this one is missed; those of a transaction that
 *   was handed over in part come again
 */
/**
 * @typedef {object} WriteOptions
 * @property {string} [condition]  an expression, as in `attribute_not_exists(id)`
 * @property {Record<string, string>} [names]  placeholders of attribute names, as in `{"#s": "status"}`
 * @property {Item} [values]  placeholders of values, as in `{":s": "new"}`
 * @property {boolean} [returnOld]  return the item as it was before
 * @property {AbortSignal} [signal]
 */
/**
 * @typedef {object} ScanOptions
 * @property {string} [index]
 * @property {string} [filter]  an expression
 * @property {string} [projection]  the attributes to return
 * @property {Record<string, string>} [names]
 * @property {Item} [values]
 * @property {number} [limit]  of the items that are examined for a page
 * @property {Item} [startKey]  the `lastKey` of the page before
 * @property {AbortSignal} [signal]
 */
/** @typedef {ScanOptions & { key: string, descending?: boolean }} QueryOptions  `key` is an expression: `id = :id` */
/** @typedef {{ items: Item[], lastKey: Item | undefined }} ItemPage  Without `lastKey` it was the last page. */
/**
 * @typedef {object} ChangeOptions
 * @property {string} [offset]  `-1` for the oldest (the default), `now`, or the `offset` of a change
 * @property {(change: Change) => boolean} [filter]  which changes are handed over
 * @property {"auto" | "sse" | "long-poll"} [live]
 * @property {AbortSignal} [signal]
 */
/**
 * @typedef {object} ItemVersion  A change of an item.
 * @property {number} sequence  of the transaction
 * @property {number} index  within the transaction
 * @property {string} at
 * @property {"INSERT" | "MODIFY" | "REMOVE"} event
 * @property {string} by  the principal that made it
 * @property {Item | null} old  null also if the change stream does not record it
 * @property {Item | null} new
 * @property {"hot" | "cold"} where  it was read from
 */
/** @typedef {{ view: string, versions: ItemVersion[], next: number | null }} ItemHistory  `next` is the `before` of the
 *   next page; it may be there although a page has no version */
/** @typedef {{ sequence: number, items: Item[], next: Item | null }} PastItems  `next` is the `after` of the next page */
/** A table, through the DynamoDB API, and its changes. Items are plain objects. */
export class Table {
    /**
     * @param {Connection} connection
     * @param {string} name
     */
    constructor(connection: Connection, name: string);
    name: string;
    target: string;
    /**
     * The item with this key; undefined if there is none.
     * @param {Item} key
     * @param {{ projection?: string, names?: Record<string, string>, signal?: AbortSignal }} [options]
     * @returns {Promise<Item | undefined>}
     */
    get(key: Item, { projection, names, signal }?: {
        projection?: string;
        names?: Record<string, string>;
        signal?: AbortSignal;
    }): Promise<Item | undefined>;
    /**
     * Write an item. Returns the item before, if `returnOld` is set and there was one.
     * @param {Item} item
     * @param {WriteOptions} [options]
     */
    put(item: Item, options?: WriteOptions): Promise<Record<string, any> | undefined>;
    /**
     * Delete an item, if there is one. Returns the item before, if `returnOld` is set and there was one.
     * @param {Item} key
     * @param {WriteOptions} [options]
     */
    delete(key: Item, options?: WriteOptions): Promise<Record<string, any> | undefined>;
    /**
     * Change attributes of an item, as in `update({ id }, "SET total = total + :n", { values: { ":n": 1 } })`. Returns the
     * item after the change. It is not repeated if its outcome is unknown.
     * @param {Item} key
     * @param {string} expression
     * @param {Omit<WriteOptions, "returnOld">} [options]
     * @returns {Promise<Item>}
     */
    update(key: Item, expression: string, options?: Omit<WriteOptions, "returnOld">): Promise<Item>;
    /**
     * A page of the items with a partition key, in the order of the sort key.
     * @param {QueryOptions} options
     * @returns {Promise<ItemPage>}
     */
    query(options: QueryOptions): Promise<ItemPage>;
    /**
     * A page of all items.
     * @param {ScanOptions} [options]
     * @returns {Promise<ItemPage>}
     */
    scan(options?: ScanOptions): Promise<ItemPage>;
    /**
     * All items of a query, page by page.
     * @param {QueryOptions} options
     */
    queryAll(options: QueryOptions): AsyncGenerator<Record<string, any>, void, unknown>;
    /**
     * All items, page by page.
     * @param {ScanOptions} [options]
     */
    scanAll(options?: ScanOptions): AsyncGenerator<Record<string, any>, void, unknown>;
    /**
     * The description of the table, as DescribeTable of the DynamoDB API returns it.
     * @param {Abortable} [options]
     * @returns {Promise<Record<string, any>>}
     */
    describe({ signal }?: Abortable): Promise<Record<string, any>>;
    /**
     * One page of changes from `offset` on.
     * @param {ChangeOptions} [options]
     */
    changes({ offset, filter, signal }?: ChangeOptions): Promise<{
        changes: Change[];
        offset: string;
        upToDate: boolean;
        closed: boolean;
    }>;
    /**
     * Changes as they are committed, until the change stream is closed: each once and in order, also after a disconnect or a
     * restart of the server. `filter` selects here; the server sends all.
     * @param {ChangeOptions} [options]
     * @returns {AsyncGenerator<Change, void, void>}
     */
    follow({ filter, ...options }?: ChangeOptions): AsyncGenerator<Change, void, void>;
    /**
     * A page of the versions of an item, the newest first, of sequences below `before`.
     * @param {Item} key
     * @param {{ before?: number, limit?: number, signal?: AbortSignal }} [options]
     * @returns {Promise<ItemHistory>}
     */
    history(key: Item, { before, limit, signal }?: {
        before?: number;
        limit?: number;
        signal?: AbortSignal;
    }): Promise<ItemHistory>;
    /**
     * A page of the items as of a sequence or a time (a Date, RFC 3339 or milliseconds), `after` a key.
     * @param {{ sequence?: number, time?: Date | string | number, after?: Item, limit?: number, signal?: AbortSignal }} moment
     * @returns {Promise<PastItems>}
     */
    at({ sequence, time, after, limit, signal }: {
        sequence?: number;
        time?: Date | string | number;
        after?: Item;
        limit?: number;
        signal?: AbortSignal;
    }): Promise<PastItems>;
    /**
     * What has become of a write: its `records`, `messages` with the state of each group, `jobs` and views, and where it is
     * kept, as the HTTP API returns it; items are plain objects.
     * @param {number} sequence
     * @param {{ key?: Item, signal?: AbortSignal }} [options]
     * @returns {Promise<Record<string, any>>}
     */
    trace(sequence: number, { key, signal }?: {
        key?: Item;
        signal?: AbortSignal;
    }): Promise<Record<string, any>>;
    #private;
}
/**
 * @typedef {object} DeadLetterOrigin  Where a dead letter comes from.
 * @property {string} topic
 * @property {number} partition
 * @property {number} offset
 * @property {string} group
 * @property {number} attempts
 */
/** A message of a topic. */
export class Message {
    /** @param {any} wire */
    constructor(wire: any);
    /** @type {string} */
    topicId: string;
    /** @type {number} */
    partition: number;
    /** @type {number} */
    offset: number;
    /**
     * The change that it comes from, the same in all topics; else the position of the message.
     * @type {string}
     */
    id: string;
    /** @type {string | null} */
    sourceTable: string | null;
    /** @type {"Insert" | "Update" | "Delete" | "Publish"} */
    op: "Insert" | "Update" | "Delete" | "Publish";
    /** When it was committed. */
    at: Date;
    /** @type {"Key" | "Full" | "Diff"} */
    payloadMode: "Key" | "Full" | "Diff";
    payload: Uint8Array<ArrayBufferLike>;
    /**
     * The principal that wrote the row, or published.
     * @type {string}
     */
    by: string;
    /**
     * 1 for the first delivery to the group; 0 without a group.
     * @type {number}
     */
    attempt: number;
    /** @type {string | undefined} */
    key: string | undefined;
    /** @type {DeadLetterOrigin | undefined} */
    origin: DeadLetterOrigin | undefined;
    /** The payload as text. */
    text(): string;
    /**
     * The payload as JSON; messages of routes always are.
     * @returns {any}
     */
    json(): any;
}
/**
 * @typedef {object} Outgoing  A message to be published.
 * @property {any} payload  bytes, text, or a value that becomes JSON
 * @property {string} [key]  determines the partition
 * @property {number} [partition]
 */
/** @typedef {{ partition: number, offset: number }} Published  Undefined where the message had been published before. */
/**
 * @typedef {object} PartitionOptions
 * @property {number} [partition]  0 if left out
 * @property {string | number} [offset]  `-1` for the earliest (the default), `now`, the number of the first message, or an
 *   offset that the server returned
 * @property {(message: Message) => boolean} [filter]  which messages are handed over
 * @property {"auto" | "sse" | "long-poll"} [live]
 * @property {AbortSignal} [signal]
 */
/** A topic. */
export class Topic {
    /**
     * @param {Connection} connection
     * @param {string} name
     */
    constructor(connection: Connection, name: string);
    name: string;
    target: string;
    /**
     * Publish one message. It is not repeated if its outcome is unknown: use `producer` for that.
     * @param {any} payload  bytes, text, or a value that becomes JSON
     * @param {{ key?: string, partition?: number, signal?: AbortSignal }} [options]
     * @returns {Promise<Published>}
     */
    publish(payload: any, { key, partition, signal }?: {
        key?: string;
        partition?: number;
        signal?: AbortSignal;
    }): Promise<Published>;
    /**
     * Publish up to 1,000 messages, all or none.
     * @param {Outgoing[]} messages
     * @param {Abortable} [options]
     * @returns {Promise<Published[]>}
     */
    publishMany(messages: Outgoing[], { signal }?: Abortable): Promise<Published[]>;
    /**
     * A producer, whose messages are published once, even if responses are lost.
     * @param {ProducerOptions} [options]
     * @returns {Producer<Outgoing, Published | undefined>}
     */
    producer(options?: ProducerOptions): Producer<Outgoing, Published | undefined>;
    /**
     * The topic with its partitions, groups and routes, as the HTTP API returns it.
     * @param {Abortable} [options]
     * @returns {Promise<Record<string, any>>}
     */
    describe({ signal }?: Abortable): Promise<Record<string, any>>;
    /**
     * The last acknowledgements of a group, the newest first, as the HTTP API returns them: who, when, which offsets.
     * @param {string} group
     * @param {{ partition?: number, limit?: number, signal?: AbortSignal }} [options]
     * @returns {Promise<Array<Record<string, any>>>}
     */
    acknowledgements(group: string, { partition, limit, signal }?: {
        partition?: number;
        limit?: number;
        signal?: AbortSignal;
    }): Promise<Array<Record<string, any>>>;
    /**
     * One page of messages of a partition, without a group.
     * @param {PartitionOptions} [options]
     */
    read({ partition, offset, filter, signal }?: PartitionOptions): Promise<{
        messages: Message[];
        offset: string;
        upToDate: boolean;
        closed: boolean;
    }>;
    /**
     * Messages of a partition as they are committed, without a group: each once and in order, also after a disconnect or a
     * restart of the server. To continue in another run, start at the `offset` of the last message plus 1.
     * @param {PartitionOptions} [options]
     * @returns {AsyncGenerator<Message, void, void>}
     */
    follow({ partition, offset, filter, live, signal }?: PartitionOptions): AsyncGenerator<Message, void, void>;
    #private;
}
/**
 * @typedef {object} ConsumerOptions
 * @property {string} topic
 * @property {string} groupId  a name for consumers that share the work
 * @property {string} [consumerId]  by default a unique one
 * @property {number} [concurrency]  how many handlers run at once; 1 if left out
 * @property {"any" | number | number[]} [partitions]  `any` if left out
 * @property {number} [batch]  how many messages are fetched at a time, and held at most for each of `partitions`; 100
 * @property {number} [visibilityMs]  how long others wait for the messages of a consumer that crashed; 60,000
 * @property {"earliest" | "latest" | number | Date} [start]  where a new group starts; an offset, or a time
 * @property {number} [timeoutMs]  how long one request waits for messages; 30,000
 * @property {number} [ackEveryMs]  how long an acknowledgement may wait for others; 500
 * @property {number} [retryMs]  the pause before a message whose handler failed is delivered again; it doubles with each
 *   attempt; 1,000
 * @property {number} [stopTimeoutMs]  how long ending may take while the server is unavailable; 5,000
 * @property {(error: unknown, message?: Message) => void} [onError]  is called when a handler fails, with its message, and
 *   when the server is unavailable; by default it writes to the console
 */
/** What a handler is called with: a message, and its lease. */
export class MessageContext {
    /**
     * @param {Message} message
     * @param {AbortSignal} signal
     * @param {{ extend: (ms?: number) => Promise<void>, nack: (delayMs: number) => Promise<void> }} actions
     */
    constructor(message: Message, signal: AbortSignal, actions: {
        extend: (ms?: number) => Promise<void>;
        nack: (delayMs: number) => Promise<void>;
    });
    message: Message;
    /** Is aborted when the lease is lost, or the run is aborted: the message is delivered to others. */
    signal: AbortSignal;
    nacked: boolean;
    /**
     * The payload as JSON.
     * @returns {any}
     */
    json(): any;
    /**
     * Extend the lease, to `ms` from now. The consumer does so by itself while it runs: this is for work that blocks the
     * event loop for longer than `visibilityMs`.
     * @param {number} [ms]  `visibilityMs` if left out
     */
    extend(ms?: number): Promise<void>;
    /**
     * Return the message, to be delivered again. It is not acknowledged when the handler returns.
     * @param {{ delayMs?: number }} [options]
     */
    nack({ delayMs }?: {
        delayMs?: number;
    }): Promise<void>;
    #private;
}
/**
 * Consumes a topic as a member of a group.
 *
 * Guarantees: a message is acknowledged after its handler has returned, never before; messages that were not processed are
 * returned when the run ends; those of a process that crashed are delivered again when their lease expires. While handlers
 * run, leases are extended, and while the server is unavailable, the consumer tries again. So each message is processed at
 * least once, and those of one partition in order as long as one consumer reads it, one handler runs at a time and nothing
 * is returned.
 *
 * Theory of operation: a loop for each of `partitions` fetches a delivery, and starts a handler for each message as soon as
 * one of `concurrency` slots is free; then it fetches the next one. Handlers end in any order; an acknowledgement covers a
 * prefix of a delivery, so it goes as far as all are done. Whoever lets go of a delivery last settles it.
 */
export class Consumer {
    /**
     * @param {Connection} connection
     * @param {ConsumerOptions} options
     */
    constructor(connection: Connection, options: ConsumerOptions);
    consumerId: string;
    /**
     * Call `handler` with each message, up to `concurrency` at a time, until `stop` is called; then those in work are
     * finished, and all other messages returned. A consumer runs once.
     *
     * If a handler fails, its message is delivered again after `retryMs`; the others go on meanwhile. An abort is passed on
     * to the handlers; their messages are returned, and the run rejects with its reason.
     * @param {(context: MessageContext) => unknown} handler
     * @param {Abortable} [options]
     * @returns {Promise<void>}
     */
    run(handler: (context: MessageContext) => unknown, { signal }?: Abortable): Promise<void>;
    /** Let the run end after the messages in work; the others are returned. */
    stop(): void;
    #private;
}
/**
 * @typedef {object} Committed  A transaction that was committed.
 * @property {boolean} replayed  whether it had been committed by an earlier request, which has the other values
 * @property {number | null} sequence  of its change records
 * @property {number} acknowledged  messages
 * @property {Published[][]} published  of each publish
 * @property {string[]} appended  the tail offset after each append
 */
/** @typedef {Pick<WriteOptions, "condition" | "names" | "values">} OperationOptions */
/** @typedef {any} Key  the value of a key, an array of its values, or an object with its attributes */
/** @typedef {{ op: "=" | "<" | "<=" | ">" | ">=" | "BETWEEN" | "begins_with", operands: any[] }} SortCondition */
/**
 * A transaction: reads see its own writes, and nothing is written before `commit`, which writes all of it or nothing.
 * It holds no lock. If something that it has read was changed by others, `commit` or the next read rejects with the
 * code `TRANSACTION_CONFLICT`; `client.transaction` then runs it again.
 */
export class Transaction {
    /** @param {Connection} connection */
    constructor(connection: Connection);
    /** Whether it was committed or rolled back. */
    get ended(): boolean;
    /**
     * An item; undefined if there is none.
     * @param {string} table
     * @param {Key} key
     * @param {{ projection?: string, names?: Record<string, string>, signal?: AbortSignal }} [options]
     * @returns {Promise<Item | undefined>}
     */
    get(table: string, key: Key, { projection, names, signal }?: {
        projection?: string;
        names?: Record<string, string>;
        signal?: AbortSignal;
    }): Promise<Item | undefined>;
    /**
     * The items with a partition key, in the order of the sort key.
     * @param {string} table
     * @param {any} partition
     * @param {{ sort?: SortCondition, index?: string, descending?: boolean, limit?: number, signal?: AbortSignal }} [options]
     * @returns {Promise<Item[]>}
     */
    query(table: string, partition: any, { sort, index, descending, limit, signal }?: {
        sort?: SortCondition;
        index?: string;
        descending?: boolean;
        limit?: number;
        signal?: AbortSignal;
    }): Promise<Item[]>;
    /**
     * The tail offset of a stream; undefined if there is none.
     * @param {string} stream
     * @param {Abortable} [options]
     * @returns {Promise<string | undefined>}
     */
    tail(stream: string, { signal }?: Abortable): Promise<string | undefined>;
    /**
     * Put an item.
     * @param {string} table
     * @param {Item} item
     * @param {OperationOptions} [options]
     */
    put(table: string, item: Item, options?: OperationOptions): void;
    /**
     * Change attributes of an item. The expression is evaluated by the commit.
     * @param {string} table
     * @param {Key} key
     * @param {string} expression
     * @param {OperationOptions} [options]
     */
    update(table: string, key: Key, expression: string, options?: OperationOptions): void;
    /**
     * Delete an item, if there is one.
     * @param {string} table
     * @param {Key} key
     * @param {OperationOptions} [options]
     */
    delete(table: string, key: Key, options?: OperationOptions): void;
    /**
     * Let the transaction fail unless a condition holds for an item.
     * @param {string} table
     * @param {Key} key
     * @param {string} condition
     * @param {Omit<OperationOptions, "condition">} [options]
     */
    check(table: string, key: Key, condition: string, options?: Omit<OperationOptions, "condition">): void;
    /**
     * Publish a message.
     * @param {string} topic
     * @param {any} payload  bytes, text, or a value that becomes JSON
     * @param {{ key?: string, partition?: number }} [options]
     */
    publish(topic: string, payload: any, { key, partition }?: {
        key?: string;
        partition?: number;
    }): void;
    /**
     * Append to a stream.
     * @param {string} stream
     * @param {any} message  bytes, text, or a value that becomes JSON
     */
    append(stream: string, message: any): void;
    /**
     * Acknowledge messages that a consumer holds. The transaction fails with `LEASE_LOST` unless it holds them then.
     * @param {string} topic
     * @param {string} group
     * @param {{ offsets: number[], partition?: number, consumer?: string, lease?: string }} messages
     */
    ack(topic: string, group: string, { offsets, partition, consumer, lease }: {
        offsets: number[];
        partition?: number;
        consumer?: string;
        lease?: string;
    }): void;
    /**
     * Write everything, or nothing.
     * @param {Abortable} [options]
     * @returns {Promise<Committed>}
     */
    commit({ signal }?: Abortable): Promise<Committed>;
    /** Drop everything. */
    rollback(): void;
    #private;
}
/**
 * @typedef {object} ClientOptions
 * @property {string | (() => string | Promise<string>)} [token]  the server's token or one of your identity provider; a
 *   function is called for each request, and again after a 401
 * @property {string} [user]  logs in with the first request, and again when the session has ended
 * @property {string} [password]
 * @property {Session} [session]  of an earlier client, to continue it
 * @property {(session: Session | undefined) => void} [onSession]  is called when a session begins, is renewed or ends
 * @property {number} [timeoutMs]  how long a response may take; 90,000
 * @property {number} [retryForMs]  how long a request that may be repeated is repeated; 30,000
 * @property {typeof fetch} [fetch]
 */
/**
 * @typedef {object} ListOptions
 * @property {string} [prefix]  of the names
 * @property {string} [search]  a text that the names contain, in any case
 * @property {string} [after]  the `next` of the page before
 * @property {number} [limit]
 * @property {AbortSignal} [signal]
 */
/** Talks to one server. */
export class Client {
    /**
     * @param {string} [url]  by default that of the page in a browser, else `http://127.0.0.1:4437`
     * @param {ClientOptions} [options]
     */
    constructor(url?: string, options?: ClientOptions);
    /** The URL of the server. */
    get url(): string;
    /** The login; undefined if there is none. */
    get session(): Session | undefined;
    /**
     * Log in. The session is renewed before it expires, until `logout`; the password is not kept.
     * @param {string} user
     * @param {string} password
     * @param {Abortable} [options]
     * @returns {Promise<Session>}
     */
    login(user: string, password: string, { signal }?: Abortable): Promise<Session>;
    /**
     * End the session.
     * @param {Abortable} [options]
     */
    logout({ signal }?: Abortable): Promise<void>;
    /**
     * The principal of the credentials.
     * @param {Abortable} [options]
     * @returns {Promise<{ name: string, role: string, permissions: string[], access: string[] | null }>}
     */
    me({ signal }?: Abortable): Promise<{
        name: string;
        role: string;
        permissions: string[];
        access: string[] | null;
    }>;
    /**
     * A stream, which may not exist yet.
     * @param {string} path
     * @param {{ contentType?: string }} [options]  `application/json` if left out
     */
    stream(path: string, { contentType }?: {
        contentType?: string;
    }): Stream;
    /**
     * A table.
     * @param {string} name
     */
    table(name: string): Table;
    /**
     * Run a function with a transaction, and commit it; again after a conflict, up to `attempts` times (10). The function
     * should have no effects but those of its transaction. Resolves to its result.
     * @template T
     * @param {(transaction: Transaction) => T | Promise<T>} run
     * @param {{ attempts?: number, signal?: AbortSignal }} [options]
     * @returns {Promise<T>}
     */
    transaction<T>(run: (transaction: Transaction) => T | Promise<T>, { attempts, signal }?: {
        attempts?: number;
        signal?: AbortSignal;
    }): Promise<T>;
    /** A transaction that the caller commits. */
    begin(): Transaction;
    /**
     * A topic.
     * @param {string} name  or its alias
     */
    topic(name: string): Topic;
    /**
     * All topics, as the HTTP API returns them.
     * @param {Abortable} [options]
     * @returns {Promise<Array<Record<string, any>>>}
     */
    topics({ signal }?: Abortable): Promise<Array<Record<string, any>>>;
    /**
     * A page of the streams, as the HTTP API returns it. A page may be empty and still have a `next`.
     * @param {ListOptions} [options]
     * @returns {Promise<{ streams: Array<Record<string, any>>, next: string | null }>}
     */
    streams({ signal, ...query }?: ListOptions): Promise<{
        streams: Array<Record<string, any>>;
        next: string | null;
    }>;
    /**
     * A page of the tables with their keys, indexes, sizes and routes, as the HTTP API returns it.
     * @param {ListOptions} [options]
     * @returns {Promise<{ tables: Array<Record<string, any>>, next: string | null }>}
     */
    tables({ signal, ...query }?: ListOptions): Promise<{
        tables: Array<Record<string, any>>;
        next: string | null;
    }>;
    /**
     * The state of the server, as the HTTP API returns it: health, rates, latencies, sizes, groups that lag.
     * @param {Abortable} [options]
     * @returns {Promise<Record<string, any>>}
     */
    status({ signal }?: Abortable): Promise<Record<string, any>>;
    /**
     * The samples of the last 24 hours: columns of numbers of one length, null where one is unknown.
     * @param {{ sinceMs?: number, stepS?: number, signal?: AbortSignal }} [options]  samples after a time; those of `stepS`
     *   seconds become one
     * @returns {Promise<{ step_s: number, columns: Record<string, Array<number | null>> }>}
     */
    samples({ sinceMs, stepS, signal }?: {
        sinceMs?: number;
        stepS?: number;
        signal?: AbortSignal;
    }): Promise<{
        step_s: number;
        columns: Record<string, Array<number | null>>;
    }>;
    /**
     * The jobs of the pipeline, by name, as the HTTP API returns them.
     * @param {Abortable} [options]
     * @returns {Promise<Array<Record<string, any>>>}
     */
    jobs({ signal }?: Abortable): Promise<Array<Record<string, any>>>;
    /**
     * Pause a job, until it is resumed: its program finishes the batch, and then waits. The job, as the HTTP API returns it.
     * @param {string} name
     * @param {Abortable} [options]
     * @returns {Promise<Record<string, any>>}
     */
    pauseJob(name: string, { signal }?: Abortable): Promise<Record<string, any>>;
    /**
     * Let a paused job continue from where it was.
     * @param {string} name
     * @param {Abortable} [options]
     * @returns {Promise<Record<string, any>>}
     */
    resumeJob(name: string, { signal }?: Abortable): Promise<Record<string, any>>;
    /**
     * A consumer of a topic.
     * @param {ConsumerOptions} options
     */
    consumer(options: ConsumerOptions): Consumer;
    /**
     * Run statements; the result of each. The error of one that fails has `line`, `column` and `results`, those of the
     * statements before it, in `details`. A `Uint8Array` is sent as bytes, a bigint or `Decimal` with all its digits.
     * @param {string} text
     * @param {unknown[]} [parameters]
     * @param {{ repeatable?: boolean, signal?: AbortSignal }} [options]  `repeatable`: whether the statements have the
     *   effect of one run however often they run, so that they can be repeated after a lost response
     * @returns {Promise<SqlResult[]>}
     */
    sql(text: string, parameters?: unknown[], { repeatable, signal }?: {
        repeatable?: boolean;
        signal?: AbortSignal;
    }): Promise<SqlResult[]>;
    /**
     * Call an operation of the DynamoDB API, as in `call("ListTables")`; parameters and result are its typed JSON.
     * @param {string} operation
     * @param {Record<string, any>} [parameters]
     * @param {{ repeatable?: boolean, signal?: AbortSignal }} [options]
     * @returns {Promise<any>}
     */
    call(operation: string, parameters?: Record<string, any>, options?: {
        repeatable?: boolean;
        signal?: AbortSignal;
    }): Promise<any>;
    /**
     * Send any request of the HTTP API; the body of its response, parsed if it is JSON and text otherwise.
     * @param {string} method
     * @param {string} target  as in `/v1/jobs`
     * @param {RequestOptions} [options]
     * @returns {Promise<any>}
     */
    request(method: string, target: string, options?: RequestOptions): Promise<any>;
    #private;
}
/**
 * Attributes by name, as JavaScript values.
 */
export type Item = Record<string, any>;
export type FollowOptions = {
    /**
     * `-1` for the beginning (the default), `now`, or an offset that the server returned
     */
    offset?: string | undefined;
    /**
     * how new data is waited for. `auto` is an event stream, and long-polls
     * for text: an event stream does not keep its carriage returns
     */
    live?: "auto" | "sse" | "long-poll" | undefined;
    signal?: AbortSignal | undefined;
};
export type ProducerOptions = {
    /**
     * a name that stays the same from run to run: a new run then fences the one before it
     */
    id?: string | undefined;
    /**
     * of this run; by default the time, so that it rises from run to run
     */
    epoch?: number | undefined;
    /**
     * how long a request is repeated while the server is unavailable
     */
    retryForMs?: number | undefined;
};
export type ProducerClaim = {
    id: string;
    epoch: number;
    sequence: number;
};
export type ProducerTarget<M, R> = {
    bytesMax: number;
    countMax: number;
    encode: (message: M) => {
        entry: any;
        size: number;
    };
    send: (entries: any[], claim: ProducerClaim) => Promise<{
        duplicate: boolean;
        results: R[];
    }>;
};
/**
 * The result of a statement.
 */
export type SqlResult = {
    statement: string;
    columns: Array<{
        name: string;
        type: string;
    }>;
    rows: Array<Record<string, any>>;
    /**
     * rows returned or written
     */
    rowCount: number;
    message: string;
    /**
     * further members that depend on the statement, such as `next_offset`
     */
    facts: Record<string, any>;
};
/**
 * `signal` ends the operation, which then rejects with its reason.
 */
export type Abortable = {
    signal?: AbortSignal;
};
export type Reply = {
    status: number;
    headers: Headers;
    body: Uint8Array;
};
export type RequestOptions = {
    /**
     * parameters; undefined ones are left out
     */
    query?: Record<string, string | number | undefined> | undefined;
    headers?: Record<string, string> | undefined;
    /**
     * the body, sent as JSON
     */
    json?: any;
    /**
     * the body
     */
    body?: string | Uint8Array<ArrayBufferLike> | undefined;
    /**
     * whether the request has the effect of one however often it is sent
     */
    repeatable?: boolean | undefined;
    /**
     * whether a repeated request that gets 404 has succeeded: it deletes something
     */
    goneIsDone?: boolean | undefined;
    timeoutMs?: number | undefined;
    retryForMs?: number | undefined;
    signal?: AbortSignal | undefined;
};
/**
 * A login.
 */
export type Session = {
    accessToken: string;
    /**
     * works once
     */
    refreshToken: string;
    /**
     * when the access token expires, by the clock of this machine
     */
    expiresAt: number;
    /**
     * of the access token
     */
    lifetimeMs: number;
    user: {
        name: string;
        role: string;
    };
};
export type StreamState = {
    contentType: string;
    /**
     * of the tail
     */
    offset: string;
    closed: boolean;
    /**
     * the earliest offset that is retained, if messages were trimmed
     */
    earliestOffset?: string | undefined;
    ttlMs?: number | undefined;
    maxAgeMs?: number | undefined;
    maxBytes?: number | undefined;
};
export type CreateOptions = {
    /**
     * that of the handle, if left out
     */
    contentType?: string | undefined;
    /**
     * the first message
     */
    body?: any;
    /**
     * the stream expires so long after it was last used; whole seconds
     */
    ttlMs?: number | undefined;
    /**
     * messages are trimmed at this age; whole seconds
     */
    maxAgeMs?: number | undefined;
    /**
     * messages are trimmed beyond this size
     */
    maxBytes?: number | undefined;
    /**
     * create it closed
     */
    closed?: boolean | undefined;
    signal?: AbortSignal | undefined;
};
/**
 * The offset of the tail; whether it had been there.
 */
export type Appended = {
    offset: string;
    duplicate: boolean;
};
/**
 * A change of a table.
 */
export type Change = {
    /**
     * of the transaction
     */
    sequence: number;
    /**
     * within the transaction
     */
    index: number;
    /**
     * whether it is the last of its transaction
     */
    last: boolean;
    event: "INSERT" | "MODIFY" | "REMOVE";
    table: string;
    keys: Item;
    /**
     * the item before
     */
    old?: Record<string, any> | null | undefined;
    /**
     * the item after
     */
    new?: Record<string, any> | null | undefined;
    at: string;
    /**
     * the principal that made it
     */
    by: string;
    /**
     * where to follow on so that no change after this one is missed; those of a transaction that
     * was handed over in part come again
     */
    offset: string;
};
export type WriteOptions = {
    /**
     * an expression, as in `attribute_not_exists(id)`
     */
    condition?: string | undefined;
    /**
     * placeholders of attribute names, as in `{"#s": "status"}`
     */
    names?: Record<string, string> | undefined;
    /**
     * placeholders of values, as in `{":s": "new"}`
     */
    values?: Record<string, any> | undefined;
    /**
     * return the item as it was before
     */
    returnOld?: boolean | undefined;
    signal?: AbortSignal | undefined;
};
export type ScanOptions = {
    index?: string | undefined;
    /**
     * an expression
     */
    filter?: string | undefined;
    /**
     * the attributes to return
     */
    projection?: string | undefined;
    names?: Record<string, string> | undefined;
    values?: Record<string, any> | undefined;
    /**
     * of the items that are examined for a page
     */
    limit?: number | undefined;
    /**
     * the `lastKey` of the page before
     */
    startKey?: Record<string, any> | undefined;
    signal?: AbortSignal | undefined;
};
/**
 * `key` is an expression: `id = :id`
 */
export type QueryOptions = ScanOptions & {
    key: string;
    descending?: boolean;
};
/**
 * Without `lastKey` it was the last page.
 */
export type ItemPage = {
    items: Item[];
    lastKey: Item | undefined;
};
export type ChangeOptions = {
    /**
     * `-1` for the oldest (the default), `now`, or the `offset` of a change
     */
    offset?: string | undefined;
    /**
     * which changes are handed over
     */
    filter?: ((change: Change) => boolean) | undefined;
    live?: "auto" | "sse" | "long-poll" | undefined;
    signal?: AbortSignal | undefined;
};
/**
 * A change of an item.
 */
export type ItemVersion = {
    /**
     * of the transaction
     */
    sequence: number;
    /**
     * within the transaction
     */
    index: number;
    at: string;
    event: "INSERT" | "MODIFY" | "REMOVE";
    /**
     * the principal that made it
     */
    by: string;
    /**
     * null also if the change stream does not record it
     */
    old: Item | null;
    new: Item | null;
    /**
     * it was read from
     */
    where: "hot" | "cold";
};
/**
 * `next` is the `before` of the
 *  next page; it may be there although a page has no version
 */
export type ItemHistory = {
    view: string;
    versions: ItemVersion[];
    next: number | null;
};
/**
 * `next` is the `after` of the next page
 */
export type PastItems = {
    sequence: number;
    items: Item[];
    next: Item | null;
};
/**
 * Where a dead letter comes from.
 */
export type DeadLetterOrigin = {
    topic: string;
    partition: number;
    offset: number;
    group: string;
    attempts: number;
};
/**
 * A message to be published.
 */
export type Outgoing = {
    /**
     * bytes, text, or a value that becomes JSON
     */
    payload: any;
    /**
     * determines the partition
     */
    key?: string | undefined;
    partition?: number | undefined;
};
/**
 * Undefined where the message had been published before.
 */
export type Published = {
    partition: number;
    offset: number;
};
export type PartitionOptions = {
    /**
     * 0 if left out
     */
    partition?: number | undefined;
    /**
     * `-1` for the earliest (the default), `now`, the number of the first message, or an
     * offset that the server returned
     */
    offset?: string | number | undefined;
    /**
     * which messages are handed over
     */
    filter?: ((message: Message) => boolean) | undefined;
    live?: "auto" | "sse" | "long-poll" | undefined;
    signal?: AbortSignal | undefined;
};
export type ConsumerOptions = {
    topic: string;
    /**
     * a name for consumers that share the work
     */
    groupId: string;
    /**
     * by default a unique one
     */
    consumerId?: string | undefined;
    /**
     * how many handlers run at once; 1 if left out
     */
    concurrency?: number | undefined;
    /**
     * `any` if left out
     */
    partitions?: number | number[] | "any" | undefined;
    /**
     * how many messages are fetched at a time, and held at most for each of `partitions`; 100
     */
    batch?: number | undefined;
    /**
     * how long others wait for the messages of a consumer that crashed; 60,000
     */
    visibilityMs?: number | undefined;
    /**
     * where a new group starts; an offset, or a time
     */
    start?: number | Date | "earliest" | "latest" | undefined;
    /**
     * how long one request waits for messages; 30,000
     */
    timeoutMs?: number | undefined;
    /**
     * how long an acknowledgement may wait for others; 500
     */
    ackEveryMs?: number | undefined;
    /**
     * the pause before a message whose handler failed is delivered again; it doubles with each
     * attempt; 1,000
     */
    retryMs?: number | undefined;
    /**
     * how long ending may take while the server is unavailable; 5,000
     */
    stopTimeoutMs?: number | undefined;
    /**
     * is called when a handler fails, with its message, and
     * when the server is unavailable; by default it writes to the console
     */
    onError?: ((error: unknown, message?: Message) => void) | undefined;
};
/**
 * A transaction that was committed.
 */
export type Committed = {
    /**
     * whether it had been committed by an earlier request, which has the other values
     */
    replayed: boolean;
    /**
     * of its change records
     */
    sequence: number | null;
    /**
     * messages
     */
    acknowledged: number;
    /**
     * of each publish
     */
    published: Published[][];
    /**
     * the tail offset after each append
     */
    appended: string[];
};
export type OperationOptions = Pick<WriteOptions, "condition" | "names" | "values">;
/**
 * the value of a key, an array of its values, or an object with its attributes
 */
export type Key = any;
export type SortCondition = {
    op: "=" | "<" | "<=" | ">" | ">=" | "BETWEEN" | "begins_with";
    operands: any[];
};
export type ClientOptions = {
    /**
     * the server's token or one of your identity provider; a
     * function is called for each request, and again after a 401
     */
    token?: string | (() => string | Promise<string>) | undefined;
    /**
     * logs in with the first request, and again when the session has ended
     */
    user?: string | undefined;
    password?: string | undefined;
    /**
     * of an earlier client, to continue it
     */
    session?: Session | undefined;
    /**
     * is called when a session begins, is renewed or ends
     */
    onSession?: ((session: Session | undefined) => void) | undefined;
    /**
     * how long a response may take; 90,000
     */
    timeoutMs?: number | undefined;
    /**
     * how long a request that may be repeated is repeated; 30,000
     */
    retryForMs?: number | undefined;
    fetch?: typeof fetch | undefined;
};
export type ListOptions = {
    /**
     * of the names
     */
    prefix?: string | undefined;
    /**
     * a text that the names contain, in any case
     */
    search?: string | undefined;
    /**
     * the `next` of the page before
     */
    after?: string | undefined;
    limit?: number | undefined;
    signal?: AbortSignal | undefined;
};
/**
 * @typedef {object} Reply
 * @property {number} status
 * @property {Headers} headers
 * @property {Uint8Array} body
 */
/**
 * @typedef {object} RequestOptions
 * @property {Record<string, string | number | undefined>} [query]  parameters; undefined ones are left out
 * @property {Record<string, string>} [headers]
 * @property {any} [json]  the body, sent as JSON
 * @property {Uint8Array | string} [body]  the body
 * @property {boolean} [repeatable]  whether the request has the effect of one however often it is sent
 * @property {boolean} [goneIsDone]  whether a repeated request that gets 404 has succeeded: it deletes something
 * @property {number} [timeoutMs]
 * @property {number} [retryForMs]
 * @property {AbortSignal} [signal]
 */
/** Sends requests with the credentials of the client, and repeats those that may be repeated. */
declare class Connection {
    /**
     * @param {string} url
     * @param {ClientOptions} options
     */
    constructor(url: string, options: ClientOptions);
    url: string;
    fetch: typeof fetch;
    timeoutMs: number;
    retryForMs: number;
    credentials: Credentials;
    /**
     * @param {string} method
     * @param {string} target
     * @param {RequestOptions} [options]
     * @returns {Promise<Reply>}
     */
    send(method: string, target: string, options?: RequestOptions): Promise<Reply>;
    /**
     * One attempt: the whole response, whatever its status.
     * @param {string} method
     * @param {string} target
     * @param {RequestOptions} options
     * @param {string | undefined} authorization
     * @returns {Promise<Reply>}
     */
    attempt(method: string, target: string, options: RequestOptions, authorization: string | undefined): Promise<Reply>;
    /**
     * A response whose body is read as it arrives; one attempt, and another one with new credentials.
     * @param {string} target
     * @param {RequestOptions} options
     * @param {Watch} watch
     */
    open(target: string, options: RequestOptions, watch: Watch): Promise<{
        headers: Headers;
        body: ReadableStream<Uint8Array<ArrayBuffer>>;
    }>;
    /**
     * @param {string} method
     * @param {string} target
     * @param {RequestOptions} [options]
     * @returns {Promise<any>}
     */
    json(method: string, target: string, options?: RequestOptions): Promise<any>;
    #private;
}
/**
 * @typedef {object} Session  A login.
 * @property {string} accessToken
 * @property {string} refreshToken  works once
 * @property {number} expiresAt  when the access token expires, by the clock of this machine
 * @property {number} lifetimeMs  of the access token
 * @property {{ name: string, role: string }} user
 */
/** The credentials of a client. One request at a time renews a session; the others wait for it. */
declare class Credentials {
    /**
     * @param {Connection} connection
     * @param {ClientOptions} options
     */
    constructor(connection: Connection, options: ClientOptions);
    connection: Connection;
    token: string | (() => string | Promise<string>) | undefined;
    user: string | undefined;
    password: string | undefined;
    session: Session | undefined;
    onSession: ((session: Session | undefined) => void) | undefined;
    /**
     * The header field of a request; a session that is about to expire is renewed first.
     * @param {AbortSignal} [signal]
     * @returns {Promise<string | undefined>}
     */
    authorization(signal?: AbortSignal): Promise<string | undefined>;
    /**
     * After a request with `sent` was refused: whether there are other credentials to try.
     * @param {string | undefined} sent
     * @param {AbortSignal} [signal]
     */
    renew(sent: string | undefined, signal?: AbortSignal): Promise<boolean>;
    /**
     * Log in for the program.
     * @param {string} username
     * @param {string} password
     * @param {AbortSignal} [signal]
     */
    login(username: string, password: string, signal?: AbortSignal): Promise<Session>;
    /** @param {AbortSignal} [signal] */
    end(signal?: AbortSignal): Promise<void>;
    #private;
}
/** Ends a request: when the caller aborts it, or when nothing came for too long. */
declare class Watch {
    /**
     * @param {AbortSignal | undefined} outer
     * @param {number} timeoutMs
     */
    constructor(outer: AbortSignal | undefined, timeoutMs: number);
    outer: AbortSignal | undefined;
    timeoutMs: number;
    signal: AbortSignal;
    restart(): void;
    /** Let go of the request, complete or not. */
    end(): void;
    abort(): void;
    /**
     * The error that the caller sees.
     * @param {unknown} error
     * @param {string} url
     */
    reasonOf(error: unknown, url: string): any;
    #private;
}
export {};
