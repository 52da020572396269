//! Where callers arrive.
//!
//! Anybody can call: ranks, port scanners, ranks of another run, callers that never say a word. The
//! door listens to all of them at once, so that none can keep the others waiting. A caller is heard
//! twice: it greets, which takes the run's secret, and is answered; then it says its hello, sealed,
//! which proves that it is no recording. Only hellos are passed on; whether one is welcome is for
//! the door's owner to decide, and only those who got that far are told a reason.
//!
//! What a stranger can cost is bounded: the bytes of one greeting and one hello, a few seconds, and
//! one of a limited number of places. When all are taken, the host that has most of the callers who
//! did not prove themselves loses its oldest one.

use std::collections::BTreeMap;
use std::io::{ErrorKind, IoSlice};
use std::time::Duration;

use lockstep_platform::{Deadline, Interest, Listener, NetError, StreamSet, World};

use super::refusals::{Log, Refusals};
use super::wire::{Answer, FRONT_BYTES, Hello, MAX_HELLO_BYTES};
use lockstep_auth::handshake::{
    GREETING_BYTES, Greeting, Mistrust, answer, is_like_a_greeting, refusal,
};
use lockstep_auth::session::{Session, record_bytes};
use lockstep_auth::stream::SealedStream;
use lockstep_auth::ticket::Secret;

/// Callers beside the expected ones that may wait at the same time.
const SPARE_CALLERS: usize = 64;

/// The longest hello in its record.
const MAX_PLAIN_BYTES: usize = FRONT_BYTES + MAX_HELLO_BYTES;

/// More than the longest thing that a caller may say at once.
const MAX_HEARD_BYTES: usize = MAX_PLAIN_BYTES + 64;

/// An open door.
pub(super) struct Door {
    world: World,
    listener: Box<dyn Listener>,
    secret: Secret,
    set: Box<dyn StreamSet>,
    callers: Vec<Caller>,
    max_callers: usize,
    /// How long a caller may take to prove itself.
    limit: Duration,
    refusals: Refusals,
}

struct Caller {
    /// The number in the set.
    stream: usize,
    addr: String,
    /// What it has said since it was last answered.
    bytes: Vec<u8>,
    stage: Stage,
    deadline: Deadline,
}

enum Stage {
    /// Its greeting has not come yet.
    Silent,
    /// It greeted as only those can who know the secret, or repeated one who does.
    Greeted(Session),
    /// It said hello, and waits.
    Known(Session),
}

/// Something happened at the door.
pub(super) enum Event {
    /// A caller said who it is, and waits.
    Hello(CallerId, Hello),
    /// A caller who had said hello is gone.
    Gone(CallerId),
}

/// A caller who said hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CallerId(usize);

impl Door {
    /// A door for so many callers at once, who must know the secret.
    pub(super) fn new(
        world: &World,
        listener: Box<dyn Listener>,
        secret: &Secret,
        num_expected: usize,
        limit: Duration,
        log: Option<Log>,
    ) -> Self {
        Self {
            world: world.clone(),
            listener,
            secret: *secret,
            set: world.net().stream_set(),
            callers: Vec::new(),
            max_callers: num_expected + SPARE_CALLERS,
            limit,
            refusals: Refusals::new(log, world.clock()),
        }
    }

    pub(super) fn addr(&self) -> String {
        self.listener.local_addr()
    }

    /// Who was turned away, and why.
    pub(super) fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// The next event; nothing if none happens in time.
    pub(super) fn next(&mut self, deadline: &Deadline) -> Option<Event> {
        loop {
            if let Some(event) = self.hear() {
                return Some(event);
            }
            let has_trouble = self.let_in().is_err();
            let patience = self.turn_away_the_slow();
            let remaining = deadline.remaining(self.world.clock());
            match self.set.wait(Some(&*self.listener), remaining.min(patience)) {
                Ok(true) if !has_trouble => {}
                _ if remaining.is_zero() => return None,
                // A caller's time is up; or the system lacks memory or descriptors, and that may
                // pass.
                _ => self.world.clock().sleep(Duration::from_millis(1)),
            }
        }
    }

