//! The [`Transport`] trait: the operations that the engine needs from a transport.

use std::sync::Arc;
use std::time::Duration;

use lockstep_mesh::Rank;

use super::failure_state::FailureState;
use super::message::{Envelope, Round};
use super::shared::SharedWorld;
use crate::error::{CommError, Interruption};
use crate::verdict::Verdict;

/// One channel from a rank to all other ranks of the world. Ranks here are global ranks.
pub trait Transport: Send {
    /// The rank that owns this end.
    fn rank(&self) -> Rank;

    /// World size.
    fn num_ranks(&self) -> usize;

    /// Moves all messages of one round: posts every send and receive, makes progress on all of
    /// them at once, and returns when all are done, when no byte has moved for `timeout`, or when
    /// the round has taken its total timeout although bytes move. Messages between a pair match in
    /// order. Both ends know the length, and a message whose envelope differs from the receiver's
    /// is a mismatch. `round.done_bytes` is correct on success and on failure.
    fn exchange(&mut self, round: &mut Round<'_>, timeout: Duration) -> Result<(), Interruption>;

    /// Waits until a message that matches the envelope has begun to arrive from one of `peers`, and
    /// returns its rank without receiving it (`MPI_Probe`). `peers` must not be empty. Of several
    /// senders the first in the list is returned; a timeout names the first in the list. The caller
    /// may wait again after a timeout.
    fn wait_for_message(
        &mut self,
        peers: &[Rank],
        envelope: &Envelope,
        timeout: Duration,
    ) -> Result<Rank, Interruption>;

    /// The memory that this rank shares with other ranks, if any.
    fn shared(&self) -> Option<Arc<SharedWorld>>;

    /// Marks ranks as expendable on all channels of this rank: from now on their death interrupts
    /// only the ranks that wait for them, and the channels between all others keep working.
    fn mark_expendable(&self, ranks: &[Rank]);

    /// Sends this rank's failure report to every other rank, so that none waits for it, and returns
    /// the verdict that all ranks agree on.
    fn agree_on_verdict(&mut self, report: Verdict) -> Verdict;

    /// Continues this channel among the survivors of a failure, in the next epoch.
    fn into_next_epoch(
        self: Box<Self>,
        change: &EpochChange<'_>,
    ) -> Result<Box<dyn Transport>, CommError>;

    /// Memory domain of each rank: ranks of one domain share memory. Equal on all ranks.
    fn domains(&self) -> Vec<usize>;

    /// A short name: `threads`, `shm`, `tcp`.
    fn name(&self) -> &'static str;
}

/// Parameters of the next epoch, in which the survivors of a failure continue.
pub struct EpochChange<'a> {
    pub(crate) epoch: u64,
    pub(crate) survivors: &'a [Rank],
    /// New shared memory among the survivors of this host.
    pub(crate) memory: Option<Arc<SharedWorld>>,
    /// Failure state of the new epoch, shared by all channels.
    pub(crate) failure: Arc<FailureState>,
}

/// The channels of a rank. They do not block each other. A message arrives on the channel that it
/// was sent on, except that point-to-point messages leave on `sends` and arrive on `recvs`.
pub struct Channels {
    /// Collective calls that block the caller.
    pub caller: Box<dyn Transport>,
    /// Collective calls in the background.
    pub background: Box<dyn Transport>,
    /// Outgoing point-to-point messages. They have their own channel so that a rank that waits for
    /// a message can send one.
    pub sends: Box<dyn Transport>,
    /// Incoming point-to-point messages.
    pub recvs: Box<dyn Transport>,
}

/// Number of channels of a rank.
pub const NUM_CHANNELS: usize = 4;

impl Channels {
    /// Channels of one kind of transport, in the order of the fields.
    pub fn new<T: Transport + 'static>(
        [caller, background, sends, recvs]: [T; NUM_CHANNELS],
    ) -> Self {
        let (caller, background) = (Box::new(caller), Box::new(background));
        Self { caller, background, sends: Box::new(sends), recvs: Box::new(recvs) }
    }
}
