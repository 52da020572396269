//! A server and its copy: what is acknowledged is on both.
//!
//! The first of the two is asked. Whatever changes anything, reads that will be answered by a push
//! included, it passes on in the order in which it does it, and it answers a worker only when the
//! copy has said that it has it. Both do the same in the same order, so they hold the same bits.
//!
//! When the first is gone, workers ask the copy, and ask it again for what was not answered. What
//! the first had passed on and not answered the copy may have done already: pushes are numbered, so
//! it is told apart and not done twice. When the copy is gone, the first goes on alone. Nobody
//! stands in for the one that is left.
//!
//! A death is known by the end of the process, or by that of the connection to it: where a network
//! is cut in two and both go on, so may both servers. That is for one machine to rule out, and for
//! several to know.

use super::serve::{Server, send};
use super::shard::Parts;
use super::{Request, Tag};
use lockstep_comm::{Comm, CommError};
use std::time::Duration;

/// How many times as long as workers wait for a server its copy does. Reads are not passed on, so
/// it hears less; and whoever waits for the server will notice first if it does not run.
const PATIENCE: u32 = 4;

impl Server<'_> {
    /// Does what the member at position `first` passes on, until it is gone or all workers have
    /// left.
    pub(super) fn follow(&mut self, first: usize) -> Result<(), CommError> {
        let patient = self.comm.within(PATIENCE * self.timeout());
        while !self.present.is_empty() {
            match self.follow_once(&patient, first) {
                Ok(true) => {}
                Ok(false) | Err(CommError::Gone { .. }) => {
                    self.is_alone = true;
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Does one thing; false if a worker asks directly, which it does only when the first is gone.
    fn follow_once(&mut self, patient: &Comm, first: usize) -> Result<bool, CommError> {
        let sources: Vec<usize> = [first].into_iter().chain(self.present.iter().copied()).collect();
        if patient.wait_any(&sources, Tag::Request as u64)? != first {
            return Ok(false);
        }
        let request = self.hear(first)?;
        let content = self.content(request.ask, first)?;
        // From here on it counts: whether or not this is heard, and the worker asks again, it was
        // done once.
        self.comm.send(&[request.number], first, Tag::Answer as u64)?;
        self.apply(request, content);
        Ok(true)
    }

    /// Tells the copy, where there is one.
    pub(super) fn pass_on(&mut self, request: &Request, content: &Parts) -> Result<(), CommError> {
        let Some(copy) = self.copy else { return Ok(()) };
        let told = self.comm.send(&request.words(), copy, Tag::Request as u64);
        let tag = request.ask.content();
        let told =
            told.and_then(|()| tag.map_or(Ok(()), |tag| send(self.comm, copy, tag, content)));
        self.unless_gone(told)
    }

    /// Waits until the copy has what it was told last.
    pub(super) fn wait_for_copy(&mut self) -> Result<(), CommError> {
        let Some(copy) = self.copy else { return Ok(()) };
        let heard = self.comm.recv(&mut [0_u64], copy, Tag::Answer as u64);
        self.unless_gone(heard)
    }

    /// Goes on alone where the copy is gone.
    fn unless_gone(&mut self, result: Result<(), CommError>) -> Result<(), CommError> {
        match result {
            Err(CommError::Gone { .. }) => {
                (self.copy, self.is_alone) = (None, true);
                Ok(())
            }
            other => other,
        }
    }

    fn timeout(&self) -> Duration {
        self.comm.timeout()
    }
}
