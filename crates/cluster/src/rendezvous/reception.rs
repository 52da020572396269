//! Where whoever knows the secret may call at any time, and stays connected.
//!
//! Ranks meet once and at the same time. Whoever offers to take part in a run that goes on already
//! comes when it likes: it is heard at the same kind of [door](super::door), behind the same
//! handshake, and gets a stream on which everything travels sealed. What is said there is up to
//! the two ends.

use std::io::Write;
use std::time::Duration;

use lockstep_mesh::Rank;
use lockstep_platform::{Deadline, Stream, World};

use super::door::{Door, Event};
use super::error::Side;
use super::greet::{ask, greet, strange};
use super::wire::{Answer, Hello, Visit};
use super::{Log, Party, Place, RendezvousError, Settings, host_identity};
use lockstep_auth::ticket::Ticket;

/// Visitors that may be on their way in at the same time.
const MAX_WAITING: usize = 64;

/// Time between two attempts to get in.
const RETRY: Duration = Duration::from_millis(100);

/// See the module's text.
pub struct Reception {
    world: World,
    door: Door,
    run: String,
}

/// Somebody who has come.
pub struct Visitor {
    /// Its machine.
    pub host: String,
    /// Where it called from.
    pub addr: String,
    /// What it says and hears, sealed.
    pub stream: Box<dyn Stream>,
}

impl Reception {
    /// Listens at an address for those who have this ticket; others are told to `log`.
    pub fn open(
        world: &World,
        addr: &str,
        ticket: &Ticket,
        log: Option<Log>,
    ) -> Result<Self, RendezvousError> {
        let listener = world.net().listen(addr)?;
        let limit = Settings::default().greeting_limit;
        let door = Door::new(world, listener, &ticket.secret, MAX_WAITING, limit, log);
        Ok(Self { world: world.clone(), door, run: ticket.run.clone() })
    }

    /// Where it listens.
    pub fn addr(&self) -> String {
        self.door.addr()
    }

    /// Somebody who has come, if anybody has; does not wait.
    pub fn admit(&mut self) -> Option<Visitor> {
        let now = Deadline::after(self.world.clock(), Duration::ZERO);
        let Event::Hello(caller, hello) = self.door.next(&now)? else { return None };
        match hello {
            Hello::Visit(Visit { run, host }) if run == self.run => {
                let addr = self.door.caller_addr(caller).to_owned();
                let mut stream = self.door.take(caller);
                let Settings { greeting_limit, silence_limit, .. } = Settings::default();
                stream.set_deadline(Some(greeting_limit));
                // One that does not take the answer has not come.
                stream.write_all(&Answer::Welcome.encode()).ok()?;
                stream.set_keepalive_timeout(silence_limit).ok()?;
                Some(Visitor { host, addr, stream: stream.proceed(true) })
            }
            Hello::Visit(Visit { run, .. }) => {
                let ours = &self.run;
                let reason = format!("it belongs to run {run:?} and this is run {ours:?}");
                self.door.refuse(caller, &reason);
                None
            }
            Hello::Join(_) | Hello::Pair(_) => {
                self.door.refuse(caller, "the places of this run are given out here; try --join");
                None
            }
        }
    }
}

/// Calls at a reception, which may not be there yet, for so long.
pub fn visit(
    world: &World,
    addr: &str,
    ticket: &Ticket,
    timeout: Duration,
) -> Result<Box<dyn Stream>, RendezvousError> {
    let settings = Settings { timeout, ..Settings::default() };
    let (rank, num_ranks, master) = (Rank(0), 1, addr.to_owned());
    let place = Place { rank, num_ranks, master, has_host: true, ticket: ticket.clone() };
    let deadline = Deadline::after(world.clock(), timeout);
    let party = Party { world, place: &place, settings: &settings, deadline };
    let (by, host) = (Side::MeetingPoint, host_identity(world));
    let hello = Hello::Visit(Visit { run: ticket.run.clone(), host });
    loop {
        let connected = world.net().connect(addr, party.remaining());
        let asked = connected.map_err(RendezvousError::from).and_then(|stream| {
            let mut stream = greet(&party, stream, by)?;
            Ok((ask(&party, &mut stream, by, &hello)?, stream))
        });
        let reason = match asked {
            Ok((Answer::Welcome, stream)) => {
                stream.set_keepalive_timeout(settings.silence_limit)?;
                return Ok(stream.proceed(true));
            }
            Ok(_) => return Err(strange(by, "it answered with something else")),
            Err(RendezvousError::Net(error)) => error.to_string(),
            Err(RendezvousError::Lost { reason, .. }) => reason,
            Err(error) => return Err(error),
        };
        if party.remaining().is_zero() {
            let (addr, waited_ms) = (addr.to_owned(), party.timeout_ms());
            return Err(RendezvousError::Unreachable { who: by, addr, waited_ms, reason });
        }
        world.clock().sleep(RETRY.min(party.remaining()));
    }
}
