//! The launcher's end: who has come, and workers that are elsewhere as if they were here.

use super::line::{Ear, Message, send};
use crate::ClusterError;
use crate::rendezvous::{self, Log, Reception, Settings, Ticket, Visitor};
use crate::roster::Roster;
use lockstep_platform::{
    Deadline, Exit, Process, ProcessCommand, ProcessError, ProcessOutput, Signal, Stream, World,
};
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a reader waits before it looks whether it is still needed.
const LOOK: Duration = Duration::from_secs(1);

/// How a worker ended whose host is gone: nobody can tell, and nothing of it is left.
const LOST: Exit = Exit::Signal(9);

/// The guests of a run, by slot.
pub struct Guests {
    world: World,
    reception: Reception,
    /// Slots below this are of this host.
    num_local: usize,
    links: Vec<Option<Arc<Link>>>,
    /// Those for whom there is no slot yet, the longest waiting first.
    waiting: VecDeque<Arc<Link>>,
}

impl Guests {
    /// Listens for guests of a run with so many slots, the first of which are of this host.
    pub fn open(
        world: &World,
        addr: &str,
        ticket: &Ticket,
        num_local: usize,
        num_slots: usize,
        log: Log,
    ) -> Result<Self, ClusterError> {
        let reception = Reception::open(world, addr, ticket, Some(log))?;
        let links = (0..num_slots).map(|_| None).collect();
        let waiting = VecDeque::new();
        Ok(Self { world: world.clone(), reception, num_local, links, waiting })
    }

    /// How many slots are of this host.
    pub fn num_local(&self) -> usize {
        self.num_local
    }

    /// Lets in who has come and lets go who is gone; each is told to `say`.
    pub(crate) fn look(&mut self, roster: &mut Roster, say: &dyn Fn(&str)) {
        for slot in self.num_local..self.links.len() {
            if let Some(link) = self.links[slot].take_if(|link| link.lock().is_gone) {
                roster.vacate(slot);
                say(&format!("the worker on {} is gone", link.name));
            }
        }
        self.waiting.retain(|link| !link.lock().is_gone);
        while let Some(visitor) = self.reception.admit() {
            let name = format!("{} ({})", visitor.addr, visitor.host);
            if let Some(link) = Link::start(&self.world, visitor, name) {
                say(&format!("a worker has come from {}", link.name));
                self.waiting.push_back(link);
            }
        }
        for slot in self.num_local..self.links.len() {
            // A slot of the present life is not given away before that life has ended.
            if self.links[slot].is_none() && !roster.seated().contains(&slot) {
                let Some(link) = self.waiting.pop_front() else { return };
                self.links[slot] = Some(link);
                roster.occupy(slot);
            }
        }
    }

    /// Starts the worker of a slot elsewhere; nothing where that is a slot of this host.
    pub(crate) fn spawn(
        &self,
        slot: usize,
        life: u64,
        command: &ProcessCommand,
    ) -> Option<Box<dyn Process>> {
        if slot < self.num_local {
            return None;
        }
        // A guest that has just gone is found to have ended at once.
        let link = self.links[slot].clone().unwrap_or_else(|| Link::gone(&self.world));
        let is_gone = link.lock().is_gone;
        *link.lock() = State { life, is_gone, ..State::default() };
        link.say(life, &Message::Start(command.environment.clone()));
        Some(Box::new(Away { link, life }))
    }

    /// A meeting point for so many workers of a life, wherever they are.
    pub(crate) fn meeting_point(
        &self,
        num_workers: usize,
        ticket: &Ticket,
    ) -> Result<String, ClusterError> {
        let addr = self.reception.addr();
        let (host, _) = addr.rsplit_once(':').expect("an address has a port");
        let listener = self.world.net().listen(&format!("{host}:0"))?;
        let addr = listener.local_addr();
        let (world, ticket) = (self.world.clone(), ticket.clone());
        let body = move || {
            // Whoever does not come is missed by the others too, who say so.
            let _ = rendezvous::host(&world, listener, &ticket, num_workers, &Settings::default());
        };
        self.world.threads().spawn("meeting-point", Box::new(body))?;
        Ok(addr)
    }

    /// Tells all guests that the run is over.
    pub(crate) fn dismiss(&self, exit_code: u8) {
        for link in self.links.iter().flatten().chain(&self.waiting) {
            link.say(0, &Message::Done(exit_code));
        }
    }
}

