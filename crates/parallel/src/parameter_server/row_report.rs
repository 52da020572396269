//! Sparse pulls and pushes of embedding rows: traffic figures.

use super::figures::RowFigures;
use crate::sync_strategy::TrainingHost;
use lockstep_comm::{Comm, Reduction};
use lockstep_telemetry::{Event, RowRequests};

/// Warning threshold of a server's row traffic over the mean.
const MAX_IMBALANCE: f64 = 1.5;

/// Warning about a server with much more row traffic than the others.
fn imbalance_warning(bytes: &[u64]) -> String {
    let most = bytes.iter().max().copied().unwrap_or(0);
    let server = bytes.iter().position(|bytes| *bytes == most).unwrap_or(0);
    format!(
        "server {server} has much more row traffic than the mean of all servers; use \
         sync.row_sharding = \"hash\", or sync.row_cache to pull common rows less often"
    )
}

/// Sums the row counters over all workers and reports them.
pub(super) fn report<H: TrainingHost>(
    workers: &Comm,
    step: u64,
    host: &mut H,
    figures: &mut RowFigures,
) -> Result<(), H::Error> {
    let Some(own) = host.replica().row_counts() else { return Ok(()) };
    let num_servers = own.requests.len();
    let RowRequests { requests, pulled, looked_up, replicated, pushed } = own.sent;
    let numbers = [requests, pulled, looked_up, replicated, pushed];
    let mut by_worker = vec![0; numbers.len() * workers.group_size()];
    workers.all_gather(&numbers, &mut by_worker)?;
    let mut sums = vec![pulled, pushed, own.kept, replicated];
    sums.extend(own.requests.iter().chain(&own.bytes));
    let mut age_max = [own.age_max];
    workers.all_reduce(&mut sums, Reduction::Sum)?;
    workers.all_reduce(&mut age_max, Reduction::Max)?;
    let (requests, bytes) = sums[4..].split_at(num_servers);
    let most = bytes.iter().max().copied().unwrap_or(0);
    let imbalance = (most * num_servers as u64) as f64 / bytes.iter().sum::<u64>().max(1) as f64;
    if imbalance > MAX_IMBALANCE {
        host.warn_once(imbalance_warning(bytes));
    }
    *figures = RowFigures {
        rows_pulled: Some(sums[0]),
        rows_pushed: Some(sums[1]),
        rows_cached: Some(sums[2]),
        rows_replicated: Some(sums[3]),
        row_age_max: Some(age_max[0]),
        row_requests_by_server: Some(requests.to_vec()),
        row_bytes_by_server: Some(bytes.to_vec()),
        row_imbalance: Some(imbalance),
    };
    host.record(&Event::SparseRows {
        step,
        pulled: sums[0],
        pushed: sums[1],
        cached: sums[2],
        replicated: sums[3],
        age_max: age_max[0],
        requests_by_server: requests.to_vec(),
        bytes_by_server: bytes.to_vec(),
        by_worker: by_worker.as_chunks().0.iter().map(requests_of).collect(),
    });
    Ok(())
}

fn requests_of(&[requests, pulled, looked_up, replicated, pushed]: &[u64; 5]) -> RowRequests {
    RowRequests { requests, pulled, looked_up, replicated, pushed }
}
