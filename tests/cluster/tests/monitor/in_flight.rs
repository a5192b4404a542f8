//! The requests in flight, at many moments, against what the clients know themselves.

use anyhow::{Result, ensure};
use futures_util::future::try_join_all;
use idempotence_cluster_tests::effort::requests;
use idempotence_cluster_tests::shop::{self, DATABASE};
use idempotence_cluster_tests::{Connection, LIMIT, Version};
use tokio::time::{Instant, sleep};

use super::holder::{Holder, Shown, Waiter};

/// The number of clients that hold requests.
const HOLDERS: usize = 6;

/// The number of clients that wait for them.
const WAITERS: usize = 4;

/// Keeps what transactions see, so that a prepared one is known by its gid.
const SEEN: &str = "
    SELECT session, stream, request, pid, role, state, waiters, prepared, requests,
           longest_wait IS NULL, COALESCE(longest_wait BETWEEN '0' AND '1 min', true), since <= clock_timestamp()
    FROM idempotence.in_flight";

// Goal: at each moment the view shows exactly what is held, in which state, by whom, and how many wait for it.
// Method: clients take random steps with transactions, savepoints and requests, others wait for them. After each step all
// stand still, and the clients' own lists are compared with the view.
pub async fn in_flight_shows_what_is_held_at_each_moment(version: Version) -> Result<()> {
    let settings = [
        ("shared_preload_libraries", "idempotence"),
        ("log_min_messages", "fatal"),
        ("max_prepared_transactions", "20"),
    ];
    let server = shop::start_with(version, &settings)?;
    let watcher = server.connect(DATABASE).await?;
    watcher
        .text(
            "CREATE ROLE app; SELECT idem_grant('app'), idem_grant('app', 'monitor');
             SELECT idem_create_session('work', usable_by => 'app'), idem_create_session('Kasse \"№ 1\"', usable_by => 'app')",
        )
        .await?;
    let numbered = watcher.register("'shop', window_size => 8").await?;
    // The first outcome of a client session saves it, which others would wait for.
    watcher.execute(&numbered, "1", "1").await?;
    let mut holders = try_join_all((0..HOLDERS).map(|number| Holder::new(&server, number, &numbered))).await?;
    let mut waiters: Vec<Waiter> = Vec::new();
    let mut seen = [0; 5];
    for moment in 0..requests(1000, 20_000) {
        let number = rand::random_range(0..HOLDERS);
        let mut prepared = None;
        if waiters.len() < WAITERS && rand::random_bool(0.15) {
            let held = holders.iter().flat_map(Holder::held).collect::<Vec<_>>();
            if let Some(request) = (!held.is_empty()).then(|| held[rand::random_range(0..held.len())].clone()) {
                waiters.push(Waiter::start(&server, request).await?);
            }
        } else {
            prepared = holders[number].step(&server).await?;
        }
        let held: Vec<Shown> = holders.iter().flat_map(Holder::shown).collect();
        // Who waits for what nobody holds any more goes on, and gives it back at once.
        let mut still = Vec::new();
        for waiter in waiters {
            match held.iter().any(|shown| waiter.waits_for(shown)) {
                true => still.push(waiter),
                false => waiter.end().await?,
            }
        }
        waiters = still;
        check(&watcher, &held, &waiters)
            .await
            .map_err(|error| error.context(format!("moment {moment}, {prepared:?}")))?;
        for (count, is) in seen.iter_mut().zip([
            held.iter().any(|shown| shown.state == "saved"),
            held.iter().any(|shown| shown.state == "released"),
            held.iter().any(|shown| shown.pid.is_none()),
            !waiters.is_empty(),
            held.len() > 8,
        ]) {
            *count += usize::from(is);
        }
    }
    println!("moments with saved, released, prepared requests, waiters, many requests: {seen:?}");
    ensure!(seen.iter().all(|count| *count > 20), "the steps show too little: {seen:?}");
    for holder in &mut holders {
        holder.finish(&server).await?;
    }
    for waiter in waiters {
        waiter.end().await?;
    }
    check(&watcher, &[], &[]).await
}

/// Compares the view with what is held, once all who wait are waiting.
async fn check(watcher: &Connection, held: &[Shown], waiters: &[Waiter]) -> Result<()> {
    let mut wanted: Vec<String> = held.iter().map(|shown| shown.row(waiters)).collect();
    wanted.sort_unstable();
    let start = Instant::now();
    loop {
        let found = watcher.text(SEEN).await?;
        let mut found: Vec<&str> = found.lines().collect();
        found.sort_unstable();
        if found == wanted {
            return Ok(());
        }
        // Only somebody who has just begun to wait, or to go on, takes a moment.
        ensure!(start.elapsed() < LIMIT, "in flight is\n{}\nand not\n{}", found.join("\n"), wanted.join("\n"));
        ensure!(
            !waiters.is_empty() || start.elapsed().as_millis() < 500,
            "in flight is\n{}\nand not\n{}",
            found.join("\n"),
            wanted.join("\n")
        );
        sleep(std::time::Duration::from_millis(1)).await;
    }
}
