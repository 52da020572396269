//! `lockstep data tokenize`: writes a corpus as token shards.

use super::corpus_args::CorpusArguments;
use super::progress::{Gauge, Meter};
use crate::failure::Failure;
use crate::output;
use crate::quantity::si_bytes;
use lockstep_config::units::Bytes;
use lockstep_data::shards::{
    BuildOptions, Manifest, ShardSet, WriterOptions, bench_tokenizers_crate, build,
};
use lockstep_data::{EndOfDocument, Tokenizer};
use lockstep_platform::World;
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;

/// Sample on which the `tokenizers` crate is timed alone.
const SAMPLE_BYTES: usize = 32 << 20;

/// Tokenize a corpus into shards that any number of workers can read
#[derive(clap::Args)]
#[command(after_help = "\
The folder has the tokens, the document boundaries, a copy of the tokenizer and a manifest with
checksums. It does not depend on --threads, is written atomically, and never overwrites another.
Memory stays below 500 MB for any corpus.

Examples:
  lockstep data tokenize bundled --tokenizer tokenizer.json --out shards
  lockstep data tokenize 'texts/*.parquet' --field content --tokenizer gpt2 --out shards --compare
  lockstep train --set data.source=shards --set model.vocab=4096")]
pub(crate) struct Arguments {
    #[command(flatten)]
    corpus: CorpusArguments,
    /// byte, a tokenizer.json, or a folder that has one
    #[arg(long)]
    tokenizer: String,
    /// Folder to write; it must be new or empty
    #[arg(long)]
    out: PathBuf,
    /// End-of-document token: auto (the tokenizer's own), none, or a token
    #[arg(long, default_value = "auto")]
    end_of_document: String,
    /// Size of a shard; documents are never split
    #[arg(long, default_value = "256MiB")]
    shard_size: Bytes,
    /// Encoding threads (default: one per core)
    #[arg(long)]
    threads: Option<usize>,
    /// Verify the checksums after writing
    #[arg(long)]
    check: bool,
    /// Also time the tokenizers crate alone on the first 32 MiB, with as many threads
    #[arg(long)]
    compare: bool,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    out: PathBuf,
    num_documents: u64,
    num_tokens: u64,
    num_bytes: u64,
    num_shards: usize,
    token_bytes: usize,
    vocab: usize,
    end_of_document: Option<u32>,
    threads: usize,
    seconds: f64,
    bytes_per_second: f64,
    /// Throughput of the `tokenizers` crate alone; null without `--compare`.
    crate_bytes_per_second: Option<f64>,
    peak_rss_bytes: u64,
    fingerprint: String,
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    let num_threads = arguments.threads.unwrap_or_else(|| world.threads().available());
    if num_threads == 0 {
        return Err(Failure::user("--threads 0 encodes nothing; try 1"));
    }
    if arguments.shard_size.0 == 0 {
        return Err(Failure::user("--shard-size 0 holds nothing; try 256MiB"));
    }
    let end: EndOfDocument = arguments.end_of_document.parse().unwrap_or_default();
    let tokenizer = Tokenizer::open(&arguments.tokenizer, world.files())?;
    let tokenizer = tokenizer.with_end_of_document(&end)?;
    let documents = arguments.corpus.open(world)?;
    let writer = WriterOptions { shard_bytes: arguments.shard_size.0 };
    let options = BuildOptions { num_threads, writer };
    let gauge = Arc::new(Gauge::default());
    let meter = Meter::start("tokenizing", &gauge, arguments.json, world)?;
    let built = build(documents, &tokenizer, &arguments.out, options, world, &mut |progress| {
        gauge.set(progress.read_bytes, progress.total_bytes, progress.text_bytes);
    });
    drop(meter);
    let built = built?;
    let peak_rss_bytes = world.host().peak_rss_bytes();
    let set = ShardSet::open_unchecked(&arguments.out, world.files())?;
    if arguments.check {
        set.verify()?;
    }
    let crate_bytes_per_second = if arguments.compare {
        let documents = arguments.corpus.open(world)?;
        bench_tokenizers_crate(documents, &tokenizer, SAMPLE_BYTES, num_threads, world)?
    } else {
        None
    };
    let Manifest { vocab, token_bytes, num_tokens, num_documents, num_bytes, shards, .. } =
        built.manifest;
    let report = Report {
        out: arguments.out.clone(),
        num_documents,
        num_tokens,
        num_bytes,
        num_shards: shards.len(),
        token_bytes,
        vocab,
        end_of_document: tokenizer.end_of_document(),
        threads: num_threads,
        seconds: built.seconds,
        bytes_per_second: num_bytes as f64 / built.seconds,
        crate_bytes_per_second,
        peak_rss_bytes,
        fingerprint: set.fingerprint(),
    };
    if arguments.json { output::json(&report) } else { output::text(&render(&report, arguments)) }
}

fn render(report: &Report, arguments: &Arguments) -> String {
    let Report { num_documents, num_tokens, num_bytes, num_shards, .. } = report;
    let mut text = format!(
        "{}: {num_documents} documents, {num_tokens} tokens in {num_shards} shards, {} bytes per \
         token\n",
        report.out.display(),
        report.token_bytes
    );
    let per_token = *num_bytes as f64 / *num_tokens as f64;
    let _ = writeln!(
        text,
        "{} of text from {}, {per_token:.2} bytes per token",
        si_bytes(*num_bytes),
        arguments.corpus.name()
    );
    let rate = report.bytes_per_second / 1e6;
    let (seconds, threads) = (report.seconds, report.threads);
    let _ = writeln!(text, "{rate:.2} MB/s: {seconds:.1} s with {threads} threads");
    if let Some(alone) = report.crate_bytes_per_second {
        let alone = alone / 1e6;
        let _ =
            writeln!(text, "{alone:.2} MB/s: the tokenizers crate alone, on a sample in memory");
    }
    let _ = writeln!(text, "peak memory {}", Bytes(report.peak_rss_bytes));
    text
}
