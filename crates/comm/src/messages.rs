//! Messages from one rank to another, with tags, and signals, which are messages without content.
//!
//! Messages between a pair match in order per tag: two with the same tag arrive in the order in
//! which they were sent, and one with another tag does not stand in their way. A send may wait
//! until its receiver takes the message, so two ranks that send to each other use
//! [`Comm::send_recv`], which does both at once.

use lockstep_platform::{Source, Target};

use crate::comm::Comm;
use crate::element::Element;
use crate::error::{CommError, Interruption};
use crate::plan::Traffic;
use crate::signature::{MESSAGE, Signature};
use crate::transport::{Envelope, Round};

/// What a message is for; the two have tags of their own.
#[derive(Clone, Copy)]
enum Purpose {
    Content = 1,
    Signal = 2,
}

impl Comm {
    /// Sends `data` to the member at position `to`.
    pub fn send<T: Element>(&self, data: &[T], to: usize, tag: u64) -> Result<(), CommError> {
        self.post(Purpose::Content, tag, Some((to, Source::of(data).cast())), None)
    }

    /// Receives exactly `data.len()` elements from the member at position `from`.
    pub fn recv<T: Element>(&self, data: &mut [T], from: usize, tag: u64) -> Result<(), CommError> {
        self.post(Purpose::Content, tag, None, Some((from, Target::of(data).cast())))
    }

    /// Sends to one member and receives the same number of elements from another, or the same, at
    /// the same time.
    pub fn send_recv<T: Element>(
        &self,
        data: &[T],
        to: usize,
        arriving: &mut [T],
        from: usize,
        tag: u64,
    ) -> Result<(), CommError> {
        if data.len() != arriving.len() {
            return Err(self.invalid("send and receive", "both buffers have one length"));
        }
        let send = (to, Source::of(data).cast());
        self.post(Purpose::Content, tag, Some(send), Some((from, Target::of(arriving).cast())))
    }

    /// Tells the member at position `to` that something is done: its [`Comm::wait_for`] with this
    /// tag returns, and sees what this rank wrote before.
    pub fn signal(&self, to: usize, tag: u64) -> Result<(), CommError> {
        self.post(Purpose::Signal, tag, Some((to, Source::of(&[]))), None)
    }

    /// Waits for one [`Comm::signal`] with this tag from the member at position `from`.
    pub fn wait_for(&self, from: usize, tag: u64) -> Result<(), CommError> {
        self.post(Purpose::Signal, tag, None, Some((from, Target::of(&mut []))))
    }

    fn post(
        &self,
        purpose: Purpose,
        tag: u64,
        send: Option<(usize, Source<'_, u8>)>,
        recv: Option<(usize, Target<'_, u8>)>,
    ) -> Result<(), CommError> {
        let named = send.iter().map(|(to, _)| *to).chain(recv.iter().map(|(from, _)| *from));
        for position in named {
            if position >= self.num_members() || position == self.position() {
                let rule = format!("position {position} is no other member of the group");
                return Err(self.invalid("send or receive", &rule));
            }
        }
        self.core.in_flight.drain();
        let sent = send.as_ref().map_or(0, |(_, window)| window.len());
        let received = recv.as_ref().map_or(0, |(_, window)| window.len());
        let signature = Signature::message(sent.max(received));
        let group = self.core.team.id | (purpose as u64) << 60;
        let envelope = Envelope { group, number: tag, signature };
        let rank = |position: usize| self.members()[position];
        let sends: Vec<_> = send.into_iter().map(|(to, window)| (rank(to), window)).collect();
        let recvs: Vec<_> = recv.into_iter().map(|(from, window)| (rank(from), window)).collect();
        let mut round = Round { envelope, sends: &sends, recvs: &recvs, done_bytes: 0 };
        let result = self.core.node.exchange(self.lane, &mut round, self.timeout);
        let done_bytes = round.done_bytes;
        if let Err(why) = result {
            return Err(self.message_failed(why, signature, done_bytes, (sent + received) as u64));
        }
        let traffic = Traffic {
            messages: sends.len() as u64,
            sent_bytes: sent as u64,
            received_bytes: received as u64,
            ..Traffic::default()
        };
        self.lock().counters.add(MESSAGE, &traffic);
        Ok(())
    }

    fn message_failed(
        &self,
        why: Interruption,
        call: Signature,
        done_bytes: u64,
        expected_bytes: u64,
    ) -> CommError {
        let context = crate::error::Context {
            rank: self.rank(),
            call,
            group: self.name().to_owned(),
            number: 0,
            timeout: self.timeout,
            done_bytes,
            expected_bytes,
        };
        let error = context.error(why);
        self.core.node.abort_unless_told(self.lane, &error);
        error
    }
}
