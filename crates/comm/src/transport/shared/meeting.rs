//! How processes of one host find each other and pass their segments.
//!
//! Every process listens on a local name made of the job's name and its rank. Two processes that
//! may share a host try: the higher rank connects to the lower one's name, and both send the
//! descriptor of their segment. If that works they share memory, and if it does not they do not;
//! host names, addresses and environment variables prove neither. The stream stays open, because
//! it closes the moment the other process ends.

use std::time::Duration;

use lockstep_mesh::Rank;
use lockstep_platform::{
    Deadline, LocalListener, LocalStream, Parcel, Segment, SharedError, World,
};

use super::header::Header;
use super::{SharedWorld, new_segment};
use crate::error::CommError;

/// A process that waits to be met.
pub struct Meeting {
    world: World,
    job: String,
    rank: Rank,
    num_ranks: usize,
    listener: Box<dyn LocalListener>,
}

/// Time between two attempts to reach a process that may not listen yet.
const RETRY: Duration = Duration::from_millis(2);

impl Meeting {
    /// Starts to listen. `job` must be the same on all ranks, and differ from that of any other
    /// job on any of the hosts.
    pub fn open(world: &World, job: &str, rank: Rank, num_ranks: usize) -> Result<Self, CommError> {
        let listener = world.shared().listen(&name(job, rank))?;
        Ok(Self { world: world.clone(), job: job.to_owned(), rank, num_ranks, listener })
    }

    /// Exchanges segments with all of `peers`, which do the same, within `timeout`. A rank may be
    /// left out of `peers` only if it leaves this one out too.
    pub fn meet(
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

    /// What a peer sent is used only if it is what a peer of this job would send.
    fn accept_parcel(
        &self,
        mut parcel: Parcel,
        is_expected: impl FnOnce(Rank) -> bool,
        header: Header,
    ) -> Result<(Rank, Segment), CommError> {
        let strange = || {
            let error = std::io::Error::from(std::io::ErrorKind::InvalidData);
            CommError::Shared(SharedError::new("understand what a local process sent", &error))
        };
        let number: [u8; 8] = parcel.message.as_slice().try_into().map_err(|_| strange())?;
        let rank = usize::try_from(u64::from_le_bytes(number)).map_err(|_| strange())?;
        let segment = parcel.segments.pop().ok_or_else(strange)?;
        let fits = rank < self.num_ranks && segment.header_bytes() == header.bytes();
        if fits && is_expected(Rank(rank)) { Ok((Rank(rank), segment)) } else { Err(strange()) }
    }
}

fn name(job: &str, rank: Rank) -> String {
    format!("lockstep/{job}/{rank}")
}
