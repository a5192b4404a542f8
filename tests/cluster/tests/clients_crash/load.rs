//! Crashes at random, while clients allocate numbers and send numbered requests.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{Context, Result, ensure};
use futures_util::future::try_join_all;
use idempotence_cluster_tests::senders::Senders;
use idempotence_cluster_tests::shop::{DATABASE, start};
use idempotence_cluster_tests::{LIMIT, Version};
use rand::RngExt;
use tokio::time::{Duration, Instant, sleep};

use super::killing::{EITHER, crash};

// Goal: a number whose allocation was committed is never allocated again.
// Method: connections allocate numbers in two streams of a session, and roll back now and then, during
// crashes of both kinds. In the end, no number may be in the answers twice.
pub async fn no_number_is_allocated_twice_whatever_crashes(version: Version) -> Result<()> {
    const CONNECTIONS: usize = 6;
    const STREAMS: [&str; 2] = ["", "s"];
    let server = start(version)?;
    let session = server.connect(DATABASE).await?.register("").await?;
    server.psql(DATABASE, &format!("SELECT idem_allocate('{session}', 1), idem_allocate('{session}', 1, 's')"))?;
    let (told, finished) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    let count = || told.lock().map_or(0, |told| told.len());

    let allocate = try_join_all((0..CONNECTIONS).map(async |_| {
        let mut connection = server.reconnect(DATABASE).await?;
        while !finished.load(Relaxed) {
            let (stream, n) = (rand::rng().random_range(0..STREAMS.len()), rand::rng().random_range(1..5));
            let commits = rand::rng().random_bool(0.9);
            let allocate = format!("BEGIN; SELECT idem_allocate('{session}', {n}, '{}')", STREAMS[stream]);
            let done = async {
                let first = connection.try_text(&allocate).await?;
                connection.try_text(if commits { "COMMIT" } else { "ROLLBACK" }).await?;
                Ok::<_, tokio_postgres::Error>(first)
            };
            match done.await {
                Ok(first) if commits => {
                    let first: i64 = first.parse()?;
                    told.lock().expect("nobody panics with it").push((stream, first, first + n));
                }
                Ok(_) => {}
                Err(error) if error.is_closed() || error.code().is_none_or(|state| state.code().starts_with("57P")) => {
                    connection = server.reconnect(DATABASE).await?;
                }
                Err(error) => return Err(error).context("allocating"),
            }
        }
        Ok(())
    }));
    let crashes = async {
        for round in 0..10 {
            let (start, wanted) = (Instant::now(), count() + rand::rng().random_range(1..200));
            while count() < wanted {
                ensure!(start.elapsed() <= LIMIT, "the allocations do not get on");
                sleep(Duration::from_millis(1)).await;
            }
            crash(&server, EITHER[round % 2]).await?;
        }
        finished.store(true, Relaxed);
        Ok(())
    };
    tokio::try_join!(allocate, crashes)?;

    let mut owners = BTreeMap::new();
    for (stream, first, next) in told.into_inner().expect("nobody panicked with it") {
        for number in first..next {
            ensure!(number > 1 && owners.insert((stream, number), first).is_none(), "{number} was handed out twice");
        }
    }
    let position =
        server.connect(DATABASE).await?.text(&format!("SELECT allocated FROM idem_position('{session}')")).await?;
    let greatest = owners.keys().filter(|(stream, _)| *stream == 0).map(|(_, number)| *number).max();
    ensure!(greatest <= Some(position.parse()?), "{greatest:?} was handed out, up to {position} is known");
    Ok(())
}

// Goal: no answer to a numbered request is lost and no effect is repeated, whenever the server crashes.
// Method: see `senders`; eight crashes of both kinds, each after a random number of answers.
pub async fn crashes_at_random_lose_no_answer_and_repeat_no_numbered_request(version: Version) -> Result<()> {
    let server = start(version)?;
    // One session has three lanes, and two sessions have one lane each.
    let senders = Senders::register(&server, DATABASE, 1, 3, 2).await?;
    let crashes = async {
        for round in 0..8 {
            senders.progress(rand::rng().random_range(1..200)).await?;
            crash(&server, EITHER[round % 2]).await?;
        }
        Ok(())
    };
    tokio::try_join!(senders.send(500), crashes)?;
    senders.prove().await?;
    ensure!(senders.tally.disconnected.load(Relaxed) > 0, "no client noticed any of the crashes");
    Ok(())
}
