//! All-to-all in closed form: pairwise exchange.
//!
//! With equal parts each pair exchanges an n-th of a rank's data, one partner after the other. With
//! parts of different sizes (tokens routed to experts) the rank that sends or receives most
//! decides.

use super::ClosedForm;
use lockstep_config::units::{Bytes, Seconds};
use lockstep_schedule::Link;

/// Equal parts; the vector is the data of *one* rank.
pub const fn even(num_ranks: usize) -> ClosedForm {
    let rounds = num_ranks as u64 - 1;
    ClosedForm { rounds, parts: rounds, of: num_ranks as u64 }
}

/// Parts of different sizes: rank s sends `sizes[s][d]` to rank d.
pub fn by_sizes(sizes: &[Vec<Bytes>], link: Link) -> Seconds {
    let num_ranks = sizes.len();
    let others = |rank: usize| (0..num_ranks).filter(move |other| *other != rank);
    let sent = |rank: usize| others(rank).map(|other| sizes[rank][other]).sum::<Bytes>();
    let received = |rank: usize| others(rank).map(|other| sizes[other][rank]).sum::<Bytes>();
    let busiest = (0..num_ranks).map(|rank| sent(rank).max(received(rank))).max();
    link.latency * num_ranks.saturating_sub(1) as f64 + busiest.unwrap_or_default() / link.bandwidth
}
