//! What PostgreSQL knows of other backends, as `pg_stat_activity` shows it. Everything is told here, whatever the rights of
//! the caller: whoever shows it decides who may see it.

use super::raw::text_of;
use pgrx::pg_sys;
use std::net::{Ipv4Addr, Ipv6Addr};

/// A backend.
pub struct Backend {
    /// The process id.
    pub pid: i32,
    /// The role that it logged in as.
    pub role: pg_sys::Oid,
    /// What its client calls itself.
    pub application: String,
    /// The address of its client; `None` where it came over a local socket.
    pub client: Option<String>,
    /// What it does: the column `state` of `pg_stat_activity`. `None` where the server does not track that.
    pub state: Option<&'static str>,
}

/// The process id of this backend.
pub fn process_id() -> i32 {
    // SAFETY: a variable of the process.
    unsafe { pg_sys::MyProcPid }
}

/// The address of this backend's client; `None` where it came over a local socket, or there is no client.
pub fn client_address() -> Option<String> {
    // SAFETY: the backend's own entry is null or lives as long as the process, and the backend alone writes it.
    unsafe { pg_sys::MyBEEntry.as_ref() }.and_then(|entry| address(&entry.st_clientaddr))
}

/// All backends at this moment.
pub fn backends() -> Vec<Backend> {
    // SAFETY: makes what an earlier look of this transaction has found be read anew.
    unsafe { pg_sys::pgstat_clear_backend_activity_snapshot() };
    let backend = |status: &pg_sys::PgBackendStatus| Backend {
        pid: status.st_procpid,
        role: status.st_userid,
        // SAFETY: a name in an entry is null or terminated.
        application: unsafe { text_of(status.st_appname) }.unwrap_or_default(),
        client: address(&status.st_clientaddr),
        state: state(status.st_state),
    };
    statuses().map(backend).collect()
}

fn state(of: pg_sys::BackendState::Type) -> Option<&'static str> {
    match of {
        pg_sys::BackendState::STATE_IDLE => Some("idle"),
        pg_sys::BackendState::STATE_RUNNING => Some("active"),
        pg_sys::BackendState::STATE_IDLEINTRANSACTION => Some("idle in transaction"),
        pg_sys::BackendState::STATE_FASTPATH => Some("fastpath function call"),
        pg_sys::BackendState::STATE_IDLEINTRANSACTION_ABORTED => Some("idle in transaction (aborted)"),
        _ => None,
    }
}

/// What a backend waits for, as `type/event`; `None`: for nothing.
pub fn wait_event(pid: i32) -> Option<String> {
    // SAFETY: the entry of a process, or null. It stays in shared memory, whoever has it later. The number is aligned, so
    // it is read as a whole, and the names of a number are static, or null.
    unsafe {
        let process = pg_sys::BackendPidGetProc(pid).as_ref()?;
        let number = (&raw const process.wait_event_info).read_volatile();
        let class = text_of(pg_sys::pgstat_get_wait_event_type(number))?;
        Some(format!("{class}/{}", text_of(pg_sys::pgstat_get_wait_event(number))?))
    }
}

/// What [`wait_event`] gives of a backend that has written its commit, and waits for a synchronous standby. To end it undoes
/// nothing.
pub const FOR_STANDBY: &str = "IPC/SyncRep";

/// Whether a backend has written its commit, and waits for a synchronous standby.
pub fn waits_for_standby(pid: i32) -> bool {
    wait_event(pid).is_some_and(|event| event == FOR_STANDBY)
}

/// The entries of `pg_stat_activity` that this transaction sees.
pub(super) fn statuses() -> impl Iterator<Item = &'static pg_sys::PgBackendStatus> {
    // SAFETY: the numbers from 1 to the count are valid. The entries are local copies, which the caller uses at once.
    unsafe {
        (1..=pg_sys::pgstat_fetch_stat_numbackends()).filter_map(|number| {
            #[cfg(before_pg16)]
            let entry = pg_sys::pgstat_fetch_stat_local_beentry(number);
            #[cfg(not(before_pg16))]
            let entry = pg_sys::pgstat_get_local_beentry_by_index(number);
            entry.as_ref().map(|entry| &entry.backendStatus)
        })
    }
}

/// The address in numbers; `None` for a local socket.
fn address(of: &pg_sys::SockAddr) -> Option<String> {
    let address: *const libc::sockaddr = (&raw const of.addr).cast();
    // SAFETY: the address is a copy of a socket's, or all zeros. Its family tells which of the forms it has, and there is
    // room for each of them.
    unsafe {
        match i32::from((*address).sa_family) {
            libc::AF_INET => {
                let address: *const libc::sockaddr_in = address.cast();
                Some(Ipv4Addr::from(u32::from_be((*address).sin_addr.s_addr)).to_string())
            }
            libc::AF_INET6 => {
                let address: *const libc::sockaddr_in6 = address.cast();
                Some(Ipv6Addr::from((*address).sin6_addr.s6_addr).to_string())
            }
            _ => None,
        }
    }
}
