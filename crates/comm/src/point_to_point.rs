//! Point-to-point messages with tags, and signals, which are messages without content.
//!
//! Messages between a pair match in order per tag: two with the same tag arrive in the order in
//! which they were sent, and a message with another tag does not block them. A send may wait until
//! its receiver takes the message, so two ranks that send to each other use [`Comm::send_recv`], or
//! start one of the two.
//!
//! Messages have their own channels, independent of collectives. A message that was started in the
//! background matches a blocking receive, and the other way round.

use std::time::Duration;

use lockstep_mesh::Rank;
use lockstep_platform::{Source, Target};

use crate::channel::Channel;
use crate::comm::Comm;
use crate::element::{Dtype, Element};
use crate::error::{CommError, Interruption};
use crate::prepared_schedule::Traffic;
use crate::recorder::Entry;
use crate::signature::Signature;
use crate::transport::{Envelope, PURPOSE_BIT, Round};

/// Kind of a message; each kind has its own tags.
#[derive(Clone, Copy)]
enum Purpose {
    Content = 1,
    Signal = 2,
}

/// A message without content.
const SIGNAL: Signature = Signature::message(Dtype::U8, 0);

impl Comm {
    /// Sends `data` to group rank `to`.
    pub fn send<T: Element>(&self, data: &[T], to: usize, tag: u64) -> Result<(), CommError> {
        let signature = Signature::message(T::DTYPE, data.len());
        let send = [(self.other(to)?, Source::of(data).cast())];
        self.post((Purpose::Content, tag), signature, &send, &[])
    }

    /// Receives exactly `data.len()` elements from group rank `from`.
    pub fn recv<T: Element>(&self, data: &mut [T], from: usize, tag: u64) -> Result<(), CommError> {
        let signature = Signature::message(T::DTYPE, data.len());
        let recv = [(self.other(from)?, Target::of(data).cast())];
        self.post((Purpose::Content, tag), signature, &[], &recv)
    }

    /// Sends to several ranks at once, over all their links: group ranks and the elements for each,
    /// which they receive by [`Comm::recv_each`].
    pub fn send_each<T: Element>(
        &self,
        parts: &[(usize, &[T])],
        tag: u64,
    ) -> Result<(), CommError> {
        let sends = parts.iter().map(|(to, data)| Ok((self.other(*to)?, Source::of(data).cast())));
        let sends = sends.collect::<Result<Vec<_>, CommError>>()?;
        self.post((Purpose::Content, tag), Signature::message(T::DTYPE, 0), &sends, &[])
    }

    /// Receives from several ranks at once what each sends by [`Comm::send_each`].
    pub fn recv_each<T: Element>(
        &self,
        parts: &mut [(usize, &mut [T])],
        tag: u64,
    ) -> Result<(), CommError> {
        let parts = parts.iter_mut();
        let recvs = parts.map(|(from, data)| Ok((self.other(*from)?, Target::of(data).cast())));
        let recvs = recvs.collect::<Result<Vec<_>, CommError>>()?;
        self.post((Purpose::Content, tag), Signature::message(T::DTYPE, 0), &[], &recvs)
    }

    /// Sends to one rank and receives from another, or the same, at once. (The content is copied,
    /// so that the background thread can send it while this thread receives.)
    pub fn send_recv<T: Element>(
        &self,
        data: &[T],
        to: usize,
        arriving: &mut [T],
        from: usize,
        tag: u64,
    ) -> Result<(), CommError> {
        self.other(from)?;
        let leaving = self.start_send::<T, _>(data.to_vec(), to, tag)?;
        self.recv(arriving, from, tag)?;
        leaving.finish().map(drop)
    }

    /// Signals group rank `to`: its [`Comm::wait_for`] with this tag returns, and sees all earlier
    /// writes of this rank.
    pub fn signal(&self, to: usize, tag: u64) -> Result<(), CommError> {
        self.post((Purpose::Signal, tag), SIGNAL, &[(self.other(to)?, Source::of(&[]))], &[])
    }

    /// Waits for one [`Comm::signal`] with this tag from group rank `from`.
    pub fn wait_for(&self, from: usize, tag: u64) -> Result<(), CommError> {
        let recv = [(self.other(from)?, Target::of(&mut []))];
        self.post((Purpose::Signal, tag), SIGNAL, &[], &recv)
    }

    /// Waits until a message with this tag has begun to arrive from one of the group ranks `from`,
    /// and returns that rank; [`Comm::recv`] receives it. Of several senders the first in the list
    /// is returned. For servers; no earlier message under another tag may be unreceived.
    pub fn wait_any(&self, from: &[usize], tag: u64) -> Result<usize, CommError> {
        let found = self.wait_for_first(from, tag, self.timeout, false)?;
        Ok(found.expect("a rank, or an error"))
    }

