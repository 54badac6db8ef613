/**
 * The client of a Tailrace server, for browsers and Node 18 or newer: streams, tables, topics and SQL over HTTP.
 *
 * The rules of the module: a request is repeated only if that cannot change its effect; a reader continues at the last
 * offset that it has handed over; a message is acknowledged after its handler has returned, never before. Times are in
 * milliseconds. Every operation takes an AbortSignal.
 *
 * @module tailrace
 */

export const VERSION = "0.2.0"

const DEFAULT_URL = "http://127.0.0.1:4437"
const JSON_TYPE = "application/json"
const BYTES_TYPE = "application/octet-stream"
const TIMEOUT_MS = 90_000 // longer than a server holds a long-poll
const RETRY_FOR_MS = 30_000
const BACK_OFF_MS_MIN = 100
const BACK_OFF_MS_MAX = 5_000
const SILENCE_MS_MAX = 45_000 // of an event stream, which has a line every 15 s
const RENEW_BEFORE_MS = 60_000 // a session is renewed so long before it expires, or a tenth of its lifetime
const APPEND_BYTES_MAX = 1 << 20 // of one request of a producer
const PUBLISH_BYTES_MAX = 3 << 20 // of one request with several messages
const PUBLISH_MESSAGES_MAX = 1_000
const BEATS = 3 // while a lease lasts: two may fail
const HANDLER_RETRY_MS_MAX = 300_000
const CONCURRENCY_MAX = 10_000
const SLACK_MS = 30_000 // longer than a server waits, before it counts as gone

/** @typedef {{ signal?: AbortSignal }} Abortable  `signal` ends the operation, which then rejects with its reason. */

// -- errors

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
  constructor(message, facts = {}) {
    super(message, facts.cause === undefined ? undefined : { cause: facts.cause })
    this.name = "TailraceError"
    /** The HTTP status; 0 without a response. */
    this.status = facts.status ?? 0
    /** `CONNECTION_FAILED` or `TIMEOUT` without a response. */
    this.code = facts.code ?? "UNKNOWN"
    /** @type {Record<string, any>} */
    this.details = facts.details ?? {}
    /** How long the server asks to wait, in milliseconds. */
    this.retryAfterMs = facts.retryAfterMs ?? 0
    /** Whether the request cannot have reached the server. */
    this.unsent = facts.unsent ?? false
  }

  /** Whether the same request may succeed later: the server cannot be reached, is overloaded or is restarting. */
  get transient() {
    if (this.status === 429 || THROTTLED.has(this.code)) return !FINAL.has(this.code)
    if (this.status === 0) return this.code === "CONNECTION_FAILED" || this.code === "TIMEOUT"
    return [502, 503, 504].includes(this.status)
  }
}

const THROTTLED = new Set(["ThrottlingException", "ProvisionedThroughputExceededException"])
const FINAL = new Set(["LIMIT_EXCEEDED", "TOO_MANY_ATTEMPTS", "TOO_MANY_RANGES"]) // 429 that does not pass by itself
const NOT_WRITTEN = new Set(["QUEUE_FULL", "INTERRUPTED", "DATABASE_BUSY"]) // 503 without any effect
const UNSENT = new Set(["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "EHOSTUNREACH", "ENETUNREACH", "UND_ERR_CONNECT_TIMEOUT"])
const UNAUTHENTICATED = new Set(["MissingAuthenticationTokenException", "UnrecognizedClientException"])
/** @type {Record<number, string>} */
const CODES = { 400: "INVALID_REQUEST", 401: "UNAUTHENTICATED", 403: "FORBIDDEN", 404: "NOT_FOUND", 410: "GONE" }
/** @type {Array<[string, string]>} */
const PRODUCER_FIELDS = [
  ["producer-epoch", "epoch"],
  ["producer-expected-seq", "expected"],
  ["producer-received-seq", "received"],
]

/**
 * @param {Reply} reply
 * @returns {TailraceError}
 */
function errorOf({ status, headers, body }) {
  const after = Number(headers.get("retry-after"))
  const retryAfterMs = Number.isFinite(after) && after > 0 ? after * 1000 : 0
  /** @type {any} */
  let facts
  try {
    facts = JSON.parse(decodeText(body))
  } catch {
    facts = null
  }
  if (facts && typeof facts.__type === "string") {
    const { __type, message, Message, Item, CancellationReasons, ...rest } = facts
    const code = __type.slice(__type.lastIndexOf("#") + 1)
    /** @type {Record<string, any>} */
    const details = rest
    if (Item) details.item = fromAttributes(Item)
    if (CancellationReasons) details.reasons = CancellationReasons
    return new TailraceError(message ?? Message ?? code, { status, code, details, retryAfterMs })
  }
  if (facts && typeof facts.error?.code === "string") {
    const { code, message, ...details } = facts.error
    if (facts.results) details.results = facts.results.map(sqlResult)
    for (const [field, name] of PRODUCER_FIELDS) {
      const value = headers.get(field)
      if (value !== null) details[name] = Number(value)
    }
    return new TailraceError(String(message), { status, code, details, retryAfterMs })
  }
  const code = CODES[status] ?? "HTTP_ERROR"
  return new TailraceError(`the server answered ${status}`, { status, code, retryAfterMs })
}

/**
 * @param {TailraceError} error
 * @param {boolean} repeatable
 */
function mayRepeat(error, repeatable) {
  if (!error.transient) return false
  // Statements before the one that failed stay done, and all of them if only their results could not be sent.
  if (error.details.results?.length > 0 || error.code === "SELECT_RESULTS_BUSY") return repeatable
  if (repeatable || error.unsent || error.status === 429 || THROTTLED.has(error.code)) return true
  return error.status === 503 && NOT_WRITTEN.has(error.code)
}

// -- time and signals

/** Pauses between attempts: each up to twice as long as the one before, at random, so that clients do not meet. */
class BackOff {
  #nextMs = BACK_OFF_MS_MIN

  next() {
    const pauseMs = this.#nextMs
    this.#nextMs = Math.min(pauseMs * 2, BACK_OFF_MS_MAX)
    return pauseMs * (0.5 + Math.random() / 2)
  }

  reset() {
    this.#nextMs = BACK_OFF_MS_MIN
  }
}

/**
 * @param {number} ms
 * @param {AbortSignal} [signal]
 * @returns {Promise<void>}
 */
function sleep(ms, signal) {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason)
    const aborted = () => {
      clearTimeout(timer)
      reject(signal?.reason)
    }
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", aborted)
      resolve()
    }, ms)
    signal?.addEventListener("abort", aborted, { once: true })
  })
}

/**
 * The result of a promise that others wait for too; an abort ends this wait alone.
 * @template T
 * @param {Promise<T>} promise
 * @param {AbortSignal} [signal]
 * @returns {Promise<T>}
 */
function waitFor(promise, signal) {
  if (!signal) return promise
  return new Promise((resolve, reject) => {
    const aborted = () => reject(signal.reason)
    promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", aborted))
    if (signal.aborted) return aborted()
    signal.addEventListener("abort", aborted, { once: true })
  })
}

// -- text and bytes

const encoder = new TextEncoder()
const decoder = new TextDecoder()
const exactDecoder = new TextDecoder("utf-8", { ignoreBOM: true }) // keeps a byte order mark, which is content

/** @param {Uint8Array} bytes */
const decodeText = (bytes) => decoder.decode(bytes)

/**
 * @param {Uint8Array} bytes
 * @returns {string}
 */
function toBase64(bytes) {
  let text = ""
  for (let at = 0; at < bytes.length; at += 0x8000) text += String.fromCharCode(...bytes.subarray(at, at + 0x8000))
  return btoa(text)
}

/**
 * @param {string} text
 * @returns {Uint8Array}
 */
function fromBase64(text) {
  const binary = atob(text)
  const bytes = new Uint8Array(binary.length)
  for (let at = 0; at < binary.length; at++) bytes[at] = binary.charCodeAt(at)
  return bytes
}

/** @param {Uint8Array[]} parts */
function joined(parts) {
  if (parts.length === 1) return parts[0]
  const whole = new Uint8Array(parts.reduce((size, part) => size + part.length, 0))
  let at = 0
  for (const part of parts) {
    whole.set(part, at)
    at += part.length
  }
  return whole
}

/**
 * @param {string} name
 * @param {string} what
 */
function segment(name, what) {
  // A URL is resolved before it is sent: a name of dots would lead to another target.
  if (typeof name !== "string" || !name || name === "." || name === "..") {
    throw new TypeError(`${JSON.stringify(name)} cannot name ${what}`)
  }
  return encodeURIComponent(name)
}

/** @param {string} path */
const streamTarget = (path) => `/v1/stream/${path.split("/").map((part) => segment(part, "a part of a path")).join("/")}`

/** @param {string | null} contentType */
const isJson = (contentType) => (contentType ?? "").split(";")[0].trim().toLowerCase() === JSON_TYPE

/** @param {string | null} contentType */
const isText = (contentType) => (contentType ?? "").trim().toLowerCase().startsWith("text/")

/** @param {number} number  A sequence of a table, or an offset of a topic's partition. */
const offsetAfter = (number) => `0000000000000000_${String(number + 1).padStart(16, "0")}`

function randomName() {
  const bytes = globalThis.crypto?.getRandomValues(new Uint8Array(8))
  if (bytes) return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("")
  return Math.random().toString(16).slice(2) + Date.now().toString(16) // Node 18 has no global crypto
}

/** @param {unknown} value */
function jsonText(value) {
  const text = JSON.stringify(value)
  if (text === undefined) throw new TypeError(`${String(value)} cannot be sent as JSON`)
  return text
}

// -- values of tables

/** A number with more digits than a JavaScript number holds; `String(decimal)` has all of them. */
export class Decimal {
  /** @param {string | number | bigint} digits */
  constructor(digits) {
    this.text = String(digits)
    if (!/^-?\d+(\.\d+)?([eE][+-]?\d+)?$/.test(this.text)) throw new TypeError(`${this.text} is not a number`)
  }
  toString() {
    return this.text
  }
  toJSON() {
    return this.text
  }
  valueOf() {
    return Number(this.text)
  }
}

/** @typedef {Record<string, any>} Item  Attributes by name, as JavaScript values. */

/**
 * A JavaScript value as an attribute of DynamoDB's JSON. Numbers, bigints and `Decimal` are N, `Uint8Array` is B, a
 * `Set` is a set of text, of numbers or of bytes.
 * @param {unknown} value
 * @returns {Record<string, any>}
 */
export function toAttribute(value) {
  if (value === null) return { NULL: true }
  if (typeof value === "string") return { S: value }
  if (typeof value === "boolean") return { BOOL: value }
  if (typeof value === "bigint" || value instanceof Decimal) return { N: String(value) }
  if (typeof value === "number") {
    if (!Number.isFinite(value)) throw new TypeError(`${value} cannot be stored; numbers are finite`)
    return { N: String(value) }
  }
  if (value instanceof Uint8Array) return { B: toBase64(value) }
  if (value instanceof Set) return setAttribute([...value])
  if (Array.isArray(value)) return { L: value.map(toAttribute) }
  if (typeof value === "object") {
    const prototype = Object.getPrototypeOf(value)
    if (prototype === null || Object.getPrototypeOf(prototype) === null) return { M: toAttributes(value) }
  }
  throw new TypeError(`${String(value)} cannot be stored; use text, numbers, booleans, null, bytes, arrays, sets or objects`)
}

/**
 * An item as attributes of DynamoDB's JSON; attributes that are undefined are left out.
 * @param {Item} item
 * @returns {Record<string, any>}
 */
export function toAttributes(item) {
  const given = Object.entries(item).filter(([, value]) => value !== undefined)
  return Object.fromEntries(given.map(([name, value]) => [name, toAttribute(value)]))
}

