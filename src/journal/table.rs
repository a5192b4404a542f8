//! Which table is a journal, and what it must look like.

use super::statement::Act;
use crate::error::Error;
use crate::model::StandingSession;
use crate::pg::{self, OncePlanned, Own, Statement};
use crate::store::sql;
use pgrx::datum::{self, DatumWithOid, FromDatum, IntoDatum};
use pgrx::pg_sys::{self, BuiltinOid};
use pgrx::spi::Spi;
use std::cell::OnceCell;
use std::collections::HashMap;
use std::rc::Rc;
use uuid::Uuid;

/// A table that is a journal.
pub struct Journal {
    /// Its name, qualified and quoted as SQL needs it.
    pub name: String,
    /// The column that tells the tenant, quoted as SQL needs it.
    pub tenant: String,
    /// The type of that column.
    pub tenant_type: BuiltinOid,
    /// The table itself.
    pub oid: pg_sys::Oid,
    /// Its owner.
    pub owner: pg_sys::Oid,
    /// Whether its rows are in this database. Otherwise Citus keeps them, on other servers perhaps.
    pub is_local: bool,
    /// Its partitions, in the order of their numbers.
    partitions: Vec<pg_sys::Oid>,
    /// The statements on it that this backend has prepared.
    statements: [OnceCell<Statement>; Act::COUNT],
}

impl Journal {
    /// The rows of the journal, as a statement names them that reads or changes them. If somebody makes a table that inherits
    /// from the journal while a statement is planned, its rows are none of the journal's.
    pub fn rows(&self) -> String {
        let only = if self.is_local && self.partitions.is_empty() { "ONLY " } else { "" };
        format!("{only}{}", self.name)
    }

    /// The one text of the tenant that a text names.
    pub fn tenant_text(&self, session: &str, text: &str) -> Result<String, Error> {
        match self.tenant_type {
            BuiltinOid::INT2OID => text.parse::<i16>().ok().map(|number| number.to_string()),
            BuiltinOid::INT4OID => text.parse::<i32>().ok().map(|number| number.to_string()),
            BuiltinOid::INT8OID => text.parse::<i64>().ok().map(|number| number.to_string()),
            BuiltinOid::UUIDOID => Uuid::try_parse(text).ok().map(|uuid| uuid.to_string()),
            _ => Some(text.to_owned()),
        }
        .ok_or_else(|| {
            let sql_type = TENANT_TYPES.iter().find(|(of, _)| *of == self.tenant_type).map_or("", |(_, name)| *name);
            let found = match text {
                "" => "none".to_owned(),
                text => format!("\"{}\"", text.chars().take(64).collect::<String>()),
            };
            Error::Invalid {
                message: format!("argument \"stream\" names no tenant of session \"{session}\""),
                detail: format!(
                    "Found {found}; column {} of journal {} is of type {sql_type}.",
                    self.tenant, self.name
                ),
                hint: "Give the tenant of the request as stream, in each call on it.",
            }
        })
    }

    /// The one text of the number or the UUID that a text stands for, where tenants are numbers or UUIDs.
    pub fn other_tenant_text(text: &str) -> Option<String> {
        let number = || text.parse().ok().map(|number: i64| number.to_string());
        Uuid::try_parse(text).ok().map(|uuid| uuid.to_string()).or_else(number)
    }

    /// The value that a tenant's one text stands for, of the type of the journal's column.
    pub fn tenant_datum(&self, text: &str) -> Option<pg_sys::Datum> {
        match self.tenant_type {
            BuiltinOid::INT2OID | BuiltinOid::INT4OID | BuiltinOid::INT8OID => text.parse::<i64>().ok()?.into_datum(),
            BuiltinOid::UUIDOID => datum::Uuid::from_bytes(Uuid::try_parse(text).ok()?.into_bytes()).into_datum(),
            _ => Some(pg::text(text)),
        }
    }

