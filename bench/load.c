/* A load generator that is not the bottleneck: N connections, a bounded number of requests in flight on each, prepared bytes.

   load PLAN PORT CONNECTIONS DEPTH WARMUP_S SECONDS

   The plan is written by bench/load.py and says what to send and how replies are framed; pure_load.py is this program's twin
   in Python. A frame is answered by `replies_per_frame` replies, in order; its latency runs from its first byte sent to its
   last reply read. What is completed within the measured seconds counts; then nothing new is sent, and what is under way may
   finish, so that whoever is measured next finds the server idle. One line of JSON tells the rest. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { LENGTH = 0, RESP = 1, NATS = 2 };

#define IN_BYTES 65536
#define EVENTS 256
#define DRAIN_NS 10000000000ull
#define FINE 32 /* buckets for each power of two of nanoseconds: figures are good to 3 % */
#define BUCKETS (64 * FINE)

typedef struct { const uint8_t *data; uint32_t length; } piece;
typedef struct { piece hello; uint32_t hello_replies, count; piece *frames; } group;

typedef struct {
    int fd;
    const group *plan;
    uint32_t next;        /* the frame to send next */
    piece sending;        /* what is being sent: the hello first, then frames */
    uint32_t sent;
    uint32_t hello_left;  /* replies to the hello that have not come yet */
    uint32_t in_flight, oldest, replies_left;
    uint64_t *begun_ns;   /* a ring: when each frame in flight was begun */
    int owes_pong;
    uint32_t have;
    uint8_t in[IN_BYTES];
} connection;

static uint32_t protocol, replies_per_frame, expect_at, expect_length, depth, groups_count;
static uint8_t expect[16];
static group *groups;
static uint64_t measure_ns, end_ns, now_ns, completed, errors, in_flight_total, last_reply_ns, max_ns;
static uint64_t histogram[BUCKETS];
static char first_error[256];

static void die(const char *format, ...)
{
    va_list rest;
    va_start(rest, format);
    vfprintf(stderr, format, rest);
    fputc('\n', stderr);
    exit(1);
}

static uint64_t clock_ns(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (uint64_t)at.tv_sec * 1000000000ull + (uint64_t)at.tv_nsec;
}

/* The plan */

static uint32_t take_u32(const uint8_t **at)
{
    uint32_t value;
    memcpy(&value, *at, 4);
    *at += 4;
    return value;
}

static piece take_piece(const uint8_t **at)
{
    piece taken;
    taken.length = take_u32(at);
    taken.data = *at;
    *at += taken.length;
    return taken;
}

static void read_plan(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file) die("cannot read the plan %s: %s", path, strerror(errno));
    fseek(file, 0, SEEK_END);
    long length = ftell(file);
    rewind(file);
    uint8_t *data = malloc((size_t)length);
    if (!data || fread(data, 1, (size_t)length, file) != (size_t)length) die("cannot read the plan %s", path);
    fclose(file);
    const uint8_t *at = data;
    protocol = take_u32(&at);
    replies_per_frame = take_u32(&at);
    expect_at = take_u32(&at);
    expect_length = take_u32(&at);
    memcpy(expect, at, sizeof expect);
    at += sizeof expect;
    groups_count = take_u32(&at);
    groups = calloc(groups_count, sizeof *groups);
    for (uint32_t i = 0; i < groups_count; i++) {
        groups[i].hello = take_piece(&at);
        groups[i].hello_replies = take_u32(&at);
        groups[i].count = take_u32(&at);
        groups[i].frames = calloc(groups[i].count, sizeof(piece));
        for (uint32_t j = 0; j < groups[i].count; j++) groups[i].frames[j] = take_piece(&at);
    }
}

/* Latencies */

static uint32_t bucket_of(uint64_t value)
{
    if (value < FINE) return (uint32_t)value;
    uint32_t power = 63u - (uint32_t)__builtin_clzll(value); /* at least 5 */
    return (power - 4) * FINE + (uint32_t)((value >> (power - 5)) & (FINE - 1));
}

static double value_of(uint32_t bucket)
{
    if (bucket < FINE) return bucket;
    uint32_t power = bucket / FINE + 4;
    return (double)((uint64_t)(FINE + bucket % FINE) << (power - 5)) + (double)(1ull << (power - 5)) / 2;
}

