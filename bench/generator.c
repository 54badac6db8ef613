// The load generator for `python -m bench` where a C compiler is there: a closed loop over prepared requests, one under
// way on each connection. bench/generator.py writes the script and reads the result; it says what each field means.
//
//     generator HOST PORT CONNECTIONS WARMUP_S SECONDS < script
//
// script   per connection:  "connection FIRST LIMIT STRICT REQUESTS\n", then per request
//          "request STATUS NUMBER_AT NUMBER_WIDTH FILL TIMES NEEDLE_BYTES BYTES\n", its needle and its bytes
// output   "begin\n" and "end\n" around the measured window, one line of JSON, and the latencies of the window (doubles)
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { STATUS_MAX = 600, EVENTS = 256, ANSWER_TIMEOUT_S = 30, INPUT_BYTES = 1 << 16 };

struct request {
    char *data, *needle, fill;
    size_t bytes, needle_bytes;
    int status, number_width;
    long number_at, times;
    long count;       // answers as expected
    long long number; // in the last of them
    char tail[128];   // its stream-next-offset
    long long body_bytes; // of all of them
};

struct connection {
    struct request *requests;
    long request_count, at, left; // left: requests still to send, -1 without a limit
    long long number;
    int socket, strict, under_way;
    char *input;
    // needed: bytes of the whole answer, once its head says so; dropped: bytes of a body that nobody looks at
    size_t have, dropped, head_bytes, body_bytes, needed, capacity;
    double sent;
};

