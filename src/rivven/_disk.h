/* The disk work that runs without the interpreter: a worker thread, and a small io_uring.
 *
 * Invariant: nothing here touches a Python object. Whoever calls keeps the memory behind every iovec and every
 * operation alive until the outcome has been taken, or until the stop or close function has returned.
 * Failures are errno numbers; 0 is success.
 */
#ifndef RIVVEN_DISK_H
#define RIVVEN_DISK_H

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#if defined(__has_include)
#if __has_include(<linux/io_uring.h>)
#include <linux/io_uring.h>
#endif
#endif
#if defined(IORING_FEAT_NODROP) && defined(__NR_io_uring_setup)
#define RV_HAVE_URING 1
#else
#define RV_HAVE_URING 0
#endif

#define RV_IOV_MAX 1024 /* the kernel's UIO_MAXIOV; the libc header only defines it on request */

static inline int64_t rv_now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* One group: what to write where, how far it got, and what became of it. */

typedef struct {
    int fd;
    int64_t position;
} rv_place;

typedef struct {
    struct iovec *iov;
    const rv_place *places; /* where each of the first vectors goes by itself; the others go to one file, in a row */
    uint32_t placed_count;
    int placed; /* atomic: the first ones are written, or one of them has failed */
    uint32_t iov_count;
    uint32_t iov_at; /* the first vector that is not wholly written; its base and length shrink as it is */
    int fd;
    int sync;
    int64_t position; /* where the next byte goes */
    int64_t written_bytes;
    int64_t start_us;
    int64_t elapsed_us;
    int error;
    int failed_sync;
} rv_group;

static void rv_group_begin(rv_group *group, struct iovec *iov, uint32_t iov_count, const rv_place *places,
                           uint32_t placed_count, int fd, int64_t position, int sync) {
    memset(group, 0, sizeof *group);
    group->iov = iov;
    group->iov_count = iov_count;
    group->places = places;
    group->placed_count = placed_count;
    group->fd = fd;
    group->sync = sync;
    group->position = position;
    group->start_us = rv_now_us();
}

static void rv_group_advance(rv_group *group, size_t count) {
    group->position += (int64_t)count;
    group->written_bytes += (int64_t)count;
    while (count) {
        struct iovec *front = &group->iov[group->iov_at];
        if (count < front->iov_len) {
            front->iov_base = (char *)front->iov_base + count;
            front->iov_len -= count;
            return;
        }
        count -= front->iov_len;
        group->iov_at++;
    }
}

static void rv_group_fail(rv_group *group, int error, int in_sync) {
    group->error = error;
    group->failed_sync = in_sync;
}

static inline uint32_t rv_min(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* A kernel that takes nothing of something would keep us in a loop for ever. */
static inline int rv_write_error(ssize_t result) { return result == 0 ? EIO : errno; }

static int rv_group_placed(const rv_group *group) { return __atomic_load_n(&group->placed, __ATOMIC_ACQUIRE); }

static void rv_group_write_each(rv_group *group) {
    for (; group->iov_at < group->placed_count; group->iov_at++) {
        const rv_place *place = &group->places[group->iov_at];
        const char *data = group->iov[group->iov_at].iov_base;
        size_t length = group->iov[group->iov_at].iov_len, done = 0;
        while (done < length) {
            ssize_t result = pwrite(place->fd, data + done, length - done, place->position + (int64_t)done);
            if (result > 0) {
                done += (size_t)result;
            } else if (result == 0 || errno != EINTR) {
                rv_group_fail(group, rv_write_error(result), 0);
                break;
            }
        }
        if (group->error) break;
        group->written_bytes += (int64_t)length;
    }
    __atomic_store_n(&group->placed, 1, __ATOMIC_RELEASE);
}

static void rv_group_perform(rv_group *group) {
    if (!rv_group_placed(group)) rv_group_write_each(group);
    while (!group->error && group->iov_at < group->iov_count) {
        int count = (int)rv_min(group->iov_count - group->iov_at, RV_IOV_MAX);
        ssize_t result = pwritev(group->fd, group->iov + group->iov_at, count, group->position);
        if (result > 0) {
            rv_group_advance(group, (size_t)result);
        } else if (result == 0 || errno != EINTR) {
            rv_group_fail(group, rv_write_error(result), 0);
            break;
        }
    }
    if (!group->error && group->sync) {
        int result;
        do {
            result = fdatasync(group->fd);
        } while (result < 0 && errno == EINTR);
        if (result < 0) rv_group_fail(group, errno, 1);
    }
    group->elapsed_us = rv_now_us() - group->start_us;
}

static int rv_event_open(void) { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); }

