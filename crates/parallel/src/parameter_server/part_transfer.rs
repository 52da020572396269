//! Transfer of a bucket's parts from or to the servers, in the background.
//!
//! All servers transfer at once. Where servers have backups they take turns, since the loss of one
//! must not cut the messages of the others.

use super::{Request, RequestKind, Tag};
use lockstep_comm::{Comm, CommError};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Part that was not transferred since its server was lost.
pub(super) struct LostPart {
    pub(super) bucket: usize,
    pub(super) server: usize,
    /// Rank of the lost server, and its loss.
    pub(super) rank: usize,
    pub(super) why: CommError,
    pub(super) kind: RequestKind,
    /// Number of requests that the server had received: none, or one.
    pub(super) was_requested: u64,
}

/// Parts that were not transferred.
pub(super) type LostParts = Arc<Mutex<Vec<LostPart>>>;

/// Parts of one bucket.
pub(super) struct PartTransfer {
    pub(super) bucket: usize,
    /// Server, its rank and its range of the bucket, in ascending order.
    pub(super) parts: Vec<(usize, usize, Range<usize>)>,
    /// Request, with the worker and its step.
    pub(super) request: Request,
    /// Whether a server may be lost.
    pub(super) has_backups: bool,
    pub(super) lost: LostParts,
}

impl PartTransfer {
    /// Pulls the parts into the bucket.
    pub(super) fn pull(&self, comm: &Comm, mut bucket: &mut [f32]) -> Result<(), CommError> {
        let (mut start, mut windows) = (0, Vec::new());
        for (_, rank, range) in &self.parts {
            let (part, rest) = bucket[range.start - start..].split_at_mut(range.len());
            windows.push((*rank, part));
            (bucket, start) = (rest, range.end);
        }
        let tag = Tag::Weights as u64;
        self.exchange(comm, RequestKind::PullPart, &mut windows, |comm, parts| {
            comm.recv_each(parts, tag)
        })
    }

    /// Pushes the parts of the bucket.
    pub(super) fn push(&self, comm: &Comm, bucket: &[f32]) -> Result<(), CommError> {
        let windows = self.parts.iter().map(|(_, rank, range)| (*rank, &bucket[range.clone()]));
        let tag = Tag::Gradients as u64;
        let mut windows: Vec<_> = windows.collect();
        self.exchange(comm, RequestKind::PushPart, &mut windows, |comm, parts| {
            comm.send_each(parts, tag)
        })
    }

    /// Sends the requests and transfers the parts.
    fn exchange<W>(
        &self,
        comm: &Comm,
        kind: RequestKind,
        windows: &mut [(usize, W)],
        transfer: impl Fn(&Comm, &mut [(usize, W)]) -> Result<(), CommError>,
    ) -> Result<(), CommError> {
        let request = Request { kind, number: self.bucket as u64, ..self.request }.fields();
        let ask = |rank: usize| comm.send(&request, rank, Tag::Request as u64);
        if !self.has_backups {
            self.parts.iter().try_for_each(|(_, rank, _)| ask(*rank))?;
            return transfer(comm, windows);
        }
        for ((server, rank, _), window) in self.parts.iter().zip(windows) {
            let requested = ask(*rank);
            let was_requested = u64::from(requested.is_ok());
            match requested.and_then(|()| transfer(comm, std::slice::from_mut(window))) {
                Err(why @ CommError::Gone { .. }) => {
                    let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
                    let (bucket, server, rank) = (self.bucket, *server, *rank);
                    lost.push(LostPart { bucket, server, rank, why, kind, was_requested });
                }
                other => other?,
            }
        }
        Ok(())
    }
}
