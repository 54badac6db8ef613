// The AWS SDK for JavaScript v3, unmodified, against a real server at TAILRACE_URL: the client that speaks in typed
// values, the document client that speaks in plain ones, and the client of change streams.
import assert from "node:assert/strict"
import { randomUUID } from "node:crypto"
import { after, test } from "node:test"
import {
  BatchGetItemCommand,
  BatchWriteItemCommand,
  ConditionalCheckFailedException,
  CreateTableCommand,
  DeleteItemCommand,
  DeleteTableCommand,
  DescribeEndpointsCommand,
  DescribeLimitsCommand,
  DescribeTableCommand,
  DescribeTimeToLiveCommand,
  DynamoDBClient,
  DynamoDBServiceException,
  GetItemCommand,
  IdempotentParameterMismatchException,
  ListGlobalTablesCommand,
  ListTablesCommand,
  ListTagsOfResourceCommand,
  PutItemCommand,
  QueryCommand,
  ResourceInUseException,
  ResourceNotFoundException,
  ScanCommand,
  TagResourceCommand,
  TransactGetItemsCommand,
  TransactionCanceledException,
  TransactWriteItemsCommand,
  UntagResourceCommand,
  UpdateItemCommand,
  UpdateTableCommand,
  UpdateTimeToLiveCommand,
  paginateListTables,
  paginateQuery,
  paginateScan,
  waitUntilTableExists,
  waitUntilTableNotExists,
} from "@aws-sdk/client-dynamodb"
import {
  DescribeStreamCommand,
  DynamoDBStreamsClient,
  GetRecordsCommand,
  GetShardIteratorCommand,
  ListStreamsCommand,
} from "@aws-sdk/client-dynamodb-streams"
import {
  BatchGetCommand,
  BatchWriteCommand,
  DeleteCommand,
  DynamoDBDocumentClient,
  GetCommand,
  NumberValue,
  PutCommand,
  QueryCommand as DocumentQueryCommand,
  TransactGetCommand,
  TransactWriteCommand,
  UpdateCommand,
  paginateQuery as paginateDocumentQuery,
  paginateScan as paginateDocumentScan,
} from "@aws-sdk/lib-dynamodb"

const endpoint = process.env.TAILRACE_URL
assert.ok(endpoint, "TAILRACE_URL is not set: give the base URL of a running server")

const timeout = 120_000
const settings = {
  endpoint,
  region: "eu-central-1",
  credentials: { accessKeyId: "AKIAIOSFODNN7EXAMPLE", secretAccessKey: "not-a-secret" },
  maxAttempts: 3,
}
const client = new DynamoDBClient(settings)
const streams = new DynamoDBStreamsClient(settings)
const documents = DynamoDBDocumentClient.from(client, { marshallOptions: { removeUndefinedValues: true } })
const exactClient = new DynamoDBClient(settings)  // a document client sets how its own client reads numbers
const exact = DynamoDBDocumentClient.from(exactClient, { unmarshallOptions: { wrapNumbers: true } })
after(() => {
  client.destroy()
  exactClient.destroy()
  streams.destroy()
})

const send = (command) => client.send(command)
const S = (text) => ({ S: text })
const N = (number) => ({ N: String(number) })
const kinds = { pk: "S", sk: "N", team: "S", score: "N" }
const schema = (...names) =>
  names.map((AttributeName, i) => ({ AttributeName, KeyType: i === 0 ? "HASH" : "RANGE" }))
const attributes = (...names) =>
  names.map((AttributeName) => ({ AttributeName, AttributeType: kinds[AttributeName] }))
const BOTH = { StreamEnabled: true, StreamViewType: "NEW_AND_OLD_IMAGES" }

