//! The wires between ranks: what the engine asks of them, and each kind in a file of its own.
//!
//! The engine runs schedules; a transport only moves bytes. It gets the messages of one *round*
//! together, because a rank that first finished sending and then started to receive would wait
//! for peers that do the same.
//!
//! - [`shared`]: ranks that see each other's memory, threads of one process or processes of one
//!   host
//! - [`tcp`]: ranks that are joined by streams of bytes
//! - [`hosts`]: shared memory inside a host and TCP between hosts

pub mod hosts;
pub mod shared;
pub mod tcp;

use std::sync::Arc;
use std::time::Duration;

use lockstep_mesh::Rank;
use lockstep_platform::{Source, Target};

use crate::error::{CommError, Interruption};
use crate::signature::Signature;
use crate::verdict::Verdict;
use shared::SharedWorld;

/// One rank's wires to the other ranks of the world. Ranks here are world ranks.
pub trait Transport: Send {
    /// Whose wires these are.
    fn rank(&self) -> Rank;

    /// How many ranks the world has.
    fn num_ranks(&self) -> usize;

    /// Moves all messages of one round: posts every send and receive, makes progress on all of
    /// them at once, and returns when all are done or `timeout` has passed since the last byte
    /// moved. Messages between a pair match in order; both ends know the length, and a message
    /// whose envelope differs from the receiver's is a mismatch. Whatever happens,
    /// `round.done_bytes` says how far it got.
    fn exchange(&mut self, round: &mut Round<'_>, timeout: Duration) -> Result<(), Interruption>;

    /// Waits until a message for this envelope's group and number has begun to come from one of
    /// `peers`, of which there is at least one, and returns whom; nothing of it is taken. Of
    /// several the first in the list counts, and it is the first that is blamed when `timeout` has
    /// passed. That by itself harms nothing: the caller may go on waiting.
    fn wait_for_message(
        &mut self,
        peers: &[Rank],
        envelope: &Envelope,
        timeout: Duration,
    ) -> Result<Rank, Interruption>;

    /// Memory that some ranks see together, where there is any.
    fn shared(&self) -> Option<Arc<SharedWorld>>;

    /// From now on the death of these ranks interrupts nobody but those who wait for them, and
    /// leaves the wires between all others as they are; on all sets of wires of this rank.
    fn spare(&self, ranks: &[Rank]);

    /// Makes a statement about a failure to every other rank, so that nobody waits for this one,
    /// and returns what all settle on.
    fn settle(&mut self, statement: Verdict) -> Verdict;

    /// The same wires among those who are left, in the next epoch.
    fn renew(self: Box<Self>, renewal: &Renewal<'_>) -> Result<Box<dyn Transport>, CommError>;

    /// Who sees whose memory: ranks with the same number see each other's. The same on all ranks.
    fn domains(&self) -> Vec<usize>;

    /// A short name: `threads`, `shm`, `tcp`.
    fn name(&self) -> &'static str;
}

/// How a group is formed anew.
pub struct Renewal<'a> {
    pub(crate) epoch: u64,
    pub(crate) survivors: &'a [Rank],
    /// New memory among those of them that share any.
    pub(crate) memory: Option<Arc<SharedWorld>>,
    /// What will go wrong on all sets of wires together.
    pub(crate) fate: Arc<tcp::Fate>,
}

/// A rank's wires, in sets that do not get in each other's way. What is sent on one set arrives on
/// the same set of its receiver, except for messages from one rank to another.
pub struct Wires {
    /// For collective calls that the caller waits for.
    pub caller: Box<dyn Transport>,
    /// For collective calls in the background.
    pub background: Box<dyn Transport>,
    /// For messages that leave from one rank to another; they arrive at the other's `recvs`, so
    /// that a rank that waits for a message can send one.
    pub sends: Box<dyn Transport>,
    /// For messages that come from one rank to another.
    pub recvs: Box<dyn Transport>,
}

/// How many sets of wires a rank has.
pub const NUM_LANES: usize = 4;

impl Wires {
    /// Sets of one kind, in the order of the fields.
    pub fn of<T: Transport + 'static>([caller, background, sends, recvs]: [T; NUM_LANES]) -> Self {
        let (caller, background) = (Box::new(caller), Box::new(background));
        Self { caller, background, sends: Box::new(sends), recvs: Box::new(recvs) }
    }
}

/// What stands in front of every message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Envelope {
    /// The group and the kind of traffic.
    pub group: u64,
    /// Which call of the group, or the tag of a message from one rank to another.
    pub number: u64,
    /// What is being called.
    pub signature: Signature,
}

impl Envelope {
    /// Whether a message with this envelope belongs to an earlier collective call than `wanted`.
    /// Nobody has taken it, so that call was another one here. (Tags have no order.)
    pub(crate) fn is_left_over(&self, wanted: &Self) -> bool {
        self.group == wanted.group && self.group >> PURPOSE_BIT == 0 && self.number < wanted.number
    }

    /// Whether it belongs to a later collective call than `wanted`.
    pub(crate) fn is_ahead(&self, wanted: &Self) -> bool {
        wanted.is_left_over(self)
    }
}

/// From this bit on a group's number says what its messages are for; 0 for collective calls.
pub(crate) const PURPOSE_BIT: u32 = 60;

/// The messages of one round.
pub struct Round<'a> {
    /// What stands in front of each of them.
    pub envelope: Envelope,
    /// What leaves: to whom, and from where.
    pub sends: &'a [(Rank, Source<'a, u8>)],
    /// What arrives: from whom, and to where.
    pub recvs: &'a [(Rank, Target<'a, u8>)],
    /// Bytes sent and received so far, envelopes not counted.
    pub done_bytes: u64,
    /// Is told of every rank whose message has come, as soon as it has.
    pub arrived: &'a dyn Fn(Rank),
}

impl Round<'_> {
    /// Bytes that the round moves in and out of this rank.
    pub fn expected_bytes(&self) -> u64 {
        let sent: usize = self.sends.iter().map(|(_, window)| window.len()).sum();
        let received: usize = self.recvs.iter().map(|(_, window)| window.len()).sum();
        (sent + received) as u64
    }
}
