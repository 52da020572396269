//! The streams between two ranks.

use std::time::Duration;

use lockstep_mesh::Rank;
use lockstep_platform::{Listener, NetError, Stream, World};

use super::{TcpOptions, TcpTransport};
use crate::transport::NUM_LANES;

/// The streams between two ranks, for one lane.
pub struct Cable {
    /// Carries no messages.
    pub control: Box<dyn Stream>,
    /// Carry messages; at least one.
    pub data: Vec<Box<dyn Stream>>,
}

/// The cables of a rank: for each lane one to every rank of the world, and none to itself or to
/// ranks that are reached in another way.
pub type Cables = [Vec<Option<Cable>>; NUM_LANES];

impl TcpTransport {
    /// A world of ranks that are threads of this process and yet speak TCP with each other;
    /// element i is for the thread of rank i.
    pub fn loopback(
        world: &World,
        num_ranks: usize,
        num_streams: usize,
        options: &TcpOptions,
    ) -> Result<Vec<[Self; NUM_LANES]>, NetError> {
        let maker = Maker::new(world, num_streams)?;
        let mut all: Vec<Cables> = (0..num_ranks)
            .map(|_| [0; NUM_LANES].map(|_| (0..num_ranks).map(|_| None).collect()))
            .collect();
        for high in 0..num_ranks {
            let (lower, rest) = all.split_at_mut(high);
            for (low, peer) in lower.iter_mut().enumerate() {
                for (near, far) in rest[0].iter_mut().zip(peer) {
                    let (one, other) = maker.cable()?;
                    near[low] = Some(one);
                    far[high] = Some(other);
                }
            }
        }
        let end = |(rank, cables)| Self::lanes(world, Rank(rank), cables, num_ranks, options);
        all.into_iter().enumerate().map(end).collect()
    }
}

/// Connects this process with itself.
struct Maker<'a> {
    world: &'a World,
    listener: Box<dyn Listener>,
    num_streams: usize,
}

impl<'a> Maker<'a> {
    fn new(world: &'a World, num_streams: usize) -> Result<Self, NetError> {
        let listener = world.net().listen("127.0.0.1:0")?;
        Ok(Self { world, listener, num_streams })
    }

    fn cable(&self) -> Result<(Cable, Cable), NetError> {
        let [near, far] = self.stream()?;
        let (mut near, mut far) =
            (Cable { control: near, data: Vec::new() }, Cable { control: far, data: Vec::new() });
        for _ in 0..self.num_streams {
            let [one, other] = self.stream()?;
            near.data.push(one);
            far.data.push(other);
        }
        Ok((near, far))
    }

    /// Both ends of a stream.
    fn stream(&self) -> Result<[Box<dyn Stream>; 2], NetError> {
        const TIMEOUT: Duration = Duration::from_secs(10);
        let near = self.world.net().connect(&self.listener.local_addr(), TIMEOUT)?;
        Ok([near, self.listener.accept(TIMEOUT)?])
    }
}
