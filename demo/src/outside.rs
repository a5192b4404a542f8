//! A service outside the database, such as another company runs: it charges customers and sends notices. It has its
//! own memory, is never killed, and loses some of its replies.
//!
//! A call is a connection of its own, with one line to the service and one line back:
//!
//! | line | reply | what happens |
//! |---|---|---|
//! | `charge KEY AMOUNT` | `charged ID`, or `void` | charges once for each key, however often it is called |
//! | `void KEY` | `voided` | gives back what was charged under the key, and refuses to charge under it from then on |
//! | `notify KEY` | `sent` | sends a notice each time: notices know no keys |

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

/// The share of calls that the service obeys without a reply.
const REPLIES_LOST: f64 = 0.02;
/// How long the service takes before it obeys a call, and again before it replies.
const TAKES_MS: std::ops::Range<u64> = 0..15;
/// The service reads no longer lines.
const LINE_MAX: u64 = 1000;

/// An amount that was taken from a customer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charge {
    pub id: i64,
    pub key: String,
    pub amount: i64,
}

/// What the service did.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    pub charges: Vec<Charge>,
    /// The number of calls to charge under each key, also of those that charged nothing.
    pub calls: HashMap<String, u64>,
    /// The keys under which nothing is charged any more.
    pub voided: HashSet<String>,
    /// The number of notices sent under each key.
    pub notices: HashMap<String, u64>,
}

impl Ledger {
    /// Obeys a call and gives the reply, or `None` if the line makes no sense.
    fn obey(&mut self, line: &str) -> Option<String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        Some(match *words {
            ["charge", key, amount] => match self.charge(key, amount.parse().ok()?) {
                Some(id) => format!("charged {id}"),
                None => "void".into(),
            },
            ["void", key] => {
                self.voided.insert(key.into());
                "voided".into()
            }
            ["notify", key] => {
                *self.notices.entry(key.into()).or_default() += 1;
                "sent".into()
            }
            _ => return None,
        })
    }

    fn charge(&mut self, key: &str, amount: i64) -> Option<i64> {
        *self.calls.entry(key.into()).or_default() += 1;
        if self.voided.contains(key) {
            return None;
        }
        if let Some(charge) = self.charges.iter().find(|charge| charge.key == key) {
            return Some(charge.id);
        }
        let id = i64::try_from(self.charges.len()).expect("few charges") + 1;
        self.charges.push(Charge { id, key: key.into(), amount });
        Some(id)
    }
}

/// The running service. Dropping it ends it.
#[derive(Debug)]
pub struct Service {
    addr: SocketAddr,
    ledger: Arc<Mutex<Ledger>>,
    task: JoinHandle<()>,
}

impl Service {
    /// Listens on a free port of 127.0.0.1.
    pub async fn start(seed: u64) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let addr = listener.local_addr()?;
        let ledger = Arc::<Mutex<Ledger>>::default();
        let task = tokio::spawn(accept(listener, ledger.clone(), SmallRng::seed_from_u64(seed)));
        Ok(Self { addr, ledger, task })
    }

    /// What a program needs to call the service.
    pub fn caller(&self) -> Caller {
        Caller(self.addr)
    }

    /// A copy of the ledger as it is now.
    pub fn ledger(&self) -> Ledger {
        open(&self.ledger).clone()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // The tasks of the connections belong to this task and are aborted with it.
        self.task.abort();
    }
}

fn open(ledger: &Mutex<Ledger>) -> MutexGuard<'_, Ledger> {
    // Each call changes the ledger in a single step, so a panic cannot have left a change half done.
    ledger.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn accept(listener: TcpListener, ledger: Arc<Mutex<Ledger>>, mut rng: SmallRng) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((caller, _)) => {
                    let (ledger, rng) = (ledger.clone(), SmallRng::from_rng(&mut rng));
                    connections.spawn(async move {
                        // An error means that the connection broke. The caller sees that, too.
                        let _ = serve(caller, &ledger, rng).await;
                    });
                }
                // For example, there are no file descriptors left. The caller will try again.
                Err(_) => sleep(Duration::from_millis(10)).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Serves one call. Once its line is read, the call is obeyed, whatever has become of the caller.
async fn serve(mut caller: TcpStream, ledger: &Mutex<Ledger>, mut rng: SmallRng) -> io::Result<()> {
    let (reads, mut writes) = caller.split();
    let mut line = String::new();
    BufReader::new(reads.take(LINE_MAX)).read_line(&mut line).await?;
    sleep(Duration::from_millis(rng.random_range(TAKES_MS))).await;
    let reply = open(ledger).obey(&line);
    sleep(Duration::from_millis(rng.random_range(TAKES_MS))).await;
    match reply {
        Some(reply) if !rng.random_bool(REPLIES_LOST) => writes.write_all(format!("{reply}\n").as_bytes()).await,
        _ => Ok(()),
    }
}

/// Calls the service. An error means that nobody knows whether the service has obeyed.
#[derive(Clone, Copy, Debug)]
pub struct Caller(SocketAddr);

impl Caller {
    /// Charges under a key. Gives the number of the charge, or `None` if the key is void.
    pub async fn charge(self, key: &str, amount: i64) -> io::Result<Option<i64>> {
        let reply = self.call(&format!("charge {key} {amount}")).await?;
        match reply.strip_prefix("charged ") {
            Some(id) => id.parse().map(Some).map_err(io::Error::other),
            None if reply == "void" => Ok(None),
            None => Err(unexpected(&reply)),
        }
    }

    /// Gives back what was charged under a key, and charges nothing more under it.
    pub async fn void(self, key: &str) -> io::Result<()> {
        self.expect(&format!("void {key}"), "voided").await
    }

    /// Sends a notice.
    pub async fn notify(self, key: &str) -> io::Result<()> {
        self.expect(&format!("notify {key}"), "sent").await
    }

    async fn expect(self, line: &str, reply: &str) -> io::Result<()> {
        let replied = self.call(line).await?;
        if replied == reply { Ok(()) } else { Err(unexpected(&replied)) }
    }

    async fn call(self, line: &str) -> io::Result<String> {
        let mut service = TcpStream::connect(self.0).await?;
        service.write_all(format!("{line}\n").as_bytes()).await?;
        let mut reply = String::new();
        service.read_to_string(&mut reply).await?;
        Ok(reply.trim_end().to_owned())
    }
}

fn unexpected(reply: &str) -> io::Error {
    io::Error::other(if reply.is_empty() { "no reply".into() } else { format!("the service replied {reply:?}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_charged_once_and_never_once_it_is_void() {
        let mut ledger = Ledger::default();
        for line in ["charge a 5", "charge a 5"] {
            assert_eq!(ledger.obey(line).as_deref(), Some("charged 1"));
        }
        assert_eq!(ledger.obey("void b").as_deref(), Some("voided"));
        assert_eq!(ledger.obey("charge b 5").as_deref(), Some("void"));
        assert_eq!(ledger.charges, [Charge { id: 1, key: "a".into(), amount: 5 }]);
        assert_eq!((ledger.calls["a"], ledger.calls["b"]), (2, 1));
    }

    #[test]
    fn every_call_sends_a_notice() {
        let mut ledger = Ledger::default();
        for _ in 0..2 {
            assert_eq!(ledger.obey("notify a").as_deref(), Some("sent"));
        }
        assert_eq!(ledger.notices["a"], 2);
        assert_eq!(ledger.obey("refund a"), None);
    }
}
