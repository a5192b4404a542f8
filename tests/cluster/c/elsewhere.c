/*
 * A module that keeps effects outside of the server, in a file, as a commit coordinator keeps them on other servers.
 * elsewhere(what) is an effect of the transaction. It is committed there just before the commit here:
 *
 *     committed WHAT
 *
 * With -DTWO_PHASES the module exports the function by which Citus is asked for a two-phase commit. In a transaction
 * that asks, the effect is prepared just before the commit here, and committed after it:
 *
 *     prepared XID WHAT
 *     committed WHAT
 *
 * After a crash, an effect that is only prepared counts if transaction XID was committed here.
 *
 * The setting elsewhere.dies names the moment at which the process is killed: "before" anything is written there,
 * "between" the (first) commit there and the commit here, "after" the commit here, or "done" when all is written.
 */
#include "postgres.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "access/xact.h"
#include "access/xlog.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(elsewhere);

PGDLLEXPORT void _PG_init(void);

/* the effect of this transaction, if it has one */
static char *effect = NULL;
static bool is_asked = false;
static bool is_prepared = false;

static char *file_name = NULL;
static char *dies = NULL;

#ifdef TWO_PHASES
PGDLLEXPORT void Use2PCForCoordinatedTransaction(void);

void
Use2PCForCoordinatedTransaction(void)
{
	is_asked = true;
}
#endif

static void
die_if(const char *moment)
{
	if (strcmp(dies, moment) == 0)
		kill(getpid(), SIGKILL);
}

static void
write_line(const char *line)
{
	int			file = open(file_name, O_WRONLY | O_APPEND);

	if (file < 0 || write(file, line, strlen(line)) != strlen(line))
		elog(PANIC, "could not write \"%s\": %m", file_name);
	close(file);
}

static void
at_end(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			if (!effect)
				break;
			die_if("before");
			if (is_asked)
			{
				/* the server would give the number of a transaction that left no trace to another one */
				XLogFlush(XactLastRecEnd);
				write_line(psprintf("prepared " UINT64_FORMAT " %s\n",
									U64FromFullTransactionId(GetTopFullTransactionId()), effect));
			}
			else
				write_line(psprintf("committed %s\n", effect));
			is_prepared = is_asked;
			die_if("between");
			break;
		case XACT_EVENT_COMMIT:
			if (effect)
			{
				die_if("after");
				if (is_prepared)
					write_line(psprintf("committed %s\n", effect));
				die_if("done");
			}
			/* FALLTHROUGH */
		case XACT_EVENT_ABORT:
			effect = NULL;
			is_asked = is_prepared = false;
			break;
		default:
			break;
	}
}

void
_PG_init(void)
{
	DefineCustomStringVariable("elsewhere.file", "The file that has the effects.", NULL,
							   &file_name, "", PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomStringVariable("elsewhere.dies", "When the process is killed.", NULL,
							   &dies, "", PGC_SUSET, 0, NULL, NULL, NULL);
	RegisterXactCallback(at_end, NULL);
}

Datum
elsewhere(PG_FUNCTION_ARGS)
{
	effect = MemoryContextStrdup(TopTransactionContext, text_to_cstring(PG_GETARG_TEXT_PP(0)));
	PG_RETURN_VOID();
}
