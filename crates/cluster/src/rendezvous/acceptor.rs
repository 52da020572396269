//! Accepts and authenticates incoming connections.
//!
//! Any process can connect: ranks, port scanners, ranks of another run, clients that send nothing.
//! The acceptor polls all connections, so none can delay the others. A client sends a handshake
//! message, which requires the secret, and receives the reply; then it sends an encrypted hello,
//! which excludes a replay. The acceptor passes hellos on; its owner admits or rejects them. Only
//! authenticated clients receive a reason.
//!
//! The cost of an unauthenticated client is bounded: the bytes of one handshake message and one
//! hello, a few seconds, and one of a limited number of connections. When all connections are in
//! use, the acceptor drops the oldest unauthenticated one of the host that has most of them.

use std::collections::BTreeMap;
use std::io::{ErrorKind, IoSlice};
use std::time::Duration;

use lockstep_platform::{Deadline, Interest, Listener, NetError, StreamSet, World};

use super::rejection_log::{Log, RejectionLog};
use super::wire::{Answer, HEADER_BYTES, Hello, MAX_HELLO_BYTES};
use lockstep_auth::handshake::{
    HANDSHAKE_BYTES, HandshakeError, HandshakeMessage, is_handshake_prefix, refusal_message,
    respond,
};
use lockstep_auth::session::{Session, record_bytes};
use lockstep_auth::stream::SealedStream;
use lockstep_auth::ticket::Secret;

/// Pending connections beyond the expected ones.
const SPARE_CLIENTS: usize = 64;

/// Longest hello, with its header.
const MAX_PLAIN_BYTES: usize = HEADER_BYTES + MAX_HELLO_BYTES;

/// Read buffer; larger than a handshake message or a hello record.
const BUFFER_BYTES: usize = MAX_PLAIN_BYTES + 64;

/// Listener with its pending connections.
pub(super) struct Acceptor {
    world: World,
    listener: Box<dyn Listener>,
    secret: Secret,
    set: Box<dyn StreamSet>,
    clients: Vec<Client>,
    max_clients: usize,
    /// Time that a client has for handshake and hello.
    timeout: Duration,
    rejections: RejectionLog,
}

struct Client {
    /// Index in the stream set.
    stream: usize,
    addr: String,
    /// Bytes received since the last respond.
    bytes: Vec<u8>,
    phase: Phase,
    deadline: Deadline,
}

enum Phase {
    /// Waits for the handshake message.
    Handshake,
    /// Waits for the hello. The handshake message was genuine or a replay.
    Hello(Session),
    /// Authenticated; waits for the respond to its hello.
    Authenticated(Session),
}

/// Event of an authenticated connection.
pub(super) enum Event {
    /// A client sent its hello and waits for the respond.
    Hello(ClientId, Hello),
    /// A client disconnected after its hello.
    Gone(ClientId),
}

/// Client that sent a hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ClientId(usize);

impl Acceptor {
    /// Acceptor for `num_expected` simultaneous clients that know the secret.
    pub(super) fn new(
        world: &World,
        listener: Box<dyn Listener>,
        secret: &Secret,
        num_expected: usize,
        timeout: Duration,
        log: Option<Log>,
    ) -> Self {
        Self {
            world: world.clone(),
            listener,
            secret: *secret,
            set: world.net().stream_set(),
            clients: Vec::new(),
            max_clients: num_expected + SPARE_CLIENTS,
            timeout,
            rejections: RejectionLog::new(log, world.clock()),
        }
    }

    pub(super) fn addr(&self) -> String {
        self.listener.local_addr()
    }

    /// Rejected clients and reasons.
    pub(super) fn rejections(&self) -> &RejectionLog {
        &self.rejections
    }

    /// Waits for the next event; `None` at the deadline.
    pub(super) fn next(&mut self, deadline: &Deadline) -> Option<Event> {
        loop {
            if let Some(event) = self.poll() {
                return Some(event);
            }
            let has_failed = self.accept_pending().is_err();
            let until_next_timeout = self.reject_expired();
            let remaining = deadline.remaining(self.world.clock());
            match self.set.wait(Some(&*self.listener), remaining.min(until_next_timeout)) {
                Ok(true) if !has_failed => {}
                _ if remaining.is_zero() => return None,
                // A client timed out, or the system is short of memory or descriptors, which may
                // pass.
                _ => self.world.clock().sleep(Duration::from_millis(1)),
            }
        }
    }

