//! Launcher side of remote workers: sessions by slot, and remote processes.

use super::protocol::{Message, MessageReader, send};
use crate::ClusterError;
use crate::rendezvous::{self, Log, RemoteSession, SessionAcceptor, Settings, Ticket};
use crate::slot_table::SlotTable;
use lockstep_platform::{
    Deadline, Exit, Process, ProcessCommand, ProcessError, ProcessOutput, Signal, Stream, World,
};
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Interval at which a reader checks whether its session is still in use.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Exit status of a worker whose session broke; its real status is unknown.
const LOST: Exit = Exit::Signal(9);

/// Remote workers of a run.
pub struct RemoteWorkers {
    world: World,
    acceptor: SessionAcceptor,
    /// Number of slots on this host; they come first.
    num_local: usize,
    /// Indexed by slot.
    sessions: Vec<Option<Arc<AgentSession>>>,
    /// Sessions without a slot, in order of arrival.
    waiting: VecDeque<Arc<AgentSession>>,
}

impl RemoteWorkers {
    /// Listens for agents of a run with `num_slots`, the first `num_local` of them on this host.
    pub fn open(
        world: &World,
        addr: &str,
        ticket: &Ticket,
        num_local: usize,
        num_slots: usize,
        log: Log,
    ) -> Result<Self, ClusterError> {
        let acceptor = SessionAcceptor::open(world, addr, ticket, Some(log))?;
        let sessions = (0..num_slots).map(|_| None).collect();
        let waiting = VecDeque::new();
        Ok(Self { world: world.clone(), acceptor, num_local, sessions, waiting })
    }

    /// Number of slots on this host.
    pub fn num_local(&self) -> usize {
        self.num_local
    }

    /// Accepts new agents and removes lost ones; `log` receives a writer for each.
    pub(crate) fn poll(&mut self, slots: &mut SlotTable, log: &dyn Fn(&str)) {
        for slot in self.num_local..self.sessions.len() {
            if let Some(session) = self.sessions[slot].take_if(|session| session.lock().is_lost) {
                slots.vacate(slot);
                log(&format!("the remote worker on {} is lost", session.name));
            }
        }
        self.waiting.retain(|session| !session.lock().is_lost);
        while let Some(remote) = self.acceptor.accept() {
            let name = format!("{} ({})", remote.addr, remote.host);
            if let Some(session) = AgentSession::start(&self.world, remote, name) {
                log(&format!("a remote worker joined from {}", session.name));
                self.waiting.push_back(session);
            }
        }
        for slot in self.num_local..self.sessions.len() {
            // A slot of the current attempt stays reserved until the attempt has ended.
            if self.sessions[slot].is_none() && !slots.assigned().contains(&slot) {
                let Some(session) = self.waiting.pop_front() else { return };
                self.sessions[slot] = Some(session);
                slots.occupy(slot);
            }
        }
    }

    /// Starts the worker of a remote slot; `None` for a slot on this host.
    pub(crate) fn spawn(
        &self,
        slot: usize,
        attempt: u64,
        command: &ProcessCommand,
    ) -> Option<Box<dyn Process>> {
        if slot < self.num_local {
            return None;
        }
        // The worker of a session that was just lost counts as exited.
        let session =
            self.sessions[slot].clone().unwrap_or_else(|| AgentSession::lost(&self.world));
        let is_lost = session.lock().is_lost;
        *session.lock() = State { attempt, is_lost, ..State::default() };
        session.send(attempt, &Message::Start(command.environment.clone()));
        Some(Box::new(RemoteProcess { session, attempt }))
    }

    /// Starts a standalone rendezvous host for the workers of an attempt and returns its address.
    pub(crate) fn start_rendezvous_host(
        &self,
        num_workers: usize,
        ticket: &Ticket,
    ) -> Result<String, ClusterError> {
        let addr = self.acceptor.addr();
        let (host, _) = addr.rsplit_once(':').expect("an address has a port");
        let listener = self.world.net().listen(&format!("{host}:0"))?;
        let addr = listener.local_addr();
        let (world, ticket) = (self.world.clone(), ticket.clone());
        let body = move || {
            // The ranks report missing ones themselves.
            let _ = rendezvous::host(&world, listener, &ticket, num_workers, &Settings::default());
        };
        self.world.threads().spawn("rendezvous-host", Box::new(body))?;
        Ok(addr)
    }

    /// Reports the end of the run to all agents.
    pub(crate) fn finish(&self, exit_code: u8) {
        for session in self.sessions.iter().flatten().chain(&self.waiting) {
            session.send(0, &Message::Done(exit_code));
        }
    }
}

