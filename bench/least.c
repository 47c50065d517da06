/* The least that a broker can do which keeps what it gets: one thread that receives, checks, writes and answers.

   least DIRECTORY PARTITIONS

   It takes Kafka's Produce v7 with one batch for one partition of whatever topic, as `frames.kafka_produce` makes it. A batch is
   held against its length, its magic and its CRC, gets the next offset of its partition, is appended to that partition's file,
   and is answered; all answers that came of one receive leave together. There is nothing else: no topics, no index, no limits,
   no fairness, no second request. So whatever is faster than this does not store, and what is slower pays for being a broker.
   It says its port in a line and serves until it is ended; a client that sends anything else is cut off. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../src/rivven/record/_kernel.h"

#define EVENTS 256
#define IN_BYTES (4 << 20)
#define LONG_BYTES (64 << 10) /* a longer frame is received up to its end and no further, so that none is ever moved */
#define OUT_BYTES (256 << 10)
#define NAME_BYTES_MAX 255
#define BATCH_HEAD_BYTES 61
#define REPLY_BYTES_MAX (64 + NAME_BYTES_MAX)
#define FRAME_BYTES_MIN 20

typedef struct {
    int fd;
    size_t begin, have; /* what is received and not yet looked at */
    size_t out_bytes;
    uint8_t *in;
    uint8_t out[OUT_BYTES];
} connection;

typedef struct { int fd; uint64_t next_offset; off_t end; } partition;

static partition *partitions;
static uint32_t partitions_count;

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static uint32_t load_u32(const uint8_t *at) { uint32_t value; memcpy(&value, at, 4); return ntohl(value); }
static uint32_t load_u16(const uint8_t *at) { return (uint32_t)at[0] << 8 | at[1]; }
static uint8_t *store_u16(uint8_t *at, uint32_t value) { at[0] = (uint8_t)(value >> 8); at[1] = (uint8_t)value; return at + 2; }
static uint8_t *store_u32(uint8_t *at, uint32_t value) { value = htonl(value); memcpy(at, &value, 4); return at + 4; }
static uint8_t *store_u64(uint8_t *at, uint64_t value)
{
    return store_u32(store_u32(at, (uint32_t)(value >> 32)), (uint32_t)value);
}

/* Where a string ends that has its length before it, or NULL if it does not within the frame */
static const uint8_t *after_string(const uint8_t *at, const uint8_t *end)
{
    if (!at || end - at < 2) return NULL;
    uint32_t length = load_u16(at);
    if (length == 0xffff) return at + 2; /* no string */
    return length <= NAME_BYTES_MAX && (size_t)(end - at) >= 2 + length ? at + 2 + length : NULL;
}

/* Append the batch and put its answer at `out`; where the answer ends, or NULL if the frame is none of ours */
static uint8_t *serve(const uint8_t *frame, uint32_t length, uint8_t *out)
{
    const uint8_t *end = frame + length;
    if (length < FRAME_BYTES_MIN || load_u16(frame) != 0 || load_u16(frame + 2) != 7) return NULL;
    const uint8_t *at = after_string(after_string(frame + 8, end), end); /* client id, transactional id */
    if (!at || end - at < 2 + 4 + 4) return NULL;
    const uint8_t *topic = at + 10; /* acks, timeout, one topic */
    if (load_u32(at + 6) != 1 || !(at = after_string(topic, end)) || end - at < 12) return NULL;
    uint32_t topic_bytes = (uint32_t)(at - topic), number = load_u32(at + 4), batch_bytes = load_u32(at + 8);
    uint8_t *batch = (uint8_t *)at + 12;
    if (load_u32(at) != 1 || number >= partitions_count || batch_bytes != (size_t)(end - batch)) return NULL;
    if (batch_bytes < BATCH_HEAD_BYTES || load_u32(batch + 8) + 12 != batch_bytes || batch[16] != 2) return NULL;
    if (crc32c_of(0, batch + 21, batch_bytes - 21) != load_u32(batch + 17)) return NULL;
    partition *to = &partitions[number];
    store_u64(batch, to->next_offset);
    store_u32(batch + 12, 0); /* leader epoch */
    if (pwrite(to->fd, batch, batch_bytes, to->end) != (ssize_t)batch_bytes) die("write");
    uint8_t *reply = store_u32(store_u32(out + 4, load_u32(frame + 4)), 1);
    memcpy(reply, topic, topic_bytes);
    reply = store_u32(store_u32(reply + topic_bytes, 1), number);
    reply = store_u64(store_u16(reply, 0), to->next_offset);
    reply = store_u32(store_u64(store_u64(reply, UINT64_MAX), 0), 0); /* no append time, log start, throttle */
    store_u32(out, (uint32_t)(reply - out - 4));
    to->next_offset += load_u32(batch + 57);
    to->end += batch_bytes;
    return reply;
}

