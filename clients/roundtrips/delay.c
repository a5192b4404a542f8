/*
 * delay: a TCP proxy that delivers everything a fixed time later, in each direction.
 *
 *     delay --listen PORT --upstream ADDRESS --delay-us MICROSECONDS
 *
 * It stands for the network between an application and a database on two hosts: a round trip takes twice the delay
 * longer. ADDRESS is host:port (a numeric IPv4 address) or the path of a Unix socket. Port 0 takes a free port. When it
 * is ready, it prints one line of JSON: {"port": ...}.
 *
 * Each connection has one thread. A chunk is read as soon as it arrives, gets the time at which it is due, and waits in
 * the queue of its direction. The delay does not limit the rate: many chunks may be under way at once.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { CHUNK_SIZE = 65536, QUEUED_MAX = 16 * CHUNK_SIZE };

struct chunk {
    struct chunk *next;
    int64_t due_ns;
    size_t size, written;
    char data[];
};

/* One direction of a connection. Reading stops at the end of the input and while QUEUED_MAX bytes wait. */
struct direction {
    int from, to;
    struct chunk *first, *last;
    size_t queued;
    bool ended, closed;
};

static int64_t delay_ns;
static union {
    struct sockaddr any;
    struct sockaddr_in inet;
    struct sockaddr_un local;
} upstream;
static socklen_t upstream_size;

static int64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

static void die(const char *what)
{
    perror(what);
    exit(1);
}

/* Reads what has arrived. Returns false if the connection is broken. */
static bool read_chunk(struct direction *way)
{
    static __thread char buffer[CHUNK_SIZE];
    ssize_t size = recv(way->from, buffer, sizeof buffer, MSG_DONTWAIT);
    if (size < 0)
        return errno == EAGAIN || errno == EINTR;
    /* The end of the input takes as long as the bytes before it. */
    struct chunk *chunk = malloc(sizeof *chunk + size);
    if (chunk == NULL)
        die("malloc");
    *chunk = (struct chunk){.due_ns = now_ns() + delay_ns, .size = size};
    memcpy(chunk->data, buffer, size);
    if (way->last == NULL)
        way->first = chunk;
    else
        way->last->next = chunk;
    way->last = chunk;
    way->queued += size;
    way->ended = size == 0;
    return true;
}

/* Writes what is due, as far as the receiver takes it. Returns false if the connection is broken. */
static bool write_due(struct direction *way)
{
    while (way->first != NULL && way->first->due_ns <= now_ns()) {
        struct chunk *chunk = way->first;
        if (chunk->size == 0) {
            shutdown(way->to, SHUT_WR);
            way->closed = true;
        } else {
            ssize_t size =
                send(way->to, chunk->data + chunk->written, chunk->size - chunk->written, MSG_DONTWAIT | MSG_NOSIGNAL);
            if (size < 0)
                return errno == EAGAIN || errno == EINTR;
            chunk->written += size;
            way->queued -= size;
            if (chunk->written < chunk->size)
                continue;
        }
        way->first = chunk->next;
        if (way->first == NULL)
            way->last = NULL;
        free(chunk);
    }
    return true;
}

/* Forwards both directions until both have ended, or one side has broken the connection. */
static void forward(struct direction ways[2])
{
    while (!ways[0].closed || !ways[1].closed) {
        struct pollfd polled[2] = {{.fd = ways[0].from}, {.fd = ways[1].from}};
        int64_t next_ns = INT64_MAX, now = now_ns();
        for (int i = 0; i < 2; i++) {
            struct direction *way = &ways[i];
            if (!way->ended && way->queued < QUEUED_MAX)
                polled[i].events |= POLLIN;
            if (way->first == NULL)
                continue;
            /* What is due already waits for its receiver, which is the other direction's sender. */
            if (way->first->due_ns <= now)
                polled[1 - i].events |= POLLOUT;
            else if (way->first->due_ns < next_ns)
                next_ns = way->first->due_ns;
        }
        for (int i = 0; i < 2; i++)
            if (polled[i].events == 0)
                polled[i].fd = -1;
        int64_t left = next_ns - now;
        struct timespec timeout = {.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000};
        if (ppoll(polled, 2, next_ns == INT64_MAX ? NULL : &timeout, NULL) < 0 && errno != EINTR)
            return;
        for (int i = 0; i < 2; i++) {
            if (polled[i].revents & (POLLIN | POLLHUP | POLLERR) && polled[i].events & POLLIN && !read_chunk(&ways[i]))
                return;
            if (!write_due(&ways[i]))
                return;
        }
    }
}

static void *serve(void *given)
{
    int client = (int)(intptr_t)given, one = 1;
    /* The kernel may otherwise round a wait up by 50 us. */
    prctl(PR_SET_TIMERSLACK, 1);
    int server = socket(upstream.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (server >= 0 && connect(server, &upstream.any, upstream_size) == 0) {
        setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (upstream.any.sa_family == AF_INET)
            setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        struct direction ways[2] = {{.from = client, .to = server}, {.from = server, .to = client}};
        forward(ways);
        for (int i = 0; i < 2; i++)
            for (struct chunk *chunk = ways[i].first, *next; chunk != NULL; chunk = next) {
                next = chunk->next;
                free(chunk);
            }
    }
    if (server >= 0)
        close(server);
    close(client);
    return NULL;
}

static bool parse_upstream(const char *address)
{
    if (address[0] == '/') {
        upstream.local.sun_family = AF_UNIX;
        upstream_size = sizeof upstream.local;
        if (strlen(address) >= sizeof upstream.local.sun_path)
            return false;
        strcpy(upstream.local.sun_path, address);
        return true;
    }
    const char *colon = strrchr(address, ':');
    char host[INET_ADDRSTRLEN] = "";
    if (colon == NULL || colon - address >= (int)sizeof host)
        return false;
    memcpy(host, address, colon - address);
    upstream.inet.sin_family = AF_INET;
    upstream.inet.sin_port = htons(atoi(colon + 1));
    upstream_size = sizeof upstream.inet;
    return inet_pton(AF_INET, host, &upstream.inet.sin_addr) == 1;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"listen", required_argument, NULL, 'l'},
        {"upstream", required_argument, NULL, 'u'},
        {"delay-us", required_argument, NULL, 'd'},
        {0},
    };
    int port = -1, one = 1;
    bool valid = true;
    delay_ns = -1;
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (option == 'l')
            port = atoi(optarg);
        else if (option == 'u')
            valid = valid && parse_upstream(optarg);
        else if (option == 'd')
            delay_ns = atoll(optarg) * 1000;
        else
            valid = false;
    }
    if (!valid || port < 0 || upstream_size == 0 || delay_ns < 0) {
        fprintf(stderr, "usage: delay --listen PORT --upstream ADDRESS:PORT|SOCKET --delay-us MICROSECONDS\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    struct sockaddr_in local = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof local;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&local, sizeof local) != 0 || listen(listener, 128) != 0)
        die("bind");
    getsockname(listener, (struct sockaddr *)&local, &size);
    printf("{\"port\": %d}\n", ntohs(local.sin_port));
    fflush(stdout);
    pthread_attr_t detached;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    for (;;) {
        pthread_t thread;
        int client = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (client >= 0 && pthread_create(&thread, &detached, serve, (void *)(intptr_t)client) != 0)
            close(client);
    }
}
