//! `lockstep data inspect`: statistics and samples of a shard folder.

use crate::failure::Failure;
use crate::output;
use crate::quantity::si_bytes;
use lockstep_data::shards::{Manifest, ShardSet};
use lockstep_platform::World;
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;

/// Tokens listed per document.
const NUM_LISTED: u64 = 48;

/// Largest sample of document lengths for the median.
const MAX_SAMPLED: u64 = 1 << 20;

/// Show statistics of a shard folder and the first tokens of documents
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep data inspect shards
  lockstep data inspect shards --documents 10 --first 1000     documents 1000 to 1009
  lockstep data inspect shards --json | jq .manifest.num_tokens")]
pub(crate) struct Arguments {
    /// Shard folder
    folder: PathBuf,
    /// Number of documents to show
    #[arg(long, default_value = "3")]
    documents: u64,
    /// Index of the first one, from 0
    #[arg(long, default_value = "0")]
    first: u64,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    folder: PathBuf,
    fingerprint: String,
    file_bytes: u64,
    longest_document_tokens: u64,
    median_document_tokens: u64,
    documents: Vec<Document>,
    manifest: Manifest,
}

#[derive(Serialize)]
struct Document {
    index: u64,
    num_tokens: u64,
    /// The first tokens, and their text.
    tokens: Vec<u32>,
    text: String,
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    let set = ShardSet::open_unchecked(&arguments.folder, world.files())?;
    let num_documents = set.num_documents();
    if arguments.first >= num_documents.max(1) {
        let first = arguments.first;
        let line = format!("--first {first} is not below {num_documents}, the number of documents");
        return Err(Failure::user(line));
    }
    let tokenizer = set.tokenizer(world.files())?;
    let last = arguments.first.saturating_add(arguments.documents).min(num_documents);
    let mut documents = Vec::new();
    for index in arguments.first..last {
        let range = set.document(index);
        let num_tokens = range.end - range.start;
        let mut tokens = vec![0; num_tokens.min(NUM_LISTED) as usize];
        set.copy(range.start, &mut tokens)?;
        let text = tokenizer.decode(&tokens);
        documents.push(Document { index, num_tokens, tokens, text });
    }
    let (longest_document_tokens, median_document_tokens) = lengths(&set);
    let report = Report {
        folder: arguments.folder.clone(),
        fingerprint: set.fingerprint(),
        file_bytes: set.file_bytes(),
        longest_document_tokens,
        median_document_tokens,
        documents,
        manifest: set.manifest().clone(),
    };
    if arguments.json { output::json(&report) } else { output::text(&render(&report)) }
}

/// Longest and median document length; the median of very many is of an even sample.
fn lengths(set: &ShardSet) -> (u64, u64) {
    let stride = set.num_documents().div_ceil(MAX_SAMPLED).max(1);
    let (mut longest, mut sample) = (0, Vec::new());
    for index in 0..set.num_documents() {
        let range = set.document(index);
        longest = longest.max(range.end - range.start);
        if index.is_multiple_of(stride) {
            sample.push(range.end - range.start);
        }
    }
    sample.sort_unstable();
    (longest, sample.get(sample.len() / 2).copied().unwrap_or(0))
}

fn render(report: &Report) -> String {
    let manifest = &report.manifest;
    let mut text = String::new();
    let mut line = |label: &str, value: String| {
        let _ = writeln!(text, "{label:<16} {value}");
    };
    line("folder", report.folder.display().to_string());
    line("fingerprint", report.fingerprint.clone());
    line("documents", manifest.num_documents.to_string());
    line("tokens", manifest.num_tokens.to_string());
    line("text", si_bytes(manifest.num_bytes));
    let per_token = manifest.num_bytes as f64 / manifest.num_tokens.max(1) as f64;
    line("bytes per token", format!("{per_token:.2} of text, {} on disk", manifest.token_bytes));
    line("vocabulary", manifest.vocab.to_string());
    let end = manifest.end_of_document.map_or("none".to_owned(), |end| end.to_string());
    line("document end", end);
    let (longest, median) = (report.longest_document_tokens, report.median_document_tokens);
    line("document length", format!("median {median} tokens, longest {longest}"));
    line("shards", format!("{}, {} on disk", manifest.shards.len(), si_bytes(report.file_bytes)));
    for document in &report.documents {
        let Document { index, num_tokens, text: beginning, .. } = document;
        let _ = writeln!(text, "\ndocument {index}, {num_tokens} tokens:\n{beginning:?}");
    }
    text
}