/** @param {any[]} values */
function setAttribute(values) {
  const kinds = new Set(values.map((value) => Object.keys(toAttribute(value))[0]))
  const [kind] = kinds
  if (kinds.size !== 1 || !["S", "N", "B"].includes(kind)) {
    throw new TypeError("a set has one or more elements, all text, all numbers or all bytes")
  }
  return { [`${kind}S`]: values.map((value) => toAttribute(value)[kind]) }
}

/**
 * The JavaScript value of an attribute. A number that a JavaScript number cannot hold exactly is a `Decimal`.
 * @param {Record<string, any>} attribute
 * @returns {any}
 */
export function fromAttribute(attribute) {
  const [[kind, value]] = Object.entries(attribute)
  switch (kind) {
    case "N":
      return numberOf(value)
    case "B":
      return fromBase64(value)
    case "NULL":
      return null
    case "L":
      return value.map(fromAttribute)
    case "M":
      return fromAttributes(value)
    case "SS":
      return new Set(value)
    case "NS":
      return new Set(value.map(numberOf))
    case "BS":
      return new Set(value.map(fromBase64))
    default:
      return value // S, BOOL
  }
}

/**
 * @param {Record<string, any>} attributes
 * @returns {Item}
 */
export function fromAttributes(attributes) {
  return Object.fromEntries(Object.entries(attributes).map(([name, value]) => [name, fromAttribute(value)]))
}

/** @param {string} text */
function numberOf(text) {
  const digits = text.replace(/[eE].*$/, "").replace(/[-.]/g, "").replace(/^0+|0+$/g, "").length
  const number = Number(text)
  return digits <= 15 || String(number) === text ? number : new Decimal(text)
}

// -- requests

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
class Connection {
  /**
   * @param {string} url
   * @param {ClientOptions} options
   */
  constructor(url, options) {
    this.url = url.replace(/\/+$/, "")
    if (!/^https?:\/\//.test(this.url)) throw new TypeError(`${url} is not the URL of a server`)
    this.fetch = options.fetch ?? globalThis.fetch.bind(globalThis)
    this.timeoutMs = options.timeoutMs ?? TIMEOUT_MS
    this.retryForMs = options.retryForMs ?? RETRY_FOR_MS
    this.credentials = new Credentials(this, options)
  }

  /**
   * @param {string} method
   * @param {string} target
   * @param {RequestOptions} [options]
   * @returns {Promise<Reply>}
   */
  async send(method, target, options = {}) {
    const repeatable = options.repeatable ?? (method === "GET" || method === "HEAD")
    const untilMs = Date.now() + (options.retryForMs ?? this.retryForMs)
    const pause = new BackOff()
    let renewed = false
    let sent = 0
    for (;;) {
      const authorization = await this.credentials.authorization(options.signal)
      const error = await this.attempt(method, target, options, authorization).then(
        (reply) => {
          if (reply.status < 400 || (reply.status === 404 && options.goneIsDone && sent > 0)) return reply
          return errorOf(reply)
        },
        (/** @type {unknown} */ failure) => {
          if (failure instanceof TailraceError) return failure
          throw failure
        },
      )
      if (!(error instanceof TailraceError)) return error
      if (!renewed && isUnauthenticated(error) && (await this.credentials.renew(authorization, options.signal))) {
        renewed = true
        continue
      }
      const pauseMs = Math.max(pause.next(), error.retryAfterMs)
      if (!mayRepeat(error, repeatable) || Date.now() + pauseMs > untilMs) throw error
      if (!error.unsent) sent++
      await sleep(pauseMs, options.signal)
    }
  }

  /**
   * One attempt: the whole response, whatever its status.
   * @param {string} method
   * @param {string} target
   * @param {RequestOptions} options
   * @param {string | undefined} authorization
   * @returns {Promise<Reply>}
   */
  async attempt(method, target, options, authorization) {
    const [url, request] = this.#prepared(method, target, options, authorization)
    const watch = new Watch(options.signal, options.timeoutMs ?? this.timeoutMs)
    try {
      const response = await this.fetch(url, { ...request, signal: watch.signal })
      const body = new Uint8Array(await response.arrayBuffer())
      return { status: response.status, headers: response.headers, body }
    } catch (error) {
      throw watch.reasonOf(error, this.url)
    } finally {
      watch.end()
    }
  }

  /**
   * A response whose body is read as it arrives; one attempt, and another one with new credentials.
   * @param {string} target
   * @param {RequestOptions} options
   * @param {Watch} watch
   */
  async open(target, options, watch) {
    for (let renewed = false; ; renewed = true) {
      const authorization = await this.credentials.authorization(options.signal)
      const [url, request] = this.#prepared("GET", target, options, authorization)
      /** @param {unknown} error */
      const failed = (error) => Promise.reject(watch.reasonOf(error, this.url))
      const response = await this.fetch(url, { ...request, signal: watch.signal }).catch(failed)
      if (response.ok && response.body) return { headers: response.headers, body: response.body }
      const body = new Uint8Array(await response.arrayBuffer().catch(failed))
      const error = errorOf({ status: response.status, headers: response.headers, body })
      if (renewed || !isUnauthenticated(error) || !(await this.credentials.renew(authorization, options.signal))) throw error
    }
  }

  /**
   * @param {string} method
   * @param {string} target
   * @param {RequestOptions} options
   * @param {string | undefined} authorization
   * @returns {[string, RequestInit]}
   */
  #prepared(method, target, options, authorization) {
    const url = new URL(this.url + target)
    for (const [name, value] of Object.entries(options.query ?? {})) {
      if (value !== undefined) url.searchParams.set(name, String(value))
    }
    const headers = new Headers(options.headers)
    let body = options.body
    if (options.json !== undefined) {
      body = jsonText(options.json)
      if (!headers.has("content-type")) headers.set("content-type", JSON_TYPE)
    }
    if (authorization !== undefined) headers.set("authorization", authorization)
    const content = /** @type {BodyInit | undefined} */ (body)
    return [url.href, { method, headers, body: content, cache: "no-store", credentials: "omit" }]
  }

  /**
   * @param {string} method
   * @param {string} target
   * @param {RequestOptions} [options]
   * @returns {Promise<any>}
   */
  async json(method, target, options) {
    const { body } = await this.send(method, target, options)
    if (body.length === 0) return undefined
    try {
      return JSON.parse(decodeText(body))
    } catch (cause) {
      const message = `${this.url}${target} was not answered in JSON: is it a Tailrace server?`
      throw new TailraceError(message, { code: "NOT_JSON", cause })
    }
  }
}

/** @param {TailraceError} error */
const isUnauthenticated = (error) => error.status === 401 || UNAUTHENTICATED.has(error.code)

/** Ends a request: when the caller aborts it, or when nothing came for too long. */
class Watch {
  #controller = new AbortController()
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer
  #late = false

  /**
   * @param {AbortSignal | undefined} outer
   * @param {number} timeoutMs
   */
  constructor(outer, timeoutMs) {
    this.outer = outer
    this.timeoutMs = timeoutMs
    this.signal = this.#controller.signal
    outer?.throwIfAborted()
    outer?.addEventListener("abort", this.#aborted, { once: true })
    this.restart()
  }

  #aborted = () => this.#controller.abort(this.outer?.reason)

  restart() {
    clearTimeout(this.#timer)
    this.#timer = setTimeout(() => {
      this.#late = true
      this.#controller.abort()
    }, this.timeoutMs)
  }

  /** Let go of the request, complete or not. */
  end() {
    clearTimeout(this.#timer)
    this.outer?.removeEventListener("abort", this.#aborted)
  }

  abort() {
    this.end()
    this.#controller.abort()
  }

  /**
   * The error that the caller sees.
   * @param {unknown} error
   * @param {string} url
   */
  reasonOf(error, url) {
    if (error instanceof TailraceError || error instanceof SyntaxError) return error // not of the connection
    if (this.#late) {
      return new TailraceError(`${url} sent nothing for ${this.timeoutMs / 1000} s`, { code: "TIMEOUT", cause: error })
    }
    if (this.outer?.aborted) return this.outer.reason
    const cause = /** @type {any} */ (error)?.cause
    const why = cause?.message || cause?.code || /** @type {any} */ (error)?.message || String(error)
    const unsent = UNSENT.has(cause?.code)
    return new TailraceError(`${url} cannot be reached: ${why}`, { code: "CONNECTION_FAILED", cause: error, unsent })
  }
}

// -- credentials

/**
 * @typedef {object} Session  A login.
 * @property {string} accessToken
 * @property {string} refreshToken  works once
 * @property {number} expiresAt  when the access token expires, by the clock of this machine
 * @property {number} lifetimeMs  of the access token
 * @property {{ name: string, role: string }} user
 */

/** The credentials of a client. One request at a time renews a session; the others wait for it. */
class Credentials {
  /** @type {Promise<void> | undefined} */
  #renewing
  #changes = 0 // logins and logouts of the program, which renewals that were under way do not undo

  /**
   * @param {Connection} connection
   * @param {ClientOptions} options
   */
  constructor(connection, options) {
    const { token, user, password } = options
    if (token !== undefined && (user !== undefined || password !== undefined || options.session)) {
      throw new TypeError("a token and a user are two kinds of credentials; give one of them")
    }
    if ((user === undefined) !== (password === undefined)) throw new TypeError("a user has a name and a password; give both")
    this.connection = connection
    this.token = token
    this.user = user
    this.password = password
    this.session = options.session
    this.onSession = options.onSession
  }

  /**
   * The header field of a request; a session that is about to expire is renewed first.
   * @param {AbortSignal} [signal]
   * @returns {Promise<string | undefined>}
   */
  async authorization(signal) {
    if (this.token !== undefined) {
      return `Bearer ${typeof this.token === "function" ? await waitFor(Promise.resolve(this.token()), signal) : this.token}`
    }
    const session = this.session
    if (!session) {
      if (this.user === undefined) return undefined
      await waitFor(this.#renewed(session), signal)
    } else {
      const leftMs = session.expiresAt - Date.now()
      if (leftMs < Math.min(RENEW_BEFORE_MS, session.lifetimeMs / 10)) {
        await waitFor(this.#renewed(session), signal).catch((error) => {
          // The token that there is may do until the server can be reached.
          if (leftMs <= 0 || !(error instanceof TailraceError) || !error.transient) throw error
        })
      }
    }
    return this.session && `Bearer ${this.session.accessToken}`
  }

  /**
   * After a request with `sent` was refused: whether there are other credentials to try.
   * @param {string | undefined} sent
   * @param {AbortSignal} [signal]
   */
  async renew(sent, signal) {
    if (typeof this.token === "function") return (await this.authorization(signal)) !== sent
    const session = this.session
    if (!session && this.user === undefined) return false
    // Without a session, another request logs in again, or its login has failed.
    if (!session || sent === `Bearer ${session.accessToken}`) await waitFor(this.#renewed(session), signal)
    return this.session !== undefined
  }

  /** @param {Session | undefined} before */
  async #renewed(before) {
    if (this.session !== before) return // another request has done it
    if (!this.#renewing) {
      const renewing = this.#renew(before).finally(() => {
        if (this.#renewing === renewing) this.#renewing = undefined
      })
      this.#renewing = renewing
    }
    await this.#renewing
  }

  /** @param {Session | undefined} session */
  async #renew(session) {
    const changes = this.#changes
    if (session) {
      try {
        const made = await this.#start("refresh", { refresh_token: session.refreshToken })
        return this.#renewedTo(made, changes)
      } catch (error) {
        if (changes !== this.#changes) return
        if (!(error instanceof TailraceError) || error.status !== 401) throw error
        this.#set(undefined)
        if (this.user === undefined) throw error
      }
    }
    this.#renewedTo(await this.#start("login", { username: this.user, password: this.password }), changes)
  }

  /**
   * @param {Session} session
   * @param {number} changes  of the program, when the renewal began
   */
  #renewedTo(session, changes) {
    if (changes === this.#changes) return this.#set(session)
    // The program has logged in or out meanwhile: this session is nobody's, and ended as far as possible.
    const options = { json: { refresh_token: session.refreshToken } }
    void this.connection.attempt("POST", "/v1/api/auth/logout", options, undefined).catch(() => undefined)
  }

  /**
   * Log in for the program.
   * @param {string} username
   * @param {string} password
   * @param {AbortSignal} [signal]
   */
  async login(username, password, signal) {
    const session = await this.#start("login", { username, password }, signal)
    this.#changes++
    this.#renewing = undefined
    this.#set(session)
    return session
  }

  /**
   * @param {"login" | "refresh"} how
   * @param {Record<string, string | undefined>} json
   * @param {AbortSignal} [signal]
   * @returns {Promise<Session>}
   */
  async #start(how, json, signal) {
    const { connection } = this
    const untilMs = Date.now() + connection.retryForMs
    const pause = new BackOff()
    for (;;) {
      try {
        const options = { json, signal }
        const reply = await connection.attempt("POST", `/v1/api/auth/${how}`, options, undefined)
        if (reply.status >= 400) throw errorOf(reply)
        const facts = JSON.parse(decodeText(reply.body))
        const lifetimeMs = facts.expires_in * 1000
        return {
          accessToken: facts.access_token,
          refreshToken: facts.refresh_token,
          expiresAt: Date.now() + lifetimeMs,
          lifetimeMs,
          user: facts.user,
        }
      } catch (error) {
        // A refresh token works once: it is not sent again if it may have been used.
        if (!(error instanceof TailraceError) || !mayRepeat(error, how === "login")) throw error
        const pauseMs = Math.max(pause.next(), error.retryAfterMs)
        if (Date.now() + pauseMs > untilMs) throw error
        await sleep(pauseMs, signal)
      }
    }
  }