static void rv_event_ring(int event_fd) {
    uint64_t one = 1;
    while (write(event_fd, &one, sizeof one) < 0 && errno == EINTR) {
    }
}

/* Whether it had been rung. Outcomes are claimed by this alone: a signal that comes after its outcome was seen
 * elsewhere would stay, and a level-triggered loop would spin on it. */
static int rv_event_clear(int event_fd) {
    uint64_t count;
    ssize_t result;
    do {
        result = read(event_fd, &count, sizeof count);
    } while (result < 0 && errno == EINTR);
    return result == (ssize_t)sizeof count;
}

/* The worker: one thread, one group at a time. */

typedef struct {
    pthread_t thread;
    pthread_mutex_t guard;
    pthread_cond_t wake;
    int has_group; /* guarded; set by submit, cleared by the worker when it takes the group */
    int stopping;  /* guarded */
    int event_fd;
    rv_group group; /* the worker's from submit until the event rings, the caller's otherwise */
} rv_worker;

/* Ask for short slices: the worker computes for microseconds and then waits, and a scheduler that knows (Linux
 * 6.12) lets it in sooner beside a busy event loop, where it otherwise may wait for a tick of 4 ms. Where
 * no processor is idle this shortens the slowest hundredth of the groups in most runs, without ending it. */
static void rv_worker_hurry(void) {
#if defined(__NR_sched_getattr) && defined(__NR_sched_setattr)
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime_ns, deadline_ns, period_ns;
    } attributes;
    memset(&attributes, 0, sizeof attributes);
    if (syscall(__NR_sched_getattr, 0, &attributes, sizeof attributes, 0) < 0) return;
    if (attributes.policy != SCHED_OTHER) return; /* somebody has chosen already */
    attributes.size = sizeof attributes;
    attributes.runtime_ns = 100000;
    (void)syscall(__NR_sched_setattr, 0, &attributes, 0); /* a refusal changes nothing */
#endif
}

static void *rv_worker_main(void *argument) {
    rv_worker *worker = argument;
    rv_worker_hurry();
    pthread_mutex_lock(&worker->guard);
    for (;;) {
        while (!worker->has_group && !worker->stopping) pthread_cond_wait(&worker->wake, &worker->guard);
        if (!worker->has_group) break; /* a group that was handed in is finished before stopping */
        worker->has_group = 0;
        pthread_mutex_unlock(&worker->guard);
        rv_group_perform(&worker->group);
        rv_event_ring(worker->event_fd);
        pthread_mutex_lock(&worker->guard);
    }
    pthread_mutex_unlock(&worker->guard);
    return NULL;
}

static int rv_worker_start(rv_worker *worker, int event_fd) {
    sigset_t all, before;
    int error;
    memset(worker, 0, sizeof *worker);
    worker->event_fd = event_fd;
    pthread_mutex_init(&worker->guard, NULL);
    pthread_cond_init(&worker->wake, NULL);
    sigfillset(&all); /* signals belong to the threads of the interpreter */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&worker->thread, NULL, rv_worker_main, worker);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

static void rv_worker_submit(rv_worker *worker) {
    pthread_mutex_lock(&worker->guard);
    worker->has_group = 1;
    pthread_mutex_unlock(&worker->guard);
    pthread_cond_signal(&worker->wake); /* after the unlock, so that the worker does not wake into a held lock */
}

/* Take the group back if the worker has not begun with it; whoever does so performs it. */
static int rv_worker_take_back(rv_worker *worker) {
    int had_group;
    pthread_mutex_lock(&worker->guard);
    had_group = worker->has_group;
    worker->has_group = 0;
    pthread_mutex_unlock(&worker->guard);
    return had_group;
}