    /// Refuses a session whose owner does not have the privileges of the journal's owner.
    pub fn check_owner(&self, session: &StandingSession) -> Result<(), Error> {
        match pg::has_privileges(session.owner, self.owner) {
            true => Ok(()),
            false => Err(Error::NotYourJournal { journal: self.name.clone(), session: session.name.clone() }),
        }
    }

    /// A statement on the journal with parameters of these types, prepared once.
    pub fn statement(&self, act: Act, types: &[pg_sys::Oid]) -> &Statement {
        let text = || act.text(&self.name, &self.rows(), &self.tenant, self.is_local);
        self.statements[act as usize].get_or_init(|| Statement::prepare(&text(), types))
    }
}

/// The columns besides that of the tenant, in the order in which a journal is made. Those of fixed width come first. Each has
/// its name, its type as SQL names it and as PostgreSQL numbers it, and what follows the type where the table is made.
pub const COLUMNS: [(&str, &str, BuiltinOid, &str); 17] = {
    use BuiltinOid::{INT4OID, INT8OID, JSONBOID, TEXTOID, TIMESTAMPTZOID, UUIDOID};
    [
        ("expires_at", "timestamptz", TIMESTAMPTZOID, " NOT NULL"),
        ("recorded_at", "timestamptz", TIMESTAMPTZOID, ""),
        ("begun_at", "timestamptz", TIMESTAMPTZOID, ""),
        ("leased_until", "timestamptz", TIMESTAMPTZOID, ""),
        ("written_at", "timestamptz", TIMESTAMPTZOID, ""),
        ("token", "bigint", INT8OID, ""),
        ("fingerprint", "uuid", UUIDOID, ""),
        ("attempt", "integer", INT4OID, ""),
        ("session", "text", TEXTOID, " COLLATE pg_catalog.\"C\" NOT NULL"),
        ("request", "text", TEXTOID, " COLLATE pg_catalog.\"C\" NOT NULL"),
        ("status", "text", TEXTOID, " CHECK (status OPERATOR(pg_catalog.=) ANY ('{succeeded,failed,cancelled}'))"),
        ("recorded_by", "text", TEXTOID, ""),
        ("holder", "text", TEXTOID, ""),
        ("application", "text", TEXTOID, ""),
        ("point", "text", TEXTOID, ""),
        ("state", "jsonb", JSONBOID, ""),
        ("response", "jsonb", JSONBOID, ""),
    ]
};

/// The types that a tenant's column may have, as SQL names them. Their values have one text each, and their equality is
/// PostgreSQL's own.
pub const TENANT_TYPES: [(BuiltinOid, &str); 6] = [
    (BuiltinOid::TEXTOID, "text"),
    (BuiltinOid::VARCHAROID, "varchar"),
    (BuiltinOid::INT2OID, "smallint"),
    (BuiltinOid::INT4OID, "integer"),
    (BuiltinOid::INT8OID, "bigint"),
    (BuiltinOid::UUIDOID, "uuid"),
];

const TO_REGCLASS: &str = "SELECT pg_catalog.to_regclass($1)::pg_catalog.oid";

/// Forgets what this backend remembers of journals.
pub fn forget() {
    let found = FOUND.take();
    drop(found);
}

/// What was found, after the count of changes up to which that is true.
static FOUND: Own<(u64, HashMap<String, Rc<Journal>>)> = Own::new();

/// The journal of this name. Refuses a table that is gone or does not fit.
pub fn find(name: &str) -> Result<Rc<Journal>, Error> {
    let changes = pg::relation_changes();
    let (known, former) = FOUND.with(|(upto, journals)| {
        let former = (std::mem::replace(upto, changes) != changes).then(|| std::mem::take(journals));
        (journals.get(name).cloned(), former)
    });
    // Not dropped while it is in use: to free the plans of its statements calls into PostgreSQL.
    drop(former);
    if let Some(journal) = known {
        return Ok(journal);
    }
    let journal = Rc::new(pg::with_newest_snapshot(|| look(name))?);
    let former = FOUND.with(|(upto, journals)| {
        let lasts = *upto == pg::relation_changes();
        lasts.then(|| journals.insert(journal.name.clone(), Rc::clone(&journal)))
    });
    drop(former);
    Ok(journal)
}

