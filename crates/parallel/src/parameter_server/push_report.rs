//! Counters of parameter servers at a synchronization: staleness, request latencies and outcomes of
//! pushes, and warnings about them.

use super::figures::ServerFigures;
use super::latency::{Latency, NUM_CLASSES};
use super::repeated_request::gather_repeats;
use super::{PushCounts, RepeatedRequest, row_report};
use crate::figures::StrategyFigures;
use crate::sync_strategy::{TrainingHost, record_staleness};
use lockstep_comm::Comm;
use lockstep_telemetry::Event;
use std::collections::BTreeMap;

/// Combines the counters of all servers and pushing workers, and reports them.
pub(super) fn report<H: TrainingHost>(
    pushers: &Comm,
    step: u64,
    host: &mut H,
    repeats: &[RepeatedRequest],
    figures: &mut StrategyFigures,
) -> Result<(), H::Error> {
    let counts = host.replica().count_pushes()?;
    let by_pusher = staleness_by_worker(&counts);
    if let Some(message) = staleness_warning(&by_pusher) {
        host.warn_once(message);
    }
    record_staleness(host, step, &by_pusher);
    figures.staleness_by_rank = Some(by_pusher).filter(|found| !found.is_empty());
    time_requests(pushers, step, host, repeats, &mut figures.served)?;
    row_report::report(pushers, step, host, &mut figures.rows)?;
    report_counts(pushers, step, &counts, host, &mut figures.served)
}

/// Staleness of the gradients of each worker at the server that finds them stalest: servers count
/// updates of their own, so that a gradient may be staler at one than at another.
fn staleness_by_worker(counts: &[Vec<PushCounts>]) -> Vec<BTreeMap<u64, u64>> {
    let stalest = |worker: usize| {
        // The first server, unless a later one has seen staler gradients.
        let servers = counts.iter().rev().map(|by_worker| &by_worker[worker]);
        servers.max_by_key(|counts| counts.total_staleness()).expect("there is a server")
    };
    let num_workers = counts.first().map_or(0, Vec::len);
    (0..num_workers).map(|worker| stalest(worker).applied.clone()).collect()
}

/// Warning threshold of the p99 staleness, as a multiple of that of equally fast workers.
const MAX_STALENESS_FACTOR: u64 = 4;

/// Warning threshold of the p99 request latency.
const SLOW_REQUEST_SECONDS: f64 = 0.1;

/// Warns if gradients are much staler than the number of workers explains: each of n equally fast
/// workers misses the n - 1 updates of the others.
fn staleness_warning(by_worker: &[BTreeMap<u64, u64>]) -> Option<String> {
    let mut all = BTreeMap::new();
    for (staleness, count) in by_worker.iter().flatten() {
        *all.entry(*staleness).or_insert(0) += *count;
    }
    let total: u64 = all.values().sum();
    let mut cumulative = 0;
    let p99 = all.iter().find_map(|(staleness, count)| {
        cumulative += count;
        (100 * cumulative >= 99 * total).then_some(*staleness)
    })?;
    let others = by_worker.len() as u64 - 1;
    let worst = (0..by_worker.len()).max_by_key(|worker| by_worker[*worker].keys().max())?;
    (others > 0 && p99 > MAX_STALENESS_FACTOR * others).then(|| {
        format!(
            "1 of 100 gradients misses {p99} updates or more, where workers that are equally fast \
             would miss {others}; worker {worst} is slow: try sync.consistency = \"bounded\", or \
             sync.staleness_weight = \"inverse\""
        )
    })
}

