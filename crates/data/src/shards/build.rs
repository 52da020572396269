//! Tokenizes a corpus into a shard folder, on several threads.
//!
//! One thread reads and writes, the others encode. The reader cuts the corpus into numbered batches
//! by size alone; any free thread encodes one; the writer takes them in order. The folder does not
//! depend on the number of threads. Memory is bounded by the number of batches in flight: a slow
//! batch stalls the reader.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lockstep_platform::{JoinHandle, Queue, RecvError, World};

use super::error::ShardError;
use super::manifest::Manifest;
use super::writer::{ShardWriter, WriterOptions};
use crate::documents::{Documents, Piece};
use crate::error::DataError;
use crate::tokenizer::Tokenizer;

/// Bytes of text per batch.
const BATCH_BYTES: usize = 1 << 18;

/// Number of batches in flight per encoding thread.
const BATCHES_PER_THREAD: usize = 3;

/// Timeout of a batch, which normally takes tens of milliseconds.
const STALL: Duration = Duration::from_mins(2);

/// Options of a build.
#[derive(Debug, Clone, Copy)]
pub struct BuildOptions {
    /// Number of encoding threads, besides the one that reads and writes.
    pub num_threads: usize,
    /// Sizes of the shards.
    pub writer: WriterOptions,
}

/// Progress of a build.
#[derive(Debug, Clone, Copy, Default)]
pub struct BuildProgress {
    /// Number of bytes read from disk.
    pub read_bytes: u64,
    /// Size of the corpus on disk.
    pub total_bytes: u64,
    /// Number of bytes of text tokenized.
    pub text_bytes: u64,
    /// Number of tokens written.
    pub num_tokens: u64,
}

/// Result of a build.
#[derive(Debug, Clone)]
pub struct Built {
    /// Manifest of the folder.
    pub manifest: Manifest,
    /// Duration in seconds.
    pub seconds: f64,
}

/// Tokenizes all documents into a new folder. `progress` is called for every batch.
pub fn build(
    mut documents: Documents,
    tokenizer: &Tokenizer,
    target: &Path,
    options: BuildOptions,
    world: &World,
    progress: &mut dyn FnMut(BuildProgress),
) -> Result<Built, DataError> {
    let start = world.clock().now();
    let mut sink = Sink {
        writer: ShardWriter::create(target, tokenizer, options.writer, world)?,
        end_of_document: tokenizer.end_of_document(),
        document_bytes: 0,
        has_tokens: false,
        counters: BuildProgress {
            total_bytes: documents.total_bytes(),
            ..BuildProgress::default()
        },
    };
    let pool = Pool::start(options.num_threads.max(1), tokenizer, world)?;
    let limit = pool.threads.len() * BATCHES_PER_THREAD;
    let mut encoded = BTreeMap::new();
    let (mut num_sent, mut num_written, mut has_ended) = (0_u64, 0_u64, false);
    while !has_ended || num_written < num_sent {
        while !has_ended && num_sent - num_written < limit as u64 {
            match Batch::read(num_sent, &mut documents)? {
                Some(batch) => {
                    pool.send(batch)?;
                    num_sent += 1;
                }
                None => has_ended = true,
            }
        }
        if num_written < num_sent {
            let batch = pool.recv()?;
            encoded.insert(batch.number, batch);
        }
        while let Some(batch) = encoded.remove(&num_written) {
            sink.write(batch)?;
            num_written += 1;
        }
        sink.counters.read_bytes = documents.position_bytes();
        progress(sink.counters);
    }
    if sink.counters.num_tokens == 0 {
        return Err(ShardError::Nothing { source_name: documents.name().to_owned() }.into());
    }
    drop(pool);
    let manifest = sink.writer.finish()?;
    Ok(Built { manifest, seconds: world.clock().since(start).as_secs_f64() })
}

/// Throughput of the `tokenizers` crate alone, in bytes of text per second: its own batches on its
/// own threads, on the first documents of a corpus, loaded before the clock starts. None for the
/// byte tokenizer.
pub fn bench_tokenizers_crate(
    mut documents: Documents,
    tokenizer: &Tokenizer,
    sample_bytes: usize,
    num_threads: usize,
    world: &World,
) -> Result<Option<f64>, DataError> {
    let Some(tokenizer) = tokenizer.of_the_crate() else { return Ok(None) };
    let mut sample = Vec::new();
    let (mut text, mut num_bytes) = (String::new(), 0);
    while num_bytes < sample_bytes && documents.next_into(&mut text)?.is_some() {
        num_bytes += text.len();
        sample.push(text.clone());
    }
    let stopped = |reason: String| DataError::from(ShardError::Stopped { reason });
    let pool = rayon::ThreadPoolBuilder::new().num_threads(num_threads.max(1)).build();
    let pool = pool.map_err(|error| stopped(error.to_string()))?;
    let start = world.clock().now();
    let encoded = pool.install(|| {
        // In portions: the crate's encodings take a hundred times the memory of their tokens.
        let mut rest = &sample[..];
        while !rest.is_empty() {
            let mut portion_bytes = 0;
            let count = rest.iter().take_while(|text| {
                portion_bytes += text.len();
                portion_bytes <= num_threads * 2 * BATCH_BYTES
            });
            let count = count.count().max(1);
            let portion: Vec<&str> = rest[..count].iter().map(String::as_str).collect();
            tokenizer.encode_batch_fast(portion, false)?;
            rest = &rest[count..];
        }
        Ok::<(), tokenizers::Error>(())
    });
    encoded.map_err(|error| stopped(error.to_string()))?;
    let seconds = world.clock().since(start).as_secs_f64();
    Ok(Some(num_bytes as f64 / seconds))
}

