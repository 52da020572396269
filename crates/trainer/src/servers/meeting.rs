//! Where workers of servers meet: what each has seen becomes what the run knows.

use super::Served;
use crate::journal::Journal;
use crate::saved::Learner;
use crate::way::Worker;
use crate::{TrainError, rows};
use lockstep_comm::Comm;
use lockstep_parallel::server::Ends;
use lockstep_parallel::server::latency::{Latency, NUM_CLASSES};
use lockstep_telemetry::Event;
use std::collections::BTreeMap;

/// What is known of servers when workers have met last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counted {
    /// Pushes that workers know to be taken, by server and worker.
    pub acknowledged: Vec<Vec<u64>>,
    /// Pushes that servers have taken, by server and worker.
    pub taken: Vec<Vec<u64>>,
    /// Servers that were lost.
    pub lost: Vec<usize>,
    /// Gradients that were thrown away, by worker.
    pub discarded: Vec<u64>,
    /// The step from which on all waited for all, where they did not before.
    pub switch: Option<u64>,
    /// Of requests for weights what half took at most, and 99 of 100; and of those with gradients.
    pub request_seconds: Option<[f64; 4]>,
}

/// Tells of servers that are gone, where the first worker knows of any.
pub(super) fn tell_losses(step: u64, served: &Served<'_>, worker: &mut Worker<'_>) {
    let Worker { learner, journal, .. } = worker;
    let Event::ServersJoined { worker_processes, server_processes, .. } = &served.joined else {
        return;
    };
    let rank_at = |position: usize| served.ends.link.ranks()[position].0;
    for loss in learner.replica.take_lost_servers() {
        let (rank, successor) = (rank_at(loss.position), rank_at(loss.successor));
        journal.served.lost.push(rank);
        let process = server_processes[rank - worker_processes.len()];
        journal.tell(&Event::ServerLost { step, rank, process, successor });
    }
}

/// Waits until all workers are here, takes the weights that all pushes have led to, and tells how
/// stale gradients were, how long requests took, and what was taken of all that was pushed.
pub(super) fn meet(
    ends: &Ends,
    step: u64,
    learner: &mut Learner,
    journal: &mut Journal,
) -> Result<(), TrainError> {
    let workers = &ends.workers;
    workers.barrier()?;
    learner.replica.read()?;
    let own = [journal.pace.missed[workers.group_rank()]];
    workers.all_gather(&own, &mut journal.pace.missed)?;
    if ends.pushes() {
        tell_pushes(&ends.pushers, step, learner, journal)?;
    }
    Ok(())
}

/// What those that push have seen, the first worker among them.
fn tell_pushes(
    pushers: &Comm,
    step: u64,
    learner: &mut Learner,
    journal: &mut Journal,
) -> Result<(), TrainError> {
    let own = learner.replica.staleness().into_iter().flatten();
    let place = pushers.group_rank() as u64;
    let own: Vec<u64> = own.flat_map(|(staleness, count)| [place, *staleness, *count]).collect();
    let mut all = Vec::new();
    pushers.all_gather_v(&own, &mut all)?;
    let mut by_pusher = vec![BTreeMap::new(); pushers.group_size()];
    for &[pusher, staleness, count] in all.as_chunks().0 {
        by_pusher[pusher as usize].insert(staleness, count);
    }
    if let Some(message) = staleness_warning(&by_pusher) {
        journal.warn_once(message);
    }
    tell_staleness(step, by_pusher, journal);
    time_requests(pushers, step, learner, journal)?;
    rows::tell(pushers, step, learner, journal)?;
    count_pushes(pushers, learner, journal)
}

/// Gradients of workers have missed so many updates, in all steps so far.
pub(crate) fn tell_staleness(step: u64, by_worker: Vec<BTreeMap<u64, u64>>, journal: &mut Journal) {
    for (worker, found) in by_worker.iter().enumerate() {
        let count = found.values().sum::<u64>().max(1) as f64;
        let sum: u64 = found.iter().map(|(staleness, count)| staleness * count).sum();
        journal.tell(&Event::Staleness {
            step,
            worker,
            mean: sum as f64 / count,
            max: found.keys().last().copied().unwrap_or(0),
            counts: found.iter().map(|(staleness, count)| (*staleness, *count)).collect(),
        });
    }
    journal.staleness = by_worker;
}

