//! Connections of the dashboard, all on one thread, and their limits.
//!
//! Every connection has deadlines: for the head of a request, for each write, and as a whole. Heads
//! have a largest size. There is a largest number of connections. At the limit, one more takes the
//! place of the oldest that has sent no accepted request, so that connections without the token
//! cannot keep a page out; where all have sent one, it is refused with 503.

use crate::api::Answers;
use crate::connections::{Connections, IsTrusted};
use crate::guard::Guard;
use crate::runs::Table;
use crate::stall::WriteDeadline;
use crate::token::Token;
use crate::tools::Sources;
use crate::watch::Watcher;
use axum::Router;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use lockstep_platform::{JoinHandle, ThreadError, World};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Notify, Semaphore};
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

/// Largest head of a request; the smallest that `hyper` allows.
const MAX_HEAD_BYTES: usize = 8192;
/// Most headers of a request.
const MAX_HEADERS: usize = 64;
/// Most connections at once that are being refused with an answer; others are closed.
const MAX_REFUSALS: usize = 16;
/// Wait after the system has refused to accept a connection, such as for too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Time of a refusal.
const REFUSAL_TIME: Duration = Duration::from_millis(500);
/// Time to stop.
const STOP_TIME: Duration = Duration::from_secs(2);

const REFUSAL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\n\
    Content-Length: 21\r\nRetry-After: 5\r\nConnection: close\r\n\r\ntoo many connections\n";

/// Deadlines of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Time for the head of a request, from the connection or the last answer on.
    pub head: Duration,
    /// Time in which a browser takes some of an answer.
    pub write: Duration,
    /// Time of a connection; a browser that still needs it connects again.
    pub connection: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            head: Duration::from_secs(10),
            write: Duration::from_secs(10),
            connection: Duration::from_hours(1),
        }
    }
}

/// Why a server could not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address is taken, not of this host or no address.
    #[error("cannot listen on {addr}: {reason}")]
    Listen {
        /// Address.
        addr: String,
        /// Text of the system error.
        reason: String,
    },
    /// The system refused a resource.
    #[error("cannot start the dashboard: {0}")]
    Start(String),
}

impl From<ThreadError> for ServeError {
    fn from(error: ThreadError) -> Self {
        Self::Start(error.to_string())
    }
}

/// A running server; it stops on drop.
pub struct Server {
    url: String,
    stop: Arc<Notify>,
    thread: Option<Box<dyn JoinHandle>>,
    _watcher: Watcher,
}

impl Server {
    /// Listens on an address, `host:port`, and serves from threads of its own.
    pub fn start(
        world: &World,
        listen: &str,
        token: Token,
        sources: Sources,
        limits: Limits,
    ) -> Result<Self, ServeError> {
        let failed = |error: io::Error| ServeError::Start(error.to_string());
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let listener = runtime.block_on(TcpListener::bind(listen)).map_err(|error| {
            ServeError::Listen { addr: listen.to_owned(), reason: plain_reason(&error) }
        })?;
        let addr = listener.local_addr().map_err(failed)?;
        // A browser on this host reaches a server that listens on all addresses by the local one.
        let host = match addr.ip() {
            ip if ip.is_unspecified() => format!("127.0.0.1:{}", addr.port()),
            _ => addr.to_string(),
        };
        let url = format!("http://{host}/?token={}", token.as_str());
        let table = Table::default();
        let (watcher, changes) = Watcher::start(world, Arc::clone(&sources.runs), table.clone())?;
        let guard = Guard::new(token, listen, addr.port());
        let router = Answers::new(world, table, sources, changes, guard).router();
        let stop = Arc::new(Notify::new());
        let stopped = Arc::clone(&stop);
        let serve = move || run(&runtime, listener, &router, limits, &stopped);
        let thread = Some(world.threads().spawn("dashboard", Box::new(serve))?);
        Ok(Self { url, stop, thread, _watcher: watcher })
    }

    /// Address for a browser, with the token.
    pub fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.finished_within(STOP_TIME)
        {
            let _ = thread.join();
        }
    }
}

/// The system's text without its number.
fn plain_reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}

/// Serves until it is stopped. Dropping the runtime ends all tasks.
fn run(
    runtime: &Runtime,
    listener: TcpListener,
    router: &Router,
    limits: Limits,
    stopped: &Notify,
) {
    let router = router.clone();
    runtime.spawn(async move { accept(listener, router, limits).await });
    runtime.block_on(stopped.notified());
}

async fn accept(listener: TcpListener, router: Router, limits: Limits) {
    let mut connections = Connections::default();
    let refusals = Arc::new(Semaphore::new(MAX_REFUSALS));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        // An event is one small message: it is sent at once.
        let _ = stream.set_nodelay(true);
        if connections.make_room() {
            let is_trusted = IsTrusted::default();
            let served = serve(stream, router.clone(), limits, is_trusted.clone());
            let task = tokio::spawn(served);
            connections.add(is_trusted, task.abort_handle());
            // What has arrived already is read before the next one can take the place.
            yield_now().await;
        } else if let Ok(permit) = Arc::clone(&refusals).try_acquire_owned() {
            tokio::spawn(async move {
                let _ = timeout(REFUSAL_TIME, refuse(stream)).await;
                drop(permit);
            });
        }
    }
}

async fn serve(stream: TcpStream, router: Router, limits: Limits, is_trusted: IsTrusted) {
    let router = TowerToHyperService::new(router);
    let answer = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(is_trusted.clone());
        router.call(request)
    });
    let stream = TokioIo::new(WriteDeadline::new(stream, limits.write));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEADERS)
        .serve_connection(stream, answer);
    // A broken connection concerns its browser alone.
    let _ = timeout(limits.connection, connection).await;
}

/// Answers without reading the request; reads what arrives so that the answer is not lost.
async fn refuse(mut stream: TcpStream) -> io::Result<()> {
    stream.write_all(REFUSAL).await?;
    stream.shutdown().await?;
    let mut ignored = [0; 1024];
    while stream.read(&mut ignored).await? > 0 {}
    Ok(())
}