/// The line to one guest.
struct Link {
    name: String,
    world: World,
    line: Mutex<Option<Box<dyn Stream>>>,
    state: Mutex<State>,
    /// Rings when the guest has said something, or is gone.
    news: Arc<dyn Signal>,
}

/// What is known of a guest's worker.
#[derive(Default)]
struct State {
    life: u64,
    words: Vec<u8>,
    exit: Option<Exit>,
    is_gone: bool,
}

impl Link {
    /// Hears what a guest says, on a thread of its own; nothing where that cannot be.
    fn start(world: &World, visitor: Visitor, name: String) -> Option<Arc<Self>> {
        let line = visitor.stream.try_clone().ok()?;
        let link = Arc::new(Self {
            name,
            world: world.clone(),
            line: Mutex::new(Some(line)),
            state: Mutex::default(),
            news: world.threads().signal(),
        });
        let (mut ear, weak) = (Ear::new(visitor.stream), Arc::downgrade(&link));
        let listen = move || {
            loop {
                let heard = ear.next(LOOK);
                let Some(link) = weak.upgrade() else { return };
                let goes_on = link.hear(heard);
                link.news.notify_all();
                if !goes_on {
                    return;
                }
            }
        };
        world.threads().spawn("guest", Box::new(listen)).ok()?;
        Some(link)
    }

    /// The line to nobody.
    fn gone(world: &World) -> Arc<Self> {
        let state = State { is_gone: true, ..State::default() };
        Arc::new(Self {
            name: String::new(),
            world: world.clone(),
            line: Mutex::new(None),
            state: Mutex::new(state),
            news: world.threads().signal(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note; false where there will be no more.
    fn hear(&self, heard: io::Result<Option<(u64, Message)>>) -> bool {
        let mut state = self.lock();
        match heard {
            Ok(None) => {}
            // What is said of an earlier life concerns nobody any more.
            Ok(Some((life, _))) if life != state.life => {}
            Ok(Some((_, Message::Words(words)))) => state.words.extend(words),
            Ok(Some((_, Message::Ended(exit)))) => state.exit = Some(exit),
            Ok(Some(_)) | Err(_) => state.is_gone = true,
        }
        !state.is_gone
    }

    fn say(&self, life: u64, message: &Message) {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = line.as_mut().is_some_and(|line| send(line.as_mut(), life, message).is_ok());
        if !sent {
            self.lock().is_gone = true;
            self.news.notify_all();
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let line = self.line.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(line) = line {
            let _ = line.shutdown();
        }
    }
}

/// A worker that a guest has started.
struct Away {
    link: Arc<Link>,
    life: u64,
}

impl Process for Away {
    fn id(&self) -> u32 {
        // Numbers of other hosts mean nothing here.
        0
    }

    fn take_stderr(&mut self) -> Option<Box<dyn ProcessOutput>> {
        Some(Box::new(Words { link: Arc::clone(&self.link) }))
    }

    fn try_wait(&mut self) -> Result<Option<Exit>, ProcessError> {
        let state = self.link.lock();
        Ok(if state.is_gone { state.exit.or(Some(LOST)) } else { state.exit })
    }

    fn kill(&mut self) {
        self.link.say(self.life, &Message::Kill);
    }

    fn terminate(&mut self) {
        self.link.say(self.life, &Message::Terminate);
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        if matches!(self.try_wait(), Ok(None)) {
            self.kill();
        }
    }
}

/// The words of a worker that is elsewhere.
struct Words {
    link: Arc<Link>,
}

impl ProcessOutput for Words {
    fn read(&mut self, buffer: &mut [u8], timeout: Duration) -> io::Result<usize> {
        let clock = self.link.world.clock();
        let deadline = Deadline::after(clock, timeout);
        loop {
            let seen = self.link.news.epoch();
            {
                let mut state = self.link.lock();
                if !state.words.is_empty() {
                    let count = state.words.len().min(buffer.len());
                    buffer[..count].copy_from_slice(&state.words[..count]);
                    state.words.drain(..count);
                    return Ok(count);
                }
                if state.exit.is_some() || state.is_gone {
                    return Ok(0);
                }
            }
            let remaining = deadline.remaining(clock);
            if remaining.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            self.link.news.wait(seen, remaining);
        }
    }
}