/// How many times what workers that are equally fast would miss gradients may, 99 of 100.
const STALE_TIMES: u64 = 4;

/// How long a request may take, 99 of 100, before servers have too much to do.
const SLOW_REQUEST_SECONDS: f64 = 0.1;

/// What to say where some gradients are much staler than workers alone explain: of n that are
/// equally fast, each misses the n - 1 updates of the others.
fn staleness_warning(by_worker: &[BTreeMap<u64, u64>]) -> Option<String> {
    let mut all = BTreeMap::new();
    for (staleness, count) in by_worker.iter().flatten() {
        *all.entry(*staleness).or_insert(0) += *count;
    }
    let total: u64 = all.values().sum();
    let mut seen = 0;
    let p99 = all.iter().find_map(|(staleness, count)| {
        seen += count;
        (100 * seen >= 99 * total).then_some(*staleness)
    })?;
    let others = by_worker.len() as u64 - 1;
    let worst = (0..by_worker.len()).max_by_key(|worker| by_worker[*worker].keys().max())?;
    (others > 0 && p99 > STALE_TIMES * others).then(|| {
        format!(
            "1 of 100 gradients misses {p99} updates or more, where workers that are equally fast \
             would miss {others}; worker {worst} is slow: try sync.consistency = \"bounded\", or \
             sync.staleness_weight = \"inverse\""
        )
    })
}

/// Adds up how long requests of all workers took.
fn time_requests(
    pushers: &Comm,
    step: u64,
    learner: &Learner,
    journal: &mut Journal,
) -> Result<(), TrainError> {
    let Some(client) = learner.replica.client() else { return Ok(()) };
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
    let quantiles = quantiles.map(|(found, share)| found.quantile(share));
    let [pull_p50, pull_p99, push_p50, push_p99] = quantiles.map(|found| found.unwrap_or(f64::NAN));
    journal.tell(&Event::ServerRequests {
        step,
        pull_p50_seconds: pull_p50,
        pull_p99_seconds: pull_p99,
        push_p50_seconds: push_p50,
        push_p99_seconds: push_p99,
    });
    if push_p99 > SLOW_REQUEST_SECONDS {
        journal.warn_once(format!(
            "1 of 100 pushes takes {:.0} ms or more; servers have too much to do: try more of \
             them (sync.servers)",
            1e3 * push_p99
        ));
    }
    journal.served.request_seconds = Some([pull_p50, pull_p99, push_p50, push_p99]);
    Ok(())
}

/// What workers count as acknowledged, and what servers count as taken.
fn count_pushes(
    pushers: &Comm,
    learner: &mut Learner,
    journal: &mut Journal,
) -> Result<(), TrainError> {
    journal.served.taken = learner.replica.count_taken()?;
    let Some(client) = learner.replica.client() else { return Ok(()) };
    let own = client.acknowledged();
    let mut all = vec![0; own.len() * pushers.group_size()];
    pushers.all_gather(own, &mut all)?;
    let by_server = |server: usize| all.iter().skip(server).step_by(own.len()).copied().collect();
    journal.served.acknowledged = (0..own.len()).map(by_server).collect();
    journal.served.switch = client.switch();
    let mut discarded = vec![0; pushers.group_size()];
    pushers.all_gather(&[client.num_discarded()], &mut discarded)?;
    journal.served.discarded = discarded;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradients_that_are_far_too_stale_are_told_with_the_slow_worker() {
        let fast = BTreeMap::from([(2, 90), (3, 8)]);
        let even = vec![fast.clone(), fast.clone(), fast.clone()];
        assert_eq!(staleness_warning(&even), None);
        let slow = vec![fast.clone(), fast, BTreeMap::from([(9, 4), (40, 4)])];
        let found = staleness_warning(&slow).expect("4 of 204 miss 40");
        assert!(found.contains("misses 40 updates") && found.contains("worker 2"), "{found}");
        assert_eq!(staleness_warning(&[BTreeMap::from([(9, 1)])]), None, "there are no others");
    }
}
