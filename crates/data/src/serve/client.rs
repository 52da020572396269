//! Client of the data server: join once, then pull step after step.
//!
//! Every response has one valid length, which follows from the recipe, and every token must be in
//! the model's vocabulary: the server's data is validated like any other input.

use std::io;
use std::time::Duration;

use lockstep_config::{BatchPlan, Recipe};
use lockstep_platform::{Deadline, Stream, World};

use super::secret::{Key, Role, nonce};
use super::wire::{self, Kind, MAX_SMALL_BYTES, Malformed, ReadError, Reader, Writer};
use crate::batch::{Batch, BatchShape, IGNORE, MicrobatchFilter};
use crate::cursor::Cursor;
use crate::error::DataError;
use crate::loader::{Loader, TextName};
use crate::validation::{Validation, ValidationMicrobatch};

/// Number of batches in circulation, including the one in use.
const NUM_BATCHES: usize = 4;

/// Retry period for a server that is not listening yet.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum size of a tokenizer.json.
const MAX_FILE_BYTES: usize = 256 << 20;

/// Description of the served corpus.
#[derive(Debug, Clone, PartialEq)]
pub struct Welcome {
    /// Name of the corpus.
    pub name: String,
    /// Fingerprint of the corpus.
    pub fingerprint: String,
    /// Vocabulary size.
    pub vocab: usize,
    /// Number of validation micro-batches.
    pub num_validation_microbatches: usize,
    /// Number of validation targets.
    pub num_validation_targets: u64,
    /// Baseline entropy; [`crate::baseline`] defines it.
    pub baseline_loss: f64,
    /// Whether the corpus has a tokenizer.json.
    pub has_tokenizer: bool,
}

/// Authenticated connection to a data server.
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
    /// Joins the recipe's server with the secret of the environment.
    pub fn join(recipe: &Recipe, world: &World) -> Result<Self, DataError> {
        Self::join_with(&Key::find(world)?, recipe, world)
    }

    /// Joins the recipe's server with this secret.
    pub fn join_with(key: &Key, recipe: &Recipe, world: &World) -> Result<Self, DataError> {
        let (addr, deadline) = (recipe.data.server.clone(), recipe.run.deadline());
        let stream = connect(&addr, world, deadline.min(CONNECT_TIMEOUT))?;
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
        client.handshake(key, &super::terms(recipe), most, world)?;
        Ok(client)
    }

    /// Mutual authentication, and comparison of the terms.
    fn handshake(
        &mut self,
        key: &Key,
        terms: &str,
        most_sequences: usize,
        world: &World,
    ) -> Result<(), DataError> {
        let own = nonce(world);
        self.request.bytes.extend_from_slice(&own);
        self.request(Kind::Hello, Kind::Challenge, size_of_val(&own))?;
        let theirs = match Reader::new(&self.answer).array() {
            Ok(nonce) => nonce,
            Err(malformed) => return Err(self.malformed(malformed)),
        };
        self.request.bytes.extend_from_slice(&key.proof(Role::Worker, &own, &theirs));
        self.request.text(terms);
        self.request(Kind::Join, Kind::Welcome, MAX_SMALL_BYTES)?;
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

    /// Description of the served corpus.
    pub fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// Content of tokenizer.json, if the corpus has one.
    pub fn tokenizer_json(&mut self) -> Result<Option<Vec<u8>>, DataError> {
        if !self.welcome.has_tokenizer {
            return Ok(None);
        }
        self.request(Kind::Tokenizer, Kind::File, MAX_FILE_BYTES)?;
        Ok(Some(std::mem::take(&mut self.answer)))
    }

    /// Validation micro-batches.
    pub fn validation(&mut self) -> Result<Validation, DataError> {
        let Welcome { num_validation_microbatches, num_validation_targets, .. } = self.welcome;
        let mut microbatches = Vec::new();
        for index in 0..num_validation_microbatches {
            let first_sample = (index * self.shape.microbatch_size) as u64;
            let mut microbatch = ValidationMicrobatch::empty(self.shape, first_sample);
            self.request.number(index as u64);
            let len = 8 * microbatch.inputs.len();
            self.request(Kind::PullValidation, Kind::ValidationMicrobatch, len)?;
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
        // The thread's own deadline comes first, and its error is more specific.
        let stall = 2 * self.deadline;
        let fill = move |step, batch: &mut Batch| {
            self.pull(step, MicrobatchFilter::Leaves(&leaves), batch)
        };
        Loader::start(shape, world, text, cursor, NUM_BATCHES, stall, Box::new(fill))
    }

    /// Fills a batch with the micro-batches of a step.
    fn pull(
        &mut self,
        step: u64,
        filter: MicrobatchFilter<'_>,
        batch: &mut Batch,
    ) -> Result<(), DataError> {
        batch.begin(step, &self.plan);
        let num_microbatches = batch.num_microbatches();
        let microbatches =
            (0..num_microbatches).filter(|&microbatch| filter.has(microbatch, num_microbatches));
        self.request.number(step);
        microbatches.clone().for_each(|microbatch| self.request.small(microbatch as u32));
        let microbatch_bytes = 8 * self.shape.microbatch_size * self.shape.context;
        self.request(
            Kind::Pull,
            Kind::Microbatches,
            16 + microbatches.clone().count() * microbatch_bytes,
        )?;
        let answer = std::mem::take(&mut self.answer);
        let read = read_microbatches(&answer, step, microbatches, batch, self.model_vocab);
        self.answer = answer;
        read.map_err(|malformed| self.malformed(malformed))
    }

    /// Sends the request buffer and waits for a response of kind `answer`.
    fn request(&mut self, kind: Kind, answer: Kind, max_len: usize) -> Result<(), DataError> {
        self.stream.set_deadline(Some(self.deadline));
        let sent = wire::write(&mut *self.stream, kind, &self.request.bytes);
        self.request.bytes.clear();
        // A refusing server may close the stream during the request; read its reason first.
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
    /// Sends arbitrary bytes.
    pub(super) fn send_raw(&mut self, kind: Kind, body: &[u8]) {
        self.stream.set_deadline(Some(self.deadline));
        wire::write(&mut *self.stream, kind, body).expect("the server listens");
    }

    /// The underlying stream.
    pub(super) fn stream_mut(&mut self) -> &mut dyn Stream {
        &mut *self.stream
    }
}

/// Connects to the server, which may still be starting.
fn connect(addr: &str, world: &World, timeout: Duration) -> Result<Box<dyn Stream>, DataError> {
    let deadline = Deadline::after(world.clock(), timeout);
    loop {
        let remaining = deadline.remaining(world.clock());
        match world.net().connect(addr, remaining.max(Duration::from_millis(1))) {
            Ok(stream) => {
                // Without TCP_NODELAY the server is only slower.
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
        return Err(Malformed(format!("step {found} came instead of {step}")));
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
