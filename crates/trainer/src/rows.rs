//! Rows of the embedding that travel one by one: which a step touches, and what they have weighed.

use crate::TrainError;
use crate::journal::Journal;
use crate::saved::Learner;
use lockstep_comm::{Comm, Reduction};
use lockstep_config::Recipe;
use lockstep_data::Batch;
use lockstep_parallel::Replica;
use lockstep_telemetry::Event;
use serde::Serialize;

/// What is known of rows that travelled one by one, over all workers; null where they do not.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RowFigures {
    /// Rows that were pulled in steps.
    pub rows_pulled: Option<u64>,
    /// Rows whose gradients were pushed.
    pub rows_pushed: Option<u64>,
    /// Rows that steps touched and did not pull, because they were kept.
    pub rows_kept: Option<u64>,
    /// Rows that steps took from a copy on another server than the row's own.
    pub rows_copied: Option<u64>,
    /// The most updates that a row that was kept or copied had missed when it was used.
    pub row_age_max: Option<u64>,
    /// Requests to each server that were about rows.
    pub row_requests_by_server: Option<Vec<u64>>,
    /// Bytes of rows and their numbers, to and from each server.
    pub row_bytes_by_server: Option<Vec<u64>>,
    /// Those of the server with the most over their mean.
    pub row_imbalance: Option<f64>,
}

/// How many times the mean of all servers one of them may move for rows.
const MAX_IMBALANCE: f64 = 1.5;

/// What is said where one server has much more to do than others.
fn uneven(bytes: &[u64]) -> String {
    let most = bytes.iter().max().copied().unwrap_or(0);
    let server = bytes.iter().position(|bytes| *bytes == most).unwrap_or(0);
    format!(
        "server {server} moves much more for rows than the mean of all servers; use \
         sync.rows_by = \"hash\", or sync.hot_rows to ask for common rows less often"
    )
}

/// Says which rows this worker's part of a batch touches.
pub(crate) fn touch(
    recipe: &Recipe,
    step: u64,
    batch: &Batch,
    replica: &mut Replica,
) -> Result<(), TrainError> {
    if recipe.sync.server.rows.sparse {
        let microbatches = replica.own_microbatches().to_vec();
        replica.touch(
            step,
            microbatches.iter().flat_map(|microbatch| batch.microbatch(*microbatch).0).copied(),
        )?;
    }
    Ok(())
}

/// Adds up what rows have weighed for all workers, and tells it.
pub(crate) fn tell(
    workers: &Comm,
    step: u64,
    learner: &Learner,
    journal: &mut Journal,
) -> Result<(), TrainError> {
    let Some(own) = learner.replica.row_counts() else { return Ok(()) };
    let num_servers = own.requests.len();
    let mut sums = vec![own.pulled, own.pushed, own.kept, own.copied];
    sums.extend(own.requests.iter().chain(&own.bytes));
    let mut age_max = [own.age_max];
    workers.all_reduce(&mut sums, Reduction::Sum)?;
    workers.all_reduce(&mut age_max, Reduction::Max)?;
    let (requests, bytes) = sums[4..].split_at(num_servers);
    let most = bytes.iter().max().copied().unwrap_or(0);
    let imbalance = (most * num_servers as u64) as f64 / bytes.iter().sum::<u64>().max(1) as f64;
    if imbalance > MAX_IMBALANCE {
        journal.warn_once(uneven(bytes));
    }
    journal.rows = RowFigures {
        rows_pulled: Some(sums[0]),
        rows_pushed: Some(sums[1]),
        rows_kept: Some(sums[2]),
        rows_copied: Some(sums[3]),
        row_age_max: Some(age_max[0]),
        row_requests_by_server: Some(requests.to_vec()),
        row_bytes_by_server: Some(bytes.to_vec()),
        row_imbalance: Some(imbalance),
    };
    journal.tell(&Event::Rows {
        step,
        pulled: sums[0],
        pushed: sums[1],
        kept: sums[2],
        copied: sums[3],
        age_max: age_max[0],
        requests_by_server: requests.to_vec(),
        bytes_by_server: bytes.to_vec(),
    });
    Ok(())
}