/// As [`find`], for a name that a caller gives: the caller's search_path and right to the schema count, whatever this backend
/// remembers.
pub fn find_named(name: &str) -> Result<Rc<Journal>, Error> {
    first::<pg_sys::Oid>(TO_REGCLASS, &[name.into()])?;
    find(name)
}

/// Runs `work`, a statement on a journal, where the journal and its partitions are locked as the statement locks them. Refuses
/// a table that does not fit under these locks. So nobody changes what the statement executes between the look at the table
/// and the statement: a change that is not committed yet is waited for, and then seen. `lock` takes the lock on a table; it
/// gives whether it did. Gives `None` if it did not.
pub fn execute<T>(
    journal: &Rc<Journal>,
    lock: impl Fn(pg_sys::Oid) -> bool + Copy + 'static,
    work: impl FnOnce() -> T,
) -> Result<Option<T>, Error> {
    if hold(journal, lock)?.is_none() {
        return Ok(None);
    }
    let done = pg::without_users_code(&journal.name, once_planned(journal, lock), work);
    // The statement has looked the name up again. From now on the table stays as it is.
    same(journal)?;
    Ok(Some(done))
}

fn hold(journal: &Rc<Journal>, lock: impl Fn(pg_sys::Oid) -> bool) -> Result<Option<Rc<Journal>>, Error> {
    let mut held = Rc::clone(journal);
    loop {
        if !std::iter::once(&held.oid).chain(&held.partitions).all(|table| lock(*table)) {
            return Ok(None);
        }
        let now = same(&held)?;
        if now.partitions == held.partitions {
            return Ok(Some(now));
        }
        held = now;
    }
}

/// What a statement on a journal waits for once it is planned. The locks that it has then keep nobody from attaching a
/// partition, nor from giving schemas other names. So the tables that the statement uses are to be the journal's.
fn once_planned(journal: &Rc<Journal>, lock: impl Fn(pg_sys::Oid) -> bool + Copy + 'static) -> OncePlanned {
    let journal = Rc::clone(journal);
    Rc::new(move |tables| {
        let Some(held) = hold(&journal, lock).unwrap_or_else(|error| error.raise()) else { return };
        let is_its = |table: &pg_sys::Oid| *table == held.oid || held.partitions.contains(table);
        if journal.is_local && !tables.iter().all(is_its) {
            taken(&journal).raise();
        }
    })
}

/// The journal as it is now. Refuses another table that has taken its place since it was found.
fn same(journal: &Journal) -> Result<Rc<Journal>, Error> {
    let now = find(&journal.name)?;
    if (now.oid, now.owner) == (journal.oid, journal.owner) {
        return Ok(now);
    }
    Err(taken(journal))
}

fn taken(journal: &Journal) -> Error {
    let detail = "While the call was at work, another table took its place, or it got another owner.".into();
    Error::UnfitJournal { journal: journal.name.clone(), detail }
}

