//! A network that fails on purpose: a TCP proxy between clients and the server that breaks a connection
//! before or after a message has reached the server, or delivers a message late.
//!
//! It understands just enough of PostgreSQL's protocol to tell where a message ends, whether the message
//! is a COMMIT, and which reply belongs to it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use anyhow::Result;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader, BufWriter};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

/// Codes that special requests have in the place where a startup packet has the protocol version.
const CANCEL_REQUEST: u32 = 80_877_102;
const SSL_REQUEST: u32 = 80_877_103;
const GSS_REQUEST: u32 = 80_877_104;

/// No client of ours sends messages of nearly this length: a longer message means that the stream is broken.
const MESSAGE_MAX: usize = 64 << 20;

/// What becomes of a message on its way to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Arrives,
    /// The connection breaks before the server gets the message.
    Lost,
    /// The server gets the message and answers. The connection breaks before the client gets the answer.
    ReplyLost,
    /// The message arrives after this time, even if the client has gone by then.
    Late(Duration),
}

/// A message of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// A simple query. Drivers send BEGIN, COMMIT and ROLLBACK in this way.
    Query(&'a str),
    /// Any other message, by its type.
    Other(u8),
}

impl Message<'_> {
    pub fn is_commit(self) -> bool {
        matches!(self, Self::Query(text) if text.trim_start().get(..6)
            .is_some_and(|word| word.eq_ignore_ascii_case("COMMIT")))
    }
}

