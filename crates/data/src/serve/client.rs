//! A worker's side of a data server: join once, then pull step after step.
//!
//! Every answer has one right length, which follows from the recipe, and every token must be one of
//! the model's: what the server sends is checked like any other input.

use std::io;
use std::time::Duration;

use lockstep_config::{BatchPlan, Recipe};
use lockstep_platform::{Deadline, Stream, World};

use super::secret::{Key, Role, nonce};
use super::wire::{self, Kind, MAX_SMALL_BYTES, Malformed, ReadError, Reader, Writer};
use crate::batch::{Batch, BatchShape, IGNORE, Wanted};
use crate::cursor::Cursor;
use crate::error::DataError;
use crate::loader::{Loader, TextName};
use crate::validation::{Validation, ValidationMicrobatch};

/// Steps that are pulled ahead of the model, the one it works on included.
const NUM_BATCHES: usize = 4;

/// How long a server that is not there yet is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// The largest tokenizer.json that is accepted.
const MAX_FILE_BYTES: usize = 256 << 20;

/// What a server says it serves.
#[derive(Debug, Clone, PartialEq)]
pub struct Welcome {
    /// The name of the text.
    pub name: String,
    /// Its fingerprint.
    pub fingerprint: String,
    /// How many different tokens it may have.
    pub vocab: usize,
    /// Micro-batches of an evaluation.
    pub num_validation_microbatches: usize,
    /// Targets of an evaluation.
    pub num_validation_targets: u64,
    /// See [`crate::baseline`].
    pub baseline_loss: f64,
    /// Whether there is a tokenizer.json.
    pub has_tokenizer: bool,
}

/// A stream to a server that has welcomed us.
pub struct Client {
    addr: String,
    stream: Box<dyn Stream>,
    deadline: Duration,
    shape: BatchShape,
    plan: BatchPlan,
    model_vocab: usize,
    welcome: Welcome,
    request: Writer,
    answer: Vec<u8>,
}

impl Client {
    /// Joins the server of a recipe, with the secret of this process's environment.
    pub fn join(recipe: &Recipe, world: &World) -> Result<Self, DataError> {
        Self::join_with(&Key::find(world)?, recipe, world)
    }

    /// Joins the server of a recipe.
    pub fn join_with(key: &Key, recipe: &Recipe, world: &World) -> Result<Self, DataError> {
        let (addr, deadline) = (recipe.data.server.clone(), recipe.run.deadline());
        let stream = connect(&addr, world, deadline.min(PATIENCE))?;
        let mut client = Self {
            addr,
            stream,
            deadline,
            shape: BatchShape::of(recipe),
            plan: recipe.batch_plan(),
            model_vocab: recipe.model.vocab,
            welcome: Welcome {
                name: String::new(),
                fingerprint: String::new(),
                vocab: 0,
                num_validation_microbatches: 0,
                num_validation_targets: 0,
                baseline_loss: 0.0,
                has_tokenizer: false,
            },
            request: Writer::default(),
            answer: Vec::new(),
        };
        let most = recipe.train.eval_batches * recipe.train.batch;
        client.introduce(key, &super::terms(recipe), most, world)?;
        Ok(client)
    }

    /// Proofs both ways, and the terms.
    fn introduce(
        &mut self,
        key: &Key,
        terms: &str,
        most_sequences: usize,
        world: &World,
    ) -> Result<(), DataError> {
        let own = nonce(world);
        self.request.bytes.extend_from_slice(&own);
        self.ask(Kind::Hello, Kind::Challenge, size_of_val(&own))?;
        let theirs = match Reader::new(&self.answer).array() {
            Ok(nonce) => nonce,
            Err(malformed) => return Err(self.malformed(malformed)),
        };
        self.request.bytes.extend_from_slice(&key.proof(Role::Worker, &own, &theirs));
        self.request.text(terms);
        self.ask(Kind::Join, Kind::Welcome, MAX_SMALL_BYTES)?;
        let (proof, welcome) = match read_welcome(&self.answer) {
            Ok(read) => read,
            Err(malformed) => return Err(self.malformed(malformed)),
        };
        if !key.accepts(proof, Role::Server, &own, &theirs) {
            let reason = "it does not know the secret".to_owned();
            return Err(DataError::Server { addr: self.addr.clone(), reason });
        }
        let most_microbatches = most_sequences.div_ceil(self.shape.microbatch_size);
        let is_sound = welcome.num_validation_microbatches <= most_microbatches
            && welcome.vocab <= self.model_vocab
            && welcome.fingerprint.len() == 16;
        if !is_sound {
            return Err(self.malformed(Malformed("its welcome does not fit the recipe".into())));
        }
        self.welcome = welcome;
        Ok(())
    }

