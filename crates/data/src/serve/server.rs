//! The server: reads the text once, and makes micro-batches for whoever may have them.
//!
//! Each worker has a thread of its own, which makes the micro-batches that are asked for when they are
//! asked for: a micro-batch is copied out of memory or a mapped file in microseconds, so nothing is kept
//! for anybody, any number of runs and resumed runs may be served at once, and a worker that comes
//! back simply asks again.

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
use crate::batch::{Batch, BatchShape, Wanted};
use crate::corpus::Corpus;
use crate::deal::Deal;
use crate::error::DataError;
use crate::validation::{Validation, validation_microbatches};

/// How long a caller may take to say who it is.
const INTRODUCTION: Duration = Duration::from_secs(10);

/// How long a worker may be silent, and how long it may take to take an answer.
const SILENCE: Duration = Duration::from_hours(1);

/// How long a machine may be silent before it counts as gone.
const MACHINE_SILENCE: Duration = Duration::from_mins(1);

/// Most workers at a time, with some room for callers that are none.
const MAX_CALLERS: usize = 256;

/// The most steps that a recipe can have.
const MAX_STEP: u64 = 1_000_000_000_000;

/// How often the server looks whether it should end.
const LOOK: Duration = Duration::from_millis(200);

/// A server that listens.
pub struct Server {
    world: World,
    listener: Box<dyn Listener>,
    offer: Arc<Offer>,
}

/// Something that people may want to see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A worker has joined.
    Joined(String),
    /// A caller was turned away, and why.
    TurnedAway(String, String),
    /// A worker has left, after so many steps.
    Left(String, u64),
}

/// What is served.
struct Offer {
    key: Key,
    terms: String,
    shape: BatchShape,
    corpus: Corpus,
    deal: Deal,
    validation: Validation,
    baseline_loss: f64,
}

impl Server {
    /// Reads the text of a recipe and listens at an address; port 0 lets the system choose one. The
    /// secret is that of this process's environment.
    pub fn open(recipe: &Recipe, world: &World, addr: &str) -> Result<Self, DataError> {
        Self::open_with(Key::find(world)?, recipe, world, addr)
    }

    /// The same with a secret of the caller's.
    pub fn open_with(
        key: Key,
        recipe: &Recipe,
        world: &World,
        addr: &str,
    ) -> Result<Self, DataError> {
        let corpus = Corpus::load(recipe, world)?;
        let all = vec![true; recipe.num_leaves()];
        let offer = Offer {
            key,
            terms: super::terms(recipe),
            shape: BatchShape::largest(recipe),
            deal: Deal::of(recipe, corpus.name(), corpus.train(), &all)?,
            validation: validation_microbatches(recipe, &corpus)?,
            baseline_loss: baseline_loss(&corpus),
            corpus,
        };
        let listener = world.net().listen(addr)?;
        Ok(Self { world: Arc::clone(world), listener, offer: Arc::new(offer) })
    }

    /// Where it listens.
    pub fn addr(&self) -> String {
        self.listener.local_addr()
    }

    /// The text that it serves.
    pub fn corpus(&self) -> &Corpus {
        &self.offer.corpus
    }

    /// Serves until `is_over` says so; `tell` hears what happens, from any thread.
    pub fn run(
        &self,
        is_over: impl Fn() -> bool,
        tell: impl Fn(Event) + Send + Sync + 'static,
    ) -> Result<(), DataError> {
        let tell: Arc<dyn Fn(Event) + Send + Sync> = Arc::new(tell);
        let num_callers = Arc::new(AtomicUsize::new(0));
        while !is_over() {
            let stream = match self.listener.accept(LOOK) {
                Ok(stream) => stream,
                Err(error) if error.kind() == ErrorKind::TimedOut => continue,
                Err(_) => {
                    // The system lacks memory or descriptors; that may pass.
                    self.world.clock().sleep(LOOK);
                    continue;
                }
            };
            let place = Place(Arc::clone(&num_callers));
            if place.0.fetch_add(1, Ordering::SeqCst) >= MAX_CALLERS {
                tell(Event::TurnedAway(stream.peer_addr(), "too many callers".to_owned()));
                continue;
            }
            let (world, offer) = (Arc::clone(&self.world), Arc::clone(&self.offer));
            let tell = Arc::clone(&tell);
            let serve = move || {
                let _place = place;
                serve(&world, &offer, stream, &*tell);
            };
            // Nobody joins it: it ends with its caller.
            drop(self.world.threads().spawn("data-server", Box::new(serve))?);
        }
        Ok(())
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({}, {})", self.addr(), self.offer.corpus.name())
    }
}

/// One of the places for callers, free again when dropped.
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A caller's whole visit.
fn serve(world: &World, offer: &Offer, mut stream: Box<dyn Stream>, tell: &dyn Fn(Event)) {
    let addr = stream.peer_addr();
    stream.set_deadline(Some(INTRODUCTION));
    // Both only matter to how soon things happen.
    let _ = (stream.set_nodelay(true), stream.set_silence_limit(MACHINE_SILENCE));
    let mut visit = Visit { offer, stream, body: Vec::new(), num_steps: 0 };
    if let Err(reason) = visit.introduce(world) {
        visit.refuse(&reason);
        return tell(Event::TurnedAway(addr, reason));
    }
    tell(Event::Joined(addr.clone()));
    if let Err(Some(reason)) = visit.answer_all() {
        visit.refuse(&reason);
        return tell(Event::TurnedAway(addr, reason));
    }
    tell(Event::Left(addr, visit.num_steps));
}

