/*
 * A module that lets a commit be seen for a while before its messages are sent: just after a transaction has become
 * visible, and before the server sends the messages that make other backends forget, it waits for as long as the file
 * late_messages.file exists.
 */
#include "postgres.h"

#include <unistd.h>

#include "access/xact.h"
#include "fmgr.h"
#include "utils/guc.h"

PG_MODULE_MAGIC;

PGDLLEXPORT void _PG_init(void);

static char *file_name = NULL;

static void
at_end(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_COMMIT)
		while (*file_name && access(file_name, F_OK) == 0)
			pg_usleep(1000);
}

void
_PG_init(void)
{
	DefineCustomStringVariable("late_messages.file", "The file that is waited for.", NULL,
							   &file_name, "", PGC_SUSET, 0, NULL, NULL, NULL);
	RegisterXactCallback(at_end, NULL);
}