    /// Accepts all pending connections.
    fn accept_pending(&mut self) -> Result<(), NetError> {
        loop {
            let stream = match self.listener.accept(Duration::ZERO) {
                Ok(stream) => stream,
                Err(error) if error.kind() == ErrorKind::TimedOut => return Ok(()),
                Err(error) => return Err(error),
            };
            let addr = stream.peer_addr();
            if self.clients.len() >= self.max_clients {
                let Some(index) = self.eviction_candidate() else {
                    self.rejections.record(
                        self.world.clock(),
                        &addr,
                        "too many pending connections",
                    );
                    continue;
                };
                self.reject_at(index, "too many pending connections");
            }
            let stream = self.set.add(stream);
            self.set.watch(stream, Interest { read: true, write: false });
            let deadline = Deadline::after(self.world.clock(), self.timeout);
            let (bytes, phase) = (Vec::new(), Phase::Handshake);
            self.clients.push(Client { stream, addr, bytes, phase, deadline });
        }
    }

    /// Oldest unauthenticated client of the host that has most of them.
    fn eviction_candidate(&self) -> Option<usize> {
        let mut hosts: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for (index, client) in
            self.clients.iter().enumerate().filter(|(_, c)| !c.is_authenticated())
        {
            hosts.entry(client.host()).or_insert((0, index)).0 += 1;
        }
        hosts.into_values().max_by_key(|(num_clients, _)| *num_clients).map(|(_, index)| index)
    }

    /// Rejects clients that exceeded the handshake timeout. Returns the time until the next
    /// timeout.
    fn reject_expired(&mut self) -> Duration {
        let mut until_next = self.timeout;
        for index in (0..self.clients.len()).rev() {
            let client = &self.clients[index];
            let remaining = client.deadline.remaining(self.world.clock());
            if client.is_authenticated() {
                continue;
            }
            if remaining.is_zero() {
                let timeout_ms = self.timeout.as_millis();
                let reason = format!("it did not complete the handshake within {timeout_ms} ms");
                self.reject_at(index, &reason);
            } else {
                until_next = until_next.min(remaining);
            }
        }
        until_next
    }

    /// Reads from every client; returns the first event.
    fn poll(&mut self) -> Option<Event> {
        let mut index = 0;
        while index < self.clients.len() {
            match self.poll_client(index) {
                Progress::Pending => index += 1,
                Progress::Event(event) => return Some(event),
                // The next client has moved to this index.
                Progress::Rejected => {}
            }
        }
        None
    }

    fn poll_client(&mut self, index: usize) -> Progress {
        let client = &mut self.clients[index];
        let id = ClientId(client.stream);
        let needed_bytes =
            client.needed_bytes().expect("clients that announce too much are rejected");
        let mut buffer = [0; BUFFER_BYTES];
        let room = needed_bytes - client.bytes.len();
        match self.set.read(client.stream, &mut buffer[..room]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Progress::Pending,
            Ok(1..) if client.is_authenticated() => {
                self.reject_at(index, "it sent data before it was answered");
                return Progress::Event(Event::Gone(id));
            }
            Ok(num_bytes @ 1..) => client.bytes.extend_from_slice(&buffer[..num_bytes]),
            Ok(0) | Err(_) if client.is_authenticated() => {
                self.remove(index);
                return Progress::Event(Event::Gone(id));
            }
            Ok(0) | Err(_) => {
                let reason = if client.has_sent() {
                    "it disconnected during the handshake"
                } else {
                    "it sent nothing"
                };
                return self.reject_unauthenticated(index, reason);
            }
        }
        match client.phase {
            Phase::Handshake => self.read_handshake(index),
            _ => self.read_hello(index),
        }
    }