    /// What the server serves.
    pub fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// The text's tokenizer.json, where it has one.
    pub fn tokenizer_json(&mut self) -> Result<Option<Vec<u8>>, DataError> {
        if !self.welcome.has_tokenizer {
            return Ok(None);
        }
        self.ask(Kind::Tokenizer, Kind::File, MAX_FILE_BYTES)?;
        Ok(Some(std::mem::take(&mut self.answer)))
    }

    /// The micro-batches of an evaluation.
    pub fn validation(&mut self) -> Result<Validation, DataError> {
        let Welcome { num_validation_microbatches, num_validation_targets, .. } = self.welcome;
        let mut microbatches = Vec::new();
        for index in 0..num_validation_microbatches {
            let first_sample = (index * self.shape.microbatch_size) as u64;
            let mut microbatch = ValidationMicrobatch::empty(self.shape, first_sample);
            self.request.number(index as u64);
            let len = 8 * microbatch.inputs.len();
            self.ask(Kind::Judge, Kind::Judged, len)?;
            let answer = std::mem::take(&mut self.answer);
            let mut body = Reader::new(&answer);
            let read = read_microbatch(
                &mut body,
                &mut microbatch.inputs,
                &mut microbatch.targets,
                self.model_vocab,
            );
            read.and_then(|_| body.finish()).map_err(|malformed| self.malformed(malformed))?;
            self.answer = answer;
            microbatches.push(microbatch);
        }
        let counted = |microbatch: &ValidationMicrobatch| {
            microbatch.targets.iter().filter(|&&t| t != IGNORE).count()
        };
        let found: usize = microbatches.iter().map(counted).sum();
        if found as u64 != num_validation_targets {
            let why = format!("{num_validation_targets} targets were announced, {found} came");
            return Err(self.malformed(Malformed(why)));
        }
        Ok(Validation { microbatches, num_targets: num_validation_targets })
    }

    /// Starts pulling the micro-batches of a worker's leaves.
    pub(crate) fn loader(
        mut self: Box<Self>,
        shape: BatchShape,
        world: &World,
        text: TextName,
        cursor: Cursor,
        leaves: Vec<bool>,
    ) -> Result<Loader, DataError> {
        // The thread's own deadline comes first, and its words say what happened.
        let stall = 2 * self.deadline;
        let fill = move |step, batch: &mut Batch| self.pull(step, Wanted::Leaves(&leaves), batch);
        Loader::start(shape, world, text, cursor, NUM_BATCHES, stall, Box::new(fill))
    }

    /// Fills a batch with the micro-batches of a step.
    fn pull(&mut self, step: u64, wanted: Wanted<'_>, batch: &mut Batch) -> Result<(), DataError> {
        batch.begin(step, &self.plan);
        let num_microbatches = batch.num_microbatches();
        let microbatches =
            (0..num_microbatches).filter(|&microbatch| wanted.has(microbatch, num_microbatches));
        self.request.number(step);
        microbatches.clone().for_each(|microbatch| self.request.small(microbatch as u32));
        let microbatch_bytes = 8 * self.shape.microbatch_size * self.shape.context;
        self.ask(
            Kind::Pull,
            Kind::Microbatches,
            16 + microbatches.clone().count() * microbatch_bytes,
        )?;
        let answer = std::mem::take(&mut self.answer);
        let read = read_microbatches(&answer, step, microbatches, batch, self.model_vocab);
        self.answer = answer;
        read.map_err(|malformed| self.malformed(malformed))
    }

