/*
 * A module whose work at the end of a subtransaction fails, as that of a foreign data wrapper does whose server is gone.
 *
 * The trigger function faulty_end() makes the next end of a subtransaction fail. Its argument says which end: "release", or
 * "rollback", for which it raises an error itself.
 */
#include "postgres.h"

#include "access/xact.h"
#include "commands/trigger.h"
#include "fmgr.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(faulty_end);

PGDLLEXPORT void _PG_init(void);

/* whether the next end of that kind fails */
static bool release_fails = false;
static bool rollback_fails = false;

static void
at_end(SubXactEvent event, SubTransactionId mySubid, SubTransactionId parentSubid, void *arg)
{
	if (event == SUBXACT_EVENT_PRE_COMMIT_SUB && release_fails)
	{
		release_fails = false;
		elog(ERROR, "the release fails");
	}
	if (event == SUBXACT_EVENT_ABORT_SUB && rollback_fails)
	{
		rollback_fails = false;
		elog(ERROR, "the rollback fails");
	}
}

void
_PG_init(void)
{
	RegisterSubXactCallback(at_end, NULL);
}

Datum
faulty_end(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;

	if (strcmp(trigger->tg_trigger->tgargs[0], "release") == 0)
		release_fails = true;
	else
	{
		rollback_fails = true;
		elog(ERROR, "to be rolled back");
	}
	return PointerGetDatum(trigger->tg_trigtuple);
}