/* Wait until the first vectors are written each to its place: by the caller, if the worker has not begun. */
static void rv_worker_wait_placed(rv_worker *worker) {
    static const struct timespec moment = {0, 20000};
    if (rv_group_placed(&worker->group)) return;
    if (rv_worker_take_back(worker)) {
        rv_group_write_each(&worker->group);
        rv_worker_submit(worker);
    }
    while (!rv_group_placed(&worker->group)) nanosleep(&moment, NULL);
}

static void rv_worker_stop(rv_worker *worker) {
    pthread_mutex_lock(&worker->guard);
    worker->stopping = 1;
    pthread_mutex_unlock(&worker->guard);
    pthread_cond_signal(&worker->wake);
    pthread_join(worker->thread, NULL);
    pthread_mutex_destroy(&worker->guard);
    pthread_cond_destroy(&worker->wake);
}

/* The ring: the two queues that an io_uring shares with the kernel. One thread at a time may use it. */

enum { RV_READ = 0, RV_WRITE = 1, RV_SYNC = 2, RV_WRITEV = 3, RV_NOTHING = 4 };

#define RV_LINK 1u  /* the next one starts after this one went well, and is cancelled otherwise */
#define RV_QUIET 2u /* no answer if it went well; if not, none for those that were linked to it */
#define RV_ASYNC 4u /* not even tried on the caller's thread */

typedef struct {
    int fd;
    uint32_t depth;
    uint32_t tail; /* of the submissions, also those the kernel has not been told of */
    uint32_t *sq_head, *sq_tail, *cq_head, *cq_tail;
    uint32_t sq_mask, cq_mask;
    void *sqes;
    void *cqes;
    void *map;
    size_t map_bytes, sqes_bytes;
} rv_ring;

typedef struct {
    uint64_t tag;
    int32_t result;
} rv_answer;

#if RV_HAVE_URING

#ifndef IORING_FEAT_CQE_SKIP
#define IORING_FEAT_CQE_SKIP (1U << 11)
#endif
#define RV_SQE_QUIET (1U << 6) /* IOSQE_CQE_SKIP_SUCCESS, which older headers lack */
#define RV_REGISTER_WORKERS_MAX 19 /* IORING_REGISTER_IOWQ_MAX_WORKERS, likewise */

static void rv_ring_close(rv_ring *ring) {
    if (ring->sqes) munmap(ring->sqes, ring->sqes_bytes);
    if (ring->map) munmap(ring->map, ring->map_bytes);
    if (ring->fd >= 0) close(ring->fd);
    memset(ring, 0, sizeof *ring);
    ring->fd = -1;
}

static void *rv_ring_map(int fd, size_t bytes, uint64_t what) {
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, (off_t)what);
    return map == MAP_FAILED ? NULL : map;
}

static int rv_ring_map_queues(rv_ring *ring, const struct io_uring_params *params) {
    size_t sq_bytes = params->sq_off.array + params->sq_entries * sizeof(uint32_t);
    size_t cq_bytes = params->cq_off.cqes + params->cq_entries * sizeof(struct io_uring_cqe);
    char *map;
    uint32_t i;
    ring->map_bytes = sq_bytes > cq_bytes ? sq_bytes : cq_bytes;
    ring->map = rv_ring_map(ring->fd, ring->map_bytes, IORING_OFF_SQ_RING);
    if (!ring->map) return errno;
    ring->sqes_bytes = params->sq_entries * sizeof(struct io_uring_sqe);
    ring->sqes = rv_ring_map(ring->fd, ring->sqes_bytes, IORING_OFF_SQES);
    if (!ring->sqes) return errno;
    map = ring->map;
    ring->depth = params->sq_entries;
    ring->sq_head = (uint32_t *)(map + params->sq_off.head);
    ring->sq_tail = (uint32_t *)(map + params->sq_off.tail);
    ring->sq_mask = *(uint32_t *)(map + params->sq_off.ring_mask);
    ring->cq_head = (uint32_t *)(map + params->cq_off.head);
    ring->cq_tail = (uint32_t *)(map + params->cq_off.tail);
    ring->cq_mask = *(uint32_t *)(map + params->cq_off.ring_mask);
    ring->cqes = map + params->cq_off.cqes;
    /* Entry i of the submissions is always slot i, so the indirection is filled once. */
    for (i = 0; i < params->sq_entries; i++) ((uint32_t *)(map + params->sq_off.array))[i] = i;
    return 0;
}