  /** @param {AbortSignal} [signal] */
  async end(signal) {
    const session = this.session
    this.#changes++
    this.#renewing = undefined
    this.user = this.password = undefined
    this.#set(undefined)
    if (!session) return
    const options = { json: { refresh_token: session.refreshToken }, signal }
    const reply = await this.connection.attempt("POST", "/v1/api/auth/logout", options, undefined)
    if (reply.status >= 400) throw errorOf(reply)
  }

  /** @param {Session | undefined} session */
  #set(session) {
    this.session = session
    this.onSession?.(session)
  }
}

// -- pages

/** A part of a stream: messages, and where to read on. */
export class StreamPage {
  /** @type {Uint8Array | string} */
  #content
  /** @type {any[] | undefined} */
  #messages

  /**
   * @param {Uint8Array | string} content
   * @param {{ contentType: string, offset: string, upToDate: boolean, closed: boolean }} state
   */
  constructor(content, state) {
    this.#content = content
    this.contentType = state.contentType
    /** Where to read on. */
    this.offset = state.offset
    /** Whether there was nothing beyond this page. */
    this.upToDate = state.upToDate
    /** Whether there will never be anything beyond this page. */
    this.closed = state.closed
  }

  /** Whether the page has no content. */
  get empty() {
    return this.#content.length === 0 || (isJson(this.contentType) && this.messages.length === 0)
  }

  /** The content as bytes. */
  get bytes() {
    return typeof this.#content === "string" ? encoder.encode(this.#content) : this.#content
  }

  /** The content as text. */
  get text() {
    return typeof this.#content === "string" ? this.#content : exactDecoder.decode(this.#content)
  }

  /**
   * The messages of a JSON stream.
   * @returns {any[]}
   */
  get messages() {
    this.#messages ??= this.text === "" ? [] : JSON.parse(this.text)
    return /** @type {any[]} */ (this.#messages)
  }
}

/**
 * @typedef {object} FollowOptions
 * @property {string} [offset]  `-1` for the beginning (the default), `now`, or an offset that the server returned
 * @property {"auto" | "sse" | "long-poll"} [live]  how new data is waited for. `auto` is an event stream, and long-polls
 *   for text: an event stream does not keep its carriage returns
 * @property {AbortSignal} [signal]
 */

/**
 * @param {Reply} reply
 * @param {string} before  the offset of the request
 */
function pageOf({ headers, body }, before) {
  return new StreamPage(body, {
    contentType: headers.get("content-type") ?? "",
    offset: headers.get("stream-next-offset") ?? before,
    upToDate: headers.get("stream-up-to-date") === "true",
    closed: headers.get("stream-closed") === "true",
  })
}

/**
 * Pages with data as they arrive, until the log is closed. A broken connection is made again, at the offset after the
 * last page that was handed over; a server that cannot be reached at first is an error.
 * @param {Connection} connection
 * @param {string} target
 * @param {FollowOptions} options
 * @param {Record<string, string>} [query]
 * @returns {AsyncGenerator<StreamPage, void, void>}
 */
async function* follow(connection, target, { offset = "-1", live = "auto", signal }, query = {}) {
  const pause = new BackOff()
  let reached = false
  let waiting = false
  let contentType = ""
  /** @type {string | undefined} */
  let cursor
  for (;;) {
    signal?.throwIfAborted()
    try {
      if (waiting && (live === "sse" || (live === "auto" && !isText(contentType)))) {
        let seen = false
        for await (const { page, next } of events(connection, target, { ...query, offset, cursor }, contentType, signal)) {
          pause.reset()
          seen = true
          offset = page.offset
          cursor = next
          if (!page.empty) yield page
          if (page.closed) return
        }
        if (!seen) await sleep(pause.next(), signal)
        continue
      }
      /** @type {Record<string, string | undefined>} */
      const parameters = waiting ? { ...query, offset, live: "long-poll", cursor } : { ...query, offset }
      const reply = await connection.send("GET", target, { query: parameters, signal })
      cursor = reply.headers.get("stream-cursor") ?? undefined
      const page = pageOf(reply, offset)
      reached = true
      pause.reset()
      offset = page.offset
      waiting = page.upToDate
      contentType ||= page.contentType // a long-poll without data has none
      if (!page.empty) yield page
      if (page.closed) return
    } catch (error) {
      if (!reached || !(error instanceof TailraceError) || !error.transient) throw error
      await sleep(Math.max(pause.next(), error.retryAfterMs), signal)
    }
  }
}

/**
 * The events of one connection, each with the offset after it: data without one is dropped, and read again.
 * @param {Connection} connection
 * @param {string} target
 * @param {Record<string, string | undefined>} query
 * @param {string} contentType
 * @param {AbortSignal} [signal]
 * @returns {AsyncGenerator<{ page: StreamPage, next: string | undefined }, void, void>}
 */
async function* events(connection, target, query, contentType, signal) {
  const watch = new Watch(signal, SILENCE_MS_MAX)
  try {
    const { headers, body } = await connection.open(target, { query: { ...query, live: "sse" }, signal }, watch)
    const base64 = headers.get("stream-sse-data-encoding") === "base64"
    const reader = body.getReader()
    const parser = new EventParser()
    /** @type {string[]} */
    let data = []
    for (;;) {
      const { done, value } = await reader.read().catch((error) => Promise.reject(watch.reasonOf(error, connection.url)))
      if (done) return
      watch.restart()
      for (const event of parser.push(value)) {
        if (event.name === "data") data.push(event.data)
        if (event.name !== "control") continue
        const state = JSON.parse(event.data)
        const content = base64 ? joined([new Uint8Array(0), ...data.map(fromBase64)]) : data.join("")
        data = []
        const { streamNextOffset: offset, upToDate = false, streamClosed: closed = false } = state
        yield { page: new StreamPage(content, { contentType, offset, upToDate, closed }), next: state.streamCursor }
      }
    }
  } finally {
    watch.abort()
  }
}

/** Parses an event stream, in whichever pieces it arrives. */
class EventParser {
  #decoder = new TextDecoder()
  /** @type {string[]} */
  #rest = [] // of a line that is not complete
  #name = "message"
  /** @type {string[]} */
  #lines = []; // of data

  /**
   * @param {Uint8Array} piece
   * @returns {Generator<{ name: string, data: string }, void, void>}
   */
  *push(piece) {
    const lines = this.#decoder.decode(piece, { stream: true }).split("\n")
    if (lines.length === 1) {
      this.#rest.push(lines[0])
      return
    }
    lines[0] = this.#rest.join("") + lines[0]
    this.#rest = [lines[lines.length - 1]]
    for (const line of lines.slice(0, -1)) {
      if (line === "") {
        if (this.#lines.length > 0) yield { name: this.#name, data: this.#lines.join("\n") }
        this.#lines = []
        this.#name = "message"
        continue
      }
      const colon = line.indexOf(":")
      const field = colon < 0 ? line : line.slice(0, colon)
      const value = colon < 0 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1)
      if (field === "data") this.#lines.push(value)
      else if (field === "event") this.#name = value
    }
  }
}

// -- streams

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
  #connection

  /**
   * @param {Connection} connection
   * @param {string} path
   * @param {string} contentType
   */
  constructor(connection, path, contentType) {
    this.#connection = connection
    this.path = path
    this.contentType = contentType
    this.target = streamTarget(path)
  }

  /**
   * Create the stream, if it does not exist with the same configuration. Returns the offset of its tail.
   * @param {CreateOptions} [options]
   */
  async create(options = {}) {
    this.contentType = options.contentType ?? this.contentType
    /** @type {Record<string, string>} */
    const headers = { "content-type": this.contentType }
    if (options.ttlMs !== undefined) headers["stream-ttl"] = seconds("ttlMs", options.ttlMs)
    if (options.maxAgeMs !== undefined) headers["stream-max-age"] = seconds("maxAgeMs", options.maxAgeMs)
    if (options.maxBytes !== undefined) headers["stream-max-bytes"] = String(options.maxBytes)
    if (options.closed) headers["stream-closed"] = "true"
    const body = options.body === undefined ? undefined : this.#encoded([options.body])
    const { signal } = options
    const reply = await this.#connection.send("PUT", this.target, { headers, body, repeatable: true, signal })
    return { offset: reply.headers.get("stream-next-offset") ?? "", created: reply.status === 201 }
  }

  /**
   * Append one message durably. It is not repeated if its outcome is unknown: use `producer` for that.
   * @param {any} message
   * @param {{ sequence?: string, close?: boolean, signal?: AbortSignal }} [options]  `sequence` must sort after the last
   *   one of the stream (`Stream-Seq`); `close` makes it the last message
   */
  async append(message, options = {}) {
    return this.appendMany([message], options)
  }

  /**
   * Append several messages, all or none.
   * @param {any[]} messages
   * @param {{ sequence?: string, close?: boolean, signal?: AbortSignal }} [options]
   */
  async appendMany(messages, options = {}) {
    /** @type {Record<string, string>} */
    const headers = { "content-type": this.contentType }
    if (options.sequence !== undefined) headers["stream-seq"] = options.sequence
    if (options.close) headers["stream-closed"] = "true"
    const body = this.#encoded(messages)
    const reply = await this.#connection.send("POST", this.target, { headers, body, signal: options.signal })
    return { offset: reply.headers.get("stream-next-offset") ?? "" }
  }