/// Consecutive pieces of the corpus, as text and then as tokens.
struct Batch {
    number: u64,
    pieces: Vec<(String, Piece)>,
    tokens: Vec<u32>,
    /// End of each piece in the tokens.
    ends: Vec<usize>,
    failed: Option<DataError>,
}

impl Batch {
    /// Reads pieces until the batch is full.
    fn read(number: u64, documents: &mut Documents) -> Result<Option<Self>, DataError> {
        let (mut pieces, mut num_bytes) = (Vec::new(), 0);
        while num_bytes < BATCH_BYTES {
            let mut text = String::new();
            let Some(piece) = documents.next_into(&mut text)? else { break };
            num_bytes += text.len();
            pieces.push((text, piece));
        }
        let batch = Self { number, pieces, tokens: Vec::new(), ends: Vec::new(), failed: None };
        Ok((!batch.pieces.is_empty()).then_some(batch))
    }

    fn encode(&mut self, tokenizer: &Tokenizer) {
        for (text, _) in &self.pieces {
            if let Err(error) = tokenizer.encode(text, &mut self.tokens) {
                self.failed = Some(error);
                return;
            }
            self.ends.push(self.tokens.len());
        }
    }
}

/// Reassembles documents and writes them.
struct Sink {
    writer: ShardWriter,
    end_of_document: Option<u32>,
    /// Bytes of the current document's text.
    document_bytes: u64,
    /// Whether the current document has tokens.
    has_tokens: bool,
    counters: BuildProgress,
}

impl Sink {
    fn write(&mut self, batch: Batch) -> Result<(), DataError> {
        if let Some(error) = batch.failed {
            return Err(error);
        }
        let mut start = 0;
        for ((text, piece), end) in batch.pieces.iter().zip(batch.ends) {
            self.push(&batch.tokens[start..end])?;
            start = end;
            self.document_bytes += text.len() as u64;
            self.counters.text_bytes += text.len() as u64;
            if *piece == Piece::Last {
                if let Some(end) = self.end_of_document.filter(|_| self.has_tokens) {
                    self.push(&[end])?;
                }
                self.writer.end_document(self.document_bytes)?;
                (self.document_bytes, self.has_tokens) = (0, false);
            }
        }
        Ok(())
    }

    fn push(&mut self, tokens: &[u32]) -> Result<(), DataError> {
        if tokens.is_empty() {
            return Ok(());
        }
        self.has_tokens = true;
        self.counters.num_tokens += tokens.len() as u64;
        self.writer.push(tokens)
    }
}

/// Encoding threads.
struct Pool {
    work: Arc<Queue<Batch>>,
    done: Arc<Queue<Batch>>,
    threads: Vec<Box<dyn JoinHandle>>,
}

impl Pool {
    fn start(num_threads: usize, tokenizer: &Tokenizer, world: &World) -> Result<Self, DataError> {
        let capacity = num_threads * BATCHES_PER_THREAD;
        let queue = || Arc::new(Queue::new(world, capacity));
        let mut pool = Self { work: queue(), done: queue(), threads: Vec::new() };
        for index in 0..num_threads {
            let worker = Worker {
                work: Arc::clone(&pool.work),
                done: Arc::clone(&pool.done),
                tokenizer: tokenizer.clone(),
            };
            let name = format!("encode-{index}");
            pool.threads.push(world.threads().spawn(&name, Box::new(move || worker.run()))?);
        }
        Ok(pool)
    }

    fn send(&self, batch: Batch) -> Result<(), DataError> {
        // The queue has room for all batches in flight, so this never waits.
        self.work.send(batch, Duration::ZERO).map_err(|_| stopped("its threads have ended"))
    }

    fn recv(&self) -> Result<Batch, DataError> {
        self.done.recv(STALL).map_err(|error| match error {
            RecvError::Closed => stopped("a thread that encodes has panicked"),
            RecvError::TimedOut => stopped("a batch took more than two minutes"),
        })
    }
}

fn stopped(reason: &str) -> DataError {
    ShardError::Stopped { reason: reason.to_owned() }.into()
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.work.close();
        for thread in self.threads.drain(..) {
            // `recv` reported a panic; a thread that does not end is abandoned.
            if thread.finished_within(STALL) {
                let _ = thread.join();
            }
        }
    }
}

struct Worker {
    work: Arc<Queue<Batch>>,
    done: Arc<Queue<Batch>>,
    tokenizer: Tokenizer,
}

impl Worker {
    fn run(self) {
        loop {
            match self.work.recv(STALL) {
                Ok(mut batch) => {
                    batch.encode(&self.tokenizer);
                    if self.done.send(batch, Duration::ZERO).is_err() {
                        return;
                    }
                }
                Err(RecvError::Closed) => return,
                Err(RecvError::TimedOut) => {}
            }
        }
    }
}

/// Closes the queue when the thread panics, so that the reader gets an error.
impl Drop for Worker {
    fn drop(&mut self) {
        self.done.close();
    }
}