/// Session with one agent.
struct AgentSession {
    name: String,
    world: World,
    writer: Mutex<Option<Box<dyn Stream>>>,
    state: Mutex<State>,
    /// Notified on every message and when the session is lost.
    changed: Arc<dyn Signal>,
}

/// State of the worker of an agent.
#[derive(Default)]
struct State {
    attempt: u64,
    output: Vec<u8>,
    exit: Option<Exit>,
    is_lost: bool,
}

impl AgentSession {
    /// Reads the messages of an agent on a thread; `None` if that cannot start.
    fn start(world: &World, remote: RemoteSession, name: String) -> Option<Arc<Self>> {
        let writer = remote.stream.try_clone().ok()?;
        let session = Arc::new(Self {
            name,
            world: world.clone(),
            writer: Mutex::new(Some(writer)),
            state: Mutex::default(),
            changed: world.threads().signal(),
        });
        let (mut reader, weak) = (MessageReader::new(remote.stream), Arc::downgrade(&session));
        let read = move || {
            loop {
                let message = reader.next(POLL_INTERVAL);
                let Some(session) = weak.upgrade() else { return };
                let continues = session.handle(message);
                session.changed.notify_all();
                if !continues {
                    return;
                }
            }
        };
        world.threads().spawn("agent-session", Box::new(read)).ok()?;
        Some(session)
    }

    /// Session that is already lost.
    fn lost(world: &World) -> Arc<Self> {
        let state = State { is_lost: true, ..State::default() };
        Arc::new(Self {
            name: String::new(),
            world: world.clone(),
            writer: Mutex::new(None),
            state: Mutex::new(state),
            changed: world.threads().signal(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles a message; false at the end of the session.
    fn handle(&self, message: io::Result<Option<(u64, Message)>>) -> bool {
        let mut state = self.lock();
        match message {
            Ok(None) => {}
            // Messages about an earlier attempt are ignored.
            Ok(Some((attempt, _))) if attempt != state.attempt => {}
            Ok(Some((_, Message::Output(bytes)))) => state.output.extend(bytes),
            Ok(Some((_, Message::Exited(exit)))) => state.exit = Some(exit),
            Ok(Some(_)) | Err(_) => state.is_lost = true,
        }
        !state.is_lost
    }

    fn send(&self, attempt: u64, message: &Message) {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let sent =
            writer.as_mut().is_some_and(|writer| send(writer.as_mut(), attempt, message).is_ok());
        if !sent {
            self.lock().is_lost = true;
            self.changed.notify_all();
        }
    }
}

impl Drop for AgentSession {
    fn drop(&mut self) {
        let writer = self.writer.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(writer) = writer {
            let _ = writer.shutdown();
        }
    }
}

/// Worker process that an agent started.
struct RemoteProcess {
    session: Arc<AgentSession>,
    attempt: u64,
}

impl Process for RemoteProcess {
    fn id(&self) -> u32 {
        // Process ids of other hosts have no meaning here.
        0
    }

    fn take_stderr(&mut self) -> Option<Box<dyn ProcessOutput>> {
        Some(Box::new(RemoteOutput { session: Arc::clone(&self.session) }))
    }

    fn try_wait(&mut self) -> Result<Option<Exit>, ProcessError> {
        let state = self.session.lock();
        Ok(if state.is_lost { state.exit.or(Some(LOST)) } else { state.exit })
    }

    fn kill(&mut self) {
        self.session.send(self.attempt, &Message::Kill);
    }

    fn terminate(&mut self) {
        self.session.send(self.attempt, &Message::Terminate);
    }
}

impl Drop for RemoteProcess {
    fn drop(&mut self) {
        if matches!(self.try_wait(), Ok(None)) {
            self.kill();
        }
    }
}

/// Standard error of a remote worker.
struct RemoteOutput {
    session: Arc<AgentSession>,
}

impl ProcessOutput for RemoteOutput {
    fn read(&mut self, buffer: &mut [u8], timeout: Duration) -> io::Result<usize> {
        let clock = self.session.world.clock();
        let deadline = Deadline::after(clock, timeout);
        loop {
            let epoch = self.session.changed.epoch();
            {
                let mut state = self.session.lock();
                if !state.output.is_empty() {
                    let count = state.output.len().min(buffer.len());
                    buffer[..count].copy_from_slice(&state.output[..count]);
                    state.output.drain(..count);
                    return Ok(count);
                }
                if state.exit.is_some() || state.is_lost {
                    return Ok(0);
                }
            }
            let remaining = deadline.remaining(clock);
            if remaining.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            self.session.changed.wait(epoch, remaining);
        }
    }
}