    fn read_handshake(&mut self, index: usize) -> Progress {
        let client = &mut self.clients[index];
        if !is_handshake_prefix(&client.bytes) {
            return self.reject_unauthenticated(index, HandshakeError::UnknownProtocol.reason());
        }
        let Ok(message) = HandshakeMessage::try_from(&client.bytes[..]) else {
            return Progress::Pending;
        };
        match respond(&self.world, &self.secret, &message) {
            Ok((reply, session)) => {
                client.bytes.clear();
                client.phase = Phase::Hello(session);
                let sent = self.set.write(client.stream, &[IoSlice::new(&reply)]);
                if matches!(sent, Ok(HANDSHAKE_BYTES)) {
                    return Progress::Pending;
                }
                self.reject_unauthenticated(index, "it does not take an respond")
            }
            Err(error) => {
                // A full send buffer drops the refusal.
                let _ = self.set.write(client.stream, &[IoSlice::new(&refusal_message())]);
                self.reject_unauthenticated(index, error.reason())
            }
        }
    }

    fn read_hello(&mut self, index: usize) -> Progress {
        let client = &mut self.clients[index];
        let Some(needed_bytes) = client.needed_bytes() else {
            return self.reject_unauthenticated(index, "it announces more bytes than a hello has");
        };
        if client.bytes.len() < needed_bytes {
            return Progress::Pending;
        }
        let bytes = std::mem::take(&mut client.bytes);
        let Phase::Hello(session) = std::mem::replace(&mut client.phase, Phase::Handshake) else {
            unreachable!("a hello follows the handshake");
        };
        let Some(hello) = session.open_one(&bytes) else {
            return self
                .reject_unauthenticated(index, "it replays the handshake of another connection");
        };
        client.phase = Phase::Authenticated(session);
        match Hello::decode(&hello) {
            Ok(hello) => Progress::Event(Event::Hello(ClientId(client.stream), hello)),
            Err(malformed) => {
                self.reject_at(index, &malformed.0);
                Progress::Rejected
            }
        }
    }

    fn reject_unauthenticated(&mut self, index: usize, reason: &str) -> Progress {
        self.reject_at(index, reason);
        Progress::Rejected
    }

    /// Rejects a client that sent a hello.
    pub(super) fn refuse(&mut self, id: ClientId, reason: &str) {
        let index = self.position(id);
        self.reject_at(index, reason);
    }

    /// Takes the stream of a client that sent a hello.
    pub(super) fn take(&mut self, id: ClientId) -> SealedStream {
        let client = self.clients.remove(self.position(id));
        let Phase::Authenticated(session) = client.phase else {
            unreachable!("a client with an identifier is authenticated");
        };
        SealedStream::new(self.set.remove(client.stream), session)
    }

    pub(super) fn client_addr(&self, id: ClientId) -> &str {
        &self.clients[self.position(id)].addr
    }

    fn position(&self, id: ClientId) -> usize {
        let found = self.clients.iter().position(|client| client.stream == id.0);
        found.expect("the client is connected")
    }

    /// Rejects a client; an authenticated one receives the reason.
    fn reject_at(&mut self, index: usize, reason: &str) {
        let client = &self.clients[index];
        self.rejections.record(self.world.clock(), &client.addr, reason);
        if let Phase::Authenticated(session) = &client.phase {
            let answer = session.seal_one(&Answer::Refused(reason.to_owned()).encode());
            // A full send buffer drops the respond.
            let _ = self.set.write(client.stream, &[IoSlice::new(&answer)]);
        }
        self.remove(index);
    }

    fn remove(&mut self, index: usize) {
        let client = self.clients.remove(index);
        self.set.remove(client.stream);
    }
}

impl Client {
    /// Number of bytes that the current phase needs; `None` if the client announces too many.
    fn needed_bytes(&self) -> Option<usize> {
        match self.phase {
            Phase::Handshake => Some(HANDSHAKE_BYTES),
            Phase::Hello(_) => record_bytes(&self.bytes, MAX_PLAIN_BYTES),
            // No bytes are expected; one detects a violation.
            Phase::Authenticated(_) => Some(1),
        }
    }

    fn is_authenticated(&self) -> bool {
        matches!(self.phase, Phase::Authenticated(_))
    }

    fn has_sent(&self) -> bool {
        !self.bytes.is_empty() || !matches!(self.phase, Phase::Handshake)
    }

    /// Address without the port.
    fn host(&self) -> &str {
        self.addr.rsplit_once(':').map_or(&self.addr, |(host, _)| host)
    }
}

enum Progress {
    Pending,
    Event(Event),
    Rejected,
}