struct Visit<'a> {
    offer: &'a Offer,
    stream: Box<dyn Stream>,
    body: Vec<u8>,
    num_steps: u64,
}

impl Visit<'_> {
    /// Proofs both ways, and the terms; says what is wrong.
    fn introduce(&mut self, world: &World) -> Result<(), String> {
        let Offer { key, terms, corpus, validation, baseline_loss, .. } = self.offer;
        self.hear(Kind::Hello)?;
        let theirs = Reader::new(&self.body).array().map_err(|malformed| malformed.0)?;
        let own = nonce(world);
        self.say(Kind::Challenge, &own)?;
        self.hear(Kind::Join)?;
        let mut join = Reader::new(&self.body);
        let proof = join.array().map_err(|malformed| malformed.0)?;
        if !key.accepts(proof, Role::Worker, &theirs, &own) {
            return Err("it has another LOCKSTEP_SECRET".to_owned());
        }
        let asked = join.text().map_err(|malformed| malformed.0)?;
        if let Some(difference) = difference(&asked, terms) {
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
        self.say(Kind::Welcome, &welcome.bytes)
    }

    /// Answers until the worker leaves (nothing to say) or breaks the rules (says how).
    fn answer_all(&mut self) -> Result<(), Option<String>> {
        let mut batch = Batch::with_room(self.offer.shape);
        let mut asked = vec![false; batch.num_microbatches()];
        let mut answer = Writer::default();
        loop {
            self.stream.set_deadline(Some(SILENCE));
            let max_len = 8 + 4 * asked.len();
            let kind = match wire::read_any(&mut *self.stream, max_len, &mut self.body) {
                Ok(kind) => kind,
                Err(ReadError::Stream(_)) => return Ok(()),
                Err(other) => return Err(Some(other.to_string())),
            };
            answer.bytes.clear();
            let answer_kind = if kind == Kind::Pull as u16 {
                self.num_steps += 1;
                self.pull(&mut batch, &mut asked, &mut answer).map(|()| Kind::Microbatches)
            } else if kind == Kind::Judge as u16 {
                self.judge(&mut answer).map(|()| Kind::Judged)
            } else if kind == Kind::Tokenizer as u16 {
                let json = self.offer.corpus.tokenizer().json();
                answer.bytes.extend_from_slice(json.unwrap_or_default());
                Ok(Kind::File)
            } else {
                Err(format!("message {kind} is no request"))
            };
            self.stream.set_deadline(Some(SILENCE));
            self.say(answer_kind.map_err(Some)?, &answer.bytes).map_err(|_| None)?;
        }
    }

    /// Micro-batches of a step.
    fn pull(
        &self,
        batch: &mut Batch,
        asked: &mut [bool],
        answer: &mut Writer,
    ) -> Result<(), String> {
        let mut request = Reader::new(&self.body);
        let step = request.number().map_err(|malformed| malformed.0)?;
        if step > MAX_STEP {
            return Err(format!("step {step} is out of reach"));
        }
        asked.fill(false);
        let Offer { deal, corpus, shape, .. } = self.offer;
        let num_microbatches = deal.plan().at(step).batch / shape.microbatch_size;
        let asked = &mut asked[..num_microbatches];
        let mut microbatches = Vec::new();
        for _ in 0..(self.body.len() - 8) / 4 {
            let microbatch = request.small().map_err(|malformed| malformed.0)? as usize;
            match asked.get_mut(microbatch) {
                Some(asked) if !*asked => *asked = true,
                _ => {
                    return Err(format!(
                        "micro-batch {microbatch} twice, or beyond the {}",
                        asked.len()
                    ));
                }
            }
            microbatches.push(microbatch);
        }
        let filled = batch.fill(step, deal, corpus.train(), Wanted::Microbatches(asked));
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

    /// A micro-batch of the evaluation.
    fn judge(&self, answer: &mut Writer) -> Result<(), String> {
        let index = Reader::new(&self.body).number().map_err(|malformed| malformed.0)?;
        let microbatches = &self.offer.validation.microbatches;
        let microbatch = usize::try_from(index).ok().and_then(|index| microbatches.get(index));
        let microbatch = microbatch.ok_or_else(|| {
            format!("micro-batch {index} of {} to be judged by", microbatches.len())
        })?;
        answer.tokens(&microbatch.inputs);
        answer.tokens(&microbatch.targets);
        Ok(())
    }

    fn hear(&mut self, kind: Kind) -> Result<(), String> {
        let heard = wire::read(&mut *self.stream, kind, MAX_SMALL_BYTES, &mut self.body);
        heard.map_err(|error| error.to_string())
    }

    fn say(&mut self, kind: Kind, body: &[u8]) -> Result<(), String> {
        wire::write(&mut *self.stream, kind, body).map_err(|error| error.to_string())
    }

    fn refuse(&mut self, reason: &str) {
        let mut body = Writer::default();
        body.text(reason);
        // A stranger that does not take the answer does not get it.
        self.stream.set_deadline(Some(INTRODUCTION));
        let _ = wire::write(&mut *self.stream, Kind::Refused, &body.bytes);
    }
}

/// The first line that worker and server do not share, in words.
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