/// Looks at the table that a name means to the caller, and whether it fits.
fn look(name: &str) -> Result<Journal, Error> {
    let no_journal = || Error::NoJournal { journal: name.to_owned() };
    // What a name means depends on the caller's role and search_path.
    let oid = first::<pg_sys::Oid>(TO_REGCLASS, &[name.into()])?.ok_or_else(no_journal)?;
    let query = "SELECT pg_catalog.format('%I.%I', n.nspname, c.relname), c.relowner,
        ARRAY(SELECT t.relid::pg_catalog.oid FROM pg_catalog.pg_partition_tree(c.oid) t WHERE t.level OPERATOR(pg_catalog.>) 0 ORDER BY 1),
        c.relpersistence OPERATOR(pg_catalog.=) 'p' AND NOT c.relispartition AND (c.relkind OPERATOR(pg_catalog.=) 'p' OR c.relkind OPERATOR(pg_catalog.=) 'r' AND NOT EXISTS (SELECT FROM pg_catalog.pg_inherits h WHERE h.inhparent OPERATOR(pg_catalog.=) c.oid))
          AND NOT EXISTS (SELECT FROM pg_catalog.pg_partition_tree(c.oid) t JOIN pg_catalog.pg_class p ON p.oid OPERATOR(pg_catalog.=) t.relid
                          WHERE t.level OPERATOR(pg_catalog.>) 0 AND (p.relkind OPERATOR(pg_catalog.<>) 'r' OR p.relpersistence OPERATOR(pg_catalog.<>) 'p'))
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
        WHERE c.oid OPERATOR(pg_catalog.=) $1";
    let found = sql::rows(query, &[oid.into()], |row| {
        Ok(row.get::<String>(1)?.zip(row.get(2)?).zip(row.get::<Vec<_>>(3)?.zip(row.get::<bool>(4)?)))
    })?;
    let Some(Some(((name, owner), (partitions, is_table)))) = found.into_iter().next() else {
        return Err(no_journal());
    };
    // Watched before they are looked at, so that a change in between is not missed.
    pg::watch_relation(oid);
    partitions.iter().for_each(|partition| pg::watch_relation(*partition));
    let unfit = |detail: String| Error::UnfitJournal { journal: name.clone(), detail };
    if !is_table {
        return Err(unfit(
            "It is no table, or one that is temporary, unlogged or a partition, or that others inherit from; or it has a partition that is unlogged, foreign or partitioned itself.".into(),
        ));
    }
    let found = columns(oid)?;
    for (name, sql_type, of, _) in &COLUMNS {
        match found.get(*name) {
            None => return Err(unfit(format!("It has no column \"{name}\" of type {sql_type}."))),
            Some((found, _)) if *found != of.value() => {
                return Err(unfit(format!("Its column \"{name}\" is not of type {sql_type}.")));
            }
            // A claim is a row with nothing else in it.
            Some((_, true)) => return Err(unfit(format!("Its column \"{name}\" has a default or is generated."))),
            Some((_, false)) => {}
        }
    }
    let tenants = tenants(oid)?;
    let [(tenant, quoted)] = &tenants[..] else {
        return Err(unfit(
            "It needs one unique index on three columns, that of the tenant, session and request in this order, which is valid, not deferrable, and on all rows."
                .into(),
        ));
    };
    let of_tenant = found.get(tenant).map(|(of, _)| *of);
    let Some((tenant_type, _)) = TENANT_TYPES.into_iter().find(|(of, _)| of_tenant == Some(of.value())) else {
        let types = TENANT_TYPES.map(|(_, name)| name).join(", ");
        return Err(unfit(format!("Its column \"{tenant}\", the tenant's, has none of the types {types}.")));
    };
    if let Some(code) = code(oid, &partitions)? {
        return Err(unfit(code));
    }
    let (tenant, is_local, statements) = (quoted.clone(), !is_of_citus(oid)?, Default::default());
    Ok(Journal { tenant, tenant_type, oid, owner, is_local, partitions, name, statements })
}

/// The columns of a table by name: the type of each, and whether it has a value where none is given.
fn columns(table: pg_sys::Oid) -> Result<HashMap<String, (pg_sys::Oid, bool)>, Error> {
    let query = "SELECT a.attname::pg_catalog.text, a.atttypid, a.atthasdef OR a.attidentity OPERATOR(pg_catalog.<>) ''
        FROM pg_catalog.pg_attribute a
        WHERE a.attrelid OPERATOR(pg_catalog.=) $1 AND a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped";
    let columns = sql::rows(query, &[table.into()], |row| Ok(row.get(1)?.zip(row.get(2)?.zip(row.get(3)?))))?;
    Ok(columns.into_iter().flatten().collect())
}

