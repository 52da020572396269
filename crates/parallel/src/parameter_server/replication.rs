//! Primary-backup replication of a parameter server: an acknowledged change is on both.
//!
//! Workers send requests to the primary. It forwards every change, pulls that expect a push
//! included, to the backup in order, and replies to the worker only after the backup has
//! acknowledged. Both apply the same changes in the same order, so they hold the same bits.
//!
//! When the primary dies, workers turn to the backup and repeat unanswered requests. The backup may
//! have applied a change that the primary forwarded but did not acknowledge: pushes are numbered,
//! so it recognizes the duplicate. When the backup dies, the primary continues alone. There is no
//! second failover.
//!
//! A failure is detected by the end of the process or of its connection. A network partition that
//! leaves both running would leave two primaries; that cannot happen on one machine and is a known
//! limit across several.

use super::server_loop::{Server, send};
use super::{ACKNOWLEDGEMENT_LEN, Parts, Request, Tag};
use lockstep_comm::{Comm, CommError};
use std::time::Duration;

/// Multiple of the workers' timeout that the backup waits for its primary. Reads are not forwarded,
/// so the backup receives less, and workers notice a hung primary first.
const BACKUP_TIMEOUT_FACTOR: u32 = 4;

impl Server<'_> {
    /// Applies what rank `primary` forwards, until it is lost or all workers have left.
    pub(super) fn follow(&mut self, primary: usize) -> Result<(), CommError> {
        let backup_comm = self.comm.within(BACKUP_TIMEOUT_FACTOR * self.timeout());
        while !self.active_workers.is_empty() {
            match self.follow_once(&backup_comm, primary) {
                Ok(true) => {}
                Ok(false) | Err(CommError::Gone { .. }) => {
                    self.has_lost_peer = true;
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Applies one request; false if a worker sends a request directly, which happens only after
    /// the primary's failure.
    fn follow_once(&mut self, backup_comm: &Comm, primary: usize) -> Result<bool, CommError> {
        let sources: Vec<usize> =
            [primary].into_iter().chain(self.active_workers.iter().copied()).collect();
        if backup_comm.wait_any(&sources, Tag::Request as u64)? != primary {
            return Ok(false);
        }
        let request = self.recv_request(primary)?;
        let payload = self.payload(request.kind, primary)?;
        // From here on the change counts: even if this acknowledgement is lost and the worker
        // repeats the request, it is applied once.
        self.comm.send(&[request.number], primary, Tag::Reply as u64)?;
        self.apply(request, payload);
        Ok(true)
    }

    /// Forwards a change to the backup, if there is one.
    pub(super) fn forward_to_backup(
        &mut self,
        request: &Request,
        payload: &Parts,
    ) -> Result<(), CommError> {
        let Some(backup) = self.backup else { return Ok(()) };
        let sent = self.comm.send(&request.fields(), backup, Tag::Request as u64);
        let tag = request.kind.payload();
        let sent =
            sent.and_then(|()| tag.map_or(Ok(()), |tag| send(self.comm, backup, tag, payload)));
        self.unless_gone(sent)
    }

    /// Waits for the backup's acknowledgement.
    pub(super) fn wait_for_backup(&mut self) -> Result<(), CommError> {
        let Some(backup) = self.backup else { return Ok(()) };
        let mut number = [0_u64; ACKNOWLEDGEMENT_LEN];
        let acknowledged = self.comm.recv(&mut number, backup, Tag::Reply as u64);
        self.unless_gone(acknowledged)
    }

    /// Continues without the backup if it is lost.
    fn unless_gone(&mut self, result: Result<(), CommError>) -> Result<(), CommError> {
        match result {
            Err(CommError::Gone { .. }) => {
                (self.backup, self.has_lost_peer) = (None, true);
                Ok(())
            }
            other => other,
        }
    }

    fn timeout(&self) -> Duration {
        self.comm.timeout()
    }
}