/* `event_fd` is rung at every answer; -1 for none. `workers` bounds how many calls block in the kernel at a time;
 * 0 leaves the kernel's own bound of four to a processor. */
static int rv_ring_open(rv_ring *ring, uint32_t depth, int event_fd, uint32_t workers) {
    struct io_uring_params params;
    uint32_t wanted = IORING_FEAT_SINGLE_MMAP | IORING_FEAT_NODROP | IORING_FEAT_CQE_SKIP;
    int error;
    memset(ring, 0, sizeof *ring);
    memset(&params, 0, sizeof params);
    ring->fd = (int)syscall(__NR_io_uring_setup, depth, &params);
    if (ring->fd < 0) return errno;
    /* Linux 5.17 has them all; an older kernel is served by the other committers. */
    error = (params.features & wanted) == wanted ? rv_ring_map_queues(ring, &params) : ENOSYS;
    if (!error && event_fd >= 0 &&
        syscall(__NR_io_uring_register, ring->fd, IORING_REGISTER_EVENTFD, &event_fd, 1) < 0)
        error = errno;
    if (!error && workers) {
        uint32_t bounds[2] = {workers, 0};
        /* If the kernel refuses, its own bound does too. */
        (void)syscall(__NR_io_uring_register, ring->fd, RV_REGISTER_WORKERS_MAX, bounds, 2);
    }
    if (error) rv_ring_close(ring);
    return error;
}

static void rv_ring_queue(rv_ring *ring, int kind, int fd, void *data, uint32_t length, int64_t position,
                          uint32_t flags, uint64_t tag) {
    static const uint8_t opcodes[] = {IORING_OP_READ, IORING_OP_WRITE, IORING_OP_FSYNC, IORING_OP_WRITEV,
                                      IORING_OP_NOP};
    struct io_uring_sqe *sqe = (struct io_uring_sqe *)ring->sqes + (ring->tail & ring->sq_mask);
    memset(sqe, 0, sizeof *sqe);
    sqe->opcode = opcodes[kind];
    sqe->fd = fd;
    if (kind == RV_SYNC) sqe->fsync_flags = IORING_FSYNC_DATASYNC;
    if (kind != RV_SYNC && kind != RV_NOTHING) {
        sqe->addr = (uint64_t)(uintptr_t)data;
        sqe->len = length;
        sqe->off = (uint64_t)position;
    }
    if (flags & RV_LINK) sqe->flags |= IOSQE_IO_LINK;
    if (flags & RV_ASYNC) sqe->flags |= IOSQE_ASYNC;
    if (flags & RV_QUIET) sqe->flags |= RV_SQE_QUIET;
    sqe->user_data = tag;
    ring->tail++;
    __atomic_store_n(ring->sq_tail, ring->tail, __ATOMIC_RELEASE);
}

static uint32_t rv_ring_unsubmitted(rv_ring *ring) {
    return ring->tail - __atomic_load_n(ring->sq_head, __ATOMIC_ACQUIRE);
}

/* Tell the kernel what is queued, and wait until `wanted` answers are there (or fewer, after a signal). */
static int rv_ring_enter(rv_ring *ring, uint32_t wanted) {
    uint32_t flags = wanted ? IORING_ENTER_GETEVENTS : 0;
    return syscall(__NR_io_uring_enter, ring->fd, rv_ring_unsubmitted(ring), wanted, flags, NULL, 0) < 0 ? errno
                                                                                                        : 0;
}

/* Take back the newest submission that the kernel has not seen. Its tag, so that somebody can be told. */
static uint64_t rv_ring_withdraw(rv_ring *ring) {
    ring->tail--;
    __atomic_store_n(ring->sq_tail, ring->tail, __ATOMIC_RELEASE);
    return ((struct io_uring_sqe *)ring->sqes + (ring->tail & ring->sq_mask))->user_data;
}

