//! Messages from one rank to another, with tags, and signals, which are messages without content.
//!
//! Messages between a pair match in order per tag: two with the same tag arrive in the order in
//! which they were sent, and one with another tag does not stand in their way. A send may wait
//! until its receiver takes the message, so two ranks that send to each other use
//! [`Comm::send_recv`], or start one of the two.
//!
//! Messages have wires of their own: collective calls do not get in their way, and one that was
//! started in the background meets one that is received directly, and the other way round.

use std::time::Duration;

use lockstep_platform::{Source, Target};

use crate::comm::Comm;
use crate::element::{Dtype, Element};
use crate::error::{CommError, Interruption};
use crate::node::Lane;
use crate::plan::Traffic;
use crate::recorder::Entry;
use crate::signature::{MESSAGE, Signature};
use crate::transport::{Envelope, PURPOSE_BIT, Round};

/// What a message is for; the two have tags of their own.
#[derive(Clone, Copy)]
enum Purpose {
    Content = 1,
    Signal = 2,
}

/// To or from the member at a position, and what.
#[derive(Clone, Copy)]
enum Message<'a> {
    Leaving(usize, Source<'a, u8>),
    Arriving(usize, Target<'a, u8>),
}

/// A message without content.
const SIGNAL: Signature = Signature::message(Dtype::U8, 0);

impl Comm {
    /// Sends `data` to the member at position `to`.
    pub fn send<T: Element>(&self, data: &[T], to: usize, tag: u64) -> Result<(), CommError> {
        let signature = Signature::message(T::DTYPE, data.len());
        let message = Message::Leaving(to, Source::of(data).cast());
        self.post((Purpose::Content, tag), signature, message)
    }

    /// Receives exactly `data.len()` elements from the member at position `from`.
    pub fn recv<T: Element>(&self, data: &mut [T], from: usize, tag: u64) -> Result<(), CommError> {
        let signature = Signature::message(T::DTYPE, data.len());
        let message = Message::Arriving(from, Target::of(data).cast());
        self.post((Purpose::Content, tag), signature, message)
    }

    /// Sends to one member and receives from another, or the same, at the same time. (The content
    /// is copied, so that it can leave while this thread receives.)
    pub fn send_recv<T: Element>(
        &self,
        data: &[T],
        to: usize,
        arriving: &mut [T],
        from: usize,
        tag: u64,
    ) -> Result<(), CommError> {
        self.check_other(from)?;
        let leaving = self.start_send::<T, _>(data.to_vec(), to, tag)?;
        self.recv(arriving, from, tag)?;
        leaving.finish().map(drop)
    }

    /// Tells the member at position `to` that something is done: its [`Comm::wait_for`] with this
    /// tag returns, and sees what this rank wrote before.
    pub fn signal(&self, to: usize, tag: u64) -> Result<(), CommError> {
        self.post((Purpose::Signal, tag), SIGNAL, Message::Leaving(to, Source::of(&[])))
    }

    /// Waits for one [`Comm::signal`] with this tag from the member at position `from`.
    pub fn wait_for(&self, from: usize, tag: u64) -> Result<(), CommError> {
        self.post((Purpose::Signal, tag), SIGNAL, Message::Arriving(from, Target::of(&mut [])))
    }

    /// Waits until a message with this tag has begun to come from one of the members at positions
    /// `from`, and returns whose; [`Comm::recv`] takes it. Of several the first in the list counts.
    /// For a member that serves whoever asks; nobody may have sent it anything under another tag
    /// before that it has not received.
    pub fn wait_any(&self, from: &[usize], tag: u64) -> Result<usize, CommError> {
        let found = self.wait_for_first(from, tag, self.timeout, false)?;
        Ok(found.expect("somebody, or an error"))
    }

    fn wait_for_first(
        &self,
        from: &[usize],
        tag: u64,
        timeout: Duration,
        forgives: bool,
    ) -> Result<Option<usize>, CommError> {
        if from.is_empty() {
            return Err(self.invalid("wait for a message", "somebody may send one"));
        }
        from.iter().try_for_each(|position| self.check_other(*position))?;
        let group = self.core.team.id | (Purpose::Content as u64) << PURPOSE_BIT;
        let envelope = Envelope { group, number: tag, signature: SIGNAL };
        let peers: Vec<_> = from.iter().map(|position| self.ranks()[*position]).collect();
        match self.core.node.wait_for_message(&peers, &envelope, timeout) {
            Ok(peer) => {
                let index = peers.iter().position(|other| *other == peer).expect("one of them");
                Ok(Some(from[index]))
            }
            Err(Interruption::Deadline { .. }) if forgives => Ok(None),
            Err(why) => Err(self.message_failed(Lane::Recvs, why, (SIGNAL, tag), (0, 0))),
        }
    }

    /// The same for no longer than `patience`, after which nobody is blamed and nothing returned.
    pub fn wait_any_within(
        &self,
        from: &[usize],
        tag: u64,
        patience: Duration,
    ) -> Result<Option<usize>, CommError> {
        self.wait_for_first(from, tag, patience, true)
    }

    fn post(
        &self,
        (purpose, tag): (Purpose, u64),
        signature: Signature,
        message: Message<'_>,
    ) -> Result<(), CommError> {
        let (position, bytes) = match message {
            Message::Leaving(to, window) => (to, window.len() as u64),
            Message::Arriving(from, window) => (from, window.len() as u64),
        };
        self.check_other(position)?;
        let group = self.core.team.id | (purpose as u64) << PURPOSE_BIT;
        let envelope = Envelope { group, number: tag, signature };
        let peer = self.ranks()[position];
        let mut traffic = Traffic::default();
        let lane = match message {
            Message::Leaving(..) => {
                (traffic.messages, traffic.sent_bytes) = (1, bytes);
                Lane::Sends
            }
            Message::Arriving(..) => {
                traffic.received_bytes = bytes;
                Lane::Recvs
            }
        };
        let (send, recv) = match message {
            Message::Leaving(_, window) => (Some((peer, window)), None),
            Message::Arriving(_, window) => (None, Some((peer, window))),
        };
        let (sends, recvs) = (send.as_slice(), recv.as_slice());
        let round = Round { envelope, sends, recvs, done_bytes: 0, arrived: &|_| {} };
        self.carry_out(lane, round, &traffic)
    }

    /// Waits for one [`Comm::signal`] with this tag from every other member, in whatever order they
    /// come; `arrived` is told the position of each as soon as it has.
    pub fn wait_for_each(&self, tag: u64, arrived: &dyn Fn(usize)) -> Result<(), CommError> {
        let group = self.core.team.id | (Purpose::Signal as u64) << PURPOSE_BIT;
        let envelope = Envelope { group, number: tag, signature: SIGNAL };
        let others = self.ranks().iter().filter(|rank| **rank != self.rank());
        let recvs: Vec<_> = others.map(|rank| (*rank, Target::of(&mut []))).collect();
        let position = |rank| self.ranks().iter().position(|member| *member == rank);
        let arrived = |rank| arrived(position(rank).expect("a message of a member"));
        let round = Round { envelope, sends: &[], recvs: &recvs, done_bytes: 0, arrived: &arrived };
        self.carry_out(Lane::Recvs, round, &Traffic::default())
    }

    fn carry_out(
        &self,
        lane: Lane,
        mut round: Round<'_>,
        traffic: &Traffic,
    ) -> Result<(), CommError> {
        if self.lane == Lane::Caller {
            match lane {
                Lane::Sends => self.core.sends_in_flight.drain(),
                _ => self.core.recvs_in_flight.drain(),
            }
        }
        let (bytes, Envelope { number: tag, signature, .. }) =
            (round.expected_bytes(), round.envelope);
        let (node, label) = (&self.core.node, self.label);
        let entry = Entry { group: self.core.team.id, lane, number: tag, signature, label };
        let flight = node.recorder().flight(entry, node.world().clock());
        flight.begin();
        let result = node.exchange(lane, &mut round, self.timeout);
        let done_bytes = round.done_bytes;
        if let Err(why) = result {
            flight.fail(done_bytes);
            return Err(self.message_failed(lane, why, (signature, tag), (done_bytes, bytes)));
        }
        flight.end(false);
        self.lock().counters.add(MESSAGE, traffic);
        Ok(())
    }

    fn check_other(&self, position: usize) -> Result<(), CommError> {
        if position >= self.group_size() || position == self.group_rank() {
            let rule = format!("position {position} is no other member of the group");
            return Err(self.invalid("send or receive", &rule));
        }
        Ok(())
    }

    pub(crate) fn message_failed(
        &self,
        lane: Lane,
        why: Interruption,
        (call, number): (Signature, u64),
        (done_bytes, expected_bytes): (u64, u64),
    ) -> CommError {
        if let Interruption::Lost { peer, reason } = &why
            && self.core.node.is_spared(*peer)
        {
            let (peer, reason, group) = (*peer, reason.clone(), self.name().to_owned());
            return CommError::Gone { peer, reason, group };
        }
        let context = crate::error::Context {
            epoch: self.core.node.epoch(),
            rank: self.rank(),
            call,
            group: self.name().to_owned(),
            number,
            label: self.label,
            timeout: self.timeout,
            done_bytes,
            expected_bytes,
        };
        let verdict = self.core.node.settle(lane, context.statement(why));
        let error = CommError::Failed(Box::new(verdict));
        self.core.node.dump(&error);
        error
    }
}