  /**
   * One page from `offset` on; with `wait`, when there is one or the server's timeout has passed.
   * @param {{ offset?: string, wait?: boolean, signal?: AbortSignal }} [options]
   */
  async read({ offset = "-1", wait = false, signal } = {}) {
    const query = { offset, live: wait ? "long-poll" : undefined }
    return pageOf(await this.#connection.send("GET", this.target, { query, signal }), offset)
  }

  /**
   * Pages with data as they arrive, until the stream is closed, each page once. After a disconnect or a restart of the
   * server it continues where it was.
   * @param {FollowOptions} [options]
   */
  follow(options = {}) {
    return follow(this.#connection, this.target, options)
  }

  /**
   * The state of the stream.
   * @param {Abortable} [options]
   * @returns {Promise<StreamState>}
   */
  async head({ signal } = {}) {
    const { headers } = await this.#connection.send("HEAD", this.target, { signal })
    /** @param {string} name */
    const number = (name) => (headers.has(name) ? Number(headers.get(name)) : undefined)
    const [ttlS, maxAgeS] = [number("stream-ttl"), number("stream-max-age")]
    return {
      contentType: headers.get("content-type") ?? "",
      offset: headers.get("stream-next-offset") ?? "",
      closed: headers.get("stream-closed") === "true",
      earliestOffset: headers.get("stream-earliest-offset") ?? undefined,
      ttlMs: ttlS === undefined ? undefined : ttlS * 1000,
      maxAgeMs: maxAgeS === undefined ? undefined : maxAgeS * 1000,
      maxBytes: number("stream-max-bytes"),
    }
  }

  /**
   * Close the stream: it takes no more messages, and readers come to an end. To close it again has no effect.
   * @param {Abortable} [options]
   */
  async close({ signal } = {}) {
    const headers = { "content-type": this.contentType, "stream-closed": "true" }
    const reply = await this.#connection.send("POST", this.target, { headers, repeatable: true, signal })
    return { offset: reply.headers.get("stream-next-offset") ?? "" }
  }

  /**
   * Delete the stream.
   * @param {Abortable} [options]
   */
  async delete({ signal } = {}) {
    await this.#connection.send("DELETE", this.target, { repeatable: true, goneIsDone: true, signal })
  }

  /**
   * A producer, whose messages are appended once, even if responses are lost.
   * @param {ProducerOptions} [options]
   * @returns {Producer<any, Appended>}
   */
  producer(options = {}) {
    return new Producer(this.#connection, options, {
      bytesMax: APPEND_BYTES_MAX,
      countMax: Infinity,
      encode: (message) => {
        const entry = this.#entry(message)
        return { entry, size: entry.length + 1 }
      },
      send: async (entries, claim) => {
        const headers = { "content-type": this.contentType, ...producerFields(claim) }
        const reply = await this.#connection.send("POST", this.target, {
          headers,
          body: this.#joined(entries),
          retryForMs: 0,
        })
        const appended = { offset: reply.headers.get("stream-next-offset") ?? "", duplicate: reply.status === 204 }
        return { duplicate: appended.duplicate, results: entries.map(() => appended) }
      },
    })
  }

  /**
   * @param {any} message
   * @returns {Uint8Array}
   */
  #entry(message) {
    if (isJson(this.contentType)) return encoder.encode(jsonText(message))
    const entry = typeof message === "string" ? encoder.encode(message) : message
    if (!(entry instanceof Uint8Array)) throw new TypeError(`a stream of ${this.contentType} takes text and bytes`)
    if (entry.length === 0) throw new TypeError("an empty message cannot be appended")
    return entry
  }

  /** @param {any[]} messages */
  #encoded(messages) {
    if (messages.length === 0) throw new TypeError("there is nothing to append; give one message or more")
    return this.#joined(messages.map((message) => this.#entry(message)))
  }

  /** @param {Uint8Array[]} entries */
  #joined(entries) {
    if (!isJson(this.contentType)) return joined(entries)
    const comma = encoder.encode(",")
    const parts = entries.flatMap((entry, at) => (at === 0 ? [entry] : [comma, entry]))
    return joined([encoder.encode("["), ...parts, encoder.encode("]")]) // an array is one message in an array
  }
}

/**
 * @param {string} name
 * @param {number} ms
 */
function seconds(name, ms) {
  if (!Number.isInteger(ms / 1000)) throw new TypeError(`${name} is ${ms}; give whole seconds, in milliseconds`)
  return String(ms / 1000)
}

// -- producers

/**
 * @typedef {object} ProducerOptions
 * @property {string} [id]  a name that stays the same from run to run: a new run then fences the one before it
 * @property {number} [epoch]  of this run; by default the time, so that it rises from run to run
 * @property {number} [retryForMs]  how long a request is repeated while the server is unavailable
 */

/** @typedef {{ id: string, epoch: number, sequence: number }} ProducerClaim */

/**
 * @template M, R
 * @typedef {object} ProducerTarget
 * @property {number} bytesMax
 * @property {number} countMax
 * @property {(message: M) => { entry: any, size: number }} encode
 * @property {(entries: any[], claim: ProducerClaim) => Promise<{ duplicate: boolean, results: R[] }>} send
 */

/** @param {ProducerClaim} claim */
function producerFields({ id, epoch, sequence }) {
  return { "producer-id": id, "producer-epoch": String(epoch), "producer-seq": String(sequence) }
}

/**
 * Writes messages in order and once each, even if responses are lost.
 *
 * Requests are numbered within an epoch and sent one after the other; a request is repeated under its number until there
 * is a response. Messages that are written meanwhile wait, and make up the next request together.
 * @template M, R
 */
export class Producer {
  #target
  #retryForMs
  #sequence = 0 // of the next request
  #accepted = false // whether a request was ever accepted
  #closed = false
  /** @type {Array<{ entry: any, size: number, resolve: (result: R) => void, reject: (error: unknown) => void }>} */
  #pending = []
  /** @type {Promise<void> | undefined} */
  #running

  /**
   * @param {Connection} connection
   * @param {ProducerOptions} options
   * @param {ProducerTarget<M, R>} target
   */
  constructor(connection, options, target) {
    this.#target = target
    this.#retryForMs = options.retryForMs ?? connection.retryForMs
    this.id = options.id ?? `producer-${randomName()}`
    if (!/^[\x21-\x7e]{1,256}$/.test(this.id)) throw new TypeError("the id of a producer is printable ASCII without spaces")
    this.epoch = options.epoch ?? Date.now()
  }

  /**
   * Write a message; resolves when it is durable. If it rejects with a `transient` error, its outcome is unknown; with
   * `STALE_EPOCH`, a later run of this producer has taken over. An abort of a message that is being sent leaves its
   * outcome unknown, too.
   * @param {M} message
   * @param {Abortable} [options]
   * @returns {Promise<R>}
   */
  append(message, { signal } = {}) {
    return new Promise((resolve, reject) => {
      signal?.throwIfAborted()
      if (this.#closed) throw new TypeError("this producer is closed")
      const aborted = () => {
        const at = this.#pending.indexOf(waiting)
        if (at >= 0) this.#pending.splice(at, 1)
        reject(signal?.reason)
      }
      const settled = () => signal?.removeEventListener("abort", aborted)
      const waiting = {
        ...this.#target.encode(message),
        resolve: (/** @type {R} */ result) => {
          settled()
          resolve(result)
        },
        reject: (/** @type {unknown} */ error) => {
          settled()
          reject(error)
        },
      }
      signal?.addEventListener("abort", aborted, { once: true })
      this.#pending.push(waiting)
      this.#running ??= this.#run()
    })
  }

  /** Wait until nothing is pending, whether it was written or has failed. */
  async flush() {
    while (this.#running) await this.#running
  }

  /** Take no more messages, and wait for those that are pending. */
  async close() {
    this.#closed = true
    await this.flush()
  }

  async #run() {
    await undefined // what the program writes at once is one request
    while (this.#pending.length > 0) {
      const batch = this.#take()
      try {
        const results = await this.#deliver(batch.map(({ entry }) => entry))
        batch.forEach(({ resolve }, at) => resolve(results[at]))
      } catch (error) {
        for (const { reject } of batch) reject(error)
      }
    }
    this.#running = undefined
  }

  #take() {
    let size = 0
    let count = 0
    for (const each of this.#pending) {
      size += each.size
      if (count > 0 && (size > this.#target.bytesMax || count >= this.#target.countMax)) break
      count++
    }
    return this.#pending.splice(0, count)
  }

  /** @param {any[]} entries */
  async #deliver(entries) {
    const pause = new BackOff()
    const untilMs = Date.now() + this.#retryForMs
    let lost = false // a response: then a duplicate is known to be ours
    for (;;) {
      try {
        const claim = { id: this.id, epoch: this.epoch, sequence: this.#sequence }
        const { duplicate, results } = await this.#target.send(entries, claim)
        if (duplicate && !lost) {
          this.#renew(this.epoch) // another producer has this epoch; our request was never seen
          continue
        }
        this.#sequence++
        this.#accepted = true
        return results
      } catch (error) {
        if (!(error instanceof TailraceError)) throw error
        if (error.code === "STALE_EPOCH" && !this.#accepted && !lost) {
          this.#renew(error.details.epoch ?? this.epoch) // the clock was ahead in the run before
        } else if (error.code === "SEQUENCE_GAP" && this.#sequence > 0) {
          this.#renew(this.epoch) // the log was recreated: it knows no request of ours
        } else if (error.transient) {
          const pauseMs = Math.max(pause.next(), error.retryAfterMs)
          lost ||= !error.unsent
          if (Date.now() + pauseMs > untilMs) {
            this.#renew(this.epoch) // the number may be used up or not: never give it to other messages
            throw error
          }
          await sleep(pauseMs)
        } else {
          // As above, unless another run has taken over: it must not be fenced by this one.
          if (lost && error.code !== "STALE_EPOCH") this.#renew(this.epoch)
          throw error
        }
      }
    }
  }

  /** @param {number} epoch */
  #renew(epoch) {
    this.epoch = epoch + 1 // not the time: a run that began later stays ahead of this one
    this.#sequence = 0
  }
}

// -- tables

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
  #connection

  /**
   * @param {Connection} connection
   * @param {string} name
   */
  constructor(connection, name) {
    this.#connection = connection
    this.name = name
    this.target = `/v1/tables/${segment(name, "a table")}/stream`
  }

  /**
   * The item with this key; undefined if there is none.
   * @param {Item} key
   * @param {{ projection?: string, names?: Record<string, string>, signal?: AbortSignal }} [options]
   * @returns {Promise<Item | undefined>}
   */
  async get(key, { projection, names, signal } = {}) {
    const parameters = { Key: toAttributes(key), ProjectionExpression: projection, ExpressionAttributeNames: names }
    const { Item } = await this.#call("GetItem", parameters, true, signal)
    return Item && fromAttributes(Item)
  }

  /**
   * Write an item. Returns the item before, if `returnOld` is set and there was one.
   * @param {Item} item
   * @param {WriteOptions} [options]
   */
  async put(item, options = {}) {
    return this.#write("PutItem", { Item: toAttributes(item) }, options)
  }

  /**
   * Delete an item, if there is one. Returns the item before, if `returnOld` is set and there was one.
   * @param {Item} key
   * @param {WriteOptions} [options]
   */
  async delete(key, options = {}) {
    return this.#write("DeleteItem", { Key: toAttributes(key) }, options)
  }

  /**
   * Change attributes of an item, as in `update({ id }, "SET total = total + :n", { values: { ":n": 1 } })`. Returns the
   * item after the change. It is not repeated if its outcome is unknown.
   * @param {Item} key
   * @param {string} expression
   * @param {Omit<WriteOptions, "returnOld">} [options]
   * @returns {Promise<Item>}
   */
  async update(key, expression, options = {}) {
    const change = { Key: toAttributes(key), UpdateExpression: expression, ReturnValues: "ALL_NEW" }
    const parameters = { ...conditions(options), ...change }
    const { Attributes } = await this.#call("UpdateItem", parameters, false, options.signal)
    return fromAttributes(Attributes ?? {})
  }

  /**
   * A page of the items with a partition key, in the order of the sort key.
   * @param {QueryOptions} options
   * @returns {Promise<ItemPage>}
   */
  async query(options) {
    const parameters = { KeyConditionExpression: options.key, ScanIndexForward: !options.descending }
    return this.#page("Query", parameters, options)
  }

  /**
   * A page of all items.
   * @param {ScanOptions} [options]
   * @returns {Promise<ItemPage>}
   */
  async scan(options = {}) {
    return this.#page("Scan", {}, options)
  }

