//! Data server: reads the corpus once and prepares micro-batches on request.
//!
//! Each worker has its own thread. A micro-batch is copied from memory or a mapped file in
//! microseconds, so nothing is cached, any number of runs can be served at once, and a restarted
//! worker simply requests its batches again.

use std::fmt;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lockstep_config::Recipe;
use lockstep_platform::{Listener, Stream, World};

use super::secret::{Key, Role, nonce};
use super::wire::{self, Kind, MAX_SMALL_BYTES, ReadError, Reader, Writer};
use crate::baseline::baseline_loss;
use crate::batch::{Batch, BatchShape, MicrobatchFilter};
use crate::corpus::Corpus;
use crate::error::DataError;
use crate::sample_order::SampleOrder;
use crate::validation::{Validation, validation_microbatches};

/// Handshake timeout.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Idle timeout of a worker, and timeout for sending a response.
const IDLE_TIMEOUT: Duration = Duration::from_hours(1);

/// Keep-alive timeout of a silent machine.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_mins(1);

/// Maximum number of connections, including unauthenticated ones.
const MAX_CONNECTIONS: usize = 256;

/// Maximum number of steps of a recipe.
const MAX_STEP: u64 = 1_000_000_000_000;

/// Interval at which the server checks whether it should stop.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// A listening server.
pub struct Server {
    world: World,
    listener: Box<dyn Listener>,
    served: Arc<ServedCorpus>,
}

/// Event of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A worker joined.
    Joined(String),
    /// A connection was refused, with the reason.
    Refused(String, String),
    /// A worker left after this many steps.
    Left(String, u64),
}

/// Served corpus and its terms.
struct ServedCorpus {
    key: Key,
    terms: String,
    shape: BatchShape,
    corpus: Corpus,
    order: SampleOrder,
    validation: Validation,
    baseline_loss: f64,
}

impl Server {
    /// Reads the recipe's corpus and listens at an address; port 0 lets the system choose one. The
    /// secret comes from the environment.
    pub fn open(recipe: &Recipe, world: &World, addr: &str) -> Result<Self, DataError> {
        Self::open_with(Key::find(world)?, recipe, world, addr)
    }

    /// As [`Self::open`], with this secret.
    pub fn open_with(
        key: Key,
        recipe: &Recipe,
        world: &World,
        addr: &str,
    ) -> Result<Self, DataError> {
        let corpus = Corpus::load(recipe, world)?;
        let all = vec![true; recipe.num_leaves()];
        let served = ServedCorpus {
            key,
            terms: super::terms(recipe),
            shape: BatchShape::largest(recipe),
            order: SampleOrder::of(recipe, corpus.name(), corpus.train(), &all)?,
            validation: validation_microbatches(recipe, &corpus)?,
            baseline_loss: baseline_loss(&corpus),
            corpus,
        };
        let listener = world.net().listen(addr)?;
        Ok(Self { world: Arc::clone(world), listener, served: Arc::new(served) })
    }

    /// Listening address.
    pub fn addr(&self) -> String {
        self.listener.local_addr()
    }

    /// Served corpus.
    pub fn corpus(&self) -> &Corpus {
        &self.served.corpus
    }

    /// Serves until `is_over`. `report` receives events from any thread.
    pub fn run(
        &self,
        is_over: impl Fn() -> bool,
        report: impl Fn(Event) + Send + Sync + 'static,
    ) -> Result<(), DataError> {
        let report: Arc<dyn Fn(Event) + Send + Sync> = Arc::new(report);
        let num_callers = Arc::new(AtomicUsize::new(0));
        while !is_over() {
            let stream = match self.listener.accept(POLL_INTERVAL) {
                Ok(stream) => stream,
                Err(error) if error.kind() == ErrorKind::TimedOut => continue,
                Err(_) => {
                    // A lack of memory or descriptors may be temporary.
                    self.world.clock().sleep(POLL_INTERVAL);
                    continue;
                }
            };
            let place = ConnectionSlot(Arc::clone(&num_callers));
            if place.0.fetch_add(1, Ordering::SeqCst) >= MAX_CONNECTIONS {
                report(Event::Refused(stream.peer_addr(), "too many callers".to_owned()));
                continue;
            }
            let (world, served) = (Arc::clone(&self.world), Arc::clone(&self.served));
            let report = Arc::clone(&report);
            let serve = move || {
                let _place = place;
                serve(&world, &served, stream, &*report);
            };
            // The thread ends with its connection, so it is not joined.
            drop(self.world.threads().spawn("data-server", Box::new(serve))?);
        }
        Ok(())
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({}, {})", self.addr(), self.served.corpus.name())
    }
}