static int rv_ring_take(rv_ring *ring, rv_answer *answer) {
    uint32_t head = *ring->cq_head;
    struct io_uring_cqe *cqe;
    if (head == __atomic_load_n(ring->cq_tail, __ATOMIC_ACQUIRE)) return 0;
    cqe = (struct io_uring_cqe *)ring->cqes + (head & ring->cq_mask);
    answer->tag = cqe->user_data;
    answer->result = cqe->res;
    __atomic_store_n(ring->cq_head, head + 1, __ATOMIC_RELEASE);
    return 1;
}

#else /* no io_uring to build against: opening says so, and the rest is never reached */

static void rv_ring_close(rv_ring *ring) { ring->fd = -1; }
static int rv_ring_open(rv_ring *ring, uint32_t depth, int event_fd, uint32_t workers) {
    (void)depth, (void)event_fd, (void)workers;
    memset(ring, 0, sizeof *ring);
    ring->fd = -1;
    return ENOSYS;
}
static void rv_ring_queue(rv_ring *ring, int kind, int fd, void *data, uint32_t length, int64_t position,
                          uint32_t flags, uint64_t tag) {
    (void)ring, (void)kind, (void)fd, (void)data, (void)length, (void)position, (void)flags, (void)tag;
}
static uint32_t rv_ring_unsubmitted(rv_ring *ring) { return (void)ring, 0; }
static int rv_ring_enter(rv_ring *ring, uint32_t wanted) { return (void)ring, (void)wanted, ENOSYS; }
static uint64_t rv_ring_withdraw(rv_ring *ring) { return (void)ring, 0; }
static int rv_ring_take(rv_ring *ring, rv_answer *answer) { return (void)ring, (void)answer, 0; }

#endif

/* Out of memory for a moment, or a signal came: neither says anything about the operation. */
static inline int rv_passing(int error) { return error == EINTR || error == EAGAIN || error == EBUSY; }

#define RV_PATIENCE 1000 /* how often a passing refusal to submit is borne in a row before it is an error */

static int rv_ring_submit(rv_ring *ring) {
    int tries = 0;
    while (rv_ring_unsubmitted(ring)) {
        int error = rv_ring_enter(ring, 0);
        if (error && (!rv_passing(error) || ++tries > RV_PATIENCE)) return error;
        if (error) sched_yield();
    }
    return 0;
}

/* A group through a ring: rounds of linked writes, the last of them with the sync behind it. All but the last of
 * a chain are quiet, so that exactly one answer comes of every round, and the event rings once. */

#define RV_CHAIN_WRITES 15u /* writes to a round; a ring of 16 has room for the sync behind them */
#define RV_TAG_SYNC 1000u
#define RV_TAG_NOTHING 1001u

static int rv_chain_next(rv_ring *ring, rv_group *group) {
    uint32_t left = group->iov_count - group->iov_at;
    uint32_t writes = rv_min((left + RV_IOV_MAX - 1) / RV_IOV_MAX, RV_CHAIN_WRITES);
    int last_round = left <= writes * RV_IOV_MAX;
    int with_sync = last_round && group->sync;
    int64_t position = group->position;
    uint32_t at = group->iov_at, i, k;
    int error;
    for (i = 0; i < writes; i++) {
        uint32_t count = rv_min(group->iov_count - at, RV_IOV_MAX);
        uint32_t flags = i + 1 < writes || with_sync ? RV_LINK | RV_QUIET : 0;
        /* Copying a large group into the cache is work for the kernel's thread, not for the caller's. */
        rv_ring_queue(ring, RV_WRITEV, group->fd, group->iov + at, count, position, flags | RV_ASYNC, i);
        for (k = 0; k < count; k++) position += (int64_t)group->iov[at + k].iov_len;
        at += count;
    }
    if (with_sync) rv_ring_queue(ring, RV_SYNC, group->fd, NULL, 0, 0, 0, RV_TAG_SYNC);
    if (!writes && !with_sync) rv_ring_queue(ring, RV_NOTHING, -1, NULL, 0, 0, 0, RV_TAG_NOTHING);
    error = rv_ring_submit(ring);
    if (error)
        while (rv_ring_unsubmitted(ring)) (void)rv_ring_withdraw(ring);
    return error;
}

