//! Where callers arrive.
//!
//! Anybody can call: ranks, port scanners, ranks of another run, callers that never say a word. The
//! door listens to all of them at once, so that none can keep the others waiting, and lets through
//! only well-formed hellos; whether a hello is welcome is for its owner to decide. Each caller may
//! send as many bytes as a hello has and no more, and there is a limit to how many wait.
//!
//! A proof that the caller knows the run's secret belongs between its hello and the answer: a
//! caller would then be heard twice before its hello is passed on.

use std::io::{ErrorKind, IoSlice};
use std::time::Duration;

use lockstep_platform::{Deadline, Interest, Listener, NetError, Stream, StreamSet, World};

use super::wire::{Answer, FRONT_BYTES, Hello, MAX_HELLO_BYTES};

/// Refusals that are remembered for the error message.
const MAX_REMEMBERED: usize = 8;

/// Callers beside the expected ones that may wait at the same time.
const SPARE_CALLERS: usize = 64;

/// An open door.
pub(super) struct Door {
    world: World,
    listener: Box<dyn Listener>,
    set: Box<dyn StreamSet>,
    callers: Vec<Caller>,
    max_callers: usize,
    refused: Vec<String>,
}

struct Caller {
    /// The number in the set.
    stream: usize,
    addr: String,
    /// What it has said.
    bytes: Vec<u8>,
    has_said_hello: bool,
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
    /// A door for so many callers at once.
    pub(super) fn new(world: &World, listener: Box<dyn Listener>, num_expected: usize) -> Self {
        Self {
            world: world.clone(),
            listener,
            set: world.net().stream_set(),
            callers: Vec::new(),
            max_callers: num_expected + SPARE_CALLERS,
            refused: Vec::new(),
        }
    }

    pub(super) fn addr(&self) -> String {
        self.listener.local_addr()
    }

    /// Who was turned away, and why; the first few.
    pub(super) fn refused(&self) -> &[String] {
        &self.refused
    }

    /// The next event; nothing if none happens in time.
    pub(super) fn next(&mut self, deadline: &Deadline) -> Option<Event> {
        loop {
            if let Some(event) = self.hear() {
                return Some(event);
            }
            let has_trouble = self.let_in().is_err();
            let remaining = deadline.remaining(self.world.clock());
            match self.set.wait(Some(&*self.listener), remaining) {
                Ok(true) if !has_trouble => {}
                _ if remaining.is_zero() => return None,
                // The system lacks memory or descriptors; that may pass, and time does too.
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
            if self.callers.len() >= self.max_callers {
                // The one who has been silent longest makes room; if all have spoken, the new one.
                let Some(silent) = self.callers.iter().position(|caller| !caller.has_said_hello)
                else {
                    continue;
                };
                self.turn_away(silent, "too many callers wait");
            }
            let addr = stream.peer_addr();
            let stream = self.set.add(stream);
            self.set.watch(stream, Interest { read: true, write: false });
            self.callers.push(Caller { stream, addr, bytes: Vec::new(), has_said_hello: false });
        }
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
        let mut buffer = [0; FRONT_BYTES + MAX_HELLO_BYTES];
        let room = buffer.len() - caller.bytes.len();
        match self.set.read(caller.stream, &mut buffer[..room]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Heard::Nothing,
            Ok(1..) if caller.has_said_hello => {
                let id = CallerId(caller.stream);
                self.turn_away(index, "it spoke before it was answered");
                return Heard::Event(Event::Gone(id));
            }
            Ok(num_bytes @ 1..) => caller.bytes.extend_from_slice(&buffer[..num_bytes]),
            Ok(0) | Err(_) => {
                let id = CallerId(caller.stream);
                let had_said_hello = caller.has_said_hello;
                self.remove(index);
                return if had_said_hello {
                    Heard::Event(Event::Gone(id))
                } else {
                    Heard::TurnedAway
                };
            }
        }
        match Hello::decode(&caller.bytes) {
            Ok(None) => Heard::Nothing,
            Ok(Some(hello)) => {
                caller.has_said_hello = true;
                caller.bytes.clear();
                Heard::Event(Event::Hello(CallerId(caller.stream), hello))
            }
            Err(malformed) => {
                self.turn_away(index, &malformed.0);
                Heard::TurnedAway
            }
        }
    }

    /// Turns a caller away who said hello.
    pub(super) fn refuse(&mut self, id: CallerId, reason: &str) {
        let index = self.position(id);
        self.turn_away(index, reason);
    }

    /// Hands over the stream of a caller who said hello.
    pub(super) fn take(&mut self, id: CallerId) -> Box<dyn Stream> {
        let index = self.position(id);
        self.remove(index)
    }

    pub(super) fn caller_addr(&self, id: CallerId) -> &str {
        &self.callers[self.position(id)].addr
    }

    fn position(&self, id: CallerId) -> usize {
        let found = self.callers.iter().position(|caller| caller.stream == id.0);
        found.expect("a caller who said hello and is still there")
    }

    fn turn_away(&mut self, index: usize, reason: &str) {
        let caller = &self.callers[index];
        if self.refused.len() < MAX_REMEMBERED {
            self.refused.push(format!("{}, {reason}", caller.addr));
        }
        let answer = Answer::Refused(reason.to_owned()).encode();
        // A stranger that does not take the answer does not get it.
        let _ = self.set.write(caller.stream, &[IoSlice::new(&answer)]);
        self.remove(index);
    }

    fn remove(&mut self, index: usize) -> Box<dyn Stream> {
        let caller = self.callers.remove(index);
        self.set.remove(caller.stream)
    }
}

enum Heard {
    Nothing,
    Event(Event),
    TurnedAway,
}
