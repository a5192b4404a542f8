//! The ways whose instructions are counted.

use crate::guarded::{self, DO_SELECT_SINCE, do_select, guarded, insert_or_select};
use crate::row::Variant;
use crate::script::{COUNT_LEDGER, COUNT_OUTCOMES, KEY, Keygen, transaction};
use crate::variants::{in_batches, numbered_by_hand, registering, signs};

/// Where a way is measured.
#[derive(Clone, Copy, PartialEq)]
pub enum On {
    /// The server of the lab, with its kept outcomes. The library is preloaded.
    Lab,
    /// A server of its own that preloads the library, and nothing kept.
    Preloaded,
    /// The same without preloading.
    Plain,
}

/// What a way does.
#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    /// The ceiling's work, guarded or not.
    Transaction,
    /// Anything else.
    Other,
}

/// A way.
pub struct Way {
    pub on: On,
    pub kind: Kind,
    pub variant: Variant,
}

// The ways that findings are about, by their names.
pub const CEILING: &str = "ceiling";
pub const FLOOR: &str = "floor";
pub const HAND_WRITTEN: &str = "hand-written";
pub const DO_SELECT: &str = "hand-written, DO SELECT";
pub const HAND_WRITTEN_DEAD: &str = "hand-written, beside as many dead rows as autovacuum lets be";
pub const BEGIN_THREE: &str = "idem_begin (three columns), record";
pub const CLAIM: &str = "idem_claim, record";
pub const NUMBERED_HAND_WRITTEN: &str = "numbered: hand-written";
pub const NUMBERED_THREE: &str = "numbered: idem_begin (three columns), record";
pub const KEY_SELECT: &str = "SELECT by primary key";
pub const REPLAY_THREE: &str = "replay, three columns";
pub const REPLAY_PAYLOAD: &str = "replay with payload, three columns";
pub const REPLAY_DO_SELECT: &str = "replay by hand, DO SELECT";
pub const CALLED: &str = "a function called";
pub const RUN: &str = "the same by idem_run";
pub const ONCE_BY_HAND: &str = "1000 keys in one statement by hand, a key";
pub const ONCE_MANY: &str = "1000 keys by idem_once_many, a key";
pub const REGISTER_BY_HAND: &str = "registering by hand";
pub const REGISTER: &str = "idem_register";
pub const SIGN_BY_HAND: &str = "a sign of life by hand";
pub const HEARTBEAT: &str = "idem_heartbeat";
pub const PLAIN: &str = "idem_begin, record; not preloaded, nothing kept";
pub const PRELOADED: &str = "idem_begin, record; preloaded, nothing kept";

/// Leaves as many dead rows as there are before autovacuum comes: one for each fifth row. They lie where the kept rows do, in
/// the table and in its indexes.
const MAKE_DEAD_ROWS: &str = "UPDATE request SET expires_at = expires_at + interval '1 second' WHERE ctid IN
    (SELECT ctid FROM request TABLESAMPLE BERNOULLI (19))";

/// All ways on this major version of PostgreSQL, in the order of the page. The one beside dead rows comes last, because
/// it makes them.
pub fn ways(major: u32) -> Vec<Way> {
    let way = |on, kind| move |variant| Way { on, kind, variant };
    let begin_three = |name| keyed(name, THREE);
    let mut ways: Vec<Way> = transactions().into_iter().map(way(On::Lab, Kind::Transaction)).collect();
    ways.extend(reads().into_iter().chain(calls()).map(way(On::Lab, Kind::Other)));
    ways.push(way(On::Plain, Kind::Other)(begin_three(PLAIN)));
    ways.push(way(On::Preloaded, Kind::Other)(begin_three(PRELOADED)));
    let hand_written = guarded(KEY, Keygen::Ascending).swap_remove(guarded::HAND_WRITTEN);
    let dead = Variant { name: HAND_WRITTEN_DEAD, before: MAKE_DEAD_ROWS, ..hand_written };
    ways.push(way(On::Lab, Kind::Transaction)(dead));
    ways.retain(|way| way.variant.is_on(major));
    ways
}

/// How begin is called.
const ALL: &str = "SELECT * FROM ";
const THREE: &str = "SELECT status, replayed, response FROM ";
const SCALAR: &str = "SELECT ";