  /**
   * All items of a query, page by page.
   * @param {QueryOptions} options
   */
  async *queryAll(options) {
    let startKey = options.startKey
    do {
      const page = await this.query({ ...options, startKey })
      yield* page.items
      startKey = page.lastKey
    } while (startKey)
  }

  /**
   * All items, page by page.
   * @param {ScanOptions} [options]
   */
  async *scanAll(options = {}) {
    let startKey = options.startKey
    do {
      const page = await this.scan({ ...options, startKey })
      yield* page.items
      startKey = page.lastKey
    } while (startKey)
  }

  /**
   * The description of the table, as DescribeTable of the DynamoDB API returns it.
   * @param {Abortable} [options]
   * @returns {Promise<Record<string, any>>}
   */
  async describe({ signal } = {}) {
    return (await this.#call("DescribeTable", {}, true, signal)).Table
  }

  /**
   * One page of changes from `offset` on.
   * @param {ChangeOptions} [options]
   */
  async changes({ offset = "-1", filter = () => true, signal } = {}) {
    const query = { offset, values: "typed" }
    const page = pageOf(await this.#connection.send("GET", this.target, { query, signal }), offset)
    const changes = page.messages.map(changeOf).filter(filter)
    return { changes, offset: page.offset, upToDate: page.upToDate, closed: page.closed }
  }

  /**
   * Changes as they are committed, until the change stream is closed: each once and in order, also after a disconnect or a
   * restart of the server. `filter` selects here; the server sends all.
   * @param {ChangeOptions} [options]
   * @returns {AsyncGenerator<Change, void, void>}
   */
  async *follow({ filter = () => true, ...options } = {}) {
    for await (const page of follow(this.#connection, this.target, options, { values: "typed" })) {
      for (const message of page.messages) {
        const change = changeOf(message)
        if (filter(change)) yield change
      }
    }
  }

  /**
   * A page of the versions of an item, the newest first, of sequences below `before`.
   * @param {Item} key
   * @param {{ before?: number, limit?: number, signal?: AbortSignal }} [options]
   * @returns {Promise<ItemHistory>}
   */
  async history(key, { before, limit, signal } = {}) {
    const query = { key: keyText(key), before, limit, values: "typed" }
    const { view, versions, next } = await this.#look("items/history", query, signal)
    return { view, versions: versions.map(imagesOf), next }
  }

  /**
   * A page of the items as of a sequence or a time (a Date, RFC 3339 or milliseconds), `after` a key.
   * @param {{ sequence?: number, time?: Date | string | number, after?: Item, limit?: number, signal?: AbortSignal }} moment
   * @returns {Promise<PastItems>}
   */
  async at({ sequence, time, after, limit, signal }) {
    const moment = time instanceof Date ? time.toISOString() : time
    const query = { sequence, time: moment, after: after && keyText(after), limit, values: "typed" }
    const found = await this.#look("at", query, signal)
    const next = found.next && fromAttributes(found.next)
    return { sequence: found.sequence, items: found.items.map(fromAttributes), next }
  }

  /**
   * What has become of a write: its `records`, `messages` with the state of each group, `jobs` and views, and where it is
   * kept, as the HTTP API returns it; items are plain objects.
   * @param {number} sequence
   * @param {{ key?: Item, signal?: AbortSignal }} [options]
   * @returns {Promise<Record<string, any>>}
   */
  async trace(sequence, { key, signal } = {}) {
    const query = { key: key && keyText(key), values: "typed" }
    const found = await this.#look(`writes/${sequence}`, query, signal)
    const jobs = found.jobs.map((/** @type {any} */ job) => (job.moved ? { ...job, moved: { ...job.moved, rows: job.moved.rows.map(changeOf) } } : job))
    return { ...found, records: found.records.map(changeOf), jobs }
  }

  /**
   * @param {string} what
   * @param {Record<string, string | number | undefined>} query
   * @param {AbortSignal} [signal]
   */
  #look(what, query, signal) {
    const target = `${this.target.slice(0, -"stream".length)}${what}`
    return this.#connection.json("GET", target, { query, signal })
  }

  /**
   * @param {string} operation
   * @param {Record<string, any>} parameters
   * @param {WriteOptions} options
   * @returns {Promise<Item | undefined>}
   */
  async #write(operation, parameters, options) {
    // Without a condition, and without the old item, twice has the effect of once.
    const repeatable = options.condition === undefined && !options.returnOld
    const returned = options.returnOld ? "ALL_OLD" : "NONE"
    const all = { ...conditions(options), ...parameters, ReturnValues: returned }
    const { Attributes } = await this.#call(operation, all, repeatable, options.signal)
    return Attributes && fromAttributes(Attributes)
  }

  /**
   * @param {string} operation
   * @param {Record<string, any>} parameters
   * @param {ScanOptions} options
   */
  async #page(operation, parameters, options) {
    const all = {
      ...parameters,
      IndexName: options.index,
      FilterExpression: options.filter,
      ProjectionExpression: options.projection,
      ExpressionAttributeNames: options.names,
      ExpressionAttributeValues: options.values && toAttributes(options.values),
      Limit: options.limit,
      ExclusiveStartKey: options.startKey && toAttributes(options.startKey),
    }
    const { Items, LastEvaluatedKey } = await this.#call(operation, all, true, options.signal)
    return { items: Items.map(fromAttributes), lastKey: LastEvaluatedKey && fromAttributes(LastEvaluatedKey) }
  }

  /**
   * @param {string} operation
   * @param {Record<string, any>} parameters
   * @param {boolean} repeatable
   * @param {AbortSignal} [signal]
   */
  #call(operation, parameters, repeatable, signal) {
    return call(this.#connection, operation, { TableName: this.name, ...parameters }, { repeatable, signal })
  }
}

/** @param {WriteOptions} options */
const conditions = ({ condition, names, values }) => ({
  ConditionExpression: condition,
  ExpressionAttributeNames: names,
  ExpressionAttributeValues: values && toAttributes(values),
  ReturnValuesOnConditionCheckFailure: condition === undefined ? undefined : "ALL_OLD",
})

/** @param {Item} key */
const keyText = (key) => jsonText(toAttributes(key))

/**
 * With items as plain objects.
 * @param {any} record
 */
function imagesOf(record) {
  const change = { ...record }
  for (const image of ["old", "new"]) if (record[image]) change[image] = fromAttributes(record[image])
  return change
}

/**
 * @param {any} record
 * @returns {Change}
 */
function changeOf(record) {
  const change = imagesOf(record)
  change.keys = fromAttributes(record.keys)
  change.offset = offsetAfter(record.last ? record.sequence : record.sequence - 1)
  return change
}

/**
 * @param {Connection} connection
 * @param {string} operation
 * @param {Record<string, any>} parameters
 * @param {{ repeatable?: boolean, signal?: AbortSignal }} options
 * @returns {Promise<any>}
 */
async function call(connection, operation, parameters, { repeatable, signal }) {
  const headers = { "content-type": "application/x-amz-json-1.0", "x-amz-target": `DynamoDB_20120810.${operation}` }
  return (await connection.json("POST", "/", { headers, json: parameters, repeatable, signal })) ?? {}
}

// -- topics

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
  constructor(wire) {
    /** @type {string} */
    this.topicId = wire.topic_id
    /** @type {number} */
    this.partition = wire.partition_id
    /** @type {number} */
    this.offset = wire.offset
    /**
     * The change that it comes from, the same in all topics; else the position of the message.
     * @type {string}
     */
    this.id = wire.message_id
    /** @type {string | null} */
    this.sourceTable = wire.source_table
    /** @type {"Insert" | "Update" | "Delete" | "Publish"} */
    this.op = wire.op
    /** When it was committed. */
    this.at = new Date(wire.ts)
    /** @type {"Key" | "Full" | "Diff"} */
    this.payloadMode = wire.payload_mode
    this.payload = fromBase64(wire.payload)
    /**
     * The principal that wrote the row, or published.
     * @type {string}
     */
    this.by = wire.by ?? ""
    /**
     * 1 for the first delivery to the group; 0 without a group.
     * @type {number}
     */
    this.attempt = wire.attempt ?? 0
    /** @type {string | undefined} */
    this.key = wire.key
    const from = wire.origin
    /** @type {DeadLetterOrigin | undefined} */
    this.origin = from && {
      topic: from.topic,
      partition: from.partition_id,
      offset: from.offset,
      group: from.group_id,
      attempts: from.attempts,
    }
  }

  /** The payload as text. */
  text() {
    return exactDecoder.decode(this.payload)
  }

  /**
   * The payload as JSON; messages of routes always are.
   * @returns {any}
   */
  json() {
    return JSON.parse(decodeText(this.payload))
  }
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
  #connection

  /**
   * @param {Connection} connection
   * @param {string} name
   */
  constructor(connection, name) {
    this.#connection = connection
    this.name = name
    this.target = `/v1/topics/${segment(name, "a topic")}`
  }

  /**
   * Publish one message. It is not repeated if its outcome is unknown: use `producer` for that.
   * @param {any} payload  bytes, text, or a value that becomes JSON
   * @param {{ key?: string, partition?: number, signal?: AbortSignal }} [options]
   * @returns {Promise<Published>}
   */
  async publish(payload, { key, partition, signal } = {}) {
    const body = payloadBytes(payload)
    const published = await this.#publishOne({ body, key, partition }, {}, { signal })
    return /** @type {Published} */ (published)
  }

  /**
   * Publish up to 1,000 messages, all or none.
   * @param {Outgoing[]} messages
   * @param {Abortable} [options]
   * @returns {Promise<Published[]>}
   */
  async publishMany(messages, { signal } = {}) {
    const made = messages.map(({ payload, ...rest }) => ({ ...rest, body: payloadBytes(payload) }))
    return (await this.#publishAll(made, undefined, { signal })).results
  }

  /**
   * A producer, whose messages are published once, even if responses are lost.
   * @param {ProducerOptions} [options]
   * @returns {Producer<Outgoing, Published | undefined>}
   */
  producer(options = {}) {
    return new Producer(this.#connection, options, {
      bytesMax: PUBLISH_BYTES_MAX,
      countMax: PUBLISH_MESSAGES_MAX,
      encode: ({ payload, key, partition }) => {
        const body = payloadBytes(payload)
        return { entry: { body, key, partition }, size: (body.length * 4) / 3 + (key?.length ?? 0) * 6 + 64 }
      },
      send: async (entries, claim) => {
        if (entries.length > 1) return this.#publishAll(entries, claim, { retryForMs: 0 })
        const published = await this.#publishOne(entries[0], producerFields(claim), { retryForMs: 0 })
        return { duplicate: !published, results: [published] }
      },
    })
  }

  /**
   * The topic with its partitions, groups and routes, as the HTTP API returns it.
   * @param {Abortable} [options]
   * @returns {Promise<Record<string, any>>}
   */
  async describe({ signal } = {}) {
    return this.#connection.json("GET", this.target, { signal })
  }

  /**
   * The last acknowledgements of a group, the newest first, as the HTTP API returns them: who, when, which offsets.
   * @param {string} group
   * @param {{ partition?: number, limit?: number, signal?: AbortSignal }} [options]
   * @returns {Promise<Array<Record<string, any>>>}
   */
  async acknowledgements(group, { partition, limit, signal } = {}) {
    const query = { group, partition, limit }
    const found = await this.#connection.json("GET", `${this.target}/acknowledgements`, { query, signal })
    return found.acknowledgements
  }

  /**
   * One page of messages of a partition, without a group.
   * @param {PartitionOptions} [options]
   */
  async read({ partition = 0, offset = "-1", filter = () => true, signal } = {}) {
    const query = { offset: partitionOffset(offset) }
    const page = pageOf(await this.#connection.send("GET", this.#feed(partition), { query, signal }), query.offset)
    const messages = page.messages.map((wire) => new Message(wire)).filter(filter)
    return { messages, offset: page.offset, upToDate: page.upToDate, closed: page.closed }
  }

  /**
   * Messages of a partition as they are committed, without a group: each once and in order, also after a disconnect or a
   * restart of the server. To continue in another run, start at the `offset` of the last message plus 1.
   * @param {PartitionOptions} [options]
   * @returns {AsyncGenerator<Message, void, void>}
   */
  async *follow({ partition = 0, offset = "-1", filter = () => true, live, signal } = {}) {
    const options = { offset: partitionOffset(offset), live, signal }
    for await (const page of follow(this.#connection, this.#feed(partition), options)) {
      for (const wire of page.messages) {
        const message = new Message(wire)
        if (filter(message)) yield message
      }
    }
  }

  /** @param {number} partition */
  #feed(partition) {
    return `${this.target}/${segment(String(partition), "a partition")}/stream`
  }

  /**
   * A message as the body: no base64, and as large as messages may be.
   * @param {{ body: Uint8Array, key?: string, partition?: number }} message
   * @param {Record<string, string>} fields
   * @param {RequestOptions} options
   * @returns {Promise<Published | undefined>}
   */
  async #publishOne({ body, key, partition }, fields, options) {
    const headers = { ...fields, "content-type": BYTES_TYPE }
    const reply = await this.#connection.send("POST", this.target, { ...options, headers, query: { key, partition }, body })
    const at = reply.headers.get("topic-offset")
    return at === null ? undefined : { partition: Number(reply.headers.get("topic-partition")), offset: Number(at) }
  }

  /**
   * @param {Array<{ body: Uint8Array, key?: string, partition?: number }>} messages
   * @param {ProducerClaim | undefined} producer
   * @param {RequestOptions} options
   */
  async #publishAll(messages, producer, options) {
    const json = {
      topic: this.name,
      messages: messages.map(({ body, key, partition }) => ({ payload: toBase64(body), key, partition_id: partition })),
      producer,
    }
    const done = await this.#connection.json("POST", "/v1/api/topics/publish", { ...options, json })
    /** @type {Published[]} */
    const results = done.messages.map((/** @type {any} */ each) => ({ partition: each.partition_id, offset: each.offset }))
    return { duplicate: Boolean(done.duplicate), results }
  }
}

