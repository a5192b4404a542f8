//! The columns of a client session. Two tables have them, at different positions: `session` for saved sessions, and
//! `session_live` for sessions at work.

use crate::domain::identity::{self, SessionId};
use crate::domain::sequence::Order;
use crate::model::{ClientSession, KnownBy};
use crate::pg;
use crate::store::catalog::{Index, Table};
use crate::store::rel::{Access, Rel, Snapshot};
use crate::store::tuple::{Tid, Tuple, is_null, oid_equals, text_equals, uuid_equals};
use pgrx::datum::IntoDatum;
use pgrx::pg_sys;

/// The positions of the columns in a table, and the indexes that its rows are found by.
pub(super) struct ClientColumns {
    /// Those of id, created_at, owner, window_size, timeout, ordering, node, client and request_id, which stand in this order
    /// in both tables.
    pub columns: [usize; 9],
    /// The column that tells that a session has ended, in the table that keeps rows of ended sessions.
    pub ended_at: Option<usize>,
    pub by_id: Index,
    pub by_client: Index,
    pub by_request_id: Index,
}

impl ClientColumns {
    /// Reads a row; `None` if a value is missing or broken.
    pub fn read<const N: usize>(&self, row: &Tuple<'_, N>) -> Option<ClientSession> {
        let [id, created_at, owner, window_size, timeout, ordering, node, client, request_id] = self.columns;
        let id = row.uuid(id)?;
        Some(ClientSession {
            id,
            name: identity::client_session_name(&id, row.get::<String>(node).as_deref()),
            owner: row.get(owner)?,
            client: row.get(client),
            request_id: row.uuid(request_id),
            order: Order::of_letter(row.char(ordering)?)?,
            window: row.get(window_size)?,
            timeout_us: row.interval_us(timeout)?,
            created_at: row.get(created_at)?,
        })
    }

    /// The columns of a row. Columns that only one of the tables has are left NULL.
    pub fn write<const N: usize>(&self, session: &ClientSession) -> [Option<pg_sys::Datum>; N] {
        let [id, created_at, owner, window_size, timeout, ordering, node, client, request_id] = self.columns;
        let mut columns = [None; N];
        columns[id] = Some(pg::uuid(&session.id));
        columns[created_at] = Some(session.created_at.into());
        columns[owner] = Some(session.owner.into());
        columns[window_size] = Some(session.window.into());
        columns[ordering] = Some((session.order.letter() as i8).into());
        columns[request_id] = session.request_id.as_ref().map(pg::uuid);
        columns[timeout] = pg::interval(session.timeout_us).into_datum();
        columns[client] = session.client.as_deref().map(pg::text);
        columns[node] = session.node().map(pg::text);
        columns
    }

    /// Finds the row of a session; gives its place too.
    pub fn find<'rel, const N: usize, T>(
        &self,
        table: &'rel Rel,
        id: &SessionId,
        read: impl Fn(&Tuple<'rel, N>) -> Option<T>,
    ) -> Option<(T, Tid<'rel>)> {
        let read = |row: &Tuple<'rel, N>| Some((read(row)?, row.at()));
        table.find_changing(self.by_id, &mut [uuid_equals(self.columns[0], id)], read)
    }

    /// Finds the session that a registration of an owner finds: by the client's name one that has not ended, by the id of the
    /// registration one that has ended too. Mostly there is none, so this searches once, with the snapshot that misses
    /// nothing.
    pub fn find_registered<const N: usize>(
        &self,
        table: Table,
        owner: pg_sys::Oid,
        by: KnownBy<'_>,
    ) -> Option<ClientSession> {
        let [_, _, of_owner, _, _, _, _, of_client, of_request_id] = self.columns;
        let (index, mut keys) = match by {
            KnownBy::Client(client) => {
                let keys = vec![oid_equals(of_owner, owner), text_equals(of_client, client)];
                let open = self.ended_at.map(is_null);
                (self.by_client, keys.into_iter().chain(open).collect())
            }
            KnownBy::RequestId(id) => (self.by_request_id, vec![uuid_equals(of_request_id, id)]),
        };
        let read = |row: &Tuple<'_, N>| self.read(row).filter(|session| session.owner == owner);
        Rel::open(table, Access::Read).find(Some(index), &mut keys, Snapshot::LatestMvcc, read)
    }
}
