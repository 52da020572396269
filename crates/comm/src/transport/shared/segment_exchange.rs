//! Exchange of memory segments between the processes of one host.
//!
//! Every process listens on a local name made of the job name and its rank. Between two processes
//! the higher rank connects to the lower one's name, and both send the descriptor of their segment.
//! Success proves that they share a host; host names, addresses and environment variables do not.
//! The stream stays open as a liveness signal: it closes when the other process ends.

use std::time::Duration;

use lockstep_mesh::Rank;
use lockstep_platform::{
    Deadline, LocalListener, LocalMessage, LocalStream, Segment, SharedError, World,
};

use super::header::Header;
use super::{SharedWorld, new_segment};
use crate::error::CommError;

/// A process that listens for its peers.
pub struct SegmentExchange {
    world: World,
    job: String,
    rank: Rank,
    num_ranks: usize,
    listener: Box<dyn LocalListener>,
}

/// Time between two attempts to connect to a process that may not listen yet.
const RETRY: Duration = Duration::from_millis(2);

impl SegmentExchange {
    /// Starts to listen. `job` must be equal on all ranks, and unique among the jobs of their
    /// hosts.
    pub fn listen(
        world: &World,
        job: &str,
        rank: Rank,
        num_ranks: usize,
    ) -> Result<Self, CommError> {
        let listener = world.shared().listen(&name(job, rank))?;
        Ok(Self { world: world.clone(), job: job.to_owned(), rank, num_ranks, listener })
    }

    /// Exchanges segments with all of `peers` within `timeout`. The relation must be symmetric:
    /// each peer lists this rank too.
    pub fn run(
        self,
        peers: &[Rank],
        arena_bytes: usize,
        timeout: Duration,
    ) -> Result<SharedWorld, CommError> {
        let deadline = Deadline::after(self.world.clock(), timeout);
        let header = Header::new(self.num_ranks);
        let own = new_segment(&self.world, header, arena_bytes)?;
        let mut segments: Vec<Option<Segment>> = vec![None; self.num_ranks];
        let mut watched = Vec::new();
        for &peer in peers.iter().filter(|&&peer| peer < self.rank) {
            let mut stream = self.connect(peer, &deadline)?;
            stream.send(&(self.rank.0 as u64).to_le_bytes(), &[&own])?;
            let parcel = stream.recv(deadline.remaining(self.world.clock()))?;
            segments[peer.0] = Some(self.accept_parcel(parcel, |rank| rank == peer, header)?.1);
            watched.push((peer, stream));
        }
        for _ in peers.iter().filter(|&&peer| peer > self.rank) {
            let mut stream = self.listener.accept(deadline.remaining(self.world.clock()))?;
            let parcel = stream.recv(deadline.remaining(self.world.clock()))?;
            let is_new = |rank: Rank| {
                rank > self.rank && peers.contains(&rank) && segments[rank.0].is_none()
            };
            let (peer, segment) = self.accept_parcel(parcel, is_new, header)?;
            stream.send(&(self.rank.0 as u64).to_le_bytes(), &[&own])?;
            segments[peer.0] = Some(segment);
            watched.push((peer, stream));
        }
        segments[self.rank.0] = Some(own);
        let names = (self.job.clone(), "shm");
        Ok(SharedWorld::new(&self.world, self.rank, segments, watched, names))
    }

    fn connect(&self, peer: Rank, deadline: &Deadline) -> Result<Box<dyn LocalStream>, CommError> {
        loop {
            let remaining = deadline.remaining(self.world.clock());
            match self.world.shared().connect(&name(&self.job, peer), remaining) {
                Ok(stream) => return Ok(stream),
                Err(error)
                    if error.kind() == std::io::ErrorKind::ConnectionRefused
                        && !remaining.is_zero() =>
                {
                    self.world.clock().sleep(RETRY.min(remaining));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Validates a peer's rank and segment.
    fn accept_parcel(
        &self,
        mut parcel: LocalMessage,
        is_expected: impl FnOnce(Rank) -> bool,
        header: Header,
    ) -> Result<(Rank, Segment), CommError> {
        let malformed = || {
            let error = std::io::Error::from(std::io::ErrorKind::InvalidData);
            CommError::Shared(SharedError::new("parse the message of a local process", &error))
        };
        let number: [u8; 8] = parcel.message.as_slice().try_into().map_err(|_| malformed())?;
        let rank = usize::try_from(u64::from_le_bytes(number)).map_err(|_| malformed())?;
        let segment = parcel.segments.pop().ok_or_else(malformed)?;
        let is_valid = rank < self.num_ranks && segment.header_bytes() == header.bytes();
        if is_valid && is_expected(Rank(rank)) {
            Ok((Rank(rank), segment))
        } else {
            Err(malformed())
        }
    }
}

fn name(job: &str, rank: Rank) -> String {
    format!("lockstep/{job}/{rank}")
}