/// Decides the fate of each message of each connection.
pub type Faults = dyn Fn(Message<'_>) -> Fate + Send + Sync;

/// What the proxy has done so far.
#[derive(Debug, Default)]
pub struct Counts {
    pub connections: AtomicU64,
    pub lost: AtomicU64,
    /// Lost replies that would have told the client of a successful COMMIT.
    pub commit_replies_lost: AtomicU64,
    /// All other lost replies.
    pub other_replies_lost: AtomicU64,
    pub late: AtomicU64,
}

/// A running proxy. Dropping it ends it and all its connections.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    counts: Arc<Counts>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Listens on a free port of 127.0.0.1 and forwards connections to `upstream`.
    pub async fn start(upstream: SocketAddr, faults: Arc<Faults>) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let addr = listener.local_addr()?;
        let counts = Arc::new(Counts::default());
        let task = tokio::spawn(accept(listener, upstream, faults, counts.clone()));
        Ok(Self { addr, counts, task })
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub fn counts(&self) -> &Arc<Counts> {
        &self.counts
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // The tasks of the connections belong to this task and are aborted with it.
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, upstream: SocketAddr, faults: Arc<Faults>, counts: Arc<Counts>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                // For example, there are no file descriptors left. The client will try again, and so do we.
                let Ok((client, _)) = accepted else {
                    sleep(Duration::from_millis(10)).await;
                    continue;
                };
                counts.connections.fetch_add(1, Relaxed);
                let (faults, counts) = (faults.clone(), counts.clone());
                connections.spawn(async move {
                    // An error means that the connection broke. Both ends see that for themselves.
                    let _ = serve(client, upstream, &*faults, &counts).await;
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Serves one connection, from its first byte to its end.
async fn serve(mut client: TcpStream, upstream: SocketAddr, faults: &Faults, counts: &Counts) -> io::Result<()> {
    let startup = read_startup(&mut client).await?;
    let mut server = TcpStream::connect(upstream).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    server.write_all(&startup).await?;
    if code_of(&startup) == CANCEL_REQUEST {
        // The server answers by closing the connection.
        server.read_to_end(&mut Vec::new()).await?;
        return Ok(());
    }

    let (client_reads, client_writes) = client.into_split();
    let (server_reads, server_writes) = server.into_split();
    let replies_to_pass = AtomicU64::new(u64::MAX);
    // As soon as one direction ends, the connection ends: both sockets close on return.
    tokio::select! {
        end = to_server(client_reads, server_writes, faults, counts, &replies_to_pass) => end,
        end = to_client(server_reads, client_writes, counts, &replies_to_pass) => end,
    }
}

/// Declines encryption if the client asks for it, and reads the startup packet, with its length.
async fn read_startup(client: &mut TcpStream) -> io::Result<Vec<u8>> {
    loop {
        let mut packet = vec![0; 4];
        client.read_exact(&mut packet).await?;
        read_body(client, &mut packet, 0).await?;
        match code_of(&packet) {
            SSL_REQUEST | GSS_REQUEST => client.write_all(b"N").await?,
            _ => return Ok(packet),
        }
    }
}

fn code_of(startup: &[u8]) -> u32 {
    startup.get(4..8).map_or(0, |code| u32::from_be_bytes([code[0], code[1], code[2], code[3]]))
}

/// Reads the rest of a packet. Its length, which includes the length field, is at offset `at`.
async fn read_body<R>(reader: &mut R, packet: &mut Vec<u8>, at: usize) -> io::Result<()>
where
    R: AsyncRead + Unpin,
{
    let length = packet[at..at + 4].iter().fold(0, |length, &byte| length << 8 | usize::from(byte));
    if !(4..=MESSAGE_MAX).contains(&length) {
        return Err(io::Error::other("not PostgreSQL's protocol"));
    }
    packet.resize(at + length, 0);
    reader.read_exact(&mut packet[at + 4..]).await?;
    Ok(())
}

/// Reads a message: its type, its length and its body.
async fn read_packet<R>(reader: &mut R) -> io::Result<Vec<u8>>
where
    R: AsyncRead + Unpin,
{
    let mut packet = vec![0; 5];
    reader.read_exact(&mut packet).await?;
    read_body(reader, &mut packet, 1).await?;
    Ok(packet)
}

/// Forwards the messages of the client, each according to its fate. When a reply is to be lost, stores in
/// `replies_to_pass` the number of replies before it.
async fn to_server(
    client: OwnedReadHalf,
    mut server: OwnedWriteHalf,
    faults: &Faults,
    counts: &Counts,
    replies_to_pass: &AtomicU64,
) -> io::Result<()> {
    let mut client = BufReader::new(client);
    // The number of replies requested so far, including the greeting. It may be larger than the number of
    // replies received: drivers do not wait for every reply (closing a statement, rolling back).
    let mut requested = 1;
    loop {
        let packet = read_packet(&mut client).await?;
        match faults(message(&packet)) {
            Fate::Arrives => {}
            Fate::Late(delay) => {
                counts.late.fetch_add(1, Relaxed);
                sleep(delay).await;
            }
            Fate::Lost => {
                counts.lost.fetch_add(1, Relaxed);
                return Ok(());
            }
            // The other direction ends the connection when that reply arrives.
            Fate::ReplyLost => _ = replies_to_pass.fetch_min(requested, Relaxed),
        }
        if is_answered(packet[0]) {
            requested += 1;
        }
        server.write_all(&packet).await?;
    }
}

/// Whether the server ends its reply to this message with a `ReadyForQuery`, as it does for a query, a
/// function call and a sync.
fn is_answered(kind: u8) -> bool {
    matches!(kind, b'Q' | b'F' | b'S')
}

fn message(packet: &[u8]) -> Message<'_> {
    let text = packet[5..].strip_suffix(&[0]).map(str::from_utf8);
    match (packet[0], text) {
        (b'Q', Some(Ok(text))) => Message::Query(text),
        (kind, _) => Message::Other(kind),
    }
}

/// Forwards the replies of the server, until the number of replies in `replies_to_pass` is reached.
async fn to_client(
    server: OwnedReadHalf,
    client: OwnedWriteHalf,
    counts: &Counts,
    replies_to_pass: &AtomicU64,
) -> io::Result<()> {
    let mut server = BufReader::new(server);
    let mut client = BufWriter::new(client);
    let mut replies = 0;
    let mut committed = false;
    loop {
        let packet = read_packet(&mut server).await?;
        let lost = replies >= replies_to_pass.load(Relaxed);
        if !lost {
            client.write_all(&packet).await?;
            if server.buffer().is_empty() {
                client.flush().await?;
            }
        }
        match packet[0] {
            // CommandComplete. The COMMIT of a failed transaction is answered "ROLLBACK".
            b'C' => committed = packet[5..] == *b"COMMIT\0",
            // ReadyForQuery, the last message of each reply.
            b'Z' if lost => {
                let count = if committed { &counts.commit_replies_lost } else { &counts.other_replies_lost };
                count.fetch_add(1, Relaxed);
                return Ok(());
            }
            b'Z' => (replies, committed) = (replies + 1, false),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_is_recognised() {
        assert!(message(b"Q\0\0\0\x0bCOMMIT\0").is_commit());
        assert!(message(b"Q\0\0\0\x0ccommit;\0").is_commit());
        assert!(!message(b"Q\0\0\0\x0dROLLBACK\0").is_commit());
        assert!(!message(b"Q\0\0\0\x05\0").is_commit());
        assert_eq!(message(b"S\0\0\0\x04"), Message::Other(b'S'));
        assert_eq!(message(b"Q\0\0\0\x06\xff\0"), Message::Other(b'Q'));
    }
}