/** A new table with these keys, ready. Its name. */
async function create(keys, more = {}, indexed = []) {
  const TableName = `js-${randomUUID()}`
  await send(new CreateTableCommand({
    TableName,
    KeySchema: schema(...keys),
    AttributeDefinitions: attributes(...new Set([...keys, ...indexed])),
    BillingMode: "PAY_PER_REQUEST",
    ...more,
  }))
  const waited = await waitUntilTableExists({ client, maxWaitTime: 20, minDelay: 1, maxDelay: 1 }, { TableName })
  assert.equal(waited.state, "SUCCESS")
  return TableName
}

/** What a call was refused with; it must be of this class. */
async function refused(promise, kind, message) {
  const error = await promise.then(() => assert.fail("it was taken"), (error) => error)
  assert.ok(error instanceof kind, `${error.name}: ${error.message}`)
  if (message) assert.match(error.message, message)
  return error
}

const refusedAs = async (promise, name, message) => {
  const error = await refused(promise, DynamoDBServiceException, message)
  assert.equal(error.name, name)
  return error
}

/** Write items in batches until none is unprocessed. */
async function fill(TableName, items) {
  for (let at = 0; at < items.length; at += 25) {
    let RequestItems = { [TableName]: items.slice(at, at + 25).map((Item) => ({ PutRequest: { Item } })) }
    while (Object.keys(RequestItems).length) {
      RequestItems = (await documents.send(new BatchWriteCommand({ RequestItems }))).UnprocessedItems ?? {}
    }
  }
}

async function collect(pages, member = "Items") {
  const found = []
  let count = 0
  for await (const page of pages) {
    found.push(...(page[member] ?? []))
    count += 1
  }
  return [found, count]
}

// -- tables