    /// Sends what was written as a request of one kind and waits for an answer of another.
    fn ask(&mut self, kind: Kind, answer: Kind, max_len: usize) -> Result<(), DataError> {
        self.stream.set_deadline(Some(self.deadline));
        let sent = wire::write(&mut *self.stream, kind, &self.request.bytes);
        self.request.bytes.clear();
        // A server that refuses may close the stream while we still send; its words come first.
        let max_len = max_len.max(MAX_SMALL_BYTES);
        let heard = wire::read(&mut *self.stream, answer, max_len, &mut self.answer);
        match (sent, heard) {
            (_, Err(ReadError::Refused(reason))) => {
                Err(DataError::Refused { addr: self.addr.clone(), reason })
            }
            (Err(error), _) => Err(self.failed(&ReadError::Stream(error))),
            (Ok(()), heard) => heard.map_err(|error| self.failed(&error)),
        }
    }

    fn failed(&self, error: &ReadError) -> DataError {
        DataError::Server { addr: self.addr.clone(), reason: error.to_string() }
    }

    fn malformed(&self, malformed: Malformed) -> DataError {
        self.failed(&ReadError::Malformed(malformed))
    }
}

#[cfg(test)]
impl Client {
    /// Sends anything.
    pub(super) fn send_raw(&mut self, kind: Kind, body: &[u8]) {
        self.stream.set_deadline(Some(self.deadline));
        wire::write(&mut *self.stream, kind, body).expect("the server listens");
    }

    /// The stream itself.
    pub(super) fn stream_mut(&mut self) -> &mut dyn Stream {
        &mut *self.stream
    }
}

/// A stream to the server, which may be about to start.
fn connect(addr: &str, world: &World, patience: Duration) -> Result<Box<dyn Stream>, DataError> {
    let deadline = Deadline::after(world.clock(), patience);
    loop {
        let remaining = deadline.remaining(world.clock());
        match world.net().connect(addr, remaining.max(Duration::from_millis(1))) {
            Ok(stream) => {
                // A server that cannot take small requests at once is slower, and not wrong.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Err(error)
                if error.kind() == io::ErrorKind::ConnectionRefused && !remaining.is_zero() =>
            {
                world.clock().sleep(Duration::from_millis(50));
            }
            Err(error) => {
                let reason = error.to_string();
                return Err(DataError::Server { addr: addr.to_owned(), reason });
            }
        }
    }
}

fn read_welcome(body: &[u8]) -> Result<([u8; 32], Welcome), Malformed> {
    let mut body = Reader::new(body);
    let proof = body.array()?;
    let welcome = Welcome {
        name: body.text()?,
        fingerprint: body.text()?,
        vocab: body.small()? as usize,
        num_validation_microbatches: body.small()? as usize,
        num_validation_targets: body.number()?,
        baseline_loss: f64::from_bits(body.number()?),
        has_tokenizer: body.small()? != 0,
    };
    body.finish()?;
    Ok((proof, welcome))
}

pub(super) fn read_microbatches(
    body: &[u8],
    step: u64,
    microbatches: impl Iterator<Item = usize>,
    batch: &mut Batch,
    model_vocab: usize,
) -> Result<(), Malformed> {
    let mut body = Reader::new(body);
    let (found, num_targets) = (body.number()?, body.number()?);
    if found != step {
        return Err(Malformed(format!("step {found} came where {step} was asked for")));
    }
    let most = batch.num_targets;
    let mut num_own = 0;
    for microbatch in microbatches {
        let (inputs, targets) = batch.microbatch_mut(microbatch);
        num_own += read_microbatch(&mut body, inputs, targets, model_vocab)?;
    }
    if num_targets < num_own || num_targets > most {
        return Err(Malformed(format!("{num_targets} targets in a batch of {most}")));
    }
    body.finish()?;
    batch.num_targets = num_targets;
    Ok(())
}

/// Reads one micro-batch and counts its targets.
fn read_microbatch(
    body: &mut Reader<'_>,
    inputs: &mut [u32],
    targets: &mut [u32],
    model_vocab: usize,
) -> Result<u64, Malformed> {
    body.tokens(inputs)?;
    body.tokens(targets)?;
    let is_foreign = |token: &&u32| **token as usize >= model_vocab;
    let mut counted = targets.iter().filter(|&&target| target != IGNORE);
    if let Some(token) = inputs.iter().find(is_foreign).or_else(|| counted.clone().find(is_foreign))
    {
        return Err(Malformed(format!("token {token} came, and model.vocab = {model_vocab}")));
    }
    Ok(counted.by_ref().count() as u64)
}