/** @param {string | number} offset */
const partitionOffset = (offset) => (typeof offset === "number" ? offsetAfter(offset - 1) : offset)

/**
 * @param {any} payload
 * @returns {Uint8Array}
 */
function payloadBytes(payload) {
  if (payload instanceof Uint8Array) return payload
  return encoder.encode(typeof payload === "string" ? payload : jsonText(payload))
}

// -- consumers

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
  #actions

  /**
   * @param {Message} message
   * @param {AbortSignal} signal
   * @param {{ extend: (ms?: number) => Promise<void>, nack: (delayMs: number) => Promise<void> }} actions
   */
  constructor(message, signal, actions) {
    this.message = message
    /** Is aborted when the lease is lost, or the run is aborted: the message is delivered to others. */
    this.signal = signal
    this.nacked = false
    this.#actions = actions
  }

  /**
   * The payload as JSON.
   * @returns {any}
   */
  json() {
    return this.message.json()
  }

  /**
   * Extend the lease, to `ms` from now. The consumer does so by itself while it runs: this is for work that blocks the
   * event loop for longer than `visibilityMs`.
   * @param {number} [ms]  `visibilityMs` if left out
   */
  async extend(ms) {
    await this.#actions.extend(ms)
  }

  /**
   * Return the message, to be delivered again. It is not acknowledged when the handler returns.
   * @param {{ delayMs?: number }} [options]
   */
  async nack({ delayMs = 0 } = {}) {
    if (this.nacked) return
    this.nacked = true
    await this.#actions.nack(delayMs)
  }
}

/** A delivery that is held. `done` is the last offset up to which all are finished, `acked` what the server knows of. */
class Lease {
  done = -1
  acked = -1
  lost = false
  blocked = false // a message could not be returned: nothing above it may be acknowledged
  users = 0
  /** @type {Set<number>} */
  #finished = new Set() // offsets above `done`
  #at = 0 // the first message above `done`
  controller = new AbortController()

  /**
   * @param {any} delivery
   * @param {number} visibilityMs
   */
  constructor(delivery, visibilityMs) {
    /** @type {Message[]} */
    this.messages = delivery.messages.map((/** @type {any} */ wire) => new Message(wire))
    /** @type {number} */
    this.partition = delivery.partition_id
    /** @type {string} */
    this.id = delivery.lease_id
    this.visibilityMs = visibilityMs
  }

  /** Whether nothing of it is held any more, as far as is known here. */
  get settled() {
    return this.lost || this.acked === this.messages[this.messages.length - 1].offset
  }

  /** Whether an acknowledgement is owed. */
  get owed() {
    return this.done !== this.acked && !this.lost
  }