static double *latencies;
static size_t latency_count, latency_capacity;
static long by_status[STATUS_MAX], wrong, lost, under_way;

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, errno ? strerror(errno) : "unexpected");
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static double cpu(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

static char *take(size_t bytes) {
    char *data = malloc(bytes + 1);
    if (!data || fread(data, 1, bytes, stdin) != bytes) fail("the script ends early");
    data[bytes] = 0;
    return data;
}

static void read_script(struct connection *c) {
    if (scanf("connection %lld %ld %d %ld", &c->number, &c->left, &c->strict, &c->request_count) != 4 || getchar() != '\n')
        fail("a bad line of the script");
    c->left = c->left ? c->left : -1;
    c->requests = calloc(c->request_count, sizeof *c->requests);
    for (long i = 0; i < c->request_count; i++) {
        struct request *r = &c->requests[i];
        int fill;
        if (scanf("request %d %ld %d %d %ld %zu %zu", &r->status, &r->number_at, &r->number_width, &fill, &r->times,
                  &r->needle_bytes, &r->bytes) != 7 || getchar() != '\n')
            fail("a bad line of the script");
        r->fill = (char)fill;
        r->needle = take(r->needle_bytes);
        r->data = take(r->bytes);
    }
}

static void open_connection(struct connection *c, const char *host, int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    int on = 1;
    c->socket = socket(AF_INET, SOCK_STREAM, 0);
    c->capacity = INPUT_BYTES;
    c->input = malloc(c->capacity);
    if (inet_pton(AF_INET, host, &to.sin_addr) != 1 || connect(c->socket, (void *)&to, sizeof to)) fail("connect");
    setsockopt(c->socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static void send_next(struct connection *c, int stopping) {
    if (stopping || !c->left) return;
    struct request *r = &c->requests[c->at];
    if (r->number_width) {
        long long rest = c->number;
        for (int i = r->number_width - 1; i >= 0; i--, rest /= 10)
            r->data[r->number_at + i] = rest || i == r->number_width - 1 ? '0' + rest % 10 : r->fill;
    }
    c->sent = now();
    for (size_t done = 0; done < r->bytes;) { // the sockets block here: an answer is far smaller than a socket's buffer
        ssize_t n = send(c->socket, r->data + done, r->bytes - done, MSG_NOSIGNAL);
        if (n <= 0) {
            lost++;
            c->left = 0;
            return;
        }
        done += n;
    }
    if (c->left > 0) c->left--;
    c->under_way = 1;
    under_way++;
}

// The value of a header (its name in lower case, with a line break before and a colon after it), or NULL.
static char *header(char *head, const char *name) {
    char *at = strcasestr(head, name);
    return at ? at + strlen(name) + strspn(at + strlen(name), " \t") : NULL;
}

// How long the answer is, or 0 when more has to come. HTTP/1.1, or the replies of Redis to one command.
static size_t framed(struct connection *c, int *status) {
    char *data = c->input, *end = data + c->have;
    *end = 0;
    if (*data == '$' || *data == '+' || *data == ':' || *data == '-') {
        char *line = memmem(data, c->have, "\r\n", 2);
        *status = *data == '-' ? 500 : 200;
        if (!line) return 0;
        c->head_bytes = line + 2 - data;
        c->body_bytes = *data == '$' ? strtoul(data + 1, NULL, 10) + 2 : 0;
        c->needed = c->head_bytes + c->body_bytes;
        return c->have + c->dropped >= c->needed ? c->needed : 0;
    }
    char *body = memmem(data, c->have, "\r\n\r\n", 4);
    if (!body) return 0;
    *status = atoi(data + 9);
    body += 4;
    c->head_bytes = body - data;
    body[-1] = 0; // the head is text of its own for a moment
    char *length = header(data, "\ncontent-length:"), *coding = header(data, "\ntransfer-encoding:");
    body[-1] = '\n';
    int bodiless = *status == 204 || *status == 304;
    c->body_bytes = length && !bodiless ? strtoul(length, NULL, 10) : 0;
    if (length || bodiless) c->needed = c->head_bytes + c->body_bytes;
    else if (!coding) fail("an answer without a length");
    else
        for (;;) { // chunks
            char *line = memmem(body, end - body, "\r\n", 2);
            if (!line) return 0;
            size_t size = strtoul(body, NULL, 16);
            if ((size_t)(end - line) < size + 4) return 0;
            c->body_bytes += size;
            body = line + 2 + size + 2;
            if (!size) return body - data;
        }
    return c->have + c->dropped >= c->needed ? c->needed : 0;
}

static void accept_answer(struct connection *c, size_t bytes, int status) {
    struct request *r = &c->requests[c->at];
    double took = now() - c->sent;
    long long number = c->number++;
    c->at = c->at + 1 < c->request_count ? c->at + 1 : 0;
    if (status != r->status) {
        by_status[status >= 0 && status < STATUS_MAX ? status : 0]++;
        if (c->strict) c->left = 0;
        return;
    }
    if (r->needle_bytes) {
        long found = 0;
        char *at = c->input, *end = c->input + bytes;
        while ((at = memmem(at, end - at, r->needle, r->needle_bytes))) found++, at += r->needle_bytes;
        if (found != r->times) {
            wrong++;
            return;
        }
    }
    r->count++;
    r->number = number;
    r->body_bytes += c->body_bytes;
    c->input[c->head_bytes - 1] = 0;
    char *tail = header(c->input, "\nstream-next-offset:");
    if (tail) snprintf(r->tail, sizeof r->tail, "%.*s", (int)strcspn(tail, "\r\n\"\\"), tail);
    if (latency_count == latency_capacity) {
        latency_capacity = latency_capacity ? latency_capacity * 2 : 1 << 16;
        latencies = realloc(latencies, latency_capacity * sizeof *latencies);
        if (!latencies) fail("memory");
    }
    latencies[latency_count++] = took;
}

static void receive(struct connection *c, int stopping) {
    static char nowhere[1 << 18];
    int drop = c->needed && c->under_way && !c->requests[c->at].needle_bytes;
    size_t room = drop ? 0 : c->needed > c->have ? c->needed - c->have : 1;
    if (c->capacity - c->have <= room) {
        c->capacity = (c->have + room) * 2;
        c->input = realloc(c->input, c->capacity);
        if (!c->input) fail("memory");
    }
    ssize_t n = drop ? recv(c->socket, nowhere, sizeof nowhere, MSG_DONTWAIT)
                     : recv(c->socket, c->input + c->have, c->capacity - c->have - 1, MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) { // closed: by us never before the end
        lost += c->under_way;
        under_way -= c->under_way;
        c->under_way = c->left = 0;
        close(c->socket);
        return;
    }
    if (drop) c->dropped += n;
    else c->have += n;
    int status = 0;
    if (c->have + c->dropped < c->needed) return;
    size_t bytes = framed(c, &status);
    if (!bytes) return;
    if (bytes != c->have + c->dropped || !c->under_way) fail("more than one answer to one request");
    c->under_way = 0;
    under_way--;
    accept_answer(c, bytes, status);
    c->have = c->dropped = c->needed = 0;
    send_next(c, stopping);
}

static void print_result(struct connection *connections, int count, double seconds, double cpu_s, size_t measured) {
    printf("{\"seconds\":%.9f,\"cpu_s\":%.6f,\"lost\":%ld,\"wrong\":%ld,\"unanswered\":%ld,\"statuses\":{", seconds, cpu_s,
           lost, wrong, under_way);
    const char *comma = "";
    for (int i = 0; i < STATUS_MAX; i++)
        if (by_status[i]) printf("%s\"%d\":%ld", comma, i, by_status[i]), comma = ",";
    printf("},\"answers\":[");
    for (int i = 0; i < count; i++)
        for (long j = 0; j < connections[i].request_count; j++) {
            struct request *r = &connections[i].requests[j];
            printf("%s[%ld,%lld,\"%s\",%lld]", i || j ? "," : "", r->count, r->number, r->tail, r->body_bytes);
        }
    printf("]}\n");
    fwrite(latencies, sizeof *latencies, measured, stdout);
    fflush(stdout);
}

int main(int argc, char **argv) {
    if (argc != 6) fail("usage: generator HOST PORT CONNECTIONS WARMUP_S SECONDS < script");
    int count = atoi(argv[3]), poll = epoll_create1(0), stopping = 0;
    double warmup_s = atof(argv[4]), seconds = atof(argv[5]);
    struct connection *connections = calloc(count, sizeof *connections);
    for (int i = 0; i < count; i++) read_script(&connections[i]);
    for (int i = 0; i < count; i++) {
        open_connection(&connections[i], argv[1], atoi(argv[2]));
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &connections[i]};
        epoll_ctl(poll, EPOLL_CTL_ADD, connections[i].socket, &event);
    }
    double began = 0, began_cpu = 0, last = now(), next = last + warmup_s; // next: when the window begins, then ends
    double measured_s = 0, measured_cpu = 0;
    size_t measured = 0;
    for (int i = 0; warmup_s && i < count; i++) send_next(&connections[i], 0);
    while (under_way || !began) {
        struct epoll_event events[EVENTS];
        int ready = began || warmup_s ? epoll_wait(poll, events, EVENTS, 20) : 0;
        if (ready < 0 && errno != EINTR) fail("epoll_wait");
        for (int i = 0; i < ready; i++) receive(events[i].data.ptr, stopping);
        double t = now();
        if (ready > 0) last = t;
        if (!began && t >= next) {
            latency_count = 0;
            printf("begin\n");
            fflush(stdout);
            began = now(), began_cpu = cpu(), next = began + seconds;
            for (int i = 0; !warmup_s && i < count; i++) send_next(&connections[i], 0);
        } else if (began && !stopping && seconds && t >= next) {
            measured_s = now() - began, measured_cpu = cpu() - began_cpu, measured = latency_count;
            printf("end\n");
            fflush(stdout);
            stopping = 1;
        }
        if (t - last > ANSWER_TIMEOUT_S) break;
    }
    if (!stopping) { // the requests were over before the time
        measured_s = now() - began, measured_cpu = cpu() - began_cpu, measured = latency_count;
        printf("end\n");
    }
    print_result(connections, count, measured_s, measured_cpu, measured);
    return 0;
}