/// A connection slot, released on drop.
struct ConnectionSlot(Arc<AtomicUsize>);

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Serves one connection.
fn serve(
    world: &World,
    served: &ServedCorpus,
    mut stream: Box<dyn Stream>,
    report: &dyn Fn(Event),
) {
    let addr = stream.peer_addr();
    stream.set_deadline(Some(HANDSHAKE_TIMEOUT));
    // Both options affect latency only.
    let _ = (stream.set_nodelay(true), stream.set_keepalive_timeout(KEEP_ALIVE_TIMEOUT));
    let mut session = Session { served, stream, body: Vec::new(), num_steps: 0 };
    if let Err(reason) = session.handshake(world) {
        session.refuse(&reason);
        return report(Event::Refused(addr, reason));
    }
    report(Event::Joined(addr.clone()));
    if let Err(Some(reason)) = session.answer_all() {
        session.refuse(&reason);
        return report(Event::Refused(addr, reason));
    }
    report(Event::Left(addr, session.num_steps));
}

struct Session<'a> {
    served: &'a ServedCorpus,
    stream: Box<dyn Stream>,
    body: Vec<u8>,
    num_steps: u64,
}

impl Session<'_> {
    /// Mutual authentication, and comparison of the terms.
    fn handshake(&mut self, world: &World) -> Result<(), String> {
        let ServedCorpus { key, terms, corpus, validation, baseline_loss, .. } = self.served;
        self.receive(Kind::Hello)?;
        let theirs = Reader::new(&self.body).array().map_err(|malformed| malformed.0)?;
        let own = nonce(world);
        self.send(Kind::Challenge, &own)?;
        self.receive(Kind::Join)?;
        let mut join = Reader::new(&self.body);
        let proof = join.array().map_err(|malformed| malformed.0)?;
        if !key.accepts(proof, Role::Worker, &theirs, &own) {
            return Err("it has another LOCKSTEP_SECRET".to_owned());
        }
        let worker_terms = join.text().map_err(|malformed| malformed.0)?;
        if let Some(difference) = difference(&worker_terms, terms) {
            return Err(difference);
        }
        let mut welcome = Writer::default();
        welcome.bytes.extend_from_slice(&key.proof(Role::Server, &theirs, &own));
        welcome.text(corpus.name());
        welcome.text(&corpus.fingerprint());
        welcome.small(corpus.vocab() as u32);
        welcome.small(validation.microbatches.len() as u32);
        welcome.number(validation.num_targets);
        welcome.number(baseline_loss.to_bits());
        welcome.small(u32::from(corpus.tokenizer().json().is_some()));
        self.send(Kind::Welcome, &welcome.bytes)
    }

    /// Answers requests until the worker leaves (`Err(None)`) or violates the protocol.
    fn answer_all(&mut self) -> Result<(), Option<String>> {
        let mut batch = Batch::allocate(self.served.shape);
        let mut requested = vec![false; batch.num_microbatches()];
        let mut answer = Writer::default();
        loop {
            self.stream.set_deadline(Some(IDLE_TIMEOUT));
            let max_len = 8 + 4 * requested.len();
            let kind = match wire::read_any(&mut *self.stream, max_len, &mut self.body) {
                Ok(kind) => kind,
                Err(ReadError::Stream(_)) => return Ok(()),
                Err(other) => return Err(Some(other.to_string())),
            };
            answer.bytes.clear();
            let answer_kind = if kind == Kind::Pull as u16 {
                self.num_steps += 1;
                self.pull(&mut batch, &mut requested, &mut answer).map(|()| Kind::Microbatches)
            } else if kind == Kind::PullValidation as u16 {
                self.send_validation(&mut answer).map(|()| Kind::ValidationMicrobatch)
            } else if kind == Kind::Tokenizer as u16 {
                let json = self.served.corpus.tokenizer().json();
                answer.bytes.extend_from_slice(json.unwrap_or_default());
                Ok(Kind::File)
            } else {
                Err(format!("message {kind} is no request"))
            };
            self.stream.set_deadline(Some(IDLE_TIMEOUT));
            self.send(answer_kind.map_err(Some)?, &answer.bytes).map_err(|_| None)?;
        }
    }

    /// Sends micro-batches of a step.
    fn pull(
        &self,
        batch: &mut Batch,
        requested: &mut [bool],
        answer: &mut Writer,
    ) -> Result<(), String> {
        let mut request = Reader::new(&self.body);
        let step = request.number().map_err(|malformed| malformed.0)?;
        if step > MAX_STEP {
            return Err(format!("step {step} is out of reach"));
        }
        requested.fill(false);
        let ServedCorpus { order, corpus, shape, .. } = self.served;
        let num_microbatches = order.plan().at(step).batch / shape.microbatch_size;
        let requested = &mut requested[..num_microbatches];
        let mut microbatches = Vec::new();
        for _ in 0..(self.body.len() - 8) / 4 {
            let microbatch = request.small().map_err(|malformed| malformed.0)? as usize;
            match requested.get_mut(microbatch) {
                Some(requested) if !*requested => *requested = true,
                _ => {
                    return Err(format!(
                        "micro-batch {microbatch} twice, or beyond the {}",
                        requested.len()
                    ));
                }
            }
            microbatches.push(microbatch);
        }
        let filled =
            batch.fill(step, order, corpus.train(), MicrobatchFilter::Microbatches(requested));
        filled.map_err(|error| error.to_string())?;
        answer.number(step);
        answer.number(batch.num_targets);
        for microbatch in microbatches {
            let (inputs, targets) = batch.microbatch(microbatch);
            answer.tokens(inputs);
            answer.tokens(targets);
        }
        request.finish().map_err(|malformed| malformed.0)
    }

    /// Sends a validation micro-batch.
    fn send_validation(&self, answer: &mut Writer) -> Result<(), String> {
        let index = Reader::new(&self.body).number().map_err(|malformed| malformed.0)?;
        let microbatches = &self.served.validation.microbatches;
        let microbatch = usize::try_from(index).ok().and_then(|index| microbatches.get(index));
        let microbatch = microbatch.ok_or_else(|| {
            format!("micro-batch {index} of {} in the validation", microbatches.len())
        })?;
        answer.tokens(&microbatch.inputs);
        answer.tokens(&microbatch.targets);
        Ok(())
    }

    fn receive(&mut self, kind: Kind) -> Result<(), String> {
        let heard = wire::read(&mut *self.stream, kind, MAX_SMALL_BYTES, &mut self.body);
        heard.map_err(|error| error.to_string())
    }

    fn send(&mut self, kind: Kind, body: &[u8]) -> Result<(), String> {
        wire::write(&mut *self.stream, kind, body).map_err(|error| error.to_string())
    }

    fn refuse(&mut self, reason: &str) {
        let mut body = Writer::default();
        body.text(reason);
        // A peer that does not read the refusal does not get it.
        self.stream.set_deadline(Some(HANDSHAKE_TIMEOUT));
        let _ = wire::write(&mut *self.stream, Kind::Refused, &body.bytes);
    }
}

/// First line in which worker and server differ.
fn difference(worker: &str, server: &str) -> Option<String> {
    let key = |line: &str| line.split(" = ").next().unwrap_or_default().to_owned();
    let only = |lines: &str, others: &str| {
        lines.lines().find(|line| !others.lines().any(|other| other == *line)).map(str::to_owned)
    };
    match (only(worker, server), only(server, worker)) {
        (None, None) => None,
        (Some(line), None) => Some(format!("it has {line}, which the server lacks")),
        (None, Some(line)) => Some(format!("the server has {line}, which it lacks")),
        (Some(own), Some(_)) => {
            let same_key = server.lines().find(|line| key(line) == key(&own));
            let other = same_key.unwrap_or("no such key");
            Some(format!("it has {own}, the server {other}"))
        }
    }
}