static double percentile_us(double part)
{
    uint64_t seen = 0, wanted = (uint64_t)((double)completed * part);
    for (uint32_t i = 0; i < BUCKETS; i++) {
        seen += histogram[i];
        if (seen > wanted) return value_of(i) / 1000;
    }
    return (double)max_ns / 1000;
}

/* Replies */

static void note_error(const uint8_t *reply, uint32_t length)
{
    if (errors++) return;
    for (uint32_t i = 0; i < length && i < sizeof first_error - 1; i++)
        first_error[i] = reply[i] >= ' ' && reply[i] < 127 && reply[i] != '"' && reply[i] != '\\' ? (char)reply[i] : '.';
}

static void replied(connection *c, const uint8_t *reply, uint32_t length, int good)
{
    if (!good) note_error(reply, length);
    if (c->hello_left) { c->hello_left--; return; }
    if (!c->in_flight) die("a reply that nobody asked for: %.*s", (int)length, (const char *)reply);
    if (--c->replies_left) return;
    c->replies_left = replies_per_frame;
    uint64_t taken_ns = now_ns - c->begun_ns[c->oldest];
    c->oldest = (c->oldest + 1) % depth;
    c->in_flight--;
    in_flight_total--;
    last_reply_ns = now_ns;
    if (now_ns < measure_ns || now_ns >= end_ns) return;
    completed++;
    histogram[bucket_of(taken_ns)]++;
    if (taken_ns > max_ns) max_ns = taken_ns;
}

static int is_expected(connection *c, const uint8_t *body, uint32_t length)
{
    if (c->hello_left) return 1;
    return expect_at + expect_length <= length && !memcmp(body + expect_at, expect, expect_length);
}

/* Each takes one reply from the front of `data`: the bytes it had, or 0 if it is not all there. */

static uint32_t take_length(connection *c, const uint8_t *data, uint32_t have)
{
    if (have < 4) return 0;
    uint32_t length = (uint32_t)data[0] << 24 | (uint32_t)data[1] << 16 | (uint32_t)data[2] << 8 | data[3];
    if (length > IN_BYTES - 4) die("a reply of %u bytes is too long", length);
    if (have < 4 + length) return 0;
    replied(c, data + 4, length, is_expected(c, data + 4, length));
    return 4 + length;
}

static uint32_t line_length(const uint8_t *data, uint32_t have)
{
    const uint8_t *end = memchr(data, '\n', have);
    return end ? (uint32_t)(end - data) + 1 : 0;
}

static uint32_t take_resp(connection *c, const uint8_t *data, uint32_t have)
{
    uint32_t line = line_length(data, have);
    if (!line) return 0;
    uint32_t whole = data[0] == '$' && data[1] != '-' ? line + (uint32_t)atoi((const char *)data + 1) + 2 : line;
    if (have < whole) return 0;
    replied(c, data, whole, data[0] != '-');
    return whole;
}

static uint32_t take_nats(connection *c, const uint8_t *data, uint32_t have)
{
    uint32_t line = line_length(data, have);
    if (!line) return 0;
    if (data[0] == 'M') { /* MSG subject sid bytes */
        uint32_t at = line - 2;
        while (data[at - 1] != ' ') at--;
        uint32_t length = (uint32_t)atoi((const char *)data + at), whole = line + length + 2;
        if (have < whole) return 0;
        replied(c, data + line, length, length < 8 || memcmp(data + line, "{\"error\"", 8));
        return whole;
    }
    if (data[0] == 'H') die("no stream takes what is published: %.*s", (int)line, (const char *)data);
    if (data[0] == '-') die("the server says %.*s", (int)line, (const char *)data);
    if (!memcmp(data, "PI", 2)) c->owes_pong = 1;
    return line;
}

static void receive(connection *c)
{
    for (;;) {
        ssize_t got = recv(c->fd, c->in + c->have, IN_BYTES - c->have, 0);
        if (got == 0) die("the server closed a connection");
        if (got < 0) {
            if (errno == EAGAIN) return;
            die("receive: %s", strerror(errno));
        }
        now_ns = clock_ns();
        int filled = c->have + (uint32_t)got == IN_BYTES;
        c->have += (uint32_t)got;
        uint32_t at = 0, taken;
        do {
            taken = protocol == LENGTH ? take_length(c, c->in + at, c->have - at)
                  : protocol == RESP   ? take_resp(c, c->in + at, c->have - at)
                                       : take_nats(c, c->in + at, c->have - at);
            at += taken;
        } while (taken && at < c->have);
        if (at) memmove(c->in, c->in + at, c->have - at);
        c->have -= at;
        if (!filled) return; /* edge-triggered: a short read has emptied the socket */
    }
}

