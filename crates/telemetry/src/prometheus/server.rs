//! HTTP server of one page: GET, one answer, close.
//!
//! One thread serves all connections without blocking on any of them. Everything is bounded: the
//! size of a request, the time of a connection and the number of connections; when there are too
//! many, the oldest is closed. A thousand idle connections cost memory for [`MAX_CONNECTIONS`].

use std::io::{ErrorKind, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockstep_platform::{Deadline, Interest, JoinHandle, Listener, StreamSet, World};

/// Largest head of a request.
const MAX_REQUEST_BYTES: usize = 8192;
/// Most connections at once.
const MAX_CONNECTIONS: usize = 32;
/// Time of a connection.
pub(super) const CONNECTION_TIME: Duration = Duration::from_secs(5);
/// Longest wait of the thread: it looks for deadlines that often.
const IDLE_WAIT: Duration = Duration::from_secs(1);
/// Time to start and to stop.
const STOP_TIME: Duration = Duration::from_secs(2);

/// Makes the page of a request.
pub(super) type Page = Box<dyn Fn() -> String + Send>;

/// A running server; it stops on drop.
pub(super) struct Server {
    world: World,
    addr: String,
    is_stopped: Arc<AtomicBool>,
    thread: Option<Box<dyn JoinHandle>>,
}

impl Server {
    /// Listens and starts the thread.
    pub(super) fn start(world: &World, addr: &str, page: Page) -> Result<Self, String> {
        let listener = world.net().listen(addr).map_err(|error| error.to_string())?;
        let (addr, is_stopped) = (listener.local_addr(), Arc::new(AtomicBool::new(false)));
        let mut pool = Pool {
            world: Arc::clone(world),
            listener,
            streams: world.net().stream_set(),
            connections: Vec::with_capacity(MAX_CONNECTIONS),
            page,
        };
        let stop = Arc::clone(&is_stopped);
        let serve = move || {
            while !stop.load(Ordering::Acquire) && pool.turn() {}
        };
        let thread = world.threads().spawn("prometheus", Box::new(serve));
        let thread = Some(thread.map_err(|error| error.to_string())?);
        Ok(Self { world: Arc::clone(world), addr, is_stopped, thread })
    }

    /// Address with the port.
    pub(super) fn addr(&self) -> &str {
        &self.addr
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Release);
        // A new connection ends the thread's wait.
        let _ = self.world.net().connect(&self.addr, STOP_TIME);
        if let Some(thread) = self.thread.take()
            && thread.finished_within(STOP_TIME)
        {
            let _ = thread.join();
        }
    }
}

struct Connection {
    stream: usize,
    deadline: Deadline,
    state: State,
}

enum State {
    /// The head of the request, so far.
    Reading(Vec<u8>),
    /// The answer, and how much of it is sent.
    Writing(Vec<u8>, usize),
}

struct Pool {
    world: World,
    listener: Box<dyn Listener>,
    streams: Box<dyn StreamSet>,
    /// Oldest first.
    connections: Vec<Connection>,
    page: Page,
}

impl Pool {
    /// Waits for something to do and does it; false if the system refuses to wait.
    fn turn(&mut self) -> bool {
        if self.streams.wait(Some(&*self.listener), IDLE_WAIT).is_err() {
            return false;
        }
        let mut index = 0;
        while index < self.connections.len() {
            if self.advance(index) { index += 1 } else { self.close(index) }
        }
        // Accepted after the others have been served: a number of a closed one may be reused.
        self.accept();
        true
    }

    fn accept(&mut self) {
        // At most as many as fit, so that a flood of connections does not starve those accepted.
        for _ in 0..MAX_CONNECTIONS {
            let Ok(stream) = self.listener.accept(Duration::ZERO) else { return };
            if self.connections.len() == MAX_CONNECTIONS {
                self.close(0);
            }
            let stream = self.streams.add(stream);
            self.streams.watch(stream, Interest { read: true, write: false });
            let deadline = Deadline::after(self.world.clock(), CONNECTION_TIME);
            let state = State::Reading(Vec::new());
            self.connections.push(Connection { stream, deadline, state });
        }
    }

    fn close(&mut self, index: usize) {
        let connection = self.connections.remove(index);
        let _ = self.streams.remove(connection.stream).shutdown();
    }

    /// Reads or writes what a connection allows. False when it is done, broken or too old.
    fn advance(&mut self, index: usize) -> bool {
        let Self { world, streams, connections, page, .. } = self;
        let Connection { stream, deadline, state } = &mut connections[index];
        if deadline.has_passed(world.clock()) {
            return false;
        }
        if !streams.is_ready(*stream) {
            return true;
        }
        if let State::Reading(request) = state {
            let mut block = [0; 1024];
            match streams.read(*stream, &mut block) {
                Ok(0) => return false,
                Ok(len) => request.extend_from_slice(&block[..len]),
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
            let Some(answer) = answer(request, &**page) else { return true };
            *state = State::Writing(answer, 0);
            streams.watch(*stream, Interest { read: false, write: true });
        }
        let State::Writing(answer, sent) = state else { return true };
        match streams.write(*stream, &[IoSlice::new(&answer[*sent..])]) {
            Ok(len) => *sent += len,
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        }
        *sent < answer.len()
    }
}

/// Answer to a request, once its head is complete or too long.
fn answer(request: &[u8], page: &dyn Fn() -> String) -> Option<Vec<u8>> {
    let is_complete = request.windows(4).any(|end| end == b"\r\n\r\n");
    if !is_complete && request.len() <= MAX_REQUEST_BYTES {
        return None;
    }
    let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut parts = line.split(' ');
    let (method, target, version) = (parts.next(), parts.next(), parts.next());
    let path = target.map(|target| target.split('?').next().unwrap_or_default());
    let is_http = version.is_some_and(|version| version.starts_with("HTTP/1."));
    Some(match (method, path) {
        _ if !is_complete => respond("431 Request Header Fields Too Large", "", "too long\n"),
        _ if !is_http || parts.next().is_some() => respond("400 Bad Request", "", "not HTTP/1\n"),
        (Some("GET"), Some("/metrics")) => respond("200 OK", "", &page()),
        (Some("GET"), _) => respond("404 Not Found", "", "see /metrics\n"),
        _ => respond("405 Method Not Allowed", "Allow: GET\r\n", "only GET\n"),
    })
}

fn respond(status: &str, header: &str, body: &str) -> Vec<u8> {
    let len = body.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {len}\r\n{header}Connection: close\r\n\r\n{body}"
    )
    .into_bytes()
}