/* Take in the answer to a round. 1 if the group is done with, 0 if the next round is under way. */
static int rv_chain_settle(rv_ring *ring, rv_group *group, const rv_answer *answer) {
    int in_sync = answer->tag == RV_TAG_SYNC;
    uint32_t before = answer->tag < RV_CHAIN_WRITES ? (uint32_t)answer->tag : 0, k;
    size_t whole_bytes = 0;
    int error = 0, done = 0;
    if (in_sync) before = (group->iov_count - group->iov_at + RV_IOV_MAX - 1) / RV_IOV_MAX;
    /* That it was this one's turn says that all before it in the chain went well. */
    for (k = 0; k < rv_min(before * RV_IOV_MAX, group->iov_count - group->iov_at); k++)
        whole_bytes += group->iov[group->iov_at + k].iov_len;
    rv_group_advance(group, whole_bytes);
    if (answer->result < 0) {
        error = rv_passing(-answer->result) ? 0 : -answer->result;
    } else if (answer->tag < RV_CHAIN_WRITES) {
        if (answer->result == 0) error = EIO;
        rv_group_advance(group, (size_t)answer->result);
        done = group->iov_at == group->iov_count && !group->sync;
    } else {
        done = 1;
    }
    if (!error && !done) {
        error = rv_chain_next(ring, group);
        in_sync = 0;
    }
    if (error) rv_group_fail(group, error, in_sync);
    if (error || done) group->elapsed_us = rv_now_us() - group->start_us;
    return error || done;
}

/* Many operations through a ring, as many at a time as it is deep. */

typedef struct {
    int kind;
    int fd;
    char *data;
    uint64_t length;
    int64_t position;
    uint64_t done;
    int error;
} rv_operation;

#define RV_CALL_BYTES_MAX (1u << 30)

static void rv_operation_queue(rv_ring *ring, rv_operation *operation, uint64_t tag) {
    uint64_t left = operation->length - operation->done;
    uint32_t length = left < RV_CALL_BYTES_MAX ? (uint32_t)left : RV_CALL_BYTES_MAX;
    rv_ring_queue(ring, operation->kind, operation->fd, operation->data + operation->done, length,
                  operation->position + (int64_t)operation->done, 0, tag);
}

/* 1 if the operation is done with, 0 if it has to be queued again for the rest. */
static int rv_operation_settle(rv_operation *operation, int32_t result) {
    if (result < 0) {
        operation->error = rv_passing(-result) ? 0 : -result;
        return operation->error != 0;
    }
    if (operation->kind == RV_SYNC) return 1;
    operation->done += (uint64_t)result;
    if (operation->done == operation->length) return 1;
    if (result == 0 && operation->kind == RV_WRITE) operation->error = EIO;
    return result == 0; /* a read ends where the file does */
}

/* Returns only when nothing is in flight any more, whatever happens: the memory is the caller's again. */
static void rv_ring_run(rv_ring *ring, rv_operation *operations, uint32_t count) {
    uint32_t next = 0, in_flight = 0;
    int tries = 0;
    while (next < count || in_flight) {
        rv_answer answer;
        uint32_t wanted;
        int error;
        for (; next < count && in_flight < ring->depth; next++) {
            if (operations[next].kind != RV_SYNC && operations[next].length == 0) continue;
            rv_operation_queue(ring, &operations[next], next);
            in_flight++;
        }
        if (!in_flight) break;
        /* Waking for each answer would cost more than the answers; half a ring keeps the kernel busy. */
        wanted = next < count ? (in_flight + 1) / 2 : in_flight;
        error = rv_ring_enter(ring, wanted);
        tries = error && error != EINTR ? tries + 1 : 0;
        if (error && (!rv_passing(error) || tries > RV_PATIENCE)) {
            while (rv_ring_unsubmitted(ring)) {
                operations[rv_ring_withdraw(ring)].error = error;
                in_flight--;
            }
        }
        if (error) sched_yield();
        while (rv_ring_take(ring, &answer)) {
            if (rv_operation_settle(&operations[answer.tag], answer.result))
                in_flight--;
            else
                rv_operation_queue(ring, &operations[answer.tag], answer.tag);
        }
    }
}

#endif