    /// Accepts whoever has come.
    fn let_in(&mut self) -> Result<(), NetError> {
        loop {
            let stream = match self.listener.accept(Duration::ZERO) {
                Ok(stream) => stream,
                Err(error) if error.kind() == ErrorKind::TimedOut => return Ok(()),
                Err(error) => return Err(error),
            };
            let addr = stream.peer_addr();
            if self.callers.len() >= self.max_callers {
                let Some(index) = self.least_welcome() else {
                    self.refusals.note(self.world.clock(), &addr, "too many callers wait");
                    continue;
                };
                self.turn_away(index, "too many callers wait");
            }
            let stream = self.set.add(stream);
            self.set.watch(stream, Interest { read: true, write: false });
            let deadline = Deadline::after(self.world.clock(), self.limit);
            let (bytes, stage) = (Vec::new(), Stage::Silent);
            self.callers.push(Caller { stream, addr, bytes, stage, deadline });
        }
    }

    /// Of the callers who have not proven themselves, the oldest of the host that has most.
    fn least_welcome(&self) -> Option<usize> {
        let mut hosts: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for (index, caller) in self.callers.iter().enumerate().filter(|(_, c)| !c.is_known()) {
            hosts.entry(caller.host()).or_insert((0, index)).0 += 1;
        }
        hosts.into_values().max_by_key(|(num_callers, _)| *num_callers).map(|(_, index)| index)
    }

    /// Turns away whoever took too long to prove itself, and tells when the next one will have.
    fn turn_away_the_slow(&mut self) -> Duration {
        let mut patience = self.limit;
        for index in (0..self.callers.len()).rev() {
            let caller = &self.callers[index];
            let remaining = caller.deadline.remaining(self.world.clock());
            if caller.is_known() {
                continue;
            }
            if remaining.is_zero() {
                let limit_ms = self.limit.as_millis();
                self.turn_away(index, &format!("it did not say who it is within {limit_ms} ms"));
            } else {
                patience = patience.min(remaining);
            }
        }
        patience
    }

    /// Listens to every caller; returns at the first event.
    fn hear(&mut self) -> Option<Event> {
        let mut index = 0;
        while index < self.callers.len() {
            match self.hear_one(index) {
                Heard::Nothing => index += 1,
                Heard::Event(event) => return Some(event),
                // Another caller has taken the place.
                Heard::TurnedAway => {}
            }
        }
        None
    }

    fn hear_one(&mut self, index: usize) -> Heard {
        let caller = &mut self.callers[index];
        let id = CallerId(caller.stream);
        let wanted = caller.wanted().expect("those who announce too much are gone");
        let mut buffer = [0; MAX_HEARD_BYTES];
        let room = wanted - caller.bytes.len();
        match self.set.read(caller.stream, &mut buffer[..room]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Heard::Nothing,
            Ok(1..) if caller.is_known() => {
                self.turn_away(index, "it spoke before it was answered");
                return Heard::Event(Event::Gone(id));
            }
            Ok(num_bytes @ 1..) => caller.bytes.extend_from_slice(&buffer[..num_bytes]),
            Ok(0) | Err(_) if caller.is_known() => {
                self.remove(index);
                return Heard::Event(Event::Gone(id));
            }
            Ok(0) | Err(_) => {
                let has_spoken = caller.has_spoken();
                let reason = if has_spoken { "it left while greeting" } else { "it said nothing" };
                return self.refuse_unproven(index, reason);
            }
        }
        match caller.stage {
            Stage::Silent => self.hear_greeting(index),
            _ => self.hear_hello(index),
        }
    }

