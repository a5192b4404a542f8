//! A network that fails on purpose: a TCP proxy between clients and the server which loses a
//! connection before or after a message has reached the server, or brings one late.
//!
//! It understands just enough of PostgreSQL's protocol to tell one message from the next, which of
//! them is a COMMIT, and which reply belongs to it.

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

/// Request codes that stand where a startup packet has its protocol version.
const CANCEL_REQUEST: u32 = 80_877_102;
const SSL_REQUEST: u32 = 80_877_103;
const GSS_REQUEST: u32 = 80_877_104;

/// No message of a client of ours comes near; a longer one is a broken stream.
const MESSAGE_MAX: usize = 64 << 20;

/// What becomes of a message on its way to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Arrives,
    /// The connection breaks before the server gets the message.
    Lost,
    /// The server gets it and answers; the connection breaks before the client gets the answer.
    ReplyLost,
    /// It arrives after this time, whether the client is still there or not.
    Late(Duration),
}

/// A message of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// A simple query: drivers send BEGIN, COMMIT and ROLLBACK so.
    Query(&'a str),
    /// Any other, by its type.
    Other(u8),
}

impl Message<'_> {
    pub fn is_commit(self) -> bool {
        matches!(self, Self::Query(text) if text.trim_start().get(..6)
            .is_some_and(|word| word.eq_ignore_ascii_case("COMMIT")))
    }
}

/// Decides on each message of each connection.
pub type Faults = dyn Fn(Message<'_>) -> Fate + Send + Sync;

/// What the proxy has done so far.
#[derive(Debug, Default)]
pub struct Counts {
    pub connections: AtomicU64,
    pub lost: AtomicU64,
    /// Replies lost that would have told of a successful COMMIT.
    pub commits_unheard: AtomicU64,
    /// All other replies lost.
    pub replies_lost: AtomicU64,
    pub late: AtomicU64,
}

/// A running proxy; ends with all its connections when dropped.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    counts: Arc<Counts>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Listens on a free port of 127.0.0.1 and passes on to `upstream`.
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
        // The connections' tasks belong to this one's and are aborted with it.
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, upstream: SocketAddr, faults: Arc<Faults>, counts: Arc<Counts>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                // Out of file descriptors, say: the client will try again, so do we.
                let Ok((client, _)) = accepted else {
                    sleep(Duration::from_millis(10)).await;
                    continue;
                };
                counts.connections.fetch_add(1, Relaxed);
                let (faults, counts) = (faults.clone(), counts.clone());
                connections.spawn(async move {
                    // An error is a connection that broke, which is what happens here all day;
                    // both ends see it close.
                    let _ = serve(client, upstream, &*faults, &counts).await;
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// One connection, from its first byte to its end.
async fn serve(mut client: TcpStream, upstream: SocketAddr, faults: &Faults, counts: &Counts) -> io::Result<()> {
    let startup = read_startup(&mut client).await?;
    let mut server = TcpStream::connect(upstream).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    server.write_all(&startup).await?;
    if code_of(&startup) == CANCEL_REQUEST {
        // The server answers by closing.
        server.read_to_end(&mut Vec::new()).await?;
        return Ok(());
    }

    let (client_reads, client_writes) = client.into_split();
    let (server_reads, server_writes) = server.into_split();
    let heard = AtomicU64::new(u64::MAX);
    // Whichever direction ends first ends the connection: both sockets close on return.
    tokio::select! {
        end = to_server(client_reads, server_writes, faults, counts, &heard) => end,
        end = to_client(server_reads, client_writes, counts, &heard) => end,
    }
}

/// Reads the startup packet, its length included, having declined encryption where asked for it.
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

/// Completes a packet whose length word, which counts itself, stands at `at`.
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

/// Reads a message: its type, its length, and the rest.
async fn read_packet<R>(reader: &mut R) -> io::Result<Vec<u8>>
where
    R: AsyncRead + Unpin,
{
    let mut packet = vec![0; 5];
    reader.read_exact(&mut packet).await?;
    read_body(reader, &mut packet, 1).await?;
    Ok(packet)
}

/// Passes the client's messages on, each as its fate has it. `heard` is told how many replies the
/// client is to hear.
async fn to_server(
    client: OwnedReadHalf,
    mut server: OwnedWriteHalf,
    faults: &Faults,
    counts: &Counts,
    heard: &AtomicU64,
) -> io::Result<()> {
    let mut client = BufReader::new(client);
    // Replies asked for so far, the greeting included. Drivers send some requests without waiting
    // for the reply (closing a statement, rolling back), so it is not always the next one.
    let mut asked = 1;
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
            // The other direction ends the connection once that reply is there.
            Fate::ReplyLost => _ = heard.fetch_min(asked, Relaxed),
        }
        if is_answered(packet[0]) {
            asked += 1;
        }
        server.write_all(&packet).await?;
    }
}

/// Does the server end its reply to this message with a `ReadyForQuery`? It does so for a query,
/// a function call, and a sync.
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

/// Passes the server's replies on, until the client has heard all that it is to hear.
async fn to_client(
    server: OwnedReadHalf,
    client: OwnedWriteHalf,
    counts: &Counts,
    heard: &AtomicU64,
) -> io::Result<()> {
    let mut server = BufReader::new(server);
    let mut client = BufWriter::new(client);
    let mut replies = 0;
    let mut committed = false;
    loop {
        let packet = read_packet(&mut server).await?;
        let lost = replies >= heard.load(Relaxed);
        if !lost {
            client.write_all(&packet).await?;
            if server.buffer().is_empty() {
                client.flush().await?;
            }
        }
        match packet[0] {
            // CommandComplete. The COMMIT of a failed transaction is answered "ROLLBACK".
            b'C' => committed = packet[5..] == *b"COMMIT\0",
            // ReadyForQuery, the last of each reply.
            b'Z' if lost => {
                let count = if committed { &counts.commits_unheard } else { &counts.replies_lost };
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
