/*
 * A library that is preloaded into a server, and makes allocations of one of its processes fail. All processes
 * map a control file. It has the process id, the number of allocations that still succeed, and the number of
 * allocations that fail after them.
 */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

struct control
{
	int32_t		process;
	int32_t		before;
	int32_t		failures;
};

static volatile struct control *control;

__attribute__((constructor)) static void
map_control(void)
{
	const char *path = getenv("FAILING_MALLOC");
	int			file = path ? open(path, O_RDWR) : -1;
	void	   *mapped;

	if (file < 0)
		return;
	mapped = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	close(file);
	if (mapped != MAP_FAILED)
		control = mapped;
}

static int
fails(void)
{
	int32_t		left;

	if (!control || !control->process || control->process != getpid())
		return 0;
	left = --control->before;
	if (left >= 0 || left < -control->failures)
		return 0;
	errno = ENOMEM;
	return 1;
}

void *
malloc(size_t size)
{
	return fails() ? NULL : __libc_malloc(size);
}

void *
calloc(size_t count, size_t size)
{
	return fails() ? NULL : __libc_calloc(count, size);
}

void *
realloc(void *memory, size_t size)
{
	return fails() ? NULL : __libc_realloc(memory, size);
}

int
posix_memalign(void **memory, size_t align, size_t size)
{
	if (fails())
		return ENOMEM;
	*memory = __libc_memalign(align, size);
	return *memory ? 0 : ENOMEM;
}