    fn hear_greeting(&mut self, index: usize) -> Heard {
        let caller = &mut self.callers[index];
        if !is_like_a_greeting(&caller.bytes) {
            return self.refuse_unproven(index, Mistrust::NotOurs.reason());
        }
        let Ok(greeting) = Greeting::try_from(&caller.bytes[..]) else { return Heard::Nothing };
        match answer(&self.world, &self.secret, &greeting) {
            Ok((reply, session)) => {
                caller.bytes.clear();
                caller.stage = Stage::Greeted(session);
                let sent = self.set.write(caller.stream, &[IoSlice::new(&reply)]);
                if matches!(sent, Ok(GREETING_BYTES)) {
                    return Heard::Nothing;
                }
                self.refuse_unproven(index, "it does not take an answer")
            }
            Err(mistrust) => {
                // A stranger that does not take the answer does not get it.
                let _ = self.set.write(caller.stream, &[IoSlice::new(&refusal())]);
                self.refuse_unproven(index, mistrust.reason())
            }
        }
    }

    fn hear_hello(&mut self, index: usize) -> Heard {
        let caller = &mut self.callers[index];
        let Some(wanted) = caller.wanted() else {
            return self.refuse_unproven(index, "it announces more than a hello has");
        };
        if caller.bytes.len() < wanted {
            return Heard::Nothing;
        }
        let bytes = std::mem::take(&mut caller.bytes);
        let Stage::Greeted(session) = std::mem::replace(&mut caller.stage, Stage::Silent) else {
            unreachable!("only those who greeted are heard here");
        };
        let Some(hello) = session.open_one(&bytes) else {
            return self.refuse_unproven(index, "it repeats the greeting of somebody else");
        };
        caller.stage = Stage::Known(session);
        match Hello::decode(&hello) {
            Ok(hello) => Heard::Event(Event::Hello(CallerId(caller.stream), hello)),
            Err(malformed) => {
                self.turn_away(index, &malformed.0);
                Heard::TurnedAway
            }
        }
    }

    fn refuse_unproven(&mut self, index: usize, reason: &str) -> Heard {
        self.turn_away(index, reason);
        Heard::TurnedAway
    }

    /// Turns a caller away who said hello.
    pub(super) fn refuse(&mut self, id: CallerId, reason: &str) {
        let index = self.position(id);
        self.turn_away(index, reason);
    }

    /// Hands over the stream of a caller who said hello.
    pub(super) fn take(&mut self, id: CallerId) -> SealedStream {
        let caller = self.callers.remove(self.position(id));
        let Stage::Known(session) = caller.stage else {
            unreachable!("a caller who said hello is known");
        };
        SealedStream::new(self.set.remove(caller.stream), session)
    }

    pub(super) fn caller_addr(&self, id: CallerId) -> &str {
        &self.callers[self.position(id)].addr
    }

    fn position(&self, id: CallerId) -> usize {
        let found = self.callers.iter().position(|caller| caller.stream == id.0);
        found.expect("a caller who said hello and is still there")
    }

    /// Turns a caller away, and tells it why if it belongs to those who may know.
    fn turn_away(&mut self, index: usize, reason: &str) {
        let caller = &self.callers[index];
        self.refusals.note(self.world.clock(), &caller.addr, reason);
        if let Stage::Known(session) = &caller.stage {
            let answer = session.seal_one(&Answer::Refused(reason.to_owned()).encode());
            // One that does not take the answer does not get it.
            let _ = self.set.write(caller.stream, &[IoSlice::new(&answer)]);
        }
        self.remove(index);
    }

    fn remove(&mut self, index: usize) {
        let caller = self.callers.remove(index);
        self.set.remove(caller.stream);
    }
}

impl Caller {
    /// Bytes that must have come before something can be done; nothing if too many are announced.
    fn wanted(&self) -> Option<usize> {
        match self.stage {
            Stage::Silent => Some(GREETING_BYTES),
            Stage::Greeted(_) => record_bytes(&self.bytes, MAX_PLAIN_BYTES),
            // Nothing is expected; one byte tells that there is something.
            Stage::Known(_) => Some(1),
        }
    }

    fn is_known(&self) -> bool {
        matches!(self.stage, Stage::Known(_))
    }

    fn has_spoken(&self) -> bool {
        !self.bytes.is_empty() || !matches!(self.stage, Stage::Silent)
    }

    /// Its address without the port.
    fn host(&self) -> &str {
        self.addr.rsplit_once(':').map_or(&self.addr, |(host, _)| host)
    }
}

enum Heard {
    Nothing,
    Event(Event),
    TurnedAway,
}