  /** @param {number} offset  of a message that is processed or returned; in any order */
  finish(offset) {
    this.#finished.add(offset)
    while (this.#at < this.messages.length && this.#finished.delete(this.messages[this.#at].offset)) {
      this.done = this.messages[this.#at].offset
      this.#at++
    }
  }

  /** The first range of offsets that is not finished below a message that is. */
  gap() {
    if (this.#finished.size === 0) return undefined
    return { first: this.messages[this.#at].offset, upto: Math.min(...this.#finished) - 1 }
  }

  /** @param {number} upto  the messages up to this offset were returned */
  closeGap(upto) {
    for (const message of this.messages.slice(this.#at)) {
      if (message.offset > upto) break
      this.finish(message.offset)
    }
  }

  lose() {
    this.lost = true
    this.controller.abort(new TailraceError("the lease of this message was lost", { status: 409, code: "LEASE_LOST" }))
  }
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
  #connection
  #options
  #partitions
  #inUse = false
  #stopping = false
  #stop = new AbortController() // ends waits for messages, and pauses
  /** @type {unknown} */
  #failure
  #failed = false
  /** @type {Set<Lease>} */
  #held = new Set()
  /** @type {Set<Promise<void>>} */
  #working = new Set()
  #free = 0
  /** @type {Array<() => void>} */
  #waiting = [] // for a free slot
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #ackTimer
  #beating = false
  #unseen = false // a wait was cut off: a delivery may be on its way

  /**
   * @param {Connection} connection
   * @param {ConsumerOptions} options
   */
  constructor(connection, options) {
    const all = {
      consumerId: `js-${randomName()}`,
      concurrency: 1,
      partitions: /** @type {"any" | number | number[]} */ ("any"),
      batch: 100,
      visibilityMs: 60_000,
      start: /** @type {"earliest" | "latest" | number | Date} */ ("earliest"),
      timeoutMs: 30_000,
      ackEveryMs: 500,
      retryMs: 1_000,
      stopTimeoutMs: 5_000,
      onError: reportError,
      ...Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined)),
      topic: options.topic,
      groupId: options.groupId,
    }
    for (const name of /** @type {const} */ (["topic", "groupId"])) {
      if (typeof all[name] !== "string" || !all[name]) throw new TypeError(`a consumer needs ${name}`)
    }
    for (const name of /** @type {const} */ (["visibilityMs", "timeoutMs"])) {
      if (!(all[name] > 0)) throw new TypeError(`${name} is ${all[name]}; give milliseconds, more than 0`)
    }
    if (!Number.isInteger(all.concurrency) || all.concurrency < 1 || all.concurrency > CONCURRENCY_MAX) {
      throw new TypeError(`concurrency is ${all.concurrency}; use 1 to ${CONCURRENCY_MAX}`)
    }
    this.#partitions = Array.isArray(all.partitions) ? [...new Set(all.partitions)] : [all.partitions]
    if (this.#partitions.length === 0) throw new TypeError("partitions is empty; give numbers, or any")
    this.#connection = connection
    this.#options = all
    this.consumerId = all.consumerId
  }

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
  async run(handler, { signal } = {}) {
    if (typeof handler !== "function") throw new TypeError("the handler is not a function")
    if (this.#inUse) throw new TypeError("this consumer runs already, or has ended; make another one")
    this.#inUse = true
    this.#free = this.#options.concurrency
    const aborted = () => {
      for (const lease of this.#held) lease.controller.abort(signal?.reason)
      this.stop()
    }
    signal?.addEventListener("abort", aborted, { once: true })
    if (signal?.aborted) this.stop()
    const beatMs = this.#options.visibilityMs / BEATS
    const heart = setInterval(() => void this.#beat(), beatMs)
    try {
      const loops = this.#partitions.map((partition) => this.#consume(partition, handler, signal).catch(this.#fail))
      await Promise.all(loops)
      await this.#workDone(signal)
      const untilMs = Date.now() + this.#options.stopTimeoutMs
      for (const lease of [...this.#held]) await this.#settle(lease, untilMs).catch(this.#fail)
      await this.#returnUnseen()
    } finally {
      clearInterval(heart)
      clearTimeout(this.#ackTimer)
      this.#held.clear()
      signal?.removeEventListener("abort", aborted)
    }
    signal?.throwIfAborted()
    if (this.#failed) throw this.#failure
  }

  /** Let the run end after the messages in work; the others are returned. */
  stop() {
    this.#stopping = true
    this.#stop.abort()
    for (const wake of this.#waiting.splice(0)) wake()
  }

  /** @param {unknown} error */
  #fail = (error) => {
    if (!this.#failed) {
      this.#failed = true
      this.#failure = error
    }
    this.stop()
  }

  /**
   * Wait for the handlers. After an abort, only for a while: nothing else can end them.
   * @param {AbortSignal} [signal]
   */
  async #workDone(signal) {
    const { stopTimeoutMs } = this.#options
    while (this.#working.size > 0) {
      const done = Promise.all(this.#working)
      if (!signal) await done
      else if (signal.aborted) return void (await Promise.race([done, sleep(stopTimeoutMs)]))
      else await waitFor(done, signal).catch(() => undefined)
    }
  }

  // -- deliveries

  /**
   * @param {"any" | number} partition
   * @param {(context: MessageContext) => unknown} handler
   * @param {AbortSignal} [signal]
   */
  async #consume(partition, handler, signal) {
    const { topic, groupId, consumerId, start, batch, timeoutMs, visibilityMs } = this.#options
    const json = {
      topic,
      group_id: groupId,
      consumer_id: consumerId,
      partition_id: partition,
      start: startOf(start),
      limit: batch,
      timeout_seconds: timeoutMs / 1000,
      visibility_timeout_seconds: visibilityMs / 1000,
    }
    const pause = new BackOff()
    while (!this.#stopping) {
      let delivery
      try {
        const options = { json, signal: this.#stop.signal, retryForMs: 0, timeoutMs: timeoutMs + SLACK_MS }
        delivery = await this.#connection.json("POST", "/v1/api/topics/consume", options)
        pause.reset()
      } catch (error) {
        this.#unseen = true
        if (this.#stopping) return
        if (!(error instanceof TailraceError) || !error.transient) throw error
        this.#options.onError(error)
        await sleep(Math.max(pause.next(), error.retryAfterMs), this.#stop.signal).catch(() => undefined)
        continue
      }
      if (delivery.skipped > 0) {
        this.#options.onError(
          new TailraceError(`retention removed ${delivery.skipped} messages before group ${groupId} consumed them`, {
            code: "MESSAGES_LOST",
            details: { skipped: delivery.skipped, partition: delivery.partition_id },
          }),
        )
      }
      if (delivery.messages.length === 0) continue
      const lease = new Lease(delivery, visibilityMs)
      this.#held.add(lease)
      if (signal?.aborted) lease.controller.abort(signal.reason)
      await this.#dispatch(lease, handler)
    }
  }

  /**
   * Start a handler for each message, when there is room for it.
   * @param {Lease} lease
   * @param {(context: MessageContext) => unknown} handler
   */
  async #dispatch(lease, handler) {
    lease.users++
    for (const message of lease.messages) {
      await this.#slot()
      if (this.#stopping || lease.blocked || lease.lost) {
        this.#release()
        break
      }
      lease.users++
      const work = this.#work(lease, message, handler).catch(this.#fail)
      this.#working.add(work)
      void work.finally(() => this.#working.delete(work))
    }
    if (--lease.users === 0) await this.#settle(lease)
    if (this.#stopping) return
    // Of a lease that expired meanwhile, the same messages would come again.
    await this.#insist(lease, () => this.#ack(lease))
    if (this.#held.has(lease) && !lease.settled) await this.#insist(lease, () => this.#extend(lease))
  }

  /** Wait until a handler may start, or none will, and take its slot at once: other loops ask meanwhile. */
  async #slot() {
    while (this.#free <= 0 && !this.#stopping) {
      await new Promise((/** @type {(_: void) => void} */ wake) => this.#waiting.push(wake))
    }
    this.#free--
  }

  #release() {
    this.#free++
    this.#waiting.shift()?.()
  }

  /**
   * @param {Lease} lease
   * @param {Message} message
   * @param {(context: MessageContext) => unknown} handler
   */
  async #work(lease, message, handler) {
    try {
      if (await this.#handled(lease, message, handler)) lease.finish(message.offset)
      else lease.blocked = true
    } finally {
      this.#release()
      lease.users--
    }
    if (lease.users === 0) await this.#settle(lease)
    else if (!this.#stopping) {
      this.#ackTimer ??= setTimeout(() => {
        this.#ackTimer = undefined
        for (const held of this.#held) if (held.owed) void this.#insist(held, () => this.#ack(held)).catch(this.#fail)
      }, this.#options.ackEveryMs)
    }
  }

  /**
   * Whether the message is done with: processed, or returned.
   * @param {Lease} lease
   * @param {Message} message
   * @param {(context: MessageContext) => unknown} handler
   */
  async #handled(lease, message, handler) {
    const { offset } = message
    let returned = true
    const context = new MessageContext(message, lease.controller.signal, {
      extend: async (ms) => {
        if (ms !== undefined) lease.visibilityMs = Math.max(lease.visibilityMs, ms)
        await this.#connection.send("POST", ...this.#request(lease, "extend", visibility(ms ?? lease.visibilityMs)))
      },
      nack: async (delayMs) => {
        returned = await this.#return(lease, offset, offset, delayMs)
      },
    })
    try {
      await handler(context)
      return returned
    } catch (error) {
      const pauseMs = Math.min(this.#options.retryMs * 2 ** Math.min(message.attempt - 1, 32), HANDLER_RETRY_MS_MAX)
      const given = lease.controller.signal.aborted // not the fault of the handler
      if (!given) this.#options.onError(error, message)
      if (context.nacked) return returned
      return this.#return(lease, offset, offset, given ? 0 : pauseMs)
    }
  }

  // -- settling

  /**
   * Acknowledge what is done, and return the rest.
   * @param {Lease} lease
   * @param {number} [untilMs]
   */
  async #settle(lease, untilMs) {
    if (!this.#held.has(lease)) return
    for (let gap = lease.gap(); gap; gap = lease.gap()) {
      if (!(await this.#return(lease, gap.first, gap.upto, 0, untilMs))) break
      lease.closeGap(gap.upto)
    }
    await this.#insist(lease, () => this.#ack(lease), untilMs)
    if (!lease.settled) await this.#return(lease, lease.done + 1, undefined, 0, untilMs)
    this.#held.delete(lease)
  }

  /** @param {Lease} lease */
  async #ack(lease) {
    const upto = lease.done
    if (!lease.owed) return
    await this.#connection.send("POST", ...this.#request(lease, "ack", { upto_offset: upto }))
    lease.acked = Math.max(lease.acked, upto)
  }

  /** @param {Lease} lease */
  async #extend(lease) {
    await this.#connection.send("POST", ...this.#request(lease, "extend", visibility(lease.visibilityMs)))
  }

  /**
   * @param {Lease} lease
   * @param {number} first
   * @param {number | undefined} upto
   * @param {number} delayMs
   * @param {number} [untilMs]
   */
  #return(lease, first, upto, delayMs, untilMs) {
    const body = { from_offset: first, upto_offset: upto, delay_seconds: delayMs / 1000 }
    return this.#insist(lease, () => this.#connection.send("POST", ...this.#request(lease, "nack", body)), untilMs)
  }

  /**
   * @param {Lease} lease
   * @param {string} operation
   * @param {Record<string, any>} body
   * @returns {[string, RequestOptions]}
   */
  #request(lease, operation, body) {
    const { topic, groupId, consumerId } = this.#options
    const held = { topic, group_id: groupId, consumer_id: consumerId, partition_id: lease.partition, lease_id: lease.id }
    return [`/v1/api/topics/${operation}`, { json: { ...held, ...body }, retryForMs: 0, timeoutMs: SLACK_MS }]
  }

  /**
   * Repeat a request while the server is unavailable; whether it was done. After `stop` it is repeated for a while only.
   * @param {Lease} lease
   * @param {() => Promise<unknown>} request
   * @param {number} [untilMs]
   */
  async #insist(lease, request, untilMs) {
    const pause = new BackOff()
    for (;;) {
      if (lease.lost) return true // others have the messages
      try {
        await request()
        return true
      } catch (error) {
        if (!(error instanceof TailraceError)) throw error
        if (error.code === "LEASE_LOST" || error.code === "NOT_DELIVERED") {
          lease.lose()
          return true
        }
        if (!error.transient && error.code !== "TOO_MANY_RANGES") throw error
        this.#options.onError(error)
        if (error.code === "TOO_MANY_RANGES") return false // they are returned when the lease expires
        if (this.#stopping) untilMs ??= Date.now() + this.#options.stopTimeoutMs
        const pauseMs = Math.max(pause.next(), error.retryAfterMs)
        if (untilMs !== undefined && Date.now() + pauseMs > untilMs) return false
        if (this.#stopping) await sleep(pauseMs)
        else await sleep(pauseMs, this.#stop.signal).catch(() => undefined)
      }
    }
  }

  /** Send acknowledgements that are owed, and extend the leases that are held. */
  async #beat() {
    if (this.#beating) return // the one before waits for the server
    this.#beating = true
    await Promise.all([...this.#held].map((lease) => this.#keep(lease).catch(this.#fail)))
    this.#beating = false
  }

  /** @param {Lease} lease */
  async #keep(lease) {
    try {
      await this.#ack(lease)
      if (!lease.settled) await this.#extend(lease)
    } catch (error) {
      if (!(error instanceof TailraceError)) throw error
      if (error.code === "LEASE_LOST" || error.code === "NOT_DELIVERED") lease.lose()
      else if (error.transient) this.#options.onError(error)
      else throw error
    }
  }

  /** Return messages of a delivery that was on its way when the wait for it was cut off. */
  async #returnUnseen() {
    if (!this.#unseen) return
    const { topic, groupId, consumerId, stopTimeoutMs } = this.#options
    const limits = { retryForMs: 0, timeoutMs: stopTimeoutMs }
    try {
      const { groups } = await this.#connection.json("GET", `/v1/topics/${segment(topic, "a topic")}`, limits)
      for (const group of groups) {
        if (group.group_id !== groupId || !group.consumers.includes(consumerId)) continue
        const json = { topic, group_id: groupId, consumer_id: consumerId, partition_id: group.partition_id }
        await this.#connection.send("POST", "/v1/api/topics/nack", { json, ...limits })
      }
    } catch (error) {
      if (!(error instanceof TailraceError)) throw error
      // They are delivered again when the lease expires.
    }
  }
}

/** @param {number} ms */
const visibility = (ms) => ({ visibility_timeout_seconds: ms / 1000 })

/** @param {"earliest" | "latest" | number | Date} start */
function startOf(start) {
  if (start instanceof Date) return { Timestamp: start.getTime() }
  return typeof start === "number" ? { Offset: start } : start
}

/**
 * @param {unknown} error
 * @param {Message} [message]
 */
function reportError(error, message) {
  if (!message) return console.warn("tailrace: a request of a consumer failed and is repeated:", error)
  const { partition, offset, attempt } = message
  console.error(`tailrace: the handler failed at offset ${offset} of partition ${partition}, attempt ${attempt}:`, error)
}

// -- SQL

/**
 * @typedef {object} SqlResult  The result of a statement.
 * @property {string} statement
 * @property {Array<{ name: string, type: string }>} columns
 * @property {Array<Record<string, any>>} rows
 * @property {number} rowCount  rows returned or written
 * @property {string} message
 * @property {Record<string, any>} facts  further members that depend on the statement, such as `next_offset`
 */

/**
 * @param {any} wire
 * @returns {SqlResult}
 */
function sqlResult({ statement, columns, rows, row_count: rowCount, message, ...facts }) {
  return { statement, columns, rows, rowCount, message, facts }
}

/** @param {unknown} value */
function sqlParameter(value) {
  if (value === undefined) return "null"
  if (typeof value === "bigint" || value instanceof Decimal) return String(value) // numbers keep all their digits
  if (value instanceof Uint8Array) return jsonText({ $base64: toBase64(value) })
  return jsonText(value)
}

// -- transactions

const TRANSACTION = "/v1/api/transaction"
const TRANSACTION_ATTEMPTS = 10
const CONFLICT = "TRANSACTION_CONFLICT"
const CONFLICT_PAUSE_MS_MAX = 1_000

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
  #connection
  /** @type {Array<Record<string, any>>} */
  #operations = []
  /** @type {string[]} */
  #reads = []
  #ended = false
  #token = randomName()

  /** @param {Connection} connection */
  constructor(connection) {
    this.#connection = connection
  }

  /** Whether it was committed or rolled back. */
  get ended() {
    return this.#ended
  }

  /**
   * An item; undefined if there is none.
   * @param {string} table
   * @param {Key} key
   * @param {{ projection?: string, names?: Record<string, string>, signal?: AbortSignal }} [options]
   * @returns {Promise<Item | undefined>}
   */
  async get(table, key, { projection, names, signal } = {}) {
    const { items } = await this.#read({ get: { table, key: keyValues(key), projection, names } }, signal)
    return items.length > 0 ? fromAttributes(items[0]) : undefined
  }

  /**
   * The items with a partition key, in the order of the sort key.
   * @param {string} table
   * @param {any} partition
   * @param {{ sort?: SortCondition, index?: string, descending?: boolean, limit?: number, signal?: AbortSignal }} [options]
   * @returns {Promise<Item[]>}
   */
  async query(table, partition, { sort, index, descending = false, limit, signal } = {}) {
    const conditions = sort ? [{ op: sort.op, operands: sort.operands.map(toAttribute) }] : []
    const query = { table, partition: [toAttribute(partition)], sort: conditions, reverse: descending, index }
    /** @type {Item[]} */
    const found = []
    let after
    do {
      const left = limit === undefined ? undefined : limit - found.length
      const page = await this.#read({ query: { ...query, limit: left, after } }, signal)
      found.push(...page.items.map(fromAttributes))
      after = page.cursor ?? undefined
    } while (after !== undefined && (limit === undefined || found.length < limit))
    return found
  }

  /**
   * The tail offset of a stream; undefined if there is none.
   * @param {string} stream
   * @param {Abortable} [options]
   * @returns {Promise<string | undefined>}
   */
  async tail(stream, { signal } = {}) {
    return (await this.#read({ tail: stream }, signal)).offset ?? undefined
  }

  /**
   * Put an item.
   * @param {string} table
   * @param {Item} item
   * @param {OperationOptions} [options]
   */
  put(table, item, options = {}) {
    this.#add({ op: "put", table, item: toAttributes(item), ...expressions(options) })
  }

  /**
   * Change attributes of an item. The expression is evaluated by the commit.
   * @param {string} table
   * @param {Key} key
   * @param {string} expression
   * @param {OperationOptions} [options]
   */
  update(table, key, expression, options = {}) {
    this.#add({ op: "update", table, key: keyValues(key), expression, ...expressions(options) })
  }

  /**
   * Delete an item, if there is one.
   * @param {string} table
   * @param {Key} key
   * @param {OperationOptions} [options]
   */
  delete(table, key, options = {}) {
    this.#add({ op: "delete", table, key: keyValues(key), ...expressions(options) })
  }

  /**
   * Let the transaction fail unless a condition holds for an item.
   * @param {string} table
   * @param {Key} key
   * @param {string} condition
   * @param {Omit<OperationOptions, "condition">} [options]
   */
  check(table, key, condition, options = {}) {
    this.#add({ op: "check", table, key: keyValues(key), ...expressions({ ...options, condition }) })
  }

  /**
   * Publish a message.
   * @param {string} topic
   * @param {any} payload  bytes, text, or a value that becomes JSON
   * @param {{ key?: string, partition?: number }} [options]
   */
  publish(topic, payload, { key, partition } = {}) {
    const message = { payload: toBase64(payloadBytes(payload)), key, partition_id: partition }
    this.#add({ op: "publish", topic, messages: [message] })
  }

  /**
   * Append to a stream.
   * @param {string} stream
   * @param {any} message  bytes, text, or a value that becomes JSON
   */
  append(stream, message) {
    this.#add({ op: "append", stream, payload: toBase64(payloadBytes(message)) })
  }

  /**
   * Acknowledge messages that a consumer holds. The transaction fails with `LEASE_LOST` unless it holds them then.
   * @param {string} topic
   * @param {string} group
   * @param {{ offsets: number[], partition?: number, consumer?: string, lease?: string }} messages
   */
  ack(topic, group, { offsets, partition = 0, consumer, lease }) {
    const held = { partition_id: partition, consumer_id: consumer, lease_id: lease }
    this.#add({ op: "ack", topic, group_id: group, offsets, ...held })
  }

  /**
   * Write everything, or nothing.
   * @param {Abortable} [options]
   * @returns {Promise<Committed>}
   */
  async commit({ signal } = {}) {
    this.#checkOpen()
    this.#ended = true
    const json = { ...this.#collected(), token: this.#token }
    const done = await this.#connection.json("POST", TRANSACTION, { json, repeatable: true, signal })
    /** @type {Published[][]} */
    const published = done.published.map((/** @type {any[]} */ messages) =>
      messages.map((each) => ({ partition: each.partition_id, offset: each.offset })),
    )
    return { ...done, published }
  }

  /** Drop everything. */
  rollback() {
    this.#checkOpen()
    this.#ended = true
  }

  /** @param {Record<string, any>} operation */
  #add(operation) {
    this.#checkOpen()
    this.#operations.push(operation)
  }

  #checkOpen() {
    if (this.#ended) throw new TailraceError("this transaction has ended; begin another one", { code: "TRANSACTION_ENDED" })
  }

  #collected() {
    return { values: "typed", operations: this.#operations, reads: this.#reads }
  }

  /**
   * @param {Record<string, any>} wanted
   * @param {AbortSignal} [signal]
   */
  async #read(wanted, signal) {
    this.#checkOpen()
    const json = { ...this.#collected(), ...wanted }
    const found = await this.#connection.json("POST", `${TRANSACTION}/read`, { json, repeatable: true, signal })
    this.#reads.push(...found.reads)
    return found
  }
}

/** @param {Key} key */
function keyValues(key) {
  if (Array.isArray(key)) return key.map(toAttribute)
  const plain = typeof key === "object" && key !== null && Object.getPrototypeOf(key) === Object.prototype
  return plain ? toAttributes(key) : [toAttribute(key)]
}

/** @param {OperationOptions} options */
function expressions({ condition, names, values }) {
  return { condition, names, values: values && toAttributes(values) }
}

// -- the client

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
  #connection

  /**
   * @param {string} [url]  by default that of the page in a browser, else `http://127.0.0.1:4437`
   * @param {ClientOptions} [options]
   */
  constructor(url, options = {}) {
    const page = globalThis.location?.origin
    this.#connection = new Connection(url ?? (page?.startsWith("http") ? page : DEFAULT_URL), options)
  }

  /** The URL of the server. */
  get url() {
    return this.#connection.url
  }

  /** The login; undefined if there is none. */
  get session() {
    return this.#connection.credentials.session
  }

  /**
   * Log in. The session is renewed before it expires, until `logout`; the password is not kept.
   * @param {string} user
   * @param {string} password
   * @param {Abortable} [options]
   * @returns {Promise<Session>}
   */
  async login(user, password, { signal } = {}) {
    const { credentials } = this.#connection
    if (credentials.token !== undefined) throw new TypeError("this client has a token; make one without for a login")
    return credentials.login(user, password, signal)
  }

  /**
   * End the session.
   * @param {Abortable} [options]
   */
  async logout({ signal } = {}) {
    await this.#connection.credentials.end(signal)
  }

  /**
   * The principal of the credentials.
   * @param {Abortable} [options]
   * @returns {Promise<{ name: string, role: string, permissions: string[], access: string[] | null }>}
   */
  async me({ signal } = {}) {
    return this.#connection.json("GET", "/v1/api/auth/me", { signal })
  }

  /**
   * A stream, which may not exist yet.
   * @param {string} path
   * @param {{ contentType?: string }} [options]  `application/json` if left out
   */
  stream(path, { contentType = JSON_TYPE } = {}) {
    return new Stream(this.#connection, path, contentType)
  }

  /**
   * A table.
   * @param {string} name
   */
  table(name) {
    return new Table(this.#connection, name)
  }

  /**
   * Run a function with a transaction, and commit it; again after a conflict, up to `attempts` times (10). The function
   * should have no effects but those of its transaction. Resolves to its result.
   * @template T
   * @param {(transaction: Transaction) => T | Promise<T>} run
   * @param {{ attempts?: number, signal?: AbortSignal }} [options]
   * @returns {Promise<T>}
   */
  async transaction(run, { attempts = TRANSACTION_ATTEMPTS, signal } = {}) {
    for (let attempt = 1; ; attempt++) {
      const transaction = new Transaction(this.#connection)
      try {
        const result = await run(transaction)
        if (!transaction.ended) await transaction.commit({ signal })
        return result
      } catch (error) {
        const conflict = error instanceof TailraceError && error.code === CONFLICT
        if (!conflict || attempt >= attempts) throw error
        const pauseMs = Math.min(2 ** attempt, CONFLICT_PAUSE_MS_MAX)
        await sleep(pauseMs * (0.5 + Math.random() / 2), signal)
      }
    }
  }

  /** A transaction that the caller commits. */
  begin() {
    return new Transaction(this.#connection)
  }

  /**
   * A topic.
   * @param {string} name  or its alias
   */
  topic(name) {
    return new Topic(this.#connection, name)
  }

  /**
   * All topics, as the HTTP API returns them.
   * @param {Abortable} [options]
   * @returns {Promise<Array<Record<string, any>>>}
   */
  async topics({ signal } = {}) {
    return (await this.#connection.json("GET", "/v1/topics", { signal })).topics
  }

  /**
   * A page of the streams, as the HTTP API returns it. A page may be empty and still have a `next`.
   * @param {ListOptions} [options]
   * @returns {Promise<{ streams: Array<Record<string, any>>, next: string | null }>}
   */
  async streams({ signal, ...query } = {}) {
    return this.#connection.json("GET", "/v1/streams", { query, signal })
  }

  /**
   * A page of the tables with their keys, indexes, sizes and routes, as the HTTP API returns it.
   * @param {ListOptions} [options]
   * @returns {Promise<{ tables: Array<Record<string, any>>, next: string | null }>}
   */
  async tables({ signal, ...query } = {}) {
    return this.#connection.json("GET", "/v1/tables", { query, signal })
  }

  /**
   * The state of the server, as the HTTP API returns it: health, rates, latencies, sizes, groups that lag.
   * @param {Abortable} [options]
   * @returns {Promise<Record<string, any>>}
   */
  async status({ signal } = {}) {
    return this.#connection.json("GET", "/v1/status", { signal })
  }

  /**
   * The samples of the last 24 hours: columns of numbers of one length, null where one is unknown.
   * @param {{ sinceMs?: number, stepS?: number, signal?: AbortSignal }} [options]  samples after a time; those of `stepS`
   *   seconds become one
   * @returns {Promise<{ step_s: number, columns: Record<string, Array<number | null>> }>}
   */
  async samples({ sinceMs, stepS, signal } = {}) {
    const query = { since: sinceMs, step_s: stepS }
    return this.#connection.json("GET", "/v1/status/samples", { query, signal })
  }

  /**
   * The jobs of the pipeline, by name, as the HTTP API returns them.
   * @param {Abortable} [options]
   * @returns {Promise<Array<Record<string, any>>>}
   */
  async jobs({ signal } = {}) {
    const { jobs } = await this.#connection.json("GET", "/v1/jobs", { signal })
    return jobs
  }

  /**
   * Pause a job, until it is resumed: its program finishes the batch, and then waits. The job, as the HTTP API returns it.
   * @param {string} name
   * @param {Abortable} [options]
   * @returns {Promise<Record<string, any>>}
   */
  async pauseJob(name, { signal } = {}) {
    return this.#connection.json("POST", `/v1/jobs/${segment(name, "a job")}/pause`, { repeatable: true, signal })
  }

  /**
   * Let a paused job continue from where it was.
   * @param {string} name
   * @param {Abortable} [options]
   * @returns {Promise<Record<string, any>>}
   */
  async resumeJob(name, { signal } = {}) {
    return this.#connection.json("POST", `/v1/jobs/${segment(name, "a job")}/resume`, { repeatable: true, signal })
  }

  /**
   * A consumer of a topic.
   * @param {ConsumerOptions} options
   */
  consumer(options) {
    return new Consumer(this.#connection, options)
  }

  /**
   * Run statements; the result of each. The error of one that fails has `line`, `column` and `results`, those of the
   * statements before it, in `details`. A `Uint8Array` is sent as bytes, a bigint or `Decimal` with all its digits.
   * @param {string} text
   * @param {unknown[]} [parameters]
   * @param {{ repeatable?: boolean, signal?: AbortSignal }} [options]  `repeatable`: whether the statements have the
   *   effect of one run however often they run, so that they can be repeated after a lost response
   * @returns {Promise<SqlResult[]>}
   */
  async sql(text, parameters = [], { repeatable = false, signal } = {}) {
    const body = `{"sql":${jsonText(text)},"params":[${parameters.map(sqlParameter).join(",")}]}`
    const headers = { "content-type": JSON_TYPE }
    const { results } = await this.#connection.json("POST", "/v1/api/sql", { headers, body, repeatable, signal })
    return results.map(sqlResult)
  }

  /**
   * Call an operation of the DynamoDB API, as in `call("ListTables")`; parameters and result are its typed JSON.
   * @param {string} operation
   * @param {Record<string, any>} [parameters]
   * @param {{ repeatable?: boolean, signal?: AbortSignal }} [options]
   * @returns {Promise<any>}
   */
  async call(operation, parameters = {}, options = {}) {
    return call(this.#connection, operation, parameters, options)
  }

  /**
   * Send any request of the HTTP API; the body of its response, parsed if it is JSON and text otherwise.
   * @param {string} method
   * @param {string} target  as in `/v1/jobs`
   * @param {RequestOptions} [options]
   * @returns {Promise<any>}
   */
  async request(method, target, options) {
    const { headers, body } = await this.#connection.send(method, target, options)
    if (body.length === 0) return undefined
    return isJson(headers.get("content-type")) ? JSON.parse(decodeText(body)) : decodeText(body)
  }
}
