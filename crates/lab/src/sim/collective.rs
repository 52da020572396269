//! Discrete-event simulation of a collective.
//!
//! A message starts once both its send and its receive are posted. A rank starts its next round
//! when all messages of the current round have completed. Local copies and reductions take no time.

use super::Fabric;
use super::compiled::{CompiledSchedule, Message};
use super::shared_links;
use super::simulation::Simulation;

/// Result of a simulated collective.
#[derive(Debug, Clone, PartialEq)]
pub struct CollectiveRun {
    /// Completion time of each rank; infinite for a rank that never completes.
    pub ends: Vec<f64>,
    /// Completion time of the last rank.
    pub end: f64,
    /// Number of simulated events.
    pub num_events: u64,
}

/// Simulates a collective that rank i enters at `starts[i]`; infinity: never.
pub fn simulate_collective(
    compiled: &CompiledSchedule,
    fabric: Fabric<'_>,
    starts: &[f64],
) -> CollectiveRun {
    simulate_with_failures(compiled, fabric, starts, &[])
}

/// Simulates a collective in which rank i fails at `failures[i]`; a missing entry means never.
///
/// Messages of a failed rank that are not complete by then are lost, and ranks that depend on them
/// never complete.
pub fn simulate_with_failures(
    compiled: &CompiledSchedule,
    fabric: Fabric<'_>,
    starts: &[f64],
    failures: &[f64],
) -> CollectiveRun {
    assert_eq!(starts.len(), compiled.num_ranks(), "a start for every rank");
    // Times are relative to the first start: the duration has the same bits at any absolute time.
    let first = starts.iter().copied().fold(f64::INFINITY, f64::min);
    let failures = failures.iter().map(|failure| failure - first).collect();
    let mut simulation = Simulation::new(compiled, failures);
    for (rank, start) in starts.iter().enumerate().filter(|(_, start)| start.is_finite()) {
        simulation.enter(rank, *start - first);
    }
    let num_events = match fabric {
        Fabric::Shared(links) => shared_links::run(&mut simulation, links),
        _ => simulation.run(|message| seconds(fabric, message)),
    };
    let ends: Vec<f64> = simulation.ends.iter().map(|end| first + end).collect();
    let end = ends.iter().copied().fold(0.0, f64::max);
    CollectiveRun { ends, end, num_events }
}

/// Duration of a message over links that only the messages of its two ends share.
fn seconds(fabric: Fabric<'_>, message: &Message) -> f64 {
    let link = match fabric {
        Fabric::Separate(link) => return link.seconds(message.pair_bytes).0,
        Fabric::Uniform(link) => link,
        Fabric::PerPair(links) => *links
            .between(message.source as usize, message.target as usize)
            .expect("every pair of ranks has a link"),
        Fabric::Shared(_) => unreachable!("durations over shared links depend on the other flows"),
    };
    link.seconds(message.port_bytes).0
}
