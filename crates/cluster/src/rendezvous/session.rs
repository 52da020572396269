//! Long-lived encrypted sessions that clients open at any time.
//!
//! Ranks join together, once. A remote worker joins a running run at any time: it connects to an
//! [acceptor](super::acceptor), runs the same handshake and keeps an encrypted stream. The two ends
//! choose the protocol on it.

use std::io::Write;
use std::time::Duration;

use lockstep_mesh::Rank;
use lockstep_platform::{Deadline, Stream, World};

use super::acceptor::{Acceptor, Event};
use super::error::Side;
use super::handshake::{authenticate, protocol_error, send_hello};
use super::wait_log::WaitLog;
use super::wire::{Answer, Hello, OpenSession};
use super::{JoinContext, Log, RankEnv, RendezvousError, Settings, host_identity};
use lockstep_auth::ticket::Ticket;

/// Pending connections of a session acceptor.
const MAX_PENDING: usize = 64;

/// Pause between two attempts to connect.
const RETRY: Duration = Duration::from_millis(100);

/// Accepts sessions of clients that know the secret.
pub struct SessionAcceptor {
    world: World,
    acceptor: Acceptor,
    run: String,
}

/// Accepted session.
pub struct RemoteSession {
    /// Host name of the client.
    pub host: String,
    /// Address of the client.
    pub addr: String,
    /// Encrypted stream.
    pub stream: Box<dyn Stream>,
}

impl SessionAcceptor {
    /// Listens at an address for clients with this ticket; `log` receives rejected ones.
    pub fn open(
        world: &World,
        addr: &str,
        ticket: &Ticket,
        log: Option<Log>,
    ) -> Result<Self, RendezvousError> {
        let listener = world.net().listen(addr)?;
        let timeout = Settings::default().handshake_timeout;
        let acceptor = Acceptor::new(world, listener, &ticket.secret, MAX_PENDING, timeout, log);
        Ok(Self { world: world.clone(), acceptor, run: ticket.run.clone() })
    }

    /// Listening address.
    pub fn addr(&self) -> String {
        self.acceptor.addr()
    }

    /// Next accepted session, if there is one; does not wait.
    pub fn accept(&mut self) -> Option<RemoteSession> {
        let now = Deadline::after(self.world.clock(), Duration::ZERO);
        let Event::Hello(client, hello) = self.acceptor.next(&now)? else { return None };
        match hello {
            Hello::Session(OpenSession { run, host }) if run == self.run => {
                let addr = self.acceptor.client_addr(client).to_owned();
                let mut stream = self.acceptor.take(client);
                let Settings { handshake_timeout, keepalive_timeout, .. } = Settings::default();
                stream.set_deadline(Some(handshake_timeout));
                // A client that does not receive the answer has not joined.
                stream.write_all(&Answer::Welcome.encode()).ok()?;
                stream.set_keepalive_timeout(keepalive_timeout).ok()?;
                Some(RemoteSession { host, addr, stream: stream.proceed(true) })
            }
            Hello::Session(OpenSession { run, .. }) => {
                let ours = &self.run;
                let reason = format!("it belongs to run {run:?} and this is run {ours:?}");
                self.acceptor.refuse(client, &reason);
                None
            }
            Hello::Join(_) | Hello::Pair(_) => {
                self.acceptor
                    .refuse(client, "the launcher assigns the ranks of this run; try --join");
                None
            }
        }
    }
}

/// Opens a session with an acceptor, which may start later, within `timeout`.
pub fn open_session(
    world: &World,
    addr: &str,
    ticket: &Ticket,
    timeout: Duration,
) -> Result<Box<dyn Stream>, RendezvousError> {
    let settings = Settings { timeout, ..Settings::default() };
    let (rank, num_ranks, master) = (Rank(0), 1, addr.to_owned());
    let rank_env = RankEnv::new(rank, num_ranks, &master, ticket);
    let rank_env = RankEnv { has_standalone_host: true, ..rank_env };
    let deadline = Deadline::after(world.clock(), timeout);
    let waiting = WaitLog::new(world, None, settings.wait_reports, timeout);
    let context =
        JoinContext { world, rank_env: &rank_env, settings: &settings, deadline, waiting };
    let (by, host) = (Side::RendezvousHost, host_identity(world));
    let hello = Hello::Session(OpenSession { run: ticket.run.clone(), host });
    loop {
        let connected = world.net().connect(addr, context.remaining());
        let answer = connected.map_err(RendezvousError::from).and_then(|stream| {
            let mut stream = authenticate(&context, stream, by)?;
            Ok((send_hello(&context, &mut stream, by, &hello)?, stream))
        });
        let reason = match answer {
            Ok((Answer::Welcome, stream)) => {
                stream.set_keepalive_timeout(settings.keepalive_timeout)?;
                return Ok(stream.proceed(true));
            }
            Ok(_) => return Err(protocol_error(by, "unexpected answer")),
            Err(RendezvousError::Net(error)) => error.to_string(),
            Err(RendezvousError::Lost { reason, .. }) => reason,
            Err(error) => return Err(error),
        };
        if context.remaining().is_zero() {
            let (addr, waited_ms) = (addr.to_owned(), context.timeout_ms());
            return Err(RendezvousError::Unreachable { who: by, addr, waited_ms, reason });
        }
        world.clock().sleep(RETRY.min(context.remaining()));
    }
}