/* Send the answers; whoever does not take them is none of ours */
static int answer(connection *c)
{
    ssize_t sent = c->out_bytes ? send(c->fd, c->out, c->out_bytes, MSG_NOSIGNAL) : 0;
    int all = sent == (ssize_t)c->out_bytes;
    c->out_bytes = 0;
    return all;
}

/* How much to receive: of a long frame no more than there is of it */
static size_t room_of(const connection *c)
{
    size_t held = c->have - c->begin, room = IN_BYTES - c->have;
    if (held < 4) return held || room < LONG_BYTES ? room : LONG_BYTES;
    size_t whole = 4 + (size_t)load_u32(c->in + c->begin);
    return whole > LONG_BYTES && whole - held < room ? whole - held : room;
}

/* Receive once and serve what is whole; 0 if the connection is over */
static int readable(connection *c)
{
    ssize_t got = recv(c->fd, c->in + c->have, room_of(c), MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) return 1;
    if (got <= 0) return 0;
    c->have += (size_t)got;
    while (c->have - c->begin >= 4) {
        uint32_t length = load_u32(c->in + c->begin);
        if (length > IN_BYTES - 4) return 0;
        if (c->have - c->begin < 4 + (size_t)length) break;
        if (OUT_BYTES - c->out_bytes < REPLY_BYTES_MAX && !answer(c)) return 0;
        uint8_t *begin = c->out + c->out_bytes, *end = serve(c->in + c->begin + 4, length, begin);
        if (!end) return 0;
        c->out_bytes += (size_t)(end - begin);
        c->begin += 4 + (size_t)length;
    }
    if (c->begin == c->have) {
        c->begin = c->have = 0;
    } else if (c->begin) {
        memmove(c->in, c->in + c->begin, c->have - c->begin);
        c->have -= c->begin;
        c->begin = 0;
    }
    return answer(c);
}

static void greet(int listener, int poller)
{
    int yes = 1, fd = accept(listener, NULL, NULL);
    if (fd < 0) return;
    connection *c = calloc(1, sizeof *c);
    if (!c || !(c->in = malloc(IN_BYTES))) die("memory");
    c->fd = fd;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    struct epoll_event wanted = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_ADD, fd, &wanted);
}

static void part_from(connection *c)
{
    close(c->fd);
    free(c->in);
    free(c);
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fputs("usage: least DIRECTORY PARTITIONS\n", stderr);
        return 2;
    }
    crc_init();
    partitions_count = (uint32_t)atoi(argv[2]);
    if (!(partitions = calloc(partitions_count, sizeof *partitions))) die("memory");
    for (uint32_t i = 0; i < partitions_count; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%u.log", argv[1], i);
        if ((partitions[i].fd = open(path, O_CREAT | O_TRUNC | O_RDWR, 0644)) < 0) die(path);
    }
    struct sockaddr_in here = {.sin_family = AF_INET};
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t here_bytes = sizeof here;
    int listener = socket(AF_INET, SOCK_STREAM, 0), poller = epoll_create1(0);
    if (bind(listener, (struct sockaddr *)&here, sizeof here) || listen(listener, 1024)) die("listen");
    getsockname(listener, (struct sockaddr *)&here, &here_bytes);
    struct epoll_event wanted = {.events = EPOLLIN};
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &wanted);
    printf("%d\n", ntohs(here.sin_port));
    fflush(stdout);
    for (;;) {
        struct epoll_event events[EVENTS];
        int ready = epoll_wait(poller, events, EVENTS, -1);
        for (int i = 0; i < ready; i++) {
            connection *c = events[i].data.ptr;
            if (!c) greet(listener, poller);
            else if (!readable(c)) part_from(c);
        }
    }
}
