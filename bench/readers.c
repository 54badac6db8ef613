// Live readers for `python -m bench` where a C compiler is there: paced appends, and the time from the write of each to
// its data event at each SSE reader. bench/live.py starts it, reads the result, and does the same in Python without it.
//
//     readers HOST PORT READERS_EACH PENS_EACH RATE SECONDS LOCKSTEP APPEND_BYTES SETTLE_S < targets, one to a line
//
// output   "begin\n" and "end\n" around the measured window, one line of JSON, and the latencies (doubles)
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

enum {
    AT_ONCE = 64, // connections being opened: more would overflow a small listen backlog
    OPEN_TIMEOUT_S = 30,
    MARK_BYTES = 10, // "@00000007@" begins what is appended
    KEPT_BYTES = 1024, // of what a reader has received: enough for a head and the first event
    INPUT_BYTES = 1 << 18,
    STATUS_MAX = 600,
};

struct line { // a connection: a reader or a pen, which appends
    int socket, target, is_pen, open, lost;
    int busy;                  // of a pen: an append is not answered
    long mark, received;       // of a reader: the last mark it saw, and how many
    size_t kept;
    char input[KEPT_BYTES + 1];
};

static const char *host;
static int port, poll_fd, target_count, pen_count;
static char **targets;
static double *sent, *latencies;
static long marks, latency_count, acknowledged, unknown, disordered, readers_lost, pens_lost, by_status[STATUS_MAX];

static void fail(const char *what, const char *detail) {
    fprintf(stderr, "%s: %s\n", what, detail ? detail : strerror(errno));
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

static void say(struct line *l, const char *text, size_t bytes) {
    if (send(l->socket, text, bytes, MSG_NOSIGNAL) != (ssize_t)bytes) fail("send", NULL); // small: always sent whole
}

static void open_line(struct line *l, int target, int is_pen) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = l};
    int on = 1;
    *l = (struct line){.socket = socket(AF_INET, SOCK_STREAM, 0), .target = target, .is_pen = is_pen, .mark = -1};
    if (inet_pton(AF_INET, host, &to.sin_addr) != 1 || connect(l->socket, (void *)&to, sizeof to)) fail("connect", NULL);
    setsockopt(l->socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    epoll_ctl(poll_fd, EPOLL_CTL_ADD, l->socket, &event);
    if (is_pen) return;
    char text[2048];
    say(l, text, snprintf(text, sizeof text, "GET %s?offset=now&live=sse HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n", targets[target]));
}

// Look for marks in what a reader received. What may be the beginning of one is kept.
static void find_marks(struct line *l, char *data, size_t bytes, double t) {
    char *end = data + bytes, *at = memchr(data, '@', bytes);
    while (at && end - at >= MARK_BYTES) {
        long mark = strtol(at + 1, NULL, 10);
        if (mark < 0 || mark >= marks || mark % pen_count % target_count != l->target) unknown++; // or of another stream
        else if (mark <= l->mark) disordered++;
        else {
            l->mark = mark;
            l->received++;
            latencies[latency_count++] = t - sent[mark];
        }
        at = memchr(at + MARK_BYTES, '@', end - at - MARK_BYTES);
    }
    l->kept = at ? end - at : 0;
    memmove(l->input, at ? at : data, l->kept);
}

static void read_line(struct line *l) {
    static char input[KEPT_BYTES + INPUT_BYTES + 1];
    memcpy(input, l->input, l->kept);
    ssize_t n = recv(l->socket, input + l->kept, INPUT_BYTES, MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) {
        if (!l->is_pen && !l->open) fail(targets[l->target], "the server closed the connection of a reader");
        l->is_pen ? pens_lost++ : readers_lost++;
        l->lost = 1;
        close(l->socket);
        return;
    }
    double t = now();
    size_t bytes = l->kept + n;
    input[bytes] = 0;
    if (!l->is_pen && l->open) {
        find_marks(l, input, bytes, t);
        return;
    }
    // A pen's answer, or the beginning of a reader's: short both. A 204 has no body; of others only the status counts.
    if (bytes > KEPT_BYTES) fail(targets[l->target], "a long answer");
    memcpy(l->input, input, l->kept = bytes);
    if (l->is_pen && strstr(input, "\r\n\r\n")) {
        int status = atoi(input + 9);
        if (status == 204) acknowledged++;
        else by_status[status > 0 && status < STATUS_MAX ? status : 0]++;
        l->busy = 0, l->kept = 0;
    } else if (!l->is_pen && bytes > 12 && strncmp(input, "HTTP/1.1 200 ", 13)) {
        fail(targets[l->target], input);
    } else if (!l->is_pen && strstr(input, "\"streamNextOffset\"")) {
        l->open = 1, l->kept = 0;
    }
}