    fn wait_for_first(
        &self,
        from: &[usize],
        tag: u64,
        timeout: Duration,
        may_time_out: bool,
    ) -> Result<Option<usize>, CommError> {
        if from.is_empty() {
            return Err(self.invalid("wait for a message", "at least one sender"));
        }
        let peers = from.iter().map(|group_rank| self.other(*group_rank));
        let peers = peers.collect::<Result<Vec<_>, _>>()?;
        let group = self.core.membership.id | (Purpose::Content as u64) << PURPOSE_BIT;
        let envelope = Envelope { group, number: tag, signature: SIGNAL };
        match self.core.endpoint.wait_for_message(&peers, &envelope, timeout) {
            Ok(peer) => {
                let index = peers.iter().position(|other| *other == peer).expect("one of them");
                Ok(Some(from[index]))
            }
            Err(Interruption::Deadline { .. }) if may_time_out => Ok(None),
            Err(why) => Err(self.message_failed(Channel::Recvs, why, (SIGNAL, tag), (0, 0))),
        }
    }

    /// [`Comm::wait_any`] for at most `timeout`; returns `None` then, without an error.
    pub fn wait_any_within(
        &self,
        from: &[usize],
        tag: u64,
        timeout: Duration,
    ) -> Result<Option<usize>, CommError> {
        self.wait_for_first(from, tag, timeout, true)
    }

    /// Sends messages, or receives some.
    fn post(
        &self,
        (purpose, tag): (Purpose, u64),
        signature: Signature,
        sends: &[(Rank, Source<'_, u8>)],
        recvs: &[(Rank, Target<'_, u8>)],
    ) -> Result<(), CommError> {
        let group = self.core.membership.id | (purpose as u64) << PURPOSE_BIT;
        let envelope = Envelope { group, number: tag, signature };
        let traffic = Traffic {
            messages: sends.len() as u64,
            sent_bytes: sends.iter().map(|(_, window)| window.len() as u64).sum(),
            received_bytes: recvs.iter().map(|(_, window)| window.len() as u64).sum(),
            ..Traffic::default()
        };
        let channel = if recvs.is_empty() { Channel::Sends } else { Channel::Recvs };
        let round = Round { envelope, sends, recvs, done_bytes: 0, arrived: &|_| {} };
        self.exchange_round(channel, round, &traffic)
    }

    /// Waits for one [`Comm::signal`] with this tag from every other rank, in any order; calls
    /// `arrived` with each group rank as soon as its signal has arrived.
    pub fn wait_for_each(&self, tag: u64, arrived: &dyn Fn(usize)) -> Result<(), CommError> {
        let group = self.core.membership.id | (Purpose::Signal as u64) << PURPOSE_BIT;
        let envelope = Envelope { group, number: tag, signature: SIGNAL };
        let others = self.ranks().iter().filter(|rank| **rank != self.rank());
        let recvs: Vec<_> = others.map(|rank| (*rank, Target::of(&mut []))).collect();
        let group_rank = |rank| self.ranks().iter().position(|other| *other == rank);
        let arrived = |rank| arrived(group_rank(rank).expect("a message of a rank of the group"));
        let round = Round { envelope, sends: &[], recvs: &recvs, done_bytes: 0, arrived: &arrived };
        self.exchange_round(Channel::Recvs, round, &Traffic::default())
    }

    fn exchange_round(
        &self,
        channel: Channel,
        mut round: Round<'_>,
        traffic: &Traffic,
    ) -> Result<(), CommError> {
        if self.channel == Channel::Caller {
            match channel {
                Channel::Sends => self.core.sends_in_flight.drain(),
                _ => self.core.recvs_in_flight.drain(),
            }
        }
        let (bytes, Envelope { number: tag, signature, .. }) =
            (round.expected_bytes(), round.envelope);
        let (endpoint, label) = (&self.core.endpoint, self.label);
        let entry =
            Entry { group: self.core.membership.id, channel, number: tag, signature, label };
        let record = endpoint.recorder().open(entry, endpoint.world().clock());
        record.begin();
        let result = endpoint.exchange(channel, &mut round, self.timeout);
        let done_bytes = round.done_bytes;
        if let Err(why) = result {
            record.fail(done_bytes);
            return Err(self.message_failed(channel, why, (signature, tag), (done_bytes, bytes)));
        }
        record.end(false);
        self.lock().counters.add_message(traffic);
        Ok(())
    }

    /// Rank of the world of another group rank.
    fn other(&self, group_rank: usize) -> Result<Rank, CommError> {
        if group_rank >= self.group_size() || group_rank == self.group_rank() {
            let rule = format!("{group_rank} is not another rank of the group");
            return Err(self.invalid("send or receive", &rule));
        }
        Ok(self.ranks()[group_rank])
    }

    pub(crate) fn message_failed(
        &self,
        channel: Channel,
        why: Interruption,
        (call, number): (Signature, u64),
        (done_bytes, expected_bytes): (u64, u64),
    ) -> CommError {
        if let Interruption::Lost { peer, reason } = &why
            && self.core.endpoint.is_expendable(*peer)
        {
            let (peer, reason, group) = (*peer, reason.clone(), self.name().to_owned());
            return CommError::Gone { peer, reason, group };
        }
        let context = crate::error::Context {
            epoch: self.core.endpoint.epoch(),
            rank: self.rank(),
            call,
            group: self.name().to_owned(),
            number,
            label: self.label,
            timeout: self.timeout,
            done_bytes,
            expected_bytes,
        };
        let verdict = self.core.endpoint.agree_on_verdict(channel, context.report(why));
        let error = CommError::Failed(Box::new(verdict));
        self.core.endpoint.dump(&error);
        error
    }
}