test("a table is created, described, updated, deleted, and waited for", { timeout }, async () => {
  const TableName = `js-${randomUUID()}`
  const made = await send(new CreateTableCommand({
    TableName,
    KeySchema: schema("pk", "sk"),
    AttributeDefinitions: attributes("pk", "sk", "team"),
    ProvisionedThroughput: { ReadCapacityUnits: 5, WriteCapacityUnits: 6 },
    GlobalSecondaryIndexes: [{
      IndexName: "by-team",
      KeySchema: schema("team"),
      Projection: { ProjectionType: "INCLUDE", NonKeyAttributes: ["note"] },
      ProvisionedThroughput: { ReadCapacityUnits: 1, WriteCapacityUnits: 2 },
    }],
    Tags: [{ Key: "made", Value: "by a test" }],
  }))
  assert.ok(made.TableDescription.CreationDateTime instanceof Date)
  assert.ok(Math.abs(Date.now() - made.TableDescription.CreationDateTime) < 60_000)
  await waitUntilTableExists({ client, maxWaitTime: 20, minDelay: 1, maxDelay: 1 }, { TableName })

  const { Table } = await send(new DescribeTableCommand({ TableName }))
  assert.equal(Table.TableStatus, "ACTIVE")
  assert.match(Table.TableArn, new RegExp(`^arn:aws:dynamodb:eu-central-1:\\d{12}:table/${TableName}$`))
  assert.deepEqual(Table.KeySchema, schema("pk", "sk"))
  assert.equal(Table.ProvisionedThroughput.ReadCapacityUnits, 5)
  assert.equal(Table.ItemCount, 0)
  assert.deepEqual(Table.GlobalSecondaryIndexes[0].Projection.NonKeyAttributes, ["note"])

  await refused(send(new CreateTableCommand({
    TableName,
    KeySchema: schema("pk"),
    AttributeDefinitions: attributes("pk"),
    BillingMode: "PAY_PER_REQUEST",
  })), ResourceInUseException, /Table already exists/)

  const [names, pages] = await collect(paginateListTables({ client, pageSize: 1 }, {}), "TableNames")
  assert.ok(names.includes(TableName))
  assert.ok(pages >= names.length)
  assert.ok((await send(new ListTablesCommand({}))).TableNames.includes(TableName))

  await send(new UpdateTableCommand({ TableName, BillingMode: "PAY_PER_REQUEST", StreamSpecification: BOTH }))
  await waitUntilTableExists({ client, maxWaitTime: 20, minDelay: 1, maxDelay: 1 }, { TableName })
  const updated = (await send(new DescribeTableCommand({ TableName }))).Table
  assert.equal(updated.BillingModeSummary.BillingMode, "PAY_PER_REQUEST")
  assert.deepEqual(updated.StreamSpecification, BOTH)
  assert.match(updated.LatestStreamArn, /\/stream\//)

  await send(new DeleteTableCommand({ TableName }))
  await waitUntilTableNotExists({ client, maxWaitTime: 20, minDelay: 1, maxDelay: 1 }, { TableName })
  await refused(send(new DescribeTableCommand({ TableName })), ResourceNotFoundException, /Requested resource not found/)
})

test("an index is made on a live table, filled, used and deleted", { timeout }, async () => {
  const TableName = await create(["pk"])
  await fill(TableName, Array.from({ length: 30 }, (_, i) => ({ pk: `p${i}`, team: i % 2 ? "odd" : "even", score: i })))
  await send(new UpdateTableCommand({
    TableName,
    AttributeDefinitions: attributes("pk", "team", "score"),
    GlobalSecondaryIndexUpdates: [{
      Create: { IndexName: "ranking", KeySchema: schema("team", "score"), Projection: { ProjectionType: "ALL" } },
    }],
  }))
  const index = async () => (await send(new DescribeTableCommand({ TableName }))).Table.GlobalSecondaryIndexes?.[0]
  while ((await index()).IndexStatus !== "ACTIVE");
  const best = await documents.send(new DocumentQueryCommand({
    TableName,
    IndexName: "ranking",
    KeyConditionExpression: "team = :team AND score > :least",
    ExpressionAttributeValues: { ":team": "odd", ":least": 20 },
    ScanIndexForward: false,
  }))
  assert.deepEqual(best.Items.map(({ score }) => score), [29, 27, 25, 23, 21])
  await send(new UpdateTableCommand({
    TableName,
    GlobalSecondaryIndexUpdates: [{ Delete: { IndexName: "ranking" } }],
  }))
  while (await index());
})

test("time to live, tags, limits and endpoints", { timeout }, async () => {
  const TableName = await create(["pk"])
  const { Table: { TableArn: ResourceArn } } = await send(new DescribeTableCommand({ TableName }))
  const off = await send(new DescribeTimeToLiveCommand({ TableName }))
  assert.equal(off.TimeToLiveDescription.TimeToLiveStatus, "DISABLED")
  const TimeToLiveSpecification = { Enabled: true, AttributeName: "until" }
  const set = await send(new UpdateTimeToLiveCommand({ TableName, TimeToLiveSpecification }))
  assert.deepEqual(set.TimeToLiveSpecification, TimeToLiveSpecification)
  const on = (await send(new DescribeTimeToLiveCommand({ TableName }))).TimeToLiveDescription
  assert.equal(on.AttributeName, "until")
  assert.match(on.TimeToLiveStatus, /^ENABL(ED|ING)$/)

  const Tags = [{ Key: "team", Value: "blue" }, { Key: "stage", Value: "" }]
  await send(new TagResourceCommand({ ResourceArn, Tags }))
  const sorted = (tags) => tags.sort((a, b) => (a.Key < b.Key ? -1 : 1))
  assert.deepEqual(sorted((await send(new ListTagsOfResourceCommand({ ResourceArn }))).Tags), sorted(Tags))
  await send(new UntagResourceCommand({ ResourceArn, TagKeys: ["team"] }))
  assert.deepEqual((await send(new ListTagsOfResourceCommand({ ResourceArn }))).Tags, [{ Key: "stage", Value: "" }])

  const limits = await send(new DescribeLimitsCommand({}))
  assert.ok(limits.TableMaxWriteCapacityUnits > 0)
  const { Endpoints } = await send(new DescribeEndpointsCommand({}))
  assert.ok(Endpoints[0].Address && Endpoints[0].CachePeriodInMinutes > 0)
})

test("what is not there is refused with an error that has a name", { timeout }, async () => {
  await refusedAs(send(new ListGlobalTablesCommand({})), "UnknownOperationException")
  const TableName = `js-${randomUUID()}`
  const missing = await refused(send(new GetItemCommand({ TableName, Key: { pk: S("x") } })), ResourceNotFoundException)
  assert.equal(missing.$metadata.httpStatusCode, 400)
  assert.equal(missing.$fault, "client")
  assert.match(missing.$metadata.requestId, /^[A-Z0-9]{52}$/)
  await refusedAs(send(new PutItemCommand({ TableName: "no", Item: {} })), "ValidationException")
})

// -- items

test("every type goes in and comes back", { timeout }, async () => {
  const TableName = await create(["pk"])
  const bytes = Uint8Array.from({ length: 256 }, (_, i) => i)
  const Item = {
    pk: S("Grüße ☃ 𝄞"),
    empty: S(""),
    number: N("-1.5"),
    bytes: { B: bytes },
    none: { B: new Uint8Array() },
    yes: { BOOL: true },
    nothing: { NULL: true },
    words: { SS: ["b", "a", "ü"] },
    numbers: { NS: ["3", "1", "2.5"] },
    blobs: { BS: [Uint8Array.of(0, 255), Uint8Array.of(1)] },
    list: { L: [S("x"), N(1), { L: [] }, { M: {} }] },
    map: { M: { a: { M: { "b.c": { L: [{ NULL: true }] } } } } },
  }
  await send(new PutItemCommand({ TableName, Item }))
  const got = (await send(new GetItemCommand({ TableName, Key: { pk: Item.pk }, ConsistentRead: true }))).Item
  const sets = (item) => ({
    words: [...item.words.SS].sort(),
    numbers: [...item.numbers.NS].sort(),
    blobs: item.blobs.BS.map((blob) => Buffer.from(blob).toString("hex")).sort(),
  })
  assert.deepEqual(sets(got), sets(Item))
  for (const name of ["words", "numbers", "blobs"]) delete got[name], delete Item[name]
  assert.deepEqual(Buffer.from(got.bytes.B), Buffer.from(bytes))
  assert.equal(got.none.B.length, 0)
  for (const name of ["bytes", "none"]) delete got[name], delete Item[name]
  assert.deepEqual(got, Item)
})

test("numbers keep all of their 38 digits", { timeout }, async () => {
  const TableName = await create(["pk", "sk"])
  const long = "12345678901234567890123456789012345678"
  const tiny = "1.2345678901234567890123456789012345678E-100"
  await exact.send(new PutCommand({
    TableName,
    Item: { pk: "n", sk: NumberValue.from(long), big: 9007199254740993n, part: [NumberValue.from("-0.1")] },
  }))
  const { Item } = await exact.send(new GetCommand({ TableName, Key: { pk: "n", sk: NumberValue.from(long) } }))
  assert.equal(Item.sk.toString(), long)
  assert.equal(Item.big.toBigInt(), 9007199254740993n)
  assert.equal(Item.part[0].toString(), "-0.1")

  await send(new PutItemCommand({ TableName, Item: { pk: S("n"), sk: N(tiny) } }))
  const added = await send(new UpdateItemCommand({
    TableName,
    Key: { pk: S("n"), sk: N(long) },
    UpdateExpression: "ADD big :one SET part[0] = part[0] - :tenth",
    ExpressionAttributeValues: { ":one": N(1), ":tenth": N("0.2") },
    ReturnValues: "UPDATED_NEW",
  }))
  assert.deepEqual(added.Attributes, { big: N("9007199254740994"), part: { L: [N("-0.3")] } })
  const ordered = await send(new QueryCommand({
    TableName,
    KeyConditionExpression: "pk = :pk",
    ExpressionAttributeValues: { ":pk": S("n") },
    ProjectionExpression: "sk",
  }))
  assert.equal(ordered.Items.length, 2)
  assert.equal(Number(ordered.Items[0].sk.N), Number(tiny))
  await refusedAs(
    send(new PutItemCommand({ TableName, Item: { pk: S("n"), sk: N(`${long}9`) } })),
    "ValidationException", /more than 38 significant digits/
  )
})

test("put, get, update and delete with expressions", { timeout }, async () => {
  const TableName = await create(["pk"])
  const Key = { pk: "order" }
  const first = await documents.send(new PutCommand({
    TableName,
    Item: { ...Key, count: 1, tags: new Set(["new"]), parts: [{ sku: "a", n: 1 }], address: { city: "Ulm", stale: true } },
    ConditionExpression: "attribute_not_exists(pk)",
    ReturnConsumedCapacity: "TOTAL",
  }))
  assert.equal(first.ConsumedCapacity.TableName, TableName)
  assert.equal(first.ConsumedCapacity.CapacityUnits, 1)

  const updated = await documents.send(new UpdateCommand({
    TableName,
    Key,
    UpdateExpression: `SET #count = #count + :one, parts = list_append(parts, :more), address.zip = :zip,
      seen = if_not_exists(seen, :none) REMOVE address.stale ADD tags :tags`,
    ConditionExpression: "begins_with(address.city, :u) AND size(parts) = :one AND contains(tags, :tag)",
    ExpressionAttributeNames: { "#count": "count" },
    ExpressionAttributeValues: {
      ":one": 1, ":more": [{ sku: "b" }], ":zip": "89073", ":none": [], ":tags": new Set(["vip"]), ":u": "U",
      ":tag": "new",
    },
    ReturnValues: "ALL_NEW",
  }))
  assert.deepEqual(updated.Attributes, {
    ...Key,
    count: 2,
    tags: new Set(["new", "vip"]),
    parts: [{ sku: "a", n: 1 }, { sku: "b" }],
    address: { city: "Ulm", zip: "89073" },
    seen: [],
  })
  const part = await documents.send(new GetCommand({
    TableName,
    Key,
    ProjectionExpression: "parts[1].sku, address.#zip",
    ExpressionAttributeNames: { "#zip": "zip" },
  }))
  assert.deepEqual(part.Item, { parts: [{ sku: "b" }], address: { zip: "89073" } })
  const gone = await documents.send(new DeleteCommand({ TableName, Key, ReturnValues: "ALL_OLD" }))
  assert.equal(gone.Attributes.count, 2)
  assert.equal((await documents.send(new GetCommand({ TableName, Key }))).Item, undefined)
})

test("a condition that fails is an exception of its own class, with the item if requested", { timeout }, async () => {
  const TableName = await create(["pk"])
  const Item = { pk: S("a"), version: N(3) }
  await send(new PutItemCommand({ TableName, Item }))
  const put = new PutItemCommand({ TableName, Item, ConditionExpression: "attribute_not_exists(pk)" })
  const plain = await refused(send(put), ConditionalCheckFailedException, /^The conditional request failed$/)
  assert.equal(plain.Item, undefined)
  const request = {
    TableName,
    Key: { pk: S("a") },
    ConditionExpression: "version = :expected",
    ExpressionAttributeValues: { ":expected": N(2) },
    ReturnValuesOnConditionCheckFailure: "ALL_OLD",
  }
  for (const command of [
    new UpdateItemCommand({ ...request, UpdateExpression: "SET version = :expected" }),
    new DeleteItemCommand(request),
  ]) {
    const error = await refused(send(command), ConditionalCheckFailedException)
    assert.deepEqual(error.Item, Item)
    assert.equal(error.$metadata.attempts, 1)
  }
  const error = await refusedAs(
    send(new UpdateItemCommand({ TableName, Key: { pk: S("a") }, UpdateExpression: "SET version = :missing" })),
    "ValidationException", /:missing/
  )
  assert.equal(error.$metadata.httpStatusCode, 400)
})

// -- queries

test("queries and scans go through all pages", { timeout }, async () => {
  const TableName = await create(["pk", "sk"])
  const items = Array.from({ length: 60 }, (_, i) => ({ pk: `p${i % 3}`, sk: i, even: i % 2 === 0 }))
  await fill(TableName, items)
  const query = {
    TableName,
    KeyConditionExpression: "pk = :pk AND sk BETWEEN :from AND :to",
    FilterExpression: "even = :yes",
    ExpressionAttributeValues: { ":pk": "p1", ":from": 4, ":to": 52, ":yes": true },
  }
  const expected = items.filter(({ pk, sk, even }) => pk === "p1" && sk >= 4 && sk <= 52 && even)
  // A paginator writes into what it is given, so each gets its own.
  const [up, pages] = await collect(paginateDocumentQuery({ client: documents, pageSize: 3 }, { ...query }))
  assert.deepEqual(up, expected)
  assert.ok(pages >= 6, `${pages} pages`)
  const [down] = await collect(
    paginateDocumentQuery({ client: documents, pageSize: 4 }, { ...query, ScanIndexForward: false })
  )
  assert.deepEqual(down, expected.reverse())

  const low = { TableName, KeyConditionExpression: "pk = :pk", ExpressionAttributeValues: { ":pk": S("p2") } }
  const [typed, typedPages] = await collect(paginateQuery({ client, pageSize: 7 }, { ...low }))
  assert.deepEqual(typed.map(({ sk }) => Number(sk.N)), items.filter(({ pk }) => pk === "p2").map(({ sk }) => sk))
  assert.equal(typedPages, 3)
  const counted = await send(new QueryCommand({ ...low, Select: "COUNT" }))
  assert.deepEqual([counted.Count, counted.ScannedCount, counted.Items], [20, 20, undefined])

  const order = (found) => found.sort((a, b) => a.sk - b.sk)
  const [scanned, scannedPages] = await collect(paginateDocumentScan({ client: documents, pageSize: 7 }, { TableName }))
  assert.deepEqual(order(scanned), items)
  assert.equal(scannedPages, 9)
  const segments = await Promise.all([0, 1, 2, 3].map((Segment) =>
    collect(paginateScan({ client, pageSize: 5 }, { TableName, Segment, TotalSegments: 4 }))
  ))
  const all = segments.flatMap(([found]) => found.map(({ sk }) => Number(sk.N)))
  assert.deepEqual(all.sort((a, b) => a - b), items.map(({ sk }) => sk))
  const some = await send(new ScanCommand({ TableName, Limit: 10 }))
  assert.equal(some.Count, 10)
  assert.ok(some.LastEvaluatedKey)
})

test("a query's page ends at one megabyte", { timeout }, async () => {
  const TableName = await create(["pk", "sk"])
  await fill(TableName, Array.from({ length: 25 }, (_, sk) => ({ pk: "p", sk, text: "x".repeat(100_000) })))
  const query = { TableName, KeyConditionExpression: "pk = :pk", ExpressionAttributeValues: { ":pk": "p" } }
  const [items, pages] = await collect(paginateDocumentQuery({ client: documents }, query))
  assert.deepEqual(items.map(({ sk }) => sk), Array.from({ length: 25 }, (_, sk) => sk))
  assert.equal(pages, 3)
})

// -- batches and transactions

test("batches: unprocessed items are requested again", { timeout }, async () => {
  const TableName = await create(["pk"])
  const count = 12
  const text = "x".repeat(390_000)  // together more than one answer may have
  await fill(TableName, Array.from({ length: count }, (_, i) => ({ pk: `p${i}`, text })))
  let RequestItems = {
    [TableName]: { Keys: Array.from({ length: count + 1 }, (_, i) => ({ pk: S(`p${i}`) })), ConsistentRead: true },
  }
  const seen = new Set()
  let calls = 0
  while (Object.keys(RequestItems).length) {
    const page = await send(new BatchGetItemCommand({ RequestItems }))
    for (const { pk, text: got } of page.Responses[TableName]) {
      assert.equal(got.S.length, text.length)
      assert.ok(!seen.has(pk.S))
      seen.add(pk.S)
    }
    RequestItems = page.UnprocessedKeys
    calls += 1
  }
  assert.equal(seen.size, count)
  assert.ok(calls > 1)

  const mixed = await send(new BatchWriteItemCommand({
    RequestItems: {
      [TableName]: [
        { DeleteRequest: { Key: { pk: S("p0") } } },
        { PutRequest: { Item: { pk: S("new"), n: N(1) } } },
      ],
    },
  }))
  assert.deepEqual(mixed.UnprocessedItems, {})
  const two = await documents.send(new BatchGetCommand({
    RequestItems: { [TableName]: { Keys: [{ pk: "p0" }, { pk: "new" }] } },
  }))
  assert.deepEqual(two.Responses[TableName], [{ pk: "new", n: 1 }])
  const twice = { [TableName]: [1, 2].map(() => ({ DeleteRequest: { Key: { pk: S("new") } } })) }
  await refusedAs(
    send(new BatchWriteItemCommand({ RequestItems: twice })),
    "ValidationException", /Provided list of item keys contains duplicates/
  )
})

test("transactions: all or nothing, with reasons and tokens", { timeout }, async () => {
  const TableName = await create(["pk"])
  await fill(TableName, [{ pk: "a", money: 10 }, { pk: "b", money: 0 }])
  const move = (from, to, amount) => [
    {
      Update: {
        TableName,
        Key: { pk: from },
        UpdateExpression: "SET money = money - :amount",
        ConditionExpression: "money >= :amount",
        ExpressionAttributeValues: { ":amount": amount },
        ReturnValuesOnConditionCheckFailure: "ALL_OLD",
      },
    },
    {
      Update: {
        TableName,
        Key: { pk: to },
        UpdateExpression: "ADD money :amount",
        ExpressionAttributeValues: { ":amount": amount },
      },
    },
  ]
  const both = async () => {
    const got = await documents.send(new TransactGetCommand({
      TransactItems: ["a", "b", "c"].map((pk) => ({ Get: { TableName, Key: { pk } } })),
    }))
    return got.Responses.map(({ Item }) => Item?.money)
  }
  const ClientRequestToken = randomUUID()
  const once = () => documents.send(new TransactWriteCommand({ TransactItems: move("a", "b", 7), ClientRequestToken }))
  await once()
  await once()
  assert.deepEqual(await both(), [3, 7, undefined])
  await refused(
    documents.send(new TransactWriteCommand({ TransactItems: move("a", "b", 1), ClientRequestToken })),
    IdempotentParameterMismatchException
  )

  const error = await refused(
    documents.send(new TransactWriteCommand({ TransactItems: move("a", "b", 7) })),
    TransactionCanceledException,
    /^Transaction cancelled, please refer cancellation reasons for specific reasons \[ConditionalCheckFailed, None\]$/
  )
  assert.deepEqual(error.CancellationReasons.map(({ Code }) => Code), ["ConditionalCheckFailed", "None"])
  const { Item } = error.CancellationReasons[0]
  assert.equal(Number(Item.money?.N ?? Item.money), 3)
  assert.deepEqual(await both(), [3, 7, undefined])

  await send(new TransactWriteItemsCommand({
    TransactItems: [
      { Put: { TableName, Item: { pk: S("c"), money: N(1) }, ConditionExpression: "attribute_not_exists(pk)" } },
      { Delete: { TableName, Key: { pk: S("a") } } },
      { ConditionCheck: { TableName, Key: { pk: S("b") }, ConditionExpression: "attribute_exists(pk)" } },
    ],
  }))
  const got = await send(new TransactGetItemsCommand({
    TransactItems: ["a", "c"].map((pk) => ({ Get: { TableName, Key: { pk: S(pk) } } })),
  }))
  assert.deepEqual(got.Responses.map(({ Item }) => Item), [undefined, { pk: S("c"), money: N(1) }])
})

// -- change streams

test("a change stream is read from its beginning to the tip while writers write", { timeout }, async () => {
  const TableName = await create(["pk"], { StreamSpecification: BOTH })
  const { Table: { LatestStreamArn: StreamArn } } = await send(new DescribeTableCommand({ TableName }))
  const listed = await streams.send(new ListStreamsCommand({ TableName }))
  assert.deepEqual(listed.Streams.map((each) => each.StreamArn), [StreamArn])

  const rounds = 40
  const writer = async (who) => {
    for (let i = 0; i < rounds; i += 1) {
      const pk = S(`${who}-${i % 5}`)
      if (i % 9 === 8) {
        await send(new DeleteItemCommand({ TableName, Key: { pk } }))
      } else {
        await send(new PutItemCommand({ TableName, Item: { pk, i: N(i), blob: { B: Uint8Array.of(i, 255) } } }))
      }
    }
  }
  let writing = true
  const writers = Promise.all(["a", "b", "c"].map(writer)).finally(() => (writing = false))

  const { StreamDescription } = await streams.send(new DescribeStreamCommand({ StreamArn }))
  assert.equal(StreamDescription.StreamViewType, "NEW_AND_OLD_IMAGES")
  assert.equal(StreamDescription.StreamStatus, "ENABLED")
  assert.ok(StreamDescription.CreationRequestDateTime instanceof Date)
  const [{ ShardId }] = StreamDescription.Shards
  const start = async (more) =>
    (await streams.send(new GetShardIteratorCommand({ StreamArn, ShardId, ...more }))).ShardIterator
  let ShardIterator = await start({ ShardIteratorType: "TRIM_HORIZON" })
  const records = []
  for (;;) {
    const last = !writing  // checked before the page is read: an empty page then means the end
    const page = await streams.send(new GetRecordsCommand({ ShardIterator, Limit: 17 }))
    records.push(...page.Records)
    ShardIterator = page.NextShardIterator
    if (last && page.Records.length === 0) break
  }
  await writers

  const state = new Map()
  let before = 0n
  for (const { eventName, eventSource, awsRegion, dynamodb } of records) {
    assert.deepEqual([eventSource, awsRegion], ["aws:dynamodb", "eu-central-1"])
    assert.ok(BigInt(dynamodb.SequenceNumber) > before)
    before = BigInt(dynamodb.SequenceNumber)
    assert.ok(dynamodb.ApproximateCreationDateTime instanceof Date)
    const key = dynamodb.Keys.pk.S
    assert.deepEqual(dynamodb.OldImage, state.get(key))
    const event = dynamodb.NewImage === undefined ? "REMOVE" : dynamodb.OldImage ? "MODIFY" : "INSERT"
    assert.equal(eventName, event)
    if (dynamodb.NewImage) state.set(key, dynamodb.NewImage)
    else state.delete(key)
  }
  const [items] = await collect(paginateScan({ client }, { TableName }))
  assert.deepEqual(new Map(items.map((item) => [item.pk.S, item])), state)
  assert.ok(records.length > rounds * 2)

  const SequenceNumber = records.at(-3).dynamodb.SequenceNumber
  for (const [ShardIteratorType, expected] of [["AT_SEQUENCE_NUMBER", 3], ["AFTER_SEQUENCE_NUMBER", 2]]) {
    const at = await start({ ShardIteratorType, SequenceNumber })
    const page = await streams.send(new GetRecordsCommand({ ShardIterator: at }))
    assert.deepEqual(page.Records, records.slice(-expected))
  }
  const latest = await start({ ShardIteratorType: "LATEST" })
  await send(new PutItemCommand({ TableName, Item: { pk: S("late") } }))
  const { Records } = await streams.send(new GetRecordsCommand({ ShardIterator: latest }))
  assert.deepEqual(Records.map(({ dynamodb }) => dynamodb.Keys), [{ pk: S("late") }])
})