/// The columns of a table that, with session and request after them, have a unique index that arbitrates. Each as it is,
/// and quoted as SQL needs it.
fn tenants(table: pg_sys::Oid) -> Result<Vec<(String, String)>, Error> {
    let query = "SELECT DISTINCT k.names[1], pg_catalog.quote_ident(k.names[1])
        FROM pg_catalog.pg_index i,
        LATERAL (SELECT pg_catalog.array_agg(a.attname::pg_catalog.text ORDER BY c.place) AS names,
                        pg_catalog.bool_and(COALESCE(l.collisdeterministic, true) AND a.attcollation OPERATOR(pg_catalog.=) c.sorted_by) AS is_exact
                 FROM ROWS FROM (pg_catalog.unnest(i.indkey::pg_catalog.int2[]), pg_catalog.unnest(i.indcollation::pg_catalog.oid[]))
                      WITH ORDINALITY AS c (number, sorted_by, place)
                 JOIN pg_catalog.pg_attribute a ON a.attrelid OPERATOR(pg_catalog.=) i.indrelid AND a.attnum OPERATOR(pg_catalog.=) c.number
                 LEFT JOIN pg_catalog.pg_collation l ON l.oid OPERATOR(pg_catalog.=) c.sorted_by
                 WHERE c.place OPERATOR(pg_catalog.<=) i.indnkeyatts) k
        WHERE i.indrelid OPERATOR(pg_catalog.=) $1 AND i.indisunique AND i.indisvalid AND i.indimmediate
          AND i.indpred IS NULL AND i.indexprs IS NULL AND k.is_exact
          AND k.names[2:] OPERATOR(pg_catalog.=) '{session,request}' AND k.names[1] OPERATOR(pg_catalog.<>) ALL ($2)";
    sql::pairs(query, &[table.into(), COLUMNS.map(|(name, ..)| name).to_vec().into()])
}

/// The functions that an expression may call: they tell the time, make a value, or convert or compare one. Others execute
/// SQL, read files, settings or statistics, with the rights of whoever uses the journal; or take numbers of a sequence of
/// anybody's, as `nextval` does; or compute for hours and look at no signal meanwhile, as `btrim` does.
const HARMLESS: &str = "{now,statement_timestamp,transaction_timestamp,clock_timestamp,gen_random_uuid,uuidv4,uuidv7,random,\
                        date,timestamptz,timestamp,timezone,date_trunc,date_part,extract,to_char,texteq,textne}";

/// What an expression may be made of, as PostgreSQL writes it in its catalogs; and anything else in it. A conversion by the
/// input function of a type is not among them: that of `xml` looks at no signal.
const OTHER_NODES: &str = "[{](?!(?:CONST|VAR|FUNCEXPR|OPEXPR|SCALARARRAYOPEXPR|BOOLEXPR|RELABELTYPE|SQLVALUEFUNCTION|NULLTEST|ARRAY|ARRAYEXPR) )";