static void wait_for_input(double seconds) {
    struct epoll_event events[256];
    int ready = epoll_wait(poll_fd, events, 256, seconds <= 0 ? 0 : (int)(seconds * 1000) + 1);
    if (ready < 0 && errno != EINTR) fail("epoll_wait", NULL);
    for (int i = 0; i < ready; i++) read_line(events[i].data.ptr);
}

static long count_busy(struct line *pens, int count) {
    long busy = 0;
    for (int i = 0; i < count; i++) busy += pens[i].busy && !pens[i].lost;
    return busy;
}

int main(int argc, char **argv) {
    if (argc != 10) fail("usage", "readers HOST PORT READERS_EACH PENS_EACH RATE SECONDS LOCKSTEP BYTES SETTLE_S");
    host = argv[1], port = atoi(argv[2]), poll_fd = epoll_create1(0);
    int readers_each = atoi(argv[3]), pens_each = atoi(argv[4]), lockstep = atoi(argv[7]), size = atoi(argv[8]);
    double rate = atof(argv[5]), seconds = atof(argv[6]), settle_s = atof(argv[9]);
    char name[2048];
    for (; scanf("%2047s", name) == 1; target_count++) {
        targets = realloc(targets, (target_count + 1) * sizeof *targets);
        targets[target_count] = strdup(name);
    }
    int reader_count = target_count * readers_each;
    pen_count = target_count * pens_each;
    long most = (long)(rate * seconds) + 1;
    struct line *readers = calloc(reader_count, sizeof *readers), *pens = calloc(pen_count, sizeof *pens);
    sent = calloc(most, sizeof *sent);
    latencies = calloc(most * readers_each + 1, sizeof *latencies); // a mark counts once at each reader of its stream
    for (int first = 0; first < reader_count; first += AT_ONCE) {
        int last = first + AT_ONCE < reader_count ? first + AT_ONCE : reader_count, waiting = 1;
        for (int i = first; i < last; i++) open_line(&readers[i], i / readers_each, 0);
        for (double give_up = now() + OPEN_TIMEOUT_S; waiting; wait_for_input(waiting ? 0.1 : 0)) {
            if (now() > give_up) fail("a reader", "received no position");
            waiting = 0;
            for (int i = first; i < last; i++) waiting += !readers[i].open;
        }
    }
    for (int i = 0; i < pen_count; i++) open_line(&pens[i], i % target_count, 1);

    printf("begin\n");
    fflush(stdout);
    double begin = now(), cpu_s = cpu(), since = begin; // since: when the append that is due began to wait
    long late = 0, not_sent = 0, was_late = -1;
    char *text = malloc(size + 2048);
    while (marks < rate * seconds && now() < begin + seconds) {
        double t = now(), due = begin + marks / rate;
        struct line *pen = &pens[marks % pen_count];
        int arrived = !lockstep || latency_count >= marks * readers_each;
        if (t < due) wait_for_input(due - t);
        else if (!pen->busy && !pen->lost && arrived) {
            int n = snprintf(text, 2048, "POST %s HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n@%08ld@", targets[pen->target], size, marks);
            memset(text + n, 'x', size);
            sent[marks] = since = now();
            marks++;
            pen->busy = 1;
            say(pen, text, n + size - MARK_BYTES);
        } else {
            if ((pen->busy || pen->lost) && was_late != marks) late++, was_late = marks;
            if (t - (since > due ? since : due) > settle_s) {
                not_sent++;
                break;
            }
            wait_for_input(0.005);
        }
    }
    double appending_s = now() - begin, give_up = now() + settle_s;
    while (now() < give_up && (latency_count < acknowledged * readers_each || count_busy(pens, pen_count)))
        wait_for_input(0.01);
    long missing = acknowledged * readers_each - latency_count;
    cpu_s = cpu() - cpu_s;
    double busy_s = now() - begin;
    printf("end\n{\"appended\":%ld,\"late\":%ld,\"seconds\":%.6f,\"busy_s\":%.6f,\"cpu_s\":%.6f,\"errors\":{", acknowledged,
           late, appending_s, busy_s, cpu_s);
    for (int i = 0; i < STATUS_MAX; i++)
        if (by_status[i]) printf("\"status %d\":%ld,", i, by_status[i]);
    printf("\"not delivered\":%ld,\"unanswered\":%ld,\"connection lost\":%ld,\"reader: connection lost\":%ld,"
           "\"reader: an event that nobody appended\":%ld,\"reader: an event again or out of order\":%ld,"
           "\"not sent, the append before it unanswered\":%ld}}\n",
           missing > 0 ? missing : 0, count_busy(pens, pen_count), pens_lost, readers_lost, unknown, disordered, not_sent);
    fwrite(latencies, sizeof *latencies, latency_count, stdout);
    return 0;
}