/// The transactions with the ceiling's work.
fn transactions() -> Vec<Variant> {
    let mut ways = guarded(KEY, Keygen::Ascending);
    // What all use is called by its call.
    ways.truncate(guarded::IDEMPOTENCE);
    let mut by_hand = numbered_by_hand();
    by_hand.name = NUMBERED_HAND_WRITTEN;
    ways.extend([
        Variant { name: DO_SELECT, ..do_select(KEY, Keygen::Ascending) },
        keyed("idem_begin (*), record", ALL),
        keyed(BEGIN_THREE, THREE),
        keyed("idem_begin (scalar), record", SCALAR),
        claimed(CLAIM, format!("'payments', {KEY}"), Keygen::Ascending),
        by_hand,
        numbered("numbered: idem_begin (*), record", ALL),
        numbered(NUMBERED_THREE, THREE),
        numbered("numbered: idem_begin (scalar), record", SCALAR),
        claimed("numbered: idem_claim, record", NUMBER.into(), Keygen::Numbered),
    ]);
    ways
}

/// A numbered request, as functions take it.
const NUMBER: &str = ":session, :k::bigint";

fn keyed(name: &'static str, select: &str) -> Variant {
    begun(name, select, &format!("'payments', {KEY}"), Keygen::Ascending)
}

fn numbered(name: &'static str, select: &str) -> Variant {
    begun(name, select, NUMBER, Keygen::Numbered)
}

fn begun(name: &'static str, select: &str, request: &str, keygen: Keygen) -> Variant {
    let begin = match select {
        SCALAR => format!("SELECT (idem_begin({request}, :payload)).status"),
        _ => format!("{select}idem_begin({request}, :payload)"),
    };
    let record = format!("SELECT idem_record({request}, :response)");
    Variant::new(name, COUNT_OUTCOMES, transaction(&begin, &record), keygen)
}

fn claimed(name: &'static str, request: String, keygen: Keygen) -> Variant {
    let claim = format!("SELECT idem_claim({request}, :payload)");
    let record = format!("SELECT idem_record({request}, :response)");
    Variant::new(name, COUNT_OUTCOMES, transaction(&claim, &record), keygen)
}

/// The statements that only read.
fn reads() -> Vec<Variant> {
    let read = |name, sql: String| Variant::new(name, COUNT_OUTCOMES, sql + ";\n", Keygen::Kept);
    // The first transaction does the request, and all others ask for it.
    let request = transaction("SELECT idem_claim(:session, 1, :payload)", "SELECT idem_record(:session, 1, :response)");
    let of_number = |name, sql: &str| {
        let script = format!("\\if :k = 1\n{request}\\else\n{sql};\n\\endif\n");
        Variant::new(name, COUNT_OUTCOMES, script, Keygen::Numbered)
    };
    let (begin, lookup) = (format!("idem_begin('payments', {KEY})"), format!("idem_lookup('payments', {KEY})"));
    vec![
        read("trivial SELECT", format!("SELECT {KEY}")),
        read(KEY_SELECT, format!("SELECT response FROM request WHERE scope = 'payments' AND key = {KEY}")),
        read("replay, *", format!("{ALL}{begin}")),
        read(REPLAY_THREE, format!("{THREE}{begin}")),
        read("replay, scalar", format!("{SCALAR}{begin}")),
        Variant { since: DO_SELECT_SINCE, ..read(REPLAY_DO_SELECT, insert_or_select(KEY)) },
        read(REPLAY_PAYLOAD, format!("{THREE}idem_begin('payments', {KEY}, :payload)")),
        read("idem_lookup, three columns", format!("{THREE}{lookup}")),
        read("idem_lookup, scalar", format!("{SCALAR}{lookup}")),
        of_number("numbered: replay, three columns", &format!("{THREE}idem_begin(:session, 1)")),
        of_number("numbered: replay, scalar", &format!("{SCALAR}idem_begin(:session, 1)")),
        of_number("numbered: idem_lookup, three columns", &format!("{THREE}idem_lookup(:session, 1)")),
    ]
}

/// The calls that are transactions of their own.
fn calls() -> Vec<Variant> {
    let args = "jsonb_build_object('account', :account::integer, 'amount', :amount::integer)";
    let call = |name, sql: String| Variant::new(name, COUNT_LEDGER, sql + ";\n", Keygen::Ascending);
    let mut ways = vec![
        call(CALLED, format!("SELECT pay({args})")),
        call(RUN, format!("{THREE}idem_run('payments', {KEY}, 'SELECT pay($1)', {args})")),
    ];
    let [.., once_by_hand, once_many] = in_batches();
    let ([register_by_hand, register], [sign_by_hand, heartbeat]) = (registering(), signs());
    let others = [once_by_hand, once_many, register_by_hand, register, sign_by_hand, heartbeat];
    let names = [ONCE_BY_HAND, ONCE_MANY, REGISTER_BY_HAND, REGISTER, SIGN_BY_HAND, HEARTBEAT];
    ways.extend(others.into_iter().zip(names).map(|(variant, name)| Variant { name, ..variant }));
    ways
}