/* Requests */

static int choose(connection *c)
{
    static const uint8_t pong[] = "PONG\r\n";
    if (c->owes_pong) {
        c->owes_pong = 0;
        c->sending = (piece){pong, 6};
    } else if (!c->hello_left && c->in_flight < depth && now_ns < end_ns) {
        c->sending = c->plan->frames[c->next];
        c->next = (c->next + 1) % c->plan->count;
        c->begun_ns[(c->oldest + c->in_flight) % depth] = now_ns;
        c->in_flight++;
        in_flight_total++;
    } else {
        return 0;
    }
    c->sent = 0;
    return 1;
}

static void pump(connection *c)
{
    for (;;) {
        while (c->sent < c->sending.length) {
            ssize_t sent = send(c->fd, c->sending.data + c->sent, c->sending.length - c->sent, MSG_NOSIGNAL);
            if (sent < 0) {
                if (errno == EAGAIN) return;
                die("send: %s", strerror(errno));
            }
            c->sent += (uint32_t)sent;
        }
        now_ns = clock_ns();
        if (!choose(c)) return;
    }
}

static connection *connect_to(int port, uint32_t number, uint32_t count, int poller)
{
    connection *c = calloc(1, sizeof *c);
    c->begun_ns = calloc(depth, sizeof(uint64_t));
    c->plan = &groups[number % groups_count];
    c->next = (uint32_t)((uint64_t)number * c->plan->count / count) % c->plan->count;
    c->sending = c->plan->hello;
    c->hello_left = c->plan->hello_replies;
    c->replies_left = replies_per_frame;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int yes = 1;
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&to, sizeof to)) die("connect: %s", strerror(errno));
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    struct epoll_event wanted = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &wanted);
    return c;
}

static double cpu_s(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec)
         + (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

int main(int argc, char **argv)
{
    if (argc != 7) die("usage: load PLAN PORT CONNECTIONS DEPTH WARMUP_S SECONDS");
    read_plan(argv[1]);
    int port = atoi(argv[2]);
    uint32_t count = (uint32_t)atoi(argv[3]);
    depth = (uint32_t)atoi(argv[4]);
    double seconds = atof(argv[6]);
    int poller = epoll_create1(0);
    measure_ns = end_ns = UINT64_MAX;
    for (uint32_t i = 0; i < count; i++) connect_to(port, i, count, poller);
    last_reply_ns = now_ns = clock_ns();
    measure_ns = now_ns + (uint64_t)(atof(argv[5]) * 1e9);
    end_ns = measure_ns + (uint64_t)(seconds * 1e9);
    double cpu_begun_s = -1, cpu_end_s = -1;
    while (now_ns < end_ns || in_flight_total) {
        struct epoll_event events[EVENTS];
        int ready = epoll_wait(poller, events, EVENTS, 100);
        now_ns = clock_ns();
        if (cpu_begun_s < 0 && now_ns >= measure_ns) cpu_begun_s = cpu_s();
        if (cpu_end_s < 0 && now_ns >= end_ns) cpu_end_s = cpu_s();
        for (int i = 0; i < ready; i++) {
            connection *c = events[i].data.ptr;
            if (events[i].events & ~(uint32_t)EPOLLOUT) receive(c);
            pump(c);
        }
        if (now_ns > last_reply_ns + DRAIN_NS) die("no reply for ten seconds, %lu in flight", (unsigned long)in_flight_total);
    }
    printf("{\"frames\": %lu, \"errors\": %lu, \"first_error\": \"%s\", \"seconds\": %.3f, \"p50_us\": %.1f, "
           "\"p99_us\": %.1f, \"p999_us\": %.1f, \"max_us\": %.1f, \"load_cpu\": %.2f}\n",
           (unsigned long)completed, (unsigned long)errors, first_error, seconds, percentile_us(0.5), percentile_us(0.99),
           percentile_us(0.999), (double)max_ns / 1000, cpu_begun_s < 0 ? 0 : (cpu_end_s - cpu_begun_s) / seconds);
    return 0;
}
