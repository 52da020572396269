//! The streams between two ranks.

use std::time::Duration;

use lockstep_mesh::Rank;
use lockstep_platform::{Listener, NetError, Stream, World};

use super::{TcpOptions, TcpTransport};
use crate::transport::NUM_CHANNELS;

/// The streams between two ranks, for one channel.
pub struct Connection {
    /// Carries control messages only.
    pub control: Box<dyn Stream>,
    /// Carry data messages; at least one.
    pub data: Vec<Box<dyn Stream>>,
}

/// The connections of a rank: for each channel one per rank of the world; `None` for the rank
/// itself and for ranks reached through shared memory.
pub type Connections = [Vec<Option<Connection>>; NUM_CHANNELS];

impl TcpTransport {
    /// A world of ranks that are threads of this process and connected by loopback TCP; element i
    /// is for the thread of rank i.
    pub fn loopback(
        world: &World,
        num_ranks: usize,
        num_streams: usize,
        options: &TcpOptions,
    ) -> Result<Vec<[Self; NUM_CHANNELS]>, NetError> {
        let maker = LoopbackBuilder::new(world, num_streams)?;
        let mut all: Vec<Connections> = (0..num_ranks)
            .map(|_| [0; NUM_CHANNELS].map(|_| (0..num_ranks).map(|_| None).collect()))
            .collect();
        for high in 0..num_ranks {
            let (lower, rest) = all.split_at_mut(high);
            for (low, peer) in lower.iter_mut().enumerate() {
                for (own, peers) in rest[0].iter_mut().zip(peer) {
                    let (one, other) = maker.connection()?;
                    own[low] = Some(one);
                    peers[high] = Some(other);
                }
            }
        }
        let end = |(rank, connections)| {
            Self::channels(world, Rank(rank), connections, num_ranks, options)
        };
        all.into_iter().enumerate().map(end).collect()
    }
}

/// Opens loopback connections inside this process.
struct LoopbackBuilder<'a> {
    world: &'a World,
    listener: Box<dyn Listener>,
    num_streams: usize,
}

impl<'a> LoopbackBuilder<'a> {
    fn new(world: &'a World, num_streams: usize) -> Result<Self, NetError> {
        let listener = world.net().listen("127.0.0.1:0")?;
        Ok(Self { world, listener, num_streams })
    }

    fn connection(&self) -> Result<(Connection, Connection), NetError> {
        let [first, second] = self.stream()?;
        let (mut first, mut second) = (
            Connection { control: first, data: Vec::new() },
            Connection { control: second, data: Vec::new() },
        );
        for _ in 0..self.num_streams {
            let [one, other] = self.stream()?;
            first.data.push(one);
            second.data.push(other);
        }
        Ok((first, second))
    }

    /// Both ends of a stream.
    fn stream(&self) -> Result<[Box<dyn Stream>; 2], NetError> {
        const TIMEOUT: Duration = Duration::from_secs(10);
        let connected = self.world.net().connect(&self.listener.local_addr(), TIMEOUT)?;
        Ok([connected, self.listener.accept(TIMEOUT)?])
    }
}