/// What the table or a partition of it carries that would be somebody's code in the process of whoever uses the journal; in
/// words. All that it uses is PostgreSQL's own, but for a superuser's triggers, which are the superuser's only if the table's
/// owner cannot have made them: he would choose their arguments and conditions. A foreign key would execute what stands on
/// the other table. An expression is computed already where a statement is planned.
fn code(table: pg_sys::Oid, partitions: &[pg_sys::Oid]) -> Result<Option<String>, Error> {
    let tables: Vec<pg_sys::Oid> = partitions.iter().copied().chain([table]).collect();
    let query = "WITH part AS (
            SELECT 'pg_catalog.pg_class'::pg_catalog.regclass AS class, a.attrelid AS id, a.attnum::pg_catalog.int4 AS place, NULL::pg_catalog.text AS code FROM pg_catalog.pg_attribute a WHERE a.attrelid OPERATOR(pg_catalog.=) ANY ($1) AND a.attnum OPERATOR(pg_catalog.>) 0
            UNION ALL SELECT 'pg_catalog.pg_class'::pg_catalog.regclass, p.partrelid, 0, p.partexprs::pg_catalog.text FROM pg_catalog.pg_partitioned_table p WHERE p.partrelid OPERATOR(pg_catalog.=) ANY ($1)
            UNION ALL SELECT 'pg_catalog.pg_class'::pg_catalog.regclass, i.indexrelid, 0, pg_catalog.concat(i.indexprs, i.indpred) FROM pg_catalog.pg_index i WHERE i.indrelid OPERATOR(pg_catalog.=) ANY ($1)
            UNION ALL SELECT 'pg_catalog.pg_attrdef'::pg_catalog.regclass, d.oid, 0, d.adbin::pg_catalog.text FROM pg_catalog.pg_attrdef d WHERE d.adrelid OPERATOR(pg_catalog.=) ANY ($1)
            UNION ALL SELECT 'pg_catalog.pg_constraint'::pg_catalog.regclass, c.oid, 0, c.conbin::pg_catalog.text FROM pg_catalog.pg_constraint c WHERE c.conrelid OPERATOR(pg_catalog.=) ANY ($1)
            UNION ALL SELECT 'pg_catalog.pg_trigger'::pg_catalog.regclass, t.oid, 0, t.tgqual::pg_catalog.text FROM pg_catalog.pg_trigger t WHERE t.tgrelid OPERATOR(pg_catalog.=) ANY ($1)
            UNION ALL SELECT 'pg_catalog.pg_statistic_ext'::pg_catalog.regclass, x.oid, 0, x.stxexprs::pg_catalog.text FROM pg_catalog.pg_statistic_ext x WHERE x.stxrelid OPERATOR(pg_catalog.=) ANY ($1)),
        used AS (
            SELECT 'pg_catalog.pg_proc'::pg_catalog.regclass AS class, p.oid AS id, p.proowner AS owner FROM pg_catalog.pg_proc p
            UNION ALL SELECT 'pg_catalog.pg_type'::pg_catalog.regclass, t.oid, t.typowner FROM pg_catalog.pg_type t
            UNION ALL SELECT 'pg_catalog.pg_operator'::pg_catalog.regclass, o.oid, o.oprowner FROM pg_catalog.pg_operator o
            UNION ALL SELECT 'pg_catalog.pg_opclass'::pg_catalog.regclass, o.oid, o.opcowner FROM pg_catalog.pg_opclass o)
        SELECT pg_catalog.format('%s uses %s, which is not PostgreSQL''s own.', pg_catalog.pg_describe_object(part.class, part.id, part.place), pg_catalog.pg_describe_object(used.class, used.id, 0))
        FROM part
        JOIN pg_catalog.pg_depend d ON d.classid OPERATOR(pg_catalog.=) part.class AND d.objid OPERATOR(pg_catalog.=) part.id AND d.objsubid OPERATOR(pg_catalog.=) part.place
        JOIN used ON used.class OPERATOR(pg_catalog.=) d.refclassid AND used.id OPERATOR(pg_catalog.=) d.refobjid
        JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) used.owner
        WHERE used.id OPERATOR(pg_catalog.>=) $3
          AND NOT (r.rolsuper AND part.class OPERATOR(pg_catalog.=) 'pg_catalog.pg_trigger'::pg_catalog.regclass
                   AND EXISTS (SELECT FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) t.tgrelid
                               JOIN pg_catalog.pg_proc p ON p.oid OPERATOR(pg_catalog.=) t.tgfoid JOIN pg_catalog.pg_roles o ON o.oid OPERATOR(pg_catalog.=) c.relowner
                               WHERE t.oid OPERATOR(pg_catalog.=) part.id AND p.oid OPERATOR(pg_catalog.=) used.id
                                 AND (t.tgisinternal OR o.rolsuper OR NOT pg_catalog.has_function_privilege(o.oid, p.oid, 'EXECUTE')
                                      OR NOT pg_catalog.has_schema_privilege(o.oid, p.pronamespace, 'USAGE'))))
        UNION ALL SELECT pg_catalog.format('%s would do more than compare texts, tell the time or make a value.', pg_catalog.pg_describe_object(part.class, part.id, part.place))
        FROM part
        WHERE part.code OPERATOR(pg_catalog.~) $4
           OR EXISTS (SELECT FROM pg_catalog.regexp_matches(part.code, ':(?:op|)funcid ([0-9]+) ', 'g') f (called)
                      WHERE f.called[1]::pg_catalog.oid OPERATOR(pg_catalog.<>) ALL (ARRAY(
                        SELECT p.oid FROM pg_catalog.pg_proc p WHERE p.oid OPERATOR(pg_catalog.<) $3 AND p.proname OPERATOR(pg_catalog.=) ANY ($2::pg_catalog.name[]))))
        UNION ALL SELECT pg_catalog.format('it has the exclusion constraint %I.', c.conname) FROM pg_catalog.pg_constraint c
        WHERE c.contype OPERATOR(pg_catalog.=) 'x' AND c.conrelid OPERATOR(pg_catalog.=) ANY ($1)
        UNION ALL SELECT pg_catalog.format('it has the foreign key %I.', c.conname) FROM pg_catalog.pg_constraint c
        WHERE c.contype OPERATOR(pg_catalog.=) 'f' AND (c.conrelid OPERATOR(pg_catalog.=) ANY ($1) OR c.confrelid OPERATOR(pg_catalog.=) ANY ($1))
        UNION ALL SELECT pg_catalog.format('its column %I is generated.', a.attname) FROM pg_catalog.pg_attribute a WHERE a.attrelid OPERATOR(pg_catalog.=) ANY ($1) AND a.attgenerated OPERATOR(pg_catalog.<>) ''
        UNION ALL SELECT pg_catalog.format('it has the rule %I.', w.rulename) FROM pg_catalog.pg_rewrite w WHERE w.ev_class OPERATOR(pg_catalog.=) ANY ($1)
        UNION ALL SELECT pg_catalog.format('it has the policy %I.', p.polname) FROM pg_catalog.pg_policy p WHERE p.polrelid OPERATOR(pg_catalog.=) ANY ($1)
        UNION ALL SELECT 'its row security is on.' FROM pg_catalog.pg_class c WHERE c.oid OPERATOR(pg_catalog.=) ANY ($1) AND (c.relrowsecurity OR c.relforcerowsecurity)
        ORDER BY 1 LIMIT 1";
    let users = pg_sys::Oid::from(pg_sys::FirstNormalObjectId);
    let arguments = [tables.into(), HARMLESS.into(), users.into(), OTHER_NODES.into()];
    let found = first::<String>(query, &arguments)?;
    Ok(found.map(|what| format!("A journal carries nobody's code: {what}")))
}

/// Whether Citus manages the table.
fn is_of_citus(table: pg_sys::Oid) -> Result<bool, Error> {
    let has_citus = "SELECT pg_catalog.to_regclass('pg_catalog.pg_dist_partition') IS NOT NULL";
    let query = "SELECT EXISTS (SELECT FROM pg_catalog.pg_dist_partition p WHERE p.logicalrelid::pg_catalog.oid OPERATOR(pg_catalog.=) $1)";
    Ok(sql::first(has_citus)? == Some(true) && sql::column::<bool>(query, &[table.into()])? == [true])
}

/// The first column of the first row. The query is executed as the caller, whose search_path counts.
pub fn first<T: FromDatum + IntoDatum>(query: &str, arguments: &[DatumWithOid<'_>]) -> Result<Option<T>, Error> {
    Spi::connect(|client| client.select(query, None, arguments)?.next().map_or(Ok(None), |row| row.get(1)))
        .map_err(|error| Error::Corrupted { message: format!("could not execute {query}: {error}") })
}