/// Merges the request latencies of all workers.
fn time_requests<H: TrainingHost>(
    pushers: &Comm,
    step: u64,
    host: &mut H,
    repeats: &[RepeatedRequest],
    figures: &mut ServerFigures,
) -> Result<(), H::Error> {
    let Some(client) = host.replica().client() else { return Ok(()) };
    let found = client.latencies();
    let own = [found.pull.counts(), found.push.counts()].concat();
    let mut all = vec![0; own.len() * pushers.group_size()];
    pushers.all_gather(&own, &mut all)?;
    let (mut pull, mut push) = (Latency::default(), Latency::default());
    for of_worker in all.chunks(own.len()) {
        let (pulls, pushes) = of_worker.split_at(NUM_CLASSES);
        pull.add(pulls);
        push.add(pushes);
    }
    let quantiles = [(&pull, 0.5), (&pull, 0.99), (&push, 0.5), (&push, 0.99)];
    let quantiles = quantiles.map(|(found, share)| found.quantile(share).unwrap_or(f64::NAN));
    let [pull_p50, pull_p99, push_p50, push_p99] = quantiles;
    let mut counts = vec![0; 2 * pushers.group_size()];
    pushers.all_gather(&[client.num_pulls(), client.num_pushes()], &mut counts)?;
    let (counts, _) = counts.as_chunks::<2>();
    host.record(&Event::ServerRequests {
        step,
        pulls_by_worker: counts.iter().map(|[pulls, _]| *pulls).collect(),
        pushes_by_worker: counts.iter().map(|[_, pushes]| *pushes).collect(),
        repeats: gather_repeats(pushers, repeats)?,
        pull_p50_seconds: pull_p50,
        pull_p99_seconds: pull_p99,
        push_p50_seconds: push_p50,
        push_p99_seconds: push_p99,
    });
    if push_p99 > SLOW_REQUEST_SECONDS {
        host.warn_once(format!(
            "1 of 100 pushes takes {:.0} ms or more; the servers are overloaded: try more of \
             them (sync.servers)",
            1e3 * push_p99
        ));
    }
    (figures.pull_seconds_p50, figures.pull_seconds_p99) = (Some(pull_p50), Some(pull_p99));
    (figures.push_seconds_p50, figures.push_seconds_p99) = (Some(push_p50), Some(push_p99));
    Ok(())
}

/// Reports the pushes that workers count as acknowledged, and their outcomes at the servers.
fn report_counts<H: TrainingHost>(
    pushers: &Comm,
    step: u64,
    counts: &[Vec<PushCounts>],
    host: &mut H,
    figures: &mut ServerFigures,
) -> Result<(), H::Error> {
    let Some(client) = host.replica().client() else { return Ok(()) };
    let own = client.acknowledged();
    let mut all = vec![0; own.len() * pushers.group_size()];
    pushers.all_gather(own, &mut all)?;
    let by_server = |server: usize| all.iter().skip(server).step_by(own.len()).copied().collect();
    let outcomes = |of: fn(&PushCounts) -> u64| -> Vec<Vec<u64>> {
        counts.iter().map(|by_worker| by_worker.iter().map(of).collect()).collect()
    };
    let acknowledged: Vec<Vec<u64>> = (0..own.len()).map(by_server).collect();
    let (applied, discarded) = (outcomes(PushCounts::num_applied), outcomes(|it| it.discarded));
    let skipped = outcomes(|counts| counts.skipped);
    figures.synchronous_from_step = client.switch();
    figures.acknowledged_by_server = Some(acknowledged.clone());
    figures.applied_by_server = Some(applied.clone());
    figures.discarded_by_server = Some(discarded.clone());
    figures.skipped_by_server = Some(skipped.clone());
    host.record(&Event::ServerPushes {
        step,
        acknowledged_by_server: acknowledged,
        applied_by_server: applied,
        discarded_by_server: discarded,
        skipped_by_server: skipped,
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staleness_is_that_of_the_server_with_the_stalest_gradients() {
        let counts = |applied: &[(u64, u64)], discarded| PushCounts {
            applied: applied.iter().copied().collect(),
            discarded,
            skipped: 0,
        };
        let first = vec![counts(&[(0, 4)], 0), counts(&[(1, 3), (2, 1)], 0)];
        let second = vec![counts(&[(0, 3), (5, 1)], 0), counts(&[(1, 2)], 2)];
        let found = staleness_by_worker(&[first, second]);
        let expected = [[(0, 3), (5, 1)], [(1, 3), (2, 1)]].map(BTreeMap::from);
        assert_eq!(found, expected);
    }

    #[test]
    fn a_staleness_warning_names_the_slow_worker() {
        let fast = BTreeMap::from([(2, 90), (3, 8)]);
        let even = vec![fast.clone(), fast.clone(), fast.clone()];
        assert_eq!(staleness_warning(&even), None);
        let slow = vec![fast.clone(), fast, BTreeMap::from([(9, 4), (40, 4)])];
        let found = staleness_warning(&slow).expect("4 of 204 miss 40");
        assert!(found.contains("misses 40 updates") && found.contains("worker 2"), "{found}");
        assert_eq!(staleness_warning(&[BTreeMap::from([(9, 1)])]), None, "there are no others");
    }
}
