//! What goes to the server's log.

use crate::error::{escaped, legible};
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::{PgLogLevel, PgSqlErrorCode, function_name, pg_sys};
use std::ffi::{CStr, c_char};

static mut NEXT: pg_sys::emit_log_hook_type = None;
static mut CONTEXT: fn() -> Option<String> = || None;

/// Has `context` called for each message on its way to the server's log, once a process. What it gives is added to the
/// message's CONTEXT. It must raise no error.
///
/// PostgreSQL sends the same message to the client afterwards, if the message is for the client too. So what the client's
/// encoding may lack is escaped then: an error would take the place of the message.
pub fn add_log_context(context: fn() -> Option<String>) {
    // SAFETY: the process has one thread, and no message passes through the hook while it loads the library.
    unsafe {
        CONTEXT = context;
        NEXT = pg_sys::emit_log_hook;
        pg_sys::emit_log_hook = Some(emit_log);
    }
}

/// It has no guard of pgrx, since it is called while PostgreSQL handles an error. It raises none itself.
unsafe extern "C-unwind" fn emit_log(message: *mut pg_sys::ErrorData) {
    // SAFETY: PostgreSQL passes the message that it is about to send. Its texts are allocated in its own memory context,
    // which is freed with it. The hook before ours gets the message as PostgreSQL would have given it.
    unsafe {
        if (*message).elevel < pg_sys::PANIC as i32
            && (*message).sqlerrcode != PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY as i32
            && let Some(line) = CONTEXT().map(|line| legible(&line))
            && !says(text_of((*message).message), &line)
        {
            let line = if (*message).output_to_client && !client_reads_all() { in_ascii(&line) } else { line };
            let before = text_of((*message).context);
            let parts: [&[u8]; 3] = [before, if before.is_empty() { b"" } else { b"\n" }, line.as_bytes()];
            let bytes = parts.iter().map(|part| part.len()).sum::<usize>() + 1;
            let flags = (pg_sys::MCXT_ALLOC_NO_OOM | pg_sys::MCXT_ALLOC_ZERO | pg_sys::MCXT_ALLOC_HUGE) as i32;
            let context: *mut c_char =
                pg_sys::MemoryContextAllocExtended((*message).assoc_context, bytes, flags).cast();
            if !context.is_null() {
                let mut at: *mut u8 = context.cast();
                for part in parts {
                    at.copy_from_nonoverlapping(part.as_ptr(), part.len());
                    at = at.add(part.len());
                }
                (*message).context = context;
            }
        }
        if let Some(next) = NEXT {
            next(message);
        }
    }
}

/// Whether a message says it itself, so that it need not be said twice. A message is as long as the statement that it
/// has; a long one is none of ours, and not searched.
fn says(message: &[u8], line: &str) -> bool {
    const LONG: usize = 8 << 10;
    message.len() < LONG && message.windows(line.len()).any(|part| part == line.as_bytes())
}

/// Whether the client's encoding has all characters, or is not converted to.
fn client_reads_all() -> bool {
    // SAFETY: reads a variable of the backend.
    let encoding = unsafe { pg_sys::pg_get_client_encoding() };
    [pg_sys::pg_enc::PG_UTF8, pg_sys::pg_enc::PG_SQL_ASCII].contains(&(encoding as pg_sys::pg_enc::Type))
}

/// The text in ASCII, which each encoding has: other characters as in PostgreSQL's `E'…'`.
fn in_ascii(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii() { c.to_string() } else { escaped(c) }).collect()
}

/// # Safety
/// The pointer is null or that of a terminated string, which lives as long as the result.
unsafe fn text_of<'a>(text: *const c_char) -> &'a [u8] {
    // SAFETY: as the caller warrants.
    if text.is_null() { &[] } else { unsafe { CStr::from_ptr(text) }.to_bytes() }
}

/// Writes a line to the server's log, and to nobody else. The DETAIL and the HINT may be empty.
pub fn log_line(message: &str, detail: &str, hint: &str) {
    let code = PgSqlErrorCode::ERRCODE_SUCCESSFUL_COMPLETION;
    let mut report = ErrorReport::new(code, legible(message), function_name!());
    if !detail.is_empty() {
        report = report.set_detail(legible(detail));
    }
    if !hint.is_empty() {
        report = report.set_hint(hint);
    }
    report.report(PgLogLevel::LOG_SERVER_ONLY);
}
